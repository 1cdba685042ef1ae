"""The services of `lakesync up` and `lakesync pipeline`: commands, order of start, and checks of readiness."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import requests

from lakesync.cli.up import dagster_home
from lakesync.cli.up.process import LOOPBACK, accepts
from lakesync.cli.up.service_environment import environment
from lakesync.cli.up.spark_server import SparkServer
from lakesync.config import Config

MARKER = "LAKESYNC_SUPERVISED"
"""Variable of every process below `lakesync up`; its value is the data folder."""

_FEW_ARENAS = {"MALLOC_ARENA_MAX": "1"}
"""glibc keeps memory apart for each thread: 45 MiB of an idle `lakesync up`. The gateway's threads need theirs."""
_HEALTH = """{
  workspaceOrError {
    ... on Workspace {
      locationEntries { loadStatus locationOrLoadError { __typename ... on PythonError { message } } }
    }
  }
}"""
_DAEMONS = "{ instance { daemonHealth { allDaemonStatuses { required healthy } } } }"


@dataclass(frozen=True, slots=True)
class Service:
    """One process to keep running, or to run once."""

    name: str
    command: tuple[str, ...]
    ready: Callable[[], bool]
    """Returns whether it is ready. For a service that runs once, a condition in addition to exit code 0."""
    environment: Mapping[str, str | None] = field(default_factory=dict, repr=False)
    """Added to this process's variables; None removes a variable."""
    after: tuple[str, ...] = ()
    """Services that must have been ready before it starts."""
    timeout: float = 120.0
    """Seconds until it must be ready."""
    where: str = ""
    """Its address, for display."""
    once: bool = False
    hint: str = ""
    """What to check if it does not start, for display."""


def services(
    config: Config, spark: SparkServer | None, code_port: int, workspace: Path, *, with_gateway: bool = True
) -> list[Service]:
    """Return the services that the configuration asks for.

    Args:
        config: with every port chosen.
        spark: the embedded Spark server; None where Spark runs elsewhere.
        code_port: where the code server listens.
        workspace: the workspace file.
        with_gateway: whether the gateway is one of them.
    """
    common = {MARKER: str(config.data_dir), "DAGSTER_HOME": str(config.dagster.home), "PYTHONUNBUFFERED": "1"}
    gateway_url, dagster_url = str(config.gateway.url), str(config.dagster.url)
    dagster = (sys.executable, "-m", "dagster")
    location = ("-m", "lakesync_dagster.definitions", "--location-name", "lakesync")
    # Only one process creates Dagster's storage: concurrent migrations of its schema fail.
    first = () if dagster_home.has_storage(config) else ("recovery",)
    # DefaultRunLauncher starts runs in the code server, launchers of containers in the daemon: both copy variables.
    launched = () if dagster_home.uses_run_host(config) else ("runs",)
    roles = {name: (name, *launched) for name in ("code_server", "daemon")}
    wanted = [
        Service(
            name="code_server",
            command=(*dagster, "code-server", "start", "-h", LOOPBACK, "-p", str(code_port), *location),
            ready=lambda: accepts(code_port),
            after=first,
            where=f"grpc port {code_port}",
        ),
        Service(
            name="dagster",
            command=(
                *(sys.executable, "-m", "lakesync_dagster.webserver", "--host", config.dagster.host),
                *("--port", str(config.dagster.port), "--workspace", str(workspace)),
                *(word for host in config.dagster.allowed_hosts for word in ("--allowed-host", host)),
            ),
            ready=lambda: location_loaded(dagster_url),
            after=("code_server",),
            where=dagster_url,
            hint="The code location must load; see the log of code_server too.",
        ),
        Service(
            name="daemon",
            command=(str(Path(sys.executable).with_name("dagster-daemon")), "run", "-w", str(workspace)),
            ready=lambda: _daemons_healthy(dagster_url),
            after=("code_server", "runs", "recovery", "gateway"),  # its sensors call the gateway
        ),
        Service(
            name="recovery",
            command=(sys.executable, "-m", "lakesync_dagster.recover"),
            ready=lambda: True,
            once=True,
        ),
    ]
    if with_gateway:
        wanted.insert(
            0,
            Service(
                name="gateway",
                command=(sys.executable, "-m", "gateway"),
                ready=lambda: _answers(f"{gateway_url}/ready"),
                where=gateway_url,
            ),
        )
    if dagster_home.uses_run_host(config):
        wanted.append(
            Service(
                name="runs",
                command=(sys.executable, "-m", "lakesync_dagster.run_host", str(dagster_home.run_socket(config))),
                ready=lambda: dagster_home.run_socket(config).exists(),
                after=first,
            )
        )
    if spark is not None:
        wanted.append(
            Service(
                name="spark",
                command=spark.command,
                environment=spark.environment,
                ready=lambda: accepts(spark.port) and _answers(f"{config.spark.ui_url}/api/v1/applications"),
                where=f"{spark.remote}, pages {config.spark.ui_url}",
            )
        )
    names = {service.name for service in wanted}
    return [
        replace(
            service,
            environment={
                **environment(roles.get(service.name, (service.name,)), config, os.environ),
                **common,
                **({} if service.name == "gateway" else _FEW_ARENAS),
                **service.environment,
            },
            after=tuple(name for name in service.after if name in names),
        )
        for service in wanted
    ]


def location_loaded(dagster_url: str) -> bool:
    """Return whether Dagster's webserver answers and has loaded a code location without an error."""
    entries = _query(dagster_url, _HEALTH).get("workspaceOrError", {}).get("locationEntries", [])
    return bool(entries) and all(
        (entry.get("locationOrLoadError") or {}).get("__typename") == "RepositoryLocation" for entry in entries
    )


def _daemons_healthy(dagster_url: str) -> bool:
    health = _query(dagster_url, _DAEMONS).get("instance", {}).get("daemonHealth", {})
    required = [status for status in health.get("allDaemonStatuses", []) if status["required"]]
    return bool(required) and all(status["healthy"] for status in required)


def _query(dagster_url: str, query: str) -> dict[str, Any]:
    try:
        answer = requests.post(f"{dagster_url}/graphql", json={"query": query}, timeout=5)
        data: dict[str, Any] | None = answer.json().get("data") if answer.ok else None
    except (requests.RequestException, ValueError):
        return {}
    return data or {}


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=2).ok
    except requests.RequestException:
        return False

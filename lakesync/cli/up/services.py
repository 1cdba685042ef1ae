"""The services (processes) of `lakesync up` and `lakesync pipeline`: commands, order of start, checks of readiness.

They are the gateway server (which apps call), Spark (which runs the pipeline's jobs), and the processes of Dagster:

- `code_server` loads LakeSync's definitions,
- `dagster` is the webserver,
- `daemon` runs sensors and schedules,
- `runs` is the run host, which starts runs, unless another run launcher is configured,
- `recovery` runs once, to correct Dagster's records of runs after a crash.

`stack` passes them to the `Supervisor`, which runs them.

A service's environment variables contain only the secrets that it uses. Services that read the configuration get the
settings as `LAKESYNC_*` variables, without the secrets that only others use. A secret may also be in a variable of any
other name, because a setting can refer to it by `env:NAME`. So every inherited variable is removed whose value contains
a secret that only other services use.
"""

from __future__ import annotations

import fnmatch
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import requests
from pydantic import SecretStr

from lakesync.cli.dagster_client import READY_SECONDS, DagsterClient
from lakesync.cli.up import dagster_home
from lakesync.cli.up.process import accepts
from lakesync.cli.up.spark_server import SparkServer
from lakesync.config import Config
from lakesync.model.errors import LakeSyncError
from lakesync.model.secrets import without_password

MARKER = "LAKESYNC_SUPERVISED"
"""Variable of every process that `lakesync up` started, and of their children. Its value is the data folder, by which
`stack` finds processes that were left behind."""

_FEW_ARENAS = {"MALLOC_ARENA_MAX": "1"}
"""Makes glibc share one memory arena between threads, which saves 45 MiB; the busy gateway is faster without it."""

_SECRETS_OF = {
    "gateway": frozenset(
        {
            *("jwt_secret", "jwt_secret_previous", "service_token", "metrics_token"),
            *("secret_key", "secret_key_previous", "gateway.issuers"),
        }
    ),
    "code_server": frozenset({"service_token", "dagster.alert_webhook", "dagster.alert_secret"}),
    "runs": frozenset({"service_token", "secret_key", "secret_key_previous", "spark.token"}),
    "query": frozenset({"service_token", "spark.token"}),  # the child of `lakesync query --engine spark`
}
"""Process that reads the configuration → the secrets that it uses. Other services get their settings as arguments."""
_OPEN_CONNECTORS = frozenset({"gateway", "runs"})
"""Services that open connectors, whose secrets may be in variables."""
_OPEN_STORAGE = frozenset({"code_server", "dagster", "daemon", "runs", "recovery"})
"""Services that open Dagster's storage, by the reference in `dagster.yaml`."""
_PREFIX = "LAKESYNC_"
"""The first characters of the variables that are settings."""
_CODE_TTL_SECONDS = 365 * 86_400
"""Seconds without a heartbeat after which the code server's child, which has loaded the definitions, ends.

The default of 30 s passes when a laptop sleeps. The code server does not start another child, so the supervisor
restarts it if the child ends. A child whose code server was killed ends with `lakesync up`."""
_UNIQUE_CHARS = 16
"""A secret of at least this length is not part of another variable's value by chance."""


@dataclass(frozen=True, slots=True)
class Service:
    """A process to keep running, or to run once."""

    name: str
    command: tuple[str, ...]
    ready: Callable[[], bool]
    """Returns whether the service is ready. If it runs once, it must also have exited with code 0."""
    environment: Mapping[str, str | None] = field(default_factory=dict, repr=False)
    """Variables to add to those of this process; None removes a variable."""
    after: tuple[str, ...] = ()
    """Names of services that must have been ready before this one starts."""
    timeout: float = 120.0
    """Seconds until the service must be ready."""
    where: str = ""
    """The service's address, for display."""
    once: bool = False
    """Whether the process runs once and ends, instead of being kept running."""
    needs_child: bool = False
    """Whether the process is of no use after its last child process ended, so that it is restarted."""
    waits_by_clock: bool = False
    """Whether the process waits until times of the wall clock, so that it is restarted if the clock is set back."""
    hint: str = ""
    """What to check if the service does not start, for display."""


def services(config: Config, spark: SparkServer | None, workspace: Path, *, with_gateway: bool = True) -> list[Service]:
    """Return the services that the configuration asks for.

    Args:
        config: the settings, with every port chosen.
        spark: the embedded Spark server; None if an external Spark is configured.
        workspace: Dagster's workspace file, which names the code server.
        with_gateway: whether to include the gateway.
    """
    uses_run_host = dagster_home.uses_run_host(config)
    # Only one process creates Dagster's storage: concurrent migrations of its schema fail.
    storage_creator = () if dagster_home.has_storage(config) else ("recovery",)
    result = [
        *([_gateway(config)] if with_gateway else ()),
        *_dagster_processes(config, workspace, storage_creator),
        *([_run_host(config, storage_creator)] if uses_run_host else ()),
        *([_spark(config, spark)] if spark is not None else ()),
    ]
    # Without the run host, runs get the variables of the process that launches them: the code server
    # (DefaultRunLauncher) or the daemon (launchers of containers). So these need the secrets of runs too.
    launched_roles = () if uses_run_host else ("runs",)
    roles = {name: (name, *launched_roles) for name in ("code_server", "daemon")}
    common = {MARKER: str(config.data_dir), "DAGSTER_HOME": str(config.dagster.home), "PYTHONUNBUFFERED": "1"}
    names = {service.name for service in result}
    return [
        replace(
            service,
            environment={
                **environment_of(roles.get(service.name, (service.name,)), config, os.environ),
                **common,
                **({} if service.name == "gateway" else _FEW_ARENAS),
                **service.environment,
            },
            after=tuple(name for name in service.after if name in names),
        )
        for service in result
    ]


def environment_of(roles: Collection[str], config: Config, inherited: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes to the variables that a child process inherits; None removes a variable.

    Args:
        roles: the process's name, and the names of services whose work it also does, as in `_SECRETS_OF`.
        config: the settings, with all ports and secrets.
        inherited: the variables of this process, which its children inherit.
    """
    reads_settings = any(role in _SECRETS_OF for role in roles)
    allowed = {name for role in roles for name in _SECRETS_OF.get(role, ())}
    storage = config.dagster.storage_url if not _OPEN_STORAGE.isdisjoint(roles) else None
    secrets = list(_secrets(config))
    own_secrets = {value for name, value in secrets if name in allowed}
    if storage is not None:
        own_secrets.add(storage.get_secret_value())
    others_secrets = {value for _, value in secrets if value} - own_secrets
    if not reads_settings:
        others_secrets.update(_urls_with_password(config))
    changes: dict[str, str | None] = {}
    for name, value in inherited.items():
        is_setting = name.startswith(_PREFIX)
        is_others_secret = any(_has_secret(value, secret) for secret in others_secrets)
        is_unused_connector_secret = _OPEN_CONNECTORS.isdisjoint(roles) and _is_connector_secret(name, config)
        if is_setting or is_others_secret or is_unused_connector_secret:
            changes[name] = None
    if reads_settings:
        changes |= _without_settings(config, frozenset(name for name, _ in secrets) - allowed).environment()
    if storage is not None:
        # dagster-postgres is made for psycopg2, which SQLAlchemy 2.1 no longer chooses by itself
        address = storage.get_secret_value().removeprefix("postgresql")
        changes[dagster_home.STORAGE_VARIABLE] = f"postgresql+psycopg2{address}"
    return changes


def _gateway(config: Config) -> Service:
    """Return the gateway server, without its environment."""
    url = str(config.gateway.url)
    return Service(
        name="gateway",
        command=(sys.executable, "-m", "gateway"),
        ready=lambda: _answers(f"{url}/ready"),
        where=url,
    )


def _dagster_processes(config: Config, workspace: Path, storage_creator: tuple[str, ...]) -> list[Service]:
    """Return Dagster's code server, webserver and daemon, and `recovery`, without their environments.

    Args:
        config: the settings, with every port chosen.
        workspace: Dagster's workspace file.
        storage_creator: the service that creates Dagster's storage, if it is missing; else empty.
    """
    url = str(config.dagster.url)
    client = DagsterClient(url, READY_SECONDS)
    socket = dagster_home.code_socket(config)
    return [
        Service(
            name="code_server",
            command=(
                *(sys.executable, "-m", "dagster", "code-server", "start", "--socket", str(socket)),
                *("--heartbeat-ttl", str(_CODE_TTL_SECONDS)),
                *("-m", "lakesync_dagster.definitions", "--location-name", "lakesync"),
            ),
            ready=lambda: accepts(socket),
            after=storage_creator,
            needs_child=True,
        ),
        Service(
            name="dagster",
            command=(
                *(sys.executable, "-m", "lakesync_dagster.webserver", "--host", config.dagster.host),
                *("--port", str(config.dagster.port), "--workspace", str(workspace)),
                *(word for host in config.dagster.allowed_hosts for word in ("--allowed-host", host)),
            ),
            ready=lambda: _confirms(client.is_location_loaded),
            after=("code_server",),
            where=url,
            hint="The code location must load; see the log of code_server too.",
        ),
        Service(
            name="daemon",
            command=(sys.executable, "-m", "lakesync_dagster.daemon", "-w", str(workspace)),
            ready=lambda: _confirms(client.are_daemons_healthy),
            after=("code_server", "runs", "recovery", "gateway"),  # its sensors call the gateway
            waits_by_clock=True,
        ),
        Service(
            name="recovery", command=(sys.executable, "-m", "lakesync_dagster.recover"), ready=lambda: True, once=True
        ),
    ]


def _run_host(config: Config, storage_creator: tuple[str, ...]) -> Service:
    """Return the run host, without its environment; `storage_creator` is as for `_dagster_processes`."""
    socket = dagster_home.run_socket(config)
    return Service(
        name="runs",
        command=(sys.executable, "-m", "lakesync_dagster.run_host", str(socket)),
        ready=socket.exists,
        after=storage_creator,
    )


def _spark(config: Config, spark: SparkServer) -> Service:
    """Return the embedded Spark server, with the variables that only it needs."""
    return Service(
        name="spark",
        command=spark.command,
        environment=spark.environment,
        ready=lambda: accepts(spark.port) and _answers(f"{config.spark.ui_url}/api/v1/applications"),
        where=f"{spark.remote}, pages {config.spark.ui_url}",
    )


def _confirms(check: Callable[[], bool]) -> bool:
    """Return the result of a check of Dagster; False if Dagster does not answer."""
    try:
        return check()
    except LakeSyncError:
        return False


def _answers(url: str) -> bool:
    """Return whether a GET request succeeds."""
    try:
        return requests.get(url, timeout=2).ok
    except requests.RequestException:
        return False


def _has_secret(value: str, secret: str) -> bool:
    """Return whether a variable's value is a secret, or contains one that is too long to be there by chance."""
    return value == secret or (len(secret) >= _UNIQUE_CHARS and secret in value)


def _secrets(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the name and value of every secret; each issuer's has the name `gateway.issuers`."""
    for name, value in config.settings():
        if isinstance(value, SecretStr):
            yield name, value.get_secret_value()
    for issuer in config.gateway.issuers:
        if issuer.secret is not None:
            yield "gateway.issuers", issuer.secret.get_secret_value()


def _urls_with_password(config: Config) -> Iterator[str]:
    """Yield the URLs of stores and backends that contain a password. Every service that reads settings needs them."""
    shards = config.shard_config.stores.values() if config.shard_config is not None else ()
    urls = (config.staging.url, config.lake.catalog_uri, config.flush.to_uri, config.flush.queue)
    sources = (source.uri for source in config.sources.values())
    for url in (*urls, *config.adapters.values(), *sources, *shards):
        if without_password(url) != url:
            yield url


def _without_settings(config: Config, names: frozenset[str]) -> Config:
    """Return a configuration without the settings with these names, as `_secrets` yields them."""
    changes: dict[str, Any] = {}
    for name in names:
        section, _, key = name.partition(".")
        if key:
            changes.setdefault(section, {})[key] = () if name == "gateway.issuers" else None
        else:
            changes[name] = None
    return config.replace(**changes)


def _is_connector_secret(name: str, config: Config) -> bool:
    """Return whether the secret of a connector may be in this variable, by `[connectors] allowed_references`."""
    patterns = [each.removeprefix("env:") for each in config.connectors.allowed_references if each.startswith("env:")]
    return any(fnmatch.fnmatchcase(name, pattern.replace("{gateway}", "*")) for pattern in patterns)

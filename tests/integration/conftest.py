"""A real gateway: uvicorn on a free port over a SQLite staging store, in this process or in a separate one."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from gateway.server import GatewayServer, create_app, listen
from gateway.settings import GatewaySettings
from lakesync.config.sections import LimitsSection
from lakesync.connectors.host_policy import HostPolicy
from lakesync.connectors.registry import Connectors
from lakesync.connectors.secrets import Secrets
from lakesync.engine import Engine, EngineLimits
from lakesync.staging import open_staging
from lakesync.staging.shards import ShardMap
from lakesync.wire.frame_storage import s3_file_system
from tests.forked import Forked, gateway
from tests.integration.gateway_support import (
    DEADLINE,
    PREVIOUS,
    SECRET,
    SERVICE,
    Process,
    Served,
    read_log,
    until,
    wall_ms,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page

Serve = Callable[..., Served]
OWN_PLACES = ("http://127.0.0.1:", "about:", "data:")
"""URLs from which a gateway's page may load."""


@pytest.fixture(scope="module")
def serve(tmp_path_factory) -> Iterator[Serve]:
    """Starts servers with given settings; all of them stop at the end of the module."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    running: list[tuple[GatewayServer, threading.Thread, Engine, socket.socket]] = []

    def start(
        limits: EngineLimits | None = None,
        auto_create: bool = True,
        shards: ShardMap | None = None,
        staging: str | None = None,
        wall: Callable[[], int] = wall_ms,
        http_limits: Mapping[str, float] | None = None,
        **changes: Any,
    ) -> Served:
        settings = GatewaySettings(
            **{
                "secrets": (SECRET, PREVIOUS),
                "service_token": SERVICE,
                "auto_create": auto_create,
                "limits": LimitsSection(**(http_limits or {})),
                "engine_limits": limits or EngineLimits(),
                **changes,
            }
        )
        store = open_staging(staging or f"sqlite://{tmp_path_factory.mktemp('staging')}", shards, wall)
        connectors = Connectors(
            Secrets(["the key that seals these tests' secrets"]), hosts=HostPolicy(("*", "127.0.0.1"))
        )
        engine = Engine(store, wall, settings.engine_limits, auto_create=auto_create, connectors=connectors)
        engine.open()
        bound = listen(settings.host, 0)
        server = GatewayServer(create_app(settings, engine), settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        running.append((server, thread, engine, bound))
        return Served(f"http://127.0.0.1:{bound.getsockname()[1]}", engine, settings)

    yield start
    for server, thread, engine, bound in running:
        server.should_exit = True
        thread.join(DEADLINE)
        engine.close()
        bound.close()
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def served(serve) -> Served:
    return serve()


@pytest.fixture
def spawn(tmp_path) -> Iterator[Callable[..., Process]]:
    """Starts server processes over one data folder; with `ready=False`, waits for their exit instead."""
    yield from _spawning(tmp_path)


@pytest.fixture(scope="module")
def spawn_for_module(tmp_path_factory) -> Iterator[Callable[..., Process]]:
    """As `spawn`, for all tests of a module."""
    yield from _spawning(tmp_path_factory.mktemp("served"))


def _spawning(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    processes: list[Forked] = []

    def start(*, ready: bool = True, **variables: str) -> Process:
        log = tmp_path / f"gateway-{len(processes)}.log"
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LAKESYNC_")},
            "LAKESYNC_CONFIG": "",
            "LAKESYNC_DATA_DIR": str(tmp_path / "data"),
            "LAKESYNC_GATEWAY_PORT": "0",
            "LAKESYNC_JWT_SECRET": SECRET,
            "LAKESYNC_SERVICE_TOKEN": SERVICE,
            **variables,
        }
        environment = {name: value for name, value in environment.items() if value or name == "LAKESYNC_CONFIG"}
        process = Forked(gateway, environment=environment, log=log)
        processes.append(process)
        if not ready:
            process.wait(DEADLINE)
            return Process(process, "", log)

        def listening() -> str | None:
            assert process.poll() is None, log.read_text()
            return next((line["url"] for line in read_log(log) if line["event"] == "listening"), None)

        return Process(process, until(listening, "the server"), log)

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def aws(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Set the variables by which every library finds the shared S3."""
    variables = {
        "AWS_ENDPOINT_URL": s3_endpoint,
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_REGION": "us-east-1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    s3_file_system.cache_clear()
    yield variables
    s3_file_system.cache_clear()


@pytest.fixture(scope="module")
def _served_by_shards(serve) -> Served:
    return serve(shards=ShardMap({"orders": "shard-orders"}, "shard-default"))


@pytest.fixture(scope="module")
def _served_by_postgres(serve, postgres_uri) -> Served:
    return serve(staging=postgres_uri)


@pytest.fixture(params=["served", "_served_by_shards", "_served_by_postgres"], ids=["sqlite", "shards", "postgres"])
def server(request) -> Served:
    """A server over each kind of store; with shards, `orders` has a store of its own."""
    found: Served = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A browser page; the test fails if the page fails or loads anything from another server."""
    from playwright.sync_api import sync_playwright

    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("Chromium is not installed; scripts/install --dev installs it where apt-get is permitted")
    faults: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        opened = browser.new_page()
        opened.set_default_timeout(DEADLINE * 1000)
        opened.on("pageerror", lambda error: faults.append(str(error)))
        opened.on(
            "console",
            lambda message: faults.append(message.text) if "Content Security Policy" in message.text else None,
        )
        opened.on("request", lambda asked: None if asked.url.startswith(OWN_PLACES) else faults.append(asked.url))
        yield opened
        browser.close()
    assert faults == []

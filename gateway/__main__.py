"""The gateway server's process, `python -m gateway`: it serves one staging store until a signal stops it."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import closing

import structlog

from gateway.app import create_app
from gateway.bind_policy import check_bind_address
from gateway.flushing import Backends
from gateway.logs import configure_logging
from gateway.server import GatewayServer, listen
from gateway.services import Services
from gateway.settings import GatewaySettings
from lakesync import config
from lakesync.connectors import Connectors
from lakesync.engine import Engine
from lakesync.model.errors import LakeSyncError
from lakesync.model.hlc import WallClock
from lakesync.model.private_files import UMASK
from lakesync.staging import configured_store

log = structlog.get_logger("gateway")

_GC_THRESHOLDS = (20_000, 20, 50)
"""Thresholds for rarer garbage collection: a push creates thousands of objects, and hardly any reference cycle."""
_SWITCH_SECONDS = 0.0005
"""Interval at which Python switches threads. Two are busy: the event loop and the store."""


def serve(configured: config.Config) -> None:
    """Serve until a signal stops the server.

    Args:
        configured: the project's configuration.

    Raises:
        ConfigurationError, StartupError, StagingUnavailableError, StagingVersionError: the server cannot start.
    """
    settings = GatewaySettings.of(configured)
    check_bind_address(settings)
    if not settings.requires_tokens:
        log.warning("no LAKESYNC_JWT_SECRET is set: every caller on this machine is an admin", host=settings.host)
    wall = WallClock(configured.clock_offset_file).now_ms
    with listen(settings.host, settings.port) as bound, closing(Backends(configured)) as backends:
        store = configured_store(configured, wall)
        engine = Engine(
            store,
            wall,
            settings.limits,
            auto_create=settings.auto_create,
            connectors=Connectors.configured(configured),
            write_scopes={name: declared.write_scope for name, declared in configured.gateways.items()},
            outlet=backends.outlet,
            sources=backends.sources,
            namespaces=configured.namespaces,
        )
        app = create_app(settings, engine)
        metrics = Services.of_app(app).metrics
        try:
            gc.collect()
            gc.freeze()  # objects up to here live as long as the process
            GatewayServer(app, settings, backends.startup(engine, metrics)).run(sockets=[bound])
        finally:
            backends.finish()
            engine.close()


def main() -> int:
    """Read the configuration and serve. Return 0, or 1 if the server cannot start or fails with a known error."""
    configure_logging()
    os.umask(UMASK)
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        serve(config.load())
    except LakeSyncError as error:
        log.error("the gateway cannot run", code=error.code, reason=str(error))  # noqa: TRY400 a traceback would add nothing
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

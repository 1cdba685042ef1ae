"""The gateway server's process, `python -m gateway`: it serves one staging store until a signal stops it.

A gateway is one app's stream of changes, and one server serves many. The staging store is the folder of SQLite files,
or the Postgres database, with the logs and settings of all of them. `lakesync up`, or a service manager such as
systemd, starts the process. It logs one JSON object per line to stderr, also for uvicorn and other libraries.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
import time
from contextlib import closing
from typing import Any, BinaryIO, cast

import msgspec
import structlog
from structlog.typing import EventDict, Processor

from gateway.bind_policy import check_bind_address
from gateway.bootstrap import Backends
from gateway.dependencies import Services
from gateway.server import GatewayServer, create_app, listen
from gateway.settings import GatewaySettings
from lakesync import config
from lakesync.analysis.lost_store import check_not_lost
from lakesync.connectors import Connectors
from lakesync.engine import Engine
from lakesync.model.errors import LakeSyncError
from lakesync.model.hlc import OffsetClock
from lakesync.model.secrets import UMASK
from lakesync.staging import configured_store


class _TimestampProcessor:
    """Adds the UTC time in microseconds. Formatting the seconds is slow, so it is done once a second."""

    def __init__(self) -> None:
        self._formatted = (0, "")
        """The newest second since 1970 that was formatted, and its text."""

    def __call__(self, _: Any, __: str, entry: EventDict) -> EventDict:
        """Add the time to a log entry."""
        seconds, micros = divmod(time.time_ns() // 1000, 1_000_000)
        second, text = self._formatted
        if second != seconds:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
            self._formatted = (seconds, text)
        entry["timestamp"] = f"{text}.{micros:06d}Z"
        return entry


class _LineWriter:
    """Writes each line with one system call, for structlog. It never fails, even if the disk is full.

    It counts lost lines, and writes their number before the next line that can be written.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lost = 0
        self._line_end = b""
        """The newline that a partly written line still needs."""

    def write(self, line: bytes) -> None:
        """Write a line that ends with a newline. The caller makes sure that only one thread writes at a time."""
        if self._lost:
            line = (
                self._line_end
                + _render_bytes(None, "", {"event": "log lines lost", "lines": self._lost})
                + b"\n"
                + line
            )
        try:
            written = os.write(self._descriptor, line)
        except OSError:
            self._lost += 1
            return
        is_complete = written == len(line)
        self._lost, self._line_end = (0, b"") if is_complete else (self._lost + 1, b"\n")

    def flush(self) -> None:
        """Do nothing: there is no buffer."""


log = structlog.get_logger("gateway")

_GC_THRESHOLDS = (20_000, 20, 50)
"""Thresholds for rarer garbage collection: a push creates thousands of objects, and hardly any reference cycle."""
_SWITCH_SECONDS = 0.002
"""Interval at which Python switches threads. Two are busy: the event loop and the store."""


def serve(configured: config.Config) -> None:
    """Serve until a signal stops the server.

    Args:
        configured: the project's configuration.

    Raises:
        ConfigurationError: a setting is invalid, or the staging store was lost.
        StartupError, StagingUnavailableError, StagingVersionError: the server cannot start.
    """
    settings = GatewaySettings.of(configured)
    check_bind_address(settings)
    check_not_lost(configured)
    if not settings.requires_tokens:
        log.warning("no LAKESYNC_JWT_SECRET is set: every caller on this machine is an admin", host=settings.host)
    wall = OffsetClock(configured.clock_offset_file).now_ms
    with listen(settings.host, settings.port) as bound, closing(Backends(configured)) as backends:
        store = configured_store(configured, wall)
        engine = Engine(
            store,
            wall,
            settings.engine_limits,
            auto_create=settings.auto_create,
            connectors=Connectors.configured(configured),
            write_scopes={name: declared.write_scope for name, declared in configured.gateways.items()},
            outlet=backends.outlet,  # the target of the server's own flushes
            sources=backends.sources,
            namespaces=configured.namespaces,
        )
        app = create_app(settings, engine)
        start_engine = backends.engine_starter(engine, Services.of_app(app).metrics)
        try:
            gc.collect()
            gc.freeze()  # objects up to here live as long as the process
            GatewayServer(app, settings, start_engine).run(sockets=[bound])
        finally:
            backends.finish()  # the last flush; it needs the engine and the adapters, which are closed after it
            engine.close()


def main() -> int:
    """Read the configuration and serve. Return 0, or 1 if the server cannot start or fails with a known error."""
    _configure_logging()
    os.umask(UMASK)
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        serve(config.load())
    except LakeSyncError as error:
        log.error("the gateway cannot run", code=error.code, reason=str(error))  # noqa: TRY400 a traceback would add nothing
        return 1
    return 0


def _configure_logging() -> None:
    """Set up logging for this process. Call it once, before anything is logged."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        _TimestampProcessor(),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, _render_bytes],
        logger_factory=structlog.BytesLoggerFactory(cast("BinaryIO", _LineWriter(sys.stderr.fileno()))),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _render_text],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def _render_bytes(_: Any, __: str, entry: EventDict) -> bytes:
    """Return a log entry as JSON that begins with its time, level and event. A structlog processor."""
    first = {name: entry.pop(name) for name in ("timestamp", "level", "event") if name in entry}
    try:
        return msgspec.json.encode(first | dict(entry), enc_hook=str)
    except UnicodeEncodeError:  # half of a surrogate pair, as in a file's name that is not UTF-8
        return json.dumps(first | dict(entry), default=str).encode()


def _render_text(logger: Any, method: str, entry: EventDict) -> str:
    """Return a log entry as `_render_bytes` does, for the `logging` module, whose handlers take text."""
    return _render_bytes(logger, method, entry).decode()


if __name__ == "__main__":
    argparse.ArgumentParser(
        "python -m gateway",
        description="Serve the gateway until SIGTERM. It takes no arguments; lakesync.toml and the environment "
        "configure it, as docs/configuration.md describes.",
    ).parse_args()
    sys.exit(main())

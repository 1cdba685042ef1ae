"""Logs: one JSON object a line on stderr, those of uvicorn and other libraries included."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any, BinaryIO, cast

import msgspec
import structlog
from structlog.typing import EventDict, Processor


class _Stamp:
    """The time, in UTC, to the microsecond; what stays the same for a second is made once."""

    def __init__(self) -> None:
        self._known = (0, "")

    def __call__(self, _: Any, __: str, entry: EventDict) -> EventDict:
        seconds, micros = divmod(time.time_ns() // 1000, 1_000_000)
        known, text = self._known
        if known != seconds:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
            self._known = (seconds, text)
        entry["timestamp"] = f"{text}.{micros:06d}Z"
        return entry


def configure_logging() -> None:
    """Set up logging of this process; once, before anything is logged."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        _Stamp(),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, _render_bytes],
        logger_factory=structlog.BytesLoggerFactory(cast("BinaryIO", _Lines(sys.stderr.fileno()))),
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


class _Lines:
    """Where lines go, one write each. Who writes one never fails for it, whether the disk is full or its reader gone.

    What was lost is counted, and told of by the next line that can be written.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lost = 0
        self._torn = b""
        """What ends a line of which only a part was written."""

    def write(self, line: bytes) -> None:
        """Write a line, with its end; not from two threads at once."""
        if self._lost:
            line = self._torn + _render_bytes(None, "", {"event": "log lines lost", "lines": self._lost}) + b"\n" + line
        try:
            written = os.write(self._descriptor, line)
        except OSError:
            self._lost += 1
            return
        whole = written == len(line)
        self._lost, self._torn = (0, b"") if whole else (self._lost + 1, b"\n")

    def flush(self) -> None:
        """Nothing waits."""


def _render_bytes(_: Any, __: str, entry: EventDict) -> bytes:
    first = {name: entry.pop(name) for name in ("timestamp", "level", "event") if name in entry}
    return msgspec.json.encode(first | dict(entry), enc_hook=str)


def _render_text(logger: Any, method: str, entry: EventDict) -> str:
    return _render_bytes(logger, method, entry).decode()

"""Configures logging: one JSON object per line on stderr, for the gateway, uvicorn and other libraries.

`python -m gateway` calls it.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any, BinaryIO, cast

import msgspec
import structlog
from structlog.typing import EventDict, Processor


class _TimestampProcessor:
    """Adds the UTC time in microseconds. Formatting the seconds is slow, so it is done once a second."""

    def __init__(self) -> None:
        self._formatted = (0, "")

    def __call__(self, _: Any, __: str, entry: EventDict) -> EventDict:
        seconds, micros = divmod(time.time_ns() // 1000, 1_000_000)
        second, text = self._formatted
        if second != seconds:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
            self._formatted = (seconds, text)
        entry["timestamp"] = f"{text}.{micros:06d}Z"
        return entry


def configure_logging() -> None:
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


class _LineWriter:
    """Writes each line with one system call. It never fails, even if the disk is full or the pipe is closed.

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
        complete = written == len(line)
        self._lost, self._line_end = (0, b"") if complete else (self._lost + 1, b"\n")

    def flush(self) -> None:
        """Do nothing: there is no buffer."""


def _render_bytes(_: Any, __: str, entry: EventDict) -> bytes:
    first = {name: entry.pop(name) for name in ("timestamp", "level", "event") if name in entry}
    return msgspec.json.encode(first | dict(entry), enc_hook=str)


def _render_text(logger: Any, method: str, entry: EventDict) -> str:
    return _render_bytes(logger, method, entry).decode()

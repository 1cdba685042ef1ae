"""Logs: one JSON object a line on stderr, those of uvicorn and other libraries included."""

from __future__ import annotations

import logging
import sys
from typing import Any

import msgspec
import structlog
from structlog.typing import EventDict, Processor


def configure_logging() -> None:
    """Set up logging of this process; once, before anything is logged."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, _render_bytes],
        logger_factory=structlog.BytesLoggerFactory(sys.stderr.buffer),
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
    first = {name: entry.pop(name) for name in ("timestamp", "level", "event") if name in entry}
    return msgspec.json.encode(first | dict(entry), enc_hook=str)


def _render_text(logger: Any, method: str, entry: EventDict) -> str:
    return _render_bytes(logger, method, entry).decode()

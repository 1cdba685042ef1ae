"""How a connector is polled: what its `ingest` says, and what holds where it says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lakesync.connectors.polling import BUDGET_BYTES, DELETED_SHARE


class Ingest(msgspec.Struct, frozen=True, rename="camel"):
    """The settings of `ingest` that every type of connector has."""

    interval_ms: int = 10_000
    """Between the beginnings of two polls."""
    chunk_size: int = 500
    """Deltas in one push."""
    memory_budget_bytes: int = BUDGET_BYTES
    """Bytes of deltas that a poll holds; a task lands four times as much of a long reading at once."""
    max_calls: int | None = None
    """Calls that a poll's tasks make together, repeats included; None: as many as it takes."""
    census_interval_ms: int = 86_400_000
    """Between two counts of what is still there."""
    deleted_share: float = DELETED_SHARE
    """Of a table's rows, which a count may delete."""

    @classmethod
    def of(cls, ingest: Mapping[str, Any]) -> Ingest:
        """Those of a connector; its tables are its type's own concern."""
        return msgspec.convert(ingest, cls)

"""How much one request may ask for and how much a gateway may hold."""

from __future__ import annotations

import msgspec

from lakesync.actions.limits import ActionLimits
from lakesync.staging.records import WriteScope

DEFAULT_PULL = 100
MAX_PULL = 10_000
MAX_ROW_COLUMNS = 1_000
"""Columns of one row: each costs memory and time whenever the row is merged."""


class EngineLimits(msgspec.Struct, frozen=True):
    """Limits of the engine; those of HTTP are the server's."""

    max_deltas: int = 10_000
    """Deltas in one push."""
    max_backpressure_bytes: int = 1 << 30
    """Stored bytes not yet in the lake, per gateway, above which a push is answered with BACKPRESSURE_ERROR."""
    retry_after: float = 5.0
    """Seconds that a client is told to wait then."""
    actions: ActionLimits = ActionLimits()
    """How much actions may ask for, and how long they are remembered."""
    reindex_rows: int = 500
    """Rows that one commit brings in line with rules that changed; pushes come in between."""
    write_scope: WriteScope = "visible"
    """Which rows a client may push to, unless it was set at run time."""

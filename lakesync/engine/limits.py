"""Limits of requests and of a gateway's backlog."""

from __future__ import annotations

import msgspec

from lakesync.actions.limits import ActionLimits
from lakesync.staging.records import WriteScope

DEFAULT_PULL = 100
MAX_PULL = 10_000
MAX_ROW_COLUMNS = 1_000
"""Most columns of a row: each costs memory and time whenever the row is merged."""


class EngineLimits(msgspec.Struct, frozen=True):
    """Limits that the engine enforces; `GatewaySettings` has those of HTTP."""

    max_deltas: int = 10_000
    """Deltas in one push."""
    max_backpressure_bytes: int = 1 << 30
    """Unflushed bytes of a gateway above which a push is rejected with BACKPRESSURE_ERROR."""
    retry_after: float = 5.0
    """Seconds until a client should retry after BACKPRESSURE_ERROR."""
    actions: ActionLimits = ActionLimits()
    """Limits of actions, and how long their outcomes are kept."""
    reindex_rows: int = 500
    """Rows that one commit updates after a change of rules; pushes run in between."""
    write_scope: WriteScope = "visible"
    """Which rows a client may write, unless an admin set it at run time."""

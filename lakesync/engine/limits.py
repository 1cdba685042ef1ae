"""Limits of requests and of a gateway's backlog. The gateway server fills `EngineLimits` from its settings."""

from __future__ import annotations

import msgspec

from lakesync.actions.action_services import ActionLimits
from lakesync.staging.records import WriteScope

DEFAULT_PULL = 100
"""Deltas in a page if the request names no limit."""
MAX_PULL = 10_000
"""The most deltas that a pull may request for a page."""
MAX_ROW_COLUMNS = 1_000
"""The most columns of a row: each costs memory and time whenever the row is merged."""


class EngineLimits(msgspec.Struct, frozen=True):
    """Limits that the engine enforces; `GatewaySettings` has those of HTTP."""

    max_deltas: int = 10_000
    """The most deltas in one push."""
    max_backpressure_bytes: int = 1 << 30
    """Stored bytes of a gateway's unflushed deltas above which a push is rejected with BACKPRESSURE_ERROR."""
    retry_after: float = 5.0
    """Seconds until a client should retry after BACKPRESSURE_ERROR."""
    actions: ActionLimits = ActionLimits()
    """Limits of requests for actions, and how long the outcomes of actions are kept."""
    reindex_rows: int = 500
    """Rows that one commit updates after a change of rules; pushes run between these commits."""
    write_scope: WriteScope = "visible"
    """Which rows clients may push to, unless an admin set it at run time: `any` row, rows that are `visible` to the
    client before the push, or rows that the `rules` show the client before and after the push."""

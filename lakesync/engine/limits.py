"""Limits of requests and of a gateway's backlog, and other settings of the engine.

The gateway server fills `EngineLimits` from its settings, `open_gateway` from its arguments; `engine.checks` and
`engine.pushing` enforce them.
"""

from __future__ import annotations

import msgspec

from lakesync.actions.action_services import ActionLimits
from lakesync.staging.records import WriteScope

DEFAULT_PULL = 100
"""Number of deltas in a page if the request names no limit. A delta is a change of some columns of one row."""
MAX_PULL = 10_000
"""The most deltas that a pull may request for a page."""
MAX_ROW_COLUMNS = 1_000
"""The most columns of a row. Each column costs memory and time whenever the row is merged."""


class EngineLimits(msgspec.Struct, frozen=True):
    """Limits that the engine enforces; `GatewaySettings` has those of HTTP."""

    max_deltas: int = 10_000
    """The most deltas in one push; a larger push is rejected with VALIDATION_ERROR."""
    max_backpressure_bytes: int = 1 << 30
    """Stored bytes of a gateway's unflushed deltas above which a push is rejected with BACKPRESSURE_ERROR."""
    retry_after: float = 5.0
    """Seconds until a client should retry after BACKPRESSURE_ERROR."""
    actions: ActionLimits = ActionLimits()
    """Limits of requests for actions, and how long the outcomes of actions are kept."""
    reindex_rows: int = 500
    """How many rows one commit reads and updates after a change of the sync rules; pushes run between these commits."""
    write_scope: WriteScope = "visible"
    """Which rows clients may push to. `any`: every row. `visible`: rows that the sync rules show the client before the
    push, and new rows. `rules`: rows that they show it before and after the push. A value that an admin sets at run
    time overrides this one."""

"""Days of arrival by staging's ledger, and whether a part of the pipeline is late with them.

The freshness checks call it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from lakesync.analysis.marks import lags as compare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.analysis.marks import Lag
    from lakesync.staging.store import PipelineStore


class ArrivalDay(msgspec.Struct, frozen=True):
    """One UTC day of arrival, over all gateways."""

    day: str
    """`YYYY-MM-DD`."""
    acknowledged: int
    """Number of deltas that gateways acknowledged."""
    flushed: int
    """Number of these that are in the history."""
    late: bool
    """Whether deltas of the day are missing that should be there by now."""


def arrival_days_with_lateness(store: PipelineStore, lags: Sequence[Lag], due_ms: int) -> list[ArrivalDay]:
    """Return the days of arrival that have deltas, each with whether a part of the pipeline is late with it.

    Every part is late with a day that the history is late with.

    Args:
        store: the staging store, which has the ledger.
        lags: the lags of the part.
        due_ms: server wall time in milliseconds; deltas acknowledged before it should be in the part.
    """
    history = _days_of_history(store, due_ms)
    late = [lag.since_ms for lag in lags if lag.since_ms < due_ms]
    if not late:
        return history
    first = datetime.fromtimestamp(min(late) / 1000, UTC).date().isoformat()
    return [msgspec.structs.replace(day, late=day.late or day.day >= first) for day in history]


def _days_of_history(store: PipelineStore, due_ms: int) -> list[ArrivalDay]:
    """Return the days by the ledger. A day is late if a gateway's oldest unflushed push came before `due_ms`."""
    overdue = {lag.gateway for lag in compare(store.backlog(), (), ()) if lag.since_ms < due_ms}
    found: dict[str, ArrivalDay] = {}
    for gateway in store.gateways():
        for day in store.ledger(gateway):
            so_far = found.get(day.day, ArrivalDay(day.day, 0, 0, late=False))
            found[day.day] = ArrivalDay(
                day.day,
                so_far.acknowledged + day.count,
                so_far.flushed + day.flushed_count,
                late=so_far.late or (gateway in overdue and day.flushed_count < day.count),
            )
    return [found[day] for day in sorted(found)]

"""Compares the days of arrival in the staging store with what an asset has of them.

The store's *ledger* counts the deltas that gateways acknowledged, by the UTC day on which they arrived. The freshness
checks (`assets.freshness`) call `arrival_days` for the days whose deltas an asset should have by now and lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from lakesync.analysis.lags import Lag, lags
from lakesync.model.hlc import start_of
from lakesync.staging.ledger import day_of

if TYPE_CHECKING:
    from lakesync.staging.store.pipeline import FlushStore


class ArrivalDay(msgspec.Struct, frozen=True):
    """One UTC day of arrival, over all gateways."""

    day: str
    """`YYYY-MM-DD`."""
    acknowledged: int
    """Number of deltas that gateways acknowledged."""
    flushed: int
    """Number of these that are in the lake's history."""
    late: bool
    """Whether the asset lacks deltas that arrived on the day and should be in it by now."""


def arrival_days(store: FlushStore, asset_lags: Sequence[Lag], due_ms: int) -> list[ArrivalDay]:
    """Return the days of arrival, each with whether an asset is late.

    If the lake's history is late, every asset is, because assets are made from the history.

    Args:
        store: the staging store, which has the ledger.
        asset_lags: the asset's lags behind the history, by gateway; empty for the history itself.
        due_ms: server wall time in milliseconds since 1970. Deltas acknowledged before it should be in the asset.
    """
    history = _days_of_history(store, due_ms)
    late_since_ms = [lag.since_ms for lag in asset_lags if lag.since_ms < due_ms]
    if not late_since_ms:
        return history
    first, last = day_of(start_of(min(late_since_ms))), day_of(start_of(due_ms))
    return [msgspec.structs.replace(day, late=day.late or first <= day.day <= last) for day in history]


def _days_of_history(store: FlushStore, due_ms: int) -> list[ArrivalDay]:
    """Return the days of arrival, each with whether the lake's history is late.

    It is late on a day if a gateway has unflushed deltas of that day, and its oldest unflushed one is due.
    """
    overdue = {lag.gateway for lag in lags(store.backlog(), (), ()) if lag.since_ms < due_ms}
    last = day_of(start_of(due_ms))
    found: dict[str, ArrivalDay] = {}
    for gateway in store.gateways():
        for day in store.ledger(gateway):
            total = found.get(day.day, ArrivalDay(day.day, 0, 0, late=False))
            found[day.day] = ArrivalDay(
                day.day,
                total.acknowledged + day.count,
                total.flushed + day.flushed_count,
                late=total.late or (gateway in overdue and day.flushed_count < day.count and day.day <= last),
            )
    return [found[day] for day in sorted(found)]

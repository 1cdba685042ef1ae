"""A gateway's state brought back from deltas that an adapter kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from lakesync.adapters.base import DatabaseAdapter
from lakesync.adapters.deltas import DeltaQuery
from lakesync.engine.access import RulesCache
from lakesync.engine.limits import EngineLimits
from lakesync.engine.names import Names
from lakesync.engine.pushing import CheckedPush, push_work
from lakesync.model.client_ids import user_of
from lakesync.model.types import RowDelta, SyncPush
from lakesync.staging.store import Commit, StagingStore

_AT_ONCE = 1000
_LIMITS = EngineLimits()
_NAMES = Names()
"""Which nothing is held to: it was taken once."""


def rehydrate(store: StagingStore, gateway_id: str, rules: RulesCache, deltas: Iterable[RowDelta], now_ms: int) -> int:
    """Commit deltas in their own clients' names, as pushes that need no check; how many there were.

    What the gateway knows already is known by its ids and changes nothing. Their clients count as seen before.
    """
    total = 0
    for some in _parts(deltas):
        by_client: dict[str, list[RowDelta]] = {}
        for delta in some:
            by_client.setdefault(delta.client_id, []).append(delta)
        futures = [
            store.submit(gateway_id, _Restored(rules, client_id, own, now_ms)) for client_id, own in by_client.items()
        ]
        for future in futures:
            future.result()
        total += len(some)
    return total


def kept_by(adapter: DatabaseAdapter, gateway_id: str) -> Iterator[RowDelta]:
    """Every delta that an adapter holds of a gateway, in order of arrival."""
    query = DeltaQuery(gateway=gateway_id)
    while True:
        page = adapter.query_deltas_since(query)
        for stored in page.deltas:
            yield stored.delta
        if page.end is None:
            return
        query = msgspec.structs.replace(query, after=page.end)


class _Restored:
    """The work that commits some deltas of one client."""

    def __init__(self, rules: RulesCache, client_id: str, deltas: Sequence[RowDelta], now_ms: int) -> None:
        push = SyncPush(client_id, tuple(deltas))
        self._request = CheckedPush(push, {"sub": user_of(client_id)}, now_ms, admitted=True)
        self._rules = rules

    def __call__(self, commit: Commit) -> None:
        push_work(commit, self._request, self._rules, _LIMITS, _NAMES)


def _parts(deltas: Iterable[RowDelta]) -> Iterator[list[RowDelta]]:
    rest = iter(deltas)
    while some := list(islice(rest, _AT_ONCE)):
        yield some

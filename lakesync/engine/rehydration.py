"""Restores a gateway's rows in staging from deltas that were accepted before, for example those in its adapter.

*Staging* is the database that pushes are committed to; the gateway's *adapter* is the database or object store that it
flushes to. `Embedding.rehydrate` calls this module, when staging was lost or is always empty at the start.
"""

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
from lakesync.model.types import RowDelta, SyncPush
from lakesync.model.validation import user_of
from lakesync.staging.store import TransactionStore
from lakesync.staging.store.push import PushCommit

_CHUNK = 1000
"""Deltas that are committed before the next ones are read."""
_LIMITS = EngineLimits()
"""A parameter of `push_work` that is not used: deltas that were accepted once are not checked against limits."""
_NAMES = Names().of_push()
"""A parameter of `push_work` that is not used: names of deltas that were accepted once are not checked."""


def rehydrate(
    store: TransactionStore, gateway_id: str, rules: RulesCache, deltas: Iterable[RowDelta], now_ms: int
) -> int:
    """Commit deltas as pushes of the clients that wrote them, without checks.

    Known deltas are recognised by their ids and change nothing. Afterwards the gateway has a record of each client, as
    of one that has pushed.

    Args:
        store: the staging store that contains the gateway.
        gateway_id: the gateway's id.
        rules: the gateway's cache of compiled sync rules.
        deltas: the deltas to commit, in any order.
        now_ms: server wall time in milliseconds since 1970.

    Returns:
        The number of deltas that were read, known ones included.

    Raises:
        StagingUnavailableError: the store does not respond. Some commits may still follow; a repeat continues.
    """
    total = 0
    for chunk in _chunks(deltas):
        by_client: dict[str, list[RowDelta]] = {}
        for delta in chunk:
            by_client.setdefault(delta.client_id, []).append(delta)
        futures = [
            store.submit(gateway_id, _RestoreWork(rules, client_id, own, now_ms))
            for client_id, own in by_client.items()
        ]
        for future in futures:
            future.result()
        total += len(chunk)
    return total


def stored_deltas(adapter: DatabaseAdapter, gateway_id: str) -> Iterator[RowDelta]:
    """Yield all deltas of a gateway that an adapter contains, in order of arrival.

    Args:
        adapter: an open adapter.
        gateway_id: the gateway's id.

    Raises:
        AdapterError: the adapter cannot be read.
    """
    query = DeltaQuery(gateway=gateway_id)
    while True:
        page = adapter.query_deltas_since(query)
        for stored in page.deltas:
            yield stored.delta
        if page.end is None:
            return
        query = msgspec.structs.replace(query, after=page.end)


class _RestoreWork:
    """The transaction that commits some deltas of one client."""

    def __init__(self, rules: RulesCache, client_id: str, deltas: Sequence[RowDelta], now_ms: int) -> None:
        push = SyncPush(client_id, tuple(deltas))
        self._request = CheckedPush(push, {"sub": user_of(client_id)}, now_ms, admitted=True)
        self._rules = rules

    def __call__(self, commit: PushCommit) -> None:
        push_work(commit, self._request, self._rules, _LIMITS, _NAMES)


def _chunks(deltas: Iterable[RowDelta]) -> Iterator[list[RowDelta]]:
    """Yield lists of `_CHUNK` deltas."""
    rest = iter(deltas)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk

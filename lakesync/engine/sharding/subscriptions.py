"""Subscriptions of WebSocket clients over all shards; see `engine.subscriptions` for one store.

A *shard* is a staging store (a database that pushes are committed to) with some of the tables of a gateway, one app's
stream of changes. A *broadcast* is a page of changes that the server sends to connected clients without a request.
`ShardedGateway` runs `subscribe`, `resume` and `scan` for the gateway's channels: generators (`engine.futures.Steps`)
that yield futures and get their results. A subscriber's state has its cursor, the bucket keys that the claims (fields)
of its token may see, and its state in each shard. A broadcast joins the pages of all shards, under a new cursor that
means the cursor in each shard (a *vector*). `NEVER_PULLED` (1) is the cursor of a client that pushed before its first
pull, and has no vector.

Subscribers with equal states are a *group*, and share a scan. Its `ScanResult` has the page of the group, and
`own_pages` for clients that lack something else, for example because they wrote some of these rows themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from lakesync.engine.futures import Steps
from lakesync.engine.sharding.pulling import shard_cursors
from lakesync.engine.sharding.shard_gateway import ShardGateway, of_shard
from lakesync.engine.sharding.vectors import BroadcastCursor, IssuedCursor, ResolvedCursor, Vectors
from lakesync.engine.subscribers import Newcomer, ScanResult, SubscriberGroup, Subscription, SubscriptionState
from lakesync.feed.positions import NEVER_PULLED
from lakesync.feed.scopes import Access
from lakesync.model.types import Claims, RowDelta, SyncPage

_ACCESS_IN_SHARDS = Access({}, frozenset(), 0)
"""`ShardedSubscriptionState.access` of subscribers that have one in each shard."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardedSubscriptionState(SubscriptionState):
    """The state of subscribers in every shard.

    Only the states in the shards say what the subscribers may see. If each of these states has an access, the
    subscribers can share a scan, and `access` is `_ACCESS_IN_SHARDS`; otherwise it is None.
    """

    parts: Mapping[str, SubscriptionState] | None = None
    """The state in each shard, by shard name; None before `subscribe`. `cursor` stays as it is while the shards'
    cursors move without deltas for these subscribers."""

    def sharing_key(self) -> tuple[object, ...]:
        """Return a value that is equal for states whose subscribers get the same broadcasts.

        The subscription, `knows_resync` and `has_not_pulled` are left out, because the values of the states in the
        shards contain them.
        """
        parts = self.parts or {}
        return (
            self.cursor,
            self.limit,
            self.has_more,
            self.access is None,
            *(each.sharing_key() for each in parts.values()),
        )


def subscribe(
    shards: Mapping[str, ShardGateway],
    vectors: Vectors,
    newcomers: Sequence[Newcomer],
) -> Steps[list[SubscriptionState]]:
    """Subscribe clients to broadcasts in every shard, and return their states, in the order of `newcomers`.

    Args:
        shards: the gateway of each shard, by shard name.
        vectors: resolves and creates client cursors.
        newcomers: the clients. One with cursor 0 never pulled on its connection; it is treated like one that has
            pushed, because it may have rows.

    Raises:
        StagingUnavailableError: a shard cannot be reached.
    """
    sent = [(each.client_id, max(each.state.cursor, NEVER_PULLED)) for each in newcomers]
    resolved: list[ResolvedCursor] = yield vectors.submit_resolve_all(sent)
    cursors = []
    for (client_id, _), each in zip(sent, resolved, strict=True):
        by_shard = yield from shard_cursors(shards, client_id, each)
        cursors.append(by_shard)
    states_in: dict[str, list[SubscriptionState]] = {}
    for name, part in shards.items():
        newcomers_in_shard = [
            each._replace(state=_in_shard(name, by_shard[name], each.state))
            for each, by_shard in zip(newcomers, cursors, strict=True)
        ]
        states_in[name] = yield from of_shard(name, part.submit_subscribe(newcomers_in_shard))
    shared: dict[tuple[object, ...], SubscriptionState] = {}  # clients with equal states share one object
    states: list[SubscriptionState] = []
    for index, (_, cursor) in enumerate(sent):
        state = _joined(newcomers[index].state, cursor, {name: states_in[name][index] for name in shards})
        states.append(shared.setdefault(state.sharing_key(), state))
    return states


def resume(shards: Mapping[str, ShardGateway], vectors: Vectors, client_id: str, claims: Claims) -> Steps[int | None]:
    """Return a cursor from which a client can get broadcasts before it pulls; None if no shard has a record of it.

    The client has confirmed the cursor in each shard, or starts there like one that never pulled.

    Args:
        shards: the gateway of each shard, by shard name.
        vectors: resolves and creates client cursors.
        client_id: the client's id.
        claims: the verified claims of the connection's token.

    Raises:
        StagingUnavailableError: a shard cannot be reached.
    """
    confirmed: dict[str, int] = yield vectors.submit_confirmed(client_id)
    resumed: dict[str, int | None] = {}
    for name, part in shards.items():
        resumed[name] = yield from of_shard(name, part.submit_resume(client_id, claims))
    if all(cursor is None for cursor in resumed.values()):
        return None
    # a shard without a record of the client: its confirmed cursor, or the start of the shard's feed
    cursors = {name: confirmed.get(name, 0) if cursor is None else cursor for name, cursor in resumed.items()}
    if max(cursors.values()) <= NEVER_PULLED:  # no shard has a real cursor for the client yet: there is no vector
        return NEVER_PULLED
    issued: IssuedCursor = yield vectors.submit_issue(client_id, claims, cursors)
    return issued.cursor


def scan(
    shards: Mapping[str, ShardGateway], vectors: Vectors, groups: Sequence[SubscriberGroup]
) -> Steps[list[ScanResult]]:
    """Return what each group lacks in any shard, in the order of the groups.

    The results of the shards are joined. Groups that arrive at the same vector get the same new cursor.

    Args:
        shards: the gateway of each shard, by shard name.
        vectors: resolves and creates client cursors.
        groups: subscribers by state.

    Returns:
        A result for each group. A group whose state has no access, or has more pages, needs a pull by each client.

    Raises:
        StagingUnavailableError: a shard cannot be reached.
    """
    results: list[ScanResult] = [ScanResult(group.state, needs_pull=True) for group in groups]
    scannable = {
        index: group.state.parts
        for index, group in enumerate(groups)
        if isinstance(group.state, ShardedSubscriptionState)
        and group.state.parts is not None
        and group.state.access is not None
        and not group.state.has_more
    }
    results_in: dict[str, list[ScanResult]] = {}
    for name, part in shards.items():
        groups_in_shard = [groups[index]._replace(state=states[name]) for index, states in scannable.items()]
        results_in[name] = yield from of_shard(name, part.submit_scan(groups_in_shard))
    pages: list[_GroupPage] = []
    for scanned, index in enumerate(scannable):
        by_shard = {name: results_in[name][scanned] for name in shards}
        state = groups[index].state
        after = _joined(state, state.cursor, {name: result.state for name, result in by_shard.items()})
        if any(result.needs_pull for result in by_shard.values()):
            results[index] = ScanResult(replace(after, access=None), needs_pull=True)
        elif any(result.page is not None or any(result.own_pages.values()) for result in by_shard.values()):
            pages.append(_GroupPage(index, after, by_shard))
        else:
            results[index] = ScanResult(after)  # its shards' cursors have moved, and it lacks nothing
    cursors = yield from _issue_cursors(vectors, pages)
    shared: dict[tuple[object, ...], ShardedSubscriptionState] = {}  # groups with equal states share one object
    for page in pages:
        after = replace(page.state, cursor=cursors[page.vector])
        state_after = shared.setdefault(after.sharing_key(), after)
        results[page.group_index] = _join_results(state_after, groups[page.group_index], page.by_shard)
    return results


class _GroupPage(NamedTuple):
    """What a group of subscribers lacks, before its page has a cursor."""

    group_index: int
    """The index of the group."""
    state: ShardedSubscriptionState
    """The group's state after the page, with the cursor from before it."""
    by_shard: Mapping[str, ScanResult]
    """The results of the scan, by shard name."""

    @property
    def vector(self) -> tuple[tuple[str, int], ...]:
        """The cursor in each shard after the page, as pairs of shard name and cursor."""
        return tuple((name, result.state.cursor) for name, result in self.by_shard.items())


def _issue_cursors(vectors: Vectors, pages: Sequence[_GroupPage]) -> Steps[Mapping[tuple[tuple[str, int], ...], int]]:
    """Create the cursors of pages, by vector: pages with the same vector get one cursor, above all earlier ones."""
    highest: dict[tuple[tuple[str, int], ...], int] = {}
    for page in pages:
        highest[page.vector] = max(page.state.cursor, highest.get(page.vector, 0))
    if not highest:
        return {}
    requests = [BroadcastCursor(above, dict(vector)) for vector, above in highest.items()]
    issued: list[int] = yield vectors.submit_issue_broadcast(requests)
    return dict(zip(highest, issued, strict=True))


def _join_results(
    after: ShardedSubscriptionState, group: SubscriberGroup, by_shard: Mapping[str, ScanResult]
) -> ScanResult:
    """Join the shards' results for a group that lacks something.

    A client with a page of its own in one shard gets the shared pages of the other shards in it.
    """
    with_own_changes = {client_id for result in by_shard.values() for client_id in result.own_pages}
    own = {
        client_id: _page([result.page_of(client_id) for result in by_shard.values()], after.cursor)
        for client_id in with_own_changes & group.clients
    }
    with_other_claims = frozenset().union(*(result.with_other_claims for result in by_shard.values()))
    page = _page([result.page for result in by_shard.values()], after.cursor)
    return ScanResult(after, page, own, with_other_claims)


def _page(pages: Sequence[SyncPage | None], cursor: int) -> SyncPage | None:
    """Join pages under one cursor; None if none has deltas."""
    deltas: list[RowDelta] = [delta for page in pages if page is not None for delta in page.deltas]
    return SyncPage(tuple(deltas), cursor) if deltas else None


def _joined(state: SubscriptionState, cursor: int, parts: Mapping[str, SubscriptionState]) -> ShardedSubscriptionState:
    """Return the state of subscribers, given their new states in the shards.

    Args:
        state: the state before. All other fields are copied from it, because a scan does not change them.
        cursor: the cursor of the sharded gateway.
        parts: the state in each shard, by shard name.
    """
    has_access = all(part.access is not None for part in parts.values())
    subscriptions = [state.subscription, *(part.subscription for part in parts.values())]
    return ShardedSubscriptionState(
        cursor=cursor,
        limit=state.limit,
        has_more=state.has_more,
        access=_ACCESS_IN_SHARDS if has_access else None,
        knows_resync=state.knows_resync,
        has_not_pulled=state.has_not_pulled,
        subscription=Subscription(
            frozenset().union(*(each.buckets for each in subscriptions)),
            frozenset().union(*(each.prefixes for each in subscriptions)),
        ),
        parts=parts,
    )


def _in_shard(name: str, cursor: int, state: SubscriptionState) -> SubscriptionState:
    """Return the state with which a client subscribes in one shard, at the shard's cursor."""
    return SubscriptionState(
        cursor,
        state.limit,
        subscription=_subscription_in(name, state),
        knows_resync=state.knows_resync,
        has_not_pulled=state.has_not_pulled,
    )


def _subscription_in(name: str, state: SubscriptionState) -> Subscription:
    """Return a state's subscription in one shard: that of the shard's part, if there is one."""
    parts = state.parts if isinstance(state, ShardedSubscriptionState) else None
    return parts[name].subscription if parts is not None and name in parts else state.subscription

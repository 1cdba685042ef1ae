"""Subscriptions over all shards: a state has a state in each shard, and a shared page joins the shards' pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lakesync.engine.pushing import NEVER_PULLED
from lakesync.engine.sharding.pulling import start
from lakesync.engine.sharding.shard_gateway import ShardGateway
from lakesync.engine.sharding.steps import Steps, of_shard
from lakesync.engine.sharding.vectors import BroadcastCursor, Place, Vectors
from lakesync.engine.subscriptions import ScanResult, SubscriberGroup, Subscription, SubscriptionState
from lakesync.feed.positions import Access
from lakesync.model.types import Claims, RowDelta, SyncResponse


@dataclass(frozen=True, slots=True, eq=False)
class ShardedSubscriptionState(SubscriptionState):
    """A state in every shard. Its `access` is set if each shard's state has one; its content is not used."""

    parts: Mapping[str, SubscriptionState] | None = None
    """By shard. Their cursors may be older than `cursor`, if all changes in between are the client's own."""

    def value(self) -> tuple[object, ...]:
        """Return a value that is equal for states whose subscribers get the same broadcasts."""
        parts = self.parts or {}
        return (self.cursor, self.limit, self.has_more, self.access is None, *(each.value() for each in parts.values()))


def subscribe(
    parts: Mapping[str, ShardGateway], vectors: Vectors, newcomers: Sequence[tuple[str, Claims, SubscriptionState]]
) -> Steps[list[SubscriptionState]]:
    """Return the states of new subscribers in every shard.

    Args:
        parts: the gateway of each shard, by shard name.
        vectors: resolves and creates client cursors.
        newcomers: client id, claims and state of each; cursor 0 is that of a client that never pulled.
    """
    asked = [(client_id, max(state.cursor, NEVER_PULLED)) for client_id, _, state in newcomers]
    places: list[Place] = yield vectors.submit_places(asked)
    cursors = []
    for (client_id, _), place in zip(asked, places, strict=True):
        found = yield from start(parts, client_id, place)
        cursors.append(found)
    inner: dict[str, list[SubscriptionState]] = {}
    for name, part in parts.items():
        there = [
            (client_id, claims, _in_shard(name, own[name], state))
            for (client_id, claims, state), own in zip(newcomers, cursors, strict=True)
        ]
        inner[name] = yield from of_shard(name, part.submit_subscribe(there))
    known: dict[tuple[object, ...], SubscriptionState] = {}
    states: list[SubscriptionState] = []
    for place_of, (_, cursor) in enumerate(asked):
        made = _joined(newcomers[place_of][2], cursor, {name: inner[name][place_of] for name in parts})
        states.append(known.setdefault(made.value(), made))
    return states


def resume(parts: Mapping[str, ShardGateway], vectors: Vectors, client_id: str) -> Steps[int | None]:
    """Return a cursor from which a client can get broadcasts before it pulls; None if no shard has a confirmed one."""
    surely: dict[str, int] = yield vectors.submit_surely(client_id)
    found: dict[str, int | None] = {}
    for name, part in parts.items():
        found[name] = yield from of_shard(name, part.submit_resume(client_id))
    if all(cursor is None for cursor in found.values()):
        return None
    cursors = {name: surely.get(name, 0) if cursor is None else cursor for name, cursor in found.items()}
    outer: int = yield vectors.submit_issue(client_id, cursors)
    return outer


def scan(
    parts: Mapping[str, ShardGateway], vectors: Vectors, groups: Sequence[SubscriberGroup]
) -> Steps[list[ScanResult]]:
    """Return what each group lacks in any shard, in the order of the groups.

    Args:
        parts: the gateway of each shard, by shard name.
        vectors: resolves and creates client cursors.
        groups: subscribers by state.
    """
    found: list[ScanResult] = [ScanResult(group.state, needs_pull=True) for group in groups]
    several = {
        place: group.state.parts
        for place, group in enumerate(groups)
        if isinstance(group.state, ShardedSubscriptionState)
        and group.state.parts is not None
        and group.state.access is not None
        and not group.state.has_more
    }
    results: dict[str, list[ScanResult]] = {}
    for name, part in parts.items():
        inner = [groups[place]._replace(state=states[name]) for place, states in several.items()]
        results[name] = yield from of_shard(name, part.submit_scan(inner))
    wanted: dict[tuple[object, ...], BroadcastCursor] = {}
    lacking: list[tuple[int, ShardedSubscriptionState, tuple[object, ...], dict[str, ScanResult]]] = []
    for index, place in enumerate(several):
        group, each = groups[place], {name: results[name][index] for name in parts}
        after = _joined(group.state, group.state.cursor, {name: one.state for name, one in each.items()})
        if any(one.needs_pull for one in each.values()):
            found[place] = ScanResult(replace(after, access=None), needs_pull=True)
        elif not any(one.page is not None or any(one.own_pages.values()) for one in each.values()):
            found[place] = ScanResult(after)
        else:
            goal = {name: one.state.cursor for name, one in each.items()}
            key: tuple[object, ...] = tuple(goal.items())
            above = max(after.cursor, wanted[key].above if key in wanted else 0)
            wanted[key] = BroadcastCursor(above, goal)
            lacking.append((place, after, key, each))
    if lacking:
        shared: list[int] = yield vectors.submit_share(list(wanted.values()))
        cursors = dict(zip(wanted, shared, strict=True))
        known: dict[tuple[object, ...], ShardedSubscriptionState] = {}
        for place, state, goal_of, each in lacking:
            after = replace(state, cursor=cursors[goal_of])
            found[place] = _join_results(known.setdefault(after.value(), after), groups[place], each)
    return found


def _join_results(
    after: ShardedSubscriptionState, group: SubscriberGroup, each: Mapping[str, ScanResult]
) -> ScanResult:
    """Join the results of the shards."""
    with_own_changes = {client_id for one in each.values() for client_id in one.own_pages}
    own = {
        client_id: _page([one.own_pages.get(client_id, one.page) for one in each.values()], after.cursor)
        for client_id in with_own_changes & group.clients
    }
    with_other_claims = frozenset().union(*(one.with_other_claims for one in each.values()))
    return ScanResult(after, _page([one.page for one in each.values()], after.cursor), own, with_other_claims)


def _page(pages: Sequence[SyncResponse | None], cursor: int) -> SyncResponse | None:
    deltas: list[RowDelta] = [delta for page in pages if page is not None for delta in page.deltas]
    return SyncResponse(tuple(deltas), cursor) if deltas else None


def _joined(state: SubscriptionState, cursor: int, parts: Mapping[str, SubscriptionState]) -> ShardedSubscriptionState:
    knows = all(part.access is not None for part in parts.values())
    claims = next((part.access.claims for part in parts.values() if part.access is not None), {})
    known = [state.subscription, *(part.subscription for part in parts.values())]
    return ShardedSubscriptionState(
        cursor=cursor,
        limit=state.limit,
        has_more=state.has_more,
        access=Access(claims, frozenset(), 0) if knows else None,
        knows_resync=state.knows_resync,
        has_not_pulled=state.has_not_pulled,
        subscription=Subscription(
            frozenset().union(*(each.buckets for each in known)),
            frozenset().union(*(each.prefixes for each in known)),
        ),
        parts=parts,
    )


def _in_shard(name: str, cursor: int, state: SubscriptionState) -> SubscriptionState:
    return SubscriptionState(
        cursor,
        state.limit,
        subscription=_subscription_in(name, state),
        knows_resync=state.knows_resync,
        has_not_pulled=state.has_not_pulled,
    )


def _subscription_in(name: str, state: SubscriptionState) -> Subscription:
    """Return a state's subscription in one shard."""
    known = state.parts if isinstance(state, ShardedSubscriptionState) else None
    return known[name].subscription if known is not None and name in known else state.subscription

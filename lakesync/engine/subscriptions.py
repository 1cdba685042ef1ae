"""Subscriptions of clients on WebSockets: computes which page the next broadcast to each contains.

A *broadcast* is a page of changes that the server sends over a WebSocket without a request. The gateway's channels (all
connections of one gateway in a process) call `subscribe`, `resume` and `scan` through `SyncGateway`. A *gateway* is one
app's stream of changes. A subscriber's *cursor* is that of the last page sent on its connection. The connection
delivers in order, so the subscriber has everything up to it, and nothing must be stored for each broadcast. Subscribers
with the same state lack the same changes, except for their own writes. So they share one scan of the feed and one page.

A *bucket key* names a bucket of the sync rules with the claims (fields of a client's token) that may see it. Changes
that concern one client alone are under a key of its own, its *own bucket*. A *scope* is a period in which a client was
sent pages under the same claims and rules. At a *complete cursor* the client has exactly what it could see; it belongs
to the client's newest scope. The *feed* has the rows in order of their latest change; a *source* is a database from
which clients pull beside it. `NEVER_PULLED` is the cursor of a client that pushed before its first pull. A *re-index*
assigns all rows to the buckets of new rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

import msgspec

from lakesync.engine.active_rules import RulesCache
from lakesync.engine.pulling import announce_other_connection
from lakesync.engine.subscribers import Newcomer, ScanResult, SubscriberGroup, Subscription, SubscriptionState
from lakesync.feed.client_cursors import with_cursor_in_doubt
from lakesync.feed.client_state import (
    current_record,
    cursors_belong_to,
    ends_scope,
    scope_under,
    with_last_scope,
    with_newest_scope,
    with_possible_broadcasts,
    with_subscription,
)
from lakesync.feed.positions import NEVER_PULLED, Position, SentPeriod, find_page
from lakesync.feed.pull import NO_CLIENT, pull_page
from lakesync.feed.row_buckets import own_bucket, owner_of
from lakesync.feed.scopes import Access, max_sent
from lakesync.model.types import Claims, SyncPage
from lakesync.staging.records import ClientRecord
from lakesync.staging.store.feed import ClientView
from lakesync.staging.store.push import ClientCommit


def subscribe(
    commit: ClientCommit, newcomers: Sequence[Newcomer], rules: RulesCache, now_ms: int
) -> list[SubscriptionState]:
    """Subscribe clients: compute their states, and record that broadcasts may be sent to them from now on.

    A state has an `access` if a shared page is right for the client: it got its cursor under the same claims and rules,
    and has no rows of a source. Otherwise its next broadcast is a page of its own. A client that pulled from an empty
    gateway has no record yet; it gets one, so that later cursors can be resolved.

    Args:
        commit: the open transaction in the gateway's store.
        newcomers: the clients.
        rules: the gateway's cache of compiled sync rules.
        now_ms: server wall time in milliseconds since 1970.

    Returns:
        The states in the order of `newcomers`; equal ones are one object.
    """
    shared: dict[tuple[object, ...], SubscriptionState] = {}
    states = [_subscribe_one(commit, each, rules, now_ms) for each in newcomers]
    return [shared.setdefault(state.sharing_key(), state) for state in states]


def resume(commit: ClientCommit, client_id: str, claims: Claims, rules: RulesCache) -> int | None:
    """Return a cursor from which a client can get broadcasts before it pulls: the last one that it confirmed.

    The client may have all, a part or nothing of what it was sent after that cursor. A client that confirmed none, for
    example because it only pushed, starts like one that never pulled, and is sent everything that it may see.

    A connection with other claims or rules than the client's last request begins a new scope in the record, which ends
    what the client could see before. Otherwise, a row that comes later under the old claims would count as possibly
    sent. The client would then be sent a DELETE, with the id of a row that it may never see.

    Args:
        commit: the open transaction in the gateway's store.
        client_id: the client's id.
        claims: the verified claims of the connection's token.
        rules: the gateway's cache of compiled sync rules.

    Returns:
        None if the client has no record.
    """
    access = rules.access(commit, claims)
    known = current_record(commit.client(client_id), commit, access.keys)
    if known is None:
        return None
    # Any row may have come over an earlier connection. The pages before the first pull must consider that too, so that
    # the client is sent the DELETE of a row that it may no longer see.
    record = msgspec.structs.replace(with_possible_broadcasts(known, commit.arrival), gets_broadcasts=True)
    cursor = NEVER_PULLED
    confirmed = find_page(known, known.confirmed_cursor)
    if confirmed is not None:
        record, cursor = with_cursor_in_doubt(record, confirmed, commit.arrival, max_sent(record.scopes))
    if ends_scope(record, access):  # processes with another connection of the client must not send it shared pages now
        announce_other_connection(commit, known, live=False)
        record = with_newest_scope(record, access, commit.arrival)
    if record != known:
        commit.put_client(record)
    return cursor


def subscription_of(
    view: ClientView, claims: Claims, access: Access, before: Subscription, rules: RulesCache
) -> Subscription:
    """Return the subscription `before`, extended by the bucket keys of an access.

    Args:
        view: a consistent read of the gateway's store.
        claims: the client's verified claims.
        access: what these claims may see.
        before: the bucket keys that concerned the client so far.
        rules: the gateway's cache of compiled sync rules.
    """
    prefixes = rules.index(view.config).client_prefixes(claims)
    return Subscription(before.buckets | access.keys, before.prefixes | prefixes)


def scan(view: ClientView, groups: Sequence[SubscriberGroup], rules: RulesCache) -> list[ScanResult]:
    """Return what each group lacks, in the order of the groups.

    Args:
        view: a consistent read of the gateway's store.
        groups: subscribers by state.
        rules: the gateway's cache of compiled sync rules.
    """
    shared: dict[tuple[object, ...], SubscriptionState] = {}
    return [_scan_group(view, group, rules, shared) for group in groups]


def subscriber_position(state: SubscriptionState, access: Access, newest: int) -> Position:
    """Return the position of subscribers that were sent everything that they may see, up to their cursor.

    Args:
        state: the subscribers' state.
        access: the claims and bucket keys that decide what the subscribers may see.
        newest: the gateway's newest arrival (its own timestamp of a commit).
    """
    keys = state.subscription.buckets | access.keys
    # The subscribers were sent nothing after their cursor. But they may have written rows under these keys, and a row
    # stores only its latest writers. So the period from the cursor until now counts as one in which they saw the keys.
    visible = (SentPeriod(state.cursor, 0, newest),)
    return Position(
        read_up_to=state.cursor,
        base=state.cursor,
        newest_at_start=newest,
        old_keys=keys,
        new_keys=keys,
        sent=dict.fromkeys(access.keys, visible),
        sent_up_to=0,
        may_hold_unknown_rows=state.may_hold_unknown_rows,
        no_retry=not state.knows_resync,
    )


def refreshed(view: ClientView, state: SubscriptionState, rules: RulesCache) -> SubscriptionState:
    """Return the state with what its subscribers may see now.

    The `access` is None if the rules changed, or if bucket keys came into use that the subscribers may see. Each client
    then needs a page of its own: its record must have these keys before it is sent rows under them.

    Args:
        view: a consistent read of the gateway's store.
        state: the subscribers' state.
        rules: the gateway's cache of compiled sync rules.
    """
    access = state.access
    if access is None:
        return state
    if access.rules_version != view.config.rules_version:
        return replace(state, access=None)
    if not state.subscription.prefixes:
        return state
    latest = rules.access(view, access.claims)
    if latest.keys - access.keys:
        return replace(state, access=None)
    return replace(
        state, access=latest, subscription=subscription_of(view, latest.claims, latest, state.subscription, rules)
    )


def _subscribe_one(commit: ClientCommit, newcomer: Newcomer, rules: RulesCache, now_ms: int) -> SubscriptionState:
    """Subscribe one client; see `subscribe`."""
    client_id, claims, state = newcomer
    access = rules.access(commit, claims)
    subscription = subscription_of(commit, claims, access, state.subscription, rules)
    known = current_record(commit.client(client_id), commit, access.keys)
    record = known or ClientRecord(client_id, commit.epoch, now_ms)
    if not record.scopes and state.cursor <= NEVER_PULLED:  # it pulled from an empty gateway, or never
        record = with_newest_scope(record, access, commit.arrival)
        record = with_last_scope(record, msgspec.structs.replace(record.scopes[0], first_cursor=0))
    record = with_subscription(record, access)
    if record != known:
        commit.put_client(record)
    scope = scope_under(record, access)
    has_cursor_of_scope = scope is not None and scope.has_complete_cursor and scope.first_cursor <= state.cursor
    can_share = has_cursor_of_scope and not record.sources  # a shared page does not consider rows of a source
    may_hold_unknown_rows = (record.may_hold_unknown_rows or state.has_not_pulled) and not state.knows_resync
    has_other_claims = can_share and not cursors_belong_to(record, access)
    return replace(
        state,
        access=access if can_share else None,
        subscription=subscription,
        may_hold_unknown_rows=may_hold_unknown_rows,
        has_other_claims=has_other_claims,
    )


def _scan_group(
    view: ClientView, group: SubscriberGroup, rules: RulesCache, shared: dict[tuple[object, ...], SubscriptionState]
) -> ScanResult:
    """Return what one group lacks: a page that most of its clients share, and pages of the others.

    The steps: find the clients that need a page of their own for sure; read the shared page for the others; read a page
    for each client of the first kind, and for each that wrote to a row of the shared page. If any page is full, every
    client has to pull instead.

    Args:
        view: a consistent read of the gateway's store.
        group: the subscribers that share a state.
        rules: the gateway's cache of compiled sync rules.
        shared: the new states of all groups, by value; groups with equal states get the same object.
    """
    state = refreshed(view, group.state, rules)
    access = state.access
    if state.has_more or access is None or access.sees_by_values is not None:
        return ScanResult(state, needs_pull=True)
    position = subscriber_position(state, access, view.arrival)
    # the position of a client that may have been sent everything already, on another connection
    sent = dict.fromkeys(position.new_keys, (SentPeriod(state.cursor, view.arrival, view.arrival),))
    position_in_doubt = position._replace(nothing_sent_since=False, sent=sent, sent_up_to=view.arrival)
    readers = _own_readers(view, group, state, access)
    own_readers, shared_page = readers.clients, None
    if group.clients - own_readers:
        # the shared page is for clients that wrote to none of its rows; `pull_page` adds those that did to `writers`
        writers: set[str] = set()
        shared_page = pull_page(view, NO_CLIENT, position, access, state.limit, writers)
        own_readers |= group.clients & writers
    pages = {
        name: pull_page(view, name, position_in_doubt if name in readers.in_doubt else position, access, state.limit)
        for name in own_readers
    }
    if any(page.has_more for page in (shared_page, *pages.values()) if page is not None):
        return ScanResult(state, needs_pull=True)
    after = replace(state, cursor=max(view.arrival, state.cursor))
    own_pages = {
        name: SyncPage(tuple(page.deltas), after.cursor) if page.deltas else None for name, page in pages.items()
    }
    page = None
    if shared_page is not None and shared_page.deltas:
        page = SyncPage(tuple(shared_page.deltas), after.cursor)
    with_other_claims = frozenset(
        name
        for name in readers.in_doubt
        if not _cursors_belong_to(view, readers.records.get(name) or view.client(name), access)
    )
    return ScanResult(shared.setdefault(after.sharing_key(), after), page, own_pages, with_other_claims)


class _OwnReaders(NamedTuple):
    """The clients of a group that get a page of their own."""

    clients: AbstractSet[str]
    """They may lack something else than the shared page, or would not share it."""
    in_doubt: AbstractSet[str]
    """Clients that may have been sent everything already, on another connection."""
    records: Mapping[str, ClientRecord]
    """The records that were changed by commits whose notices have not reached this process yet, by client id."""


def _own_readers(view: ClientView, group: SubscriberGroup, state: SubscriptionState, access: Access) -> _OwnReaders:
    """Return which clients get a page of their own, apart from those that wrote to rows of the shared page.

    Args:
        view: a consistent read of the gateway's store.
        group: the subscribers that share a state.
        state: their state, refreshed.
        access: its access.
    """
    # `unnotified…`: what this read shows already, although the notice of the commit has not reached this process yet
    own_buckets = map(own_bucket, group.clients)
    with_own_changes = group.with_own_changes.union(map(owner_of, view.unnotified(own_buckets, state.cursor)))
    records = {record.client_id: record for record in view.unnotified_clients(group.clients)}
    with_new_claims = {name for name, record in records.items() if not _cursors_belong_to(view, record, access)}
    in_doubt = group.clients if state.has_other_claims else group.multi_connected | with_new_claims
    clients = group.clients if len(group.clients) == 1 else with_own_changes | in_doubt
    return _OwnReaders(clients, in_doubt, records)


def _cursors_belong_to(view: ClientView, stored: ClientRecord | None, access: Access) -> bool:
    """Return whether complete cursors that a client is sent now belong to `access`, by its stored record."""
    record = current_record(stored, view)
    return record is not None and cursors_belong_to(record, access)

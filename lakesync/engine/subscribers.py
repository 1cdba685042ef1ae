"""Subscribers on WebSockets as values: what each may see, how far it was sent changes, and what it is sent next.

A *broadcast* is a page of changes that the server sends over a WebSocket without a request. A *gateway* is one app's
stream of changes. Its channels (all connections of one gateway in a process) keep a `Subscriber` for each connection.
They form groups of those with the same state object, which lack the same changes, and pass these to
`engine.subscriptions`, which returns a `ScanResult` each.

A *bucket key* names a bucket of the sync rules with the claims (fields of a client's token) that may see it. Changes
that concern one client alone are under a key of its own, its *own bucket*. At a *complete cursor* the client has
exactly what it could see; `NEVER_PULLED` is the cursor of a client that pushed before its first pull.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from lakesync.feed.positions import NEVER_PULLED
from lakesync.feed.row_buckets import own_bucket
from lakesync.feed.scopes import Access
from lakesync.model.types import Claims, SyncPage
from lakesync.staging.records import ARRIVAL_STEP


class Subscription(NamedTuple):
    """The bucket keys whose changes concern a subscriber, besides its own bucket.

    A channel compares them with the keys in the notice of a commit, to find the subscribers to scan for.
    """

    buckets: frozenset[str] = frozenset()
    """The bucket keys."""
    prefixes: frozenset[str] = frozenset()
    """Prefixes of further keys: some keys cannot be computed from claims, and concern the subscriber when a row gets
    one. `rules.keys.prefixes_of` returns the prefixes of a key."""


_NO_BUCKETS = Subscription()
"""No bucket keys."""


@dataclass(frozen=True, slots=True, eq=False)
class SubscriptionState:
    """The cursor of subscribers, and what they may see. Subscribers that share a state get the same broadcasts.

    It is immutable and may be used by any thread; `replace` makes the next state. States are compared by identity
    (`eq=False`): a channel groups subscribers by the state object. Each call of `engine.subscriptions` returns one
    object for states with the same `sharing_key`.
    """

    cursor: int
    """Cursor of the last page sent to them."""
    limit: int
    """Deltas at which a page is full."""
    has_more: bool = False
    """Whether more pages follow at this cursor."""
    has_other_claims: bool = False
    """Whether these clients were sent pages under other claims after the cursor, on other connections; see
    `ScanResult.with_other_claims`."""
    access: Access | None = None
    """What they could see when they got the cursor; None until `subscribe` computes it."""
    subscription: Subscription = _NO_BUCKETS
    """All bucket keys that concerned them since they subscribed. Earlier keys stay, because a row that they have may
    leave a bucket that they saw then."""
    knows_resync: bool = False
    """Whether they understand RESYNC_REQUIRED, and accept an INSERT of a row that they have."""
    may_hold_unknown_rows: bool = False
    """Whether they may have rows that the gateway never knew, for example from before the store was rebuilt."""
    has_not_pulled: bool = False
    """Whether they have not pulled on their connections yet. The cursor is then that of their stored records. Their
    databases may be older, so their broadcasts have cursor 0, which clients do not store."""

    def sharing_key(self) -> tuple[object, ...]:
        """Return a value that is equal for states whose subscribers get the same broadcasts."""
        flags = (self.may_hold_unknown_rows, self.knows_resync, self.has_not_pulled, self.has_other_claims)
        access = self.access
        if access is None:
            return (self.cursor, self.limit, self.has_more, None, self.subscription, *flags)
        # Bucket keys contain the claims that they allow, so equal keys suffice. Claims must be compared for keys that
        # may come into use, and while rows get the bucket keys of new rules: access then depends on rows' values too.
        claims = (
            msgspec.json.encode(access.claims, order="sorted")
            if self.subscription.prefixes or access.sees_by_values
            else b""
        )
        keys = (access.rules_version, access.keys, claims)
        return (self.cursor, self.limit, self.has_more, keys, self.subscription, *flags)


@dataclass(slots=True, eq=False)
class Subscriber:
    """A client that is subscribed on one connection. The gateway's channel changes it, in one thread.

    Other threads are given its immutable parts only: the state and the client id.
    """

    client_id: str
    claims: Claims
    """The verified claims of the connection's token."""
    state: SubscriptionState
    """How far the client was sent changes on this connection."""
    has_own_changes: bool = True
    """Whether there may be changes that concern this client alone, so that the next scan must read its own bucket."""

    @property
    def own_bucket(self) -> str:
        """The bucket key of changes that concern this client alone."""
        return own_bucket(self.client_id)

    def after_page(self, cursor: int, *, has_more: bool) -> None:
        """Record that the client was sent a page of its own. It has to be subscribed again before the next scan.

        Args:
            cursor: the page's cursor.
            has_more: whether more pages follow.
        """
        self.state = replace(self.state, cursor=cursor, has_more=has_more, access=None)
        self.has_own_changes = True

    def after_source(self) -> None:
        """Record that the client was sent a page of a source, a database beside the gateway's feed.

        The client has to be subscribed again before the next scan: it may have rows that a shared page does not
        consider.
        """
        self.state = replace(self.state, access=None)

    def after_push(self, cursor: int) -> None:
        """Record the cursor in the response to the client's push, if it is ahead of the connection's cursor.

        A cursor in the middle of pages does not prove that the client has everything before it, so it is ignored.

        Args:
            cursor: the cursor in the response.
        """
        # Complete cursors are arrivals, which are multiples of ARRIVAL_STEP, except for the first one under new claims
        # or rules, which is ignored too. Before the first page there is no middle.
        is_complete = cursor % ARRIVAL_STEP == 0 or cursor == NEVER_PULLED
        is_ahead = not self.state.has_more and cursor > self.state.cursor and is_complete
        # always a new object: a scan that began with the old one does not include the push
        self.state = replace(self.state, cursor=cursor if is_ahead else self.state.cursor)


class Newcomer(NamedTuple):
    """A client that is to be subscribed."""

    client_id: str
    claims: Claims
    """The verified claims of its connection's token."""
    state: SubscriptionState
    """The state of its connection, with its cursor."""


class SubscriberGroup(NamedTuple):
    """Subscribers that share a state."""

    state: SubscriptionState
    """The state that they share."""
    clients: frozenset[str]
    """Their client ids."""
    with_own_changes: frozenset[str]
    """Those of the clients that may have changes in their own buckets."""
    multi_connected: frozenset[str]
    """Those of the clients that have several connections. What such a client lacks on this connection, it may have been
    sent on another one."""


class ScanResult(NamedTuple):
    """The changes that a group of subscribers lacks."""

    state: SubscriptionState
    """The group's state after it is sent the page."""
    page: SyncPage | None = None
    """The shared page; None if it would be empty, or if no client would be sent it."""
    own_pages: Mapping[str, SyncPage | None] = {}
    """By client id: pages of clients that lack something else than the shared page; None for one that lacks nothing."""
    with_other_claims: frozenset[str] = frozenset()
    """Clients that were sent pages under other claims after the group's cursor. The cursor of a shared page would
    belong to those claims. So each of them that lacks something needs a pull of its own, from its old cursor."""
    needs_pull: bool = False
    """Whether each client of the group needs a pull of its own, because a shared page is not possible: more pages
    follow, bucket keys came into use, or the rules changed or are being applied."""

    def page_of(self, client_id: str) -> SyncPage | None:
        """Return the page that a client of the group is sent: its own or the shared one; None if it lacks nothing."""
        return self.own_pages.get(client_id, self.page)

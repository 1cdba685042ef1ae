"""What the followers of a gateway lack: clients that are connected and told of what is new without asking.

A follower's cursor is what the server knows that it was sent on its connection, in order; so its position needs no
record. Followers who stand at one place and may see the same lack the same, except for what they wrote themselves: one
page is made for all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from lakesync.engine.access import RulesCache
from lakesync.engine.pushing import NEVER_PULLED
from lakesync.feed import pull_page
from lakesync.feed.apply import own_bucket
from lakesync.feed.memory import current, in_scope
from lakesync.feed.positions import Access, Position
from lakesync.staging.records import ClientRecord
from lakesync.staging.store import Commit, View
from lakesync.types import Claims, SyncResponse

_NOBODY = ""
"""Stands for a client that wrote nothing; it can be no client's id."""


class Interest(NamedTuple):
    """What a notice has to name for a follower to be concerned, besides its own bucket."""

    buckets: frozenset[str] = frozenset()
    prefixes: frozenset[str] = frozenset()
    """Of bucket keys that are not in use yet; `rules.keys.prefix_of` gives a key's own."""


class Follower(NamedTuple):
    """A client that follows, and where it stands."""

    client_id: str
    claims: Claims
    cursor: int
    """Of the last page that it was sent."""
    limit: int
    """Deltas in a page."""
    knows_resync: bool
    """It understands RESYNC_REQUIRED."""
    more: bool = False
    """The cursor is in the middle of a walk."""
    own: bool = True
    """There may be something that concerns it alone."""
    access: Access | None = None
    """What it could see when the cursor was handed out; None where that was not looked at yet."""
    interest: Interest = Interest()
    """All that concerned it since it follows: rows leave buckets that it was once allowed to see."""

    def after_page(self, page: SyncResponse) -> Follower:
        """After a page of its own, whose cursor may date from another access."""
        return self._replace(cursor=page.server_hlc, more=page.has_more, own=True, access=None)

    @property
    def own_bucket(self) -> str:
        """The bucket key of what concerns it alone."""
        return own_bucket(self.client_id)

    def after_push(self, cursor: int) -> Follower:
        """After the answer to its push, whose cursor it takes where that is further on."""
        return self if self.more or cursor <= self.cursor else self._replace(cursor=cursor)


class Found(NamedTuple):
    """What was found for a follower."""

    follower: Follower
    """Where it stands once it was sent the page."""
    page: SyncResponse | None
    """What it lacks, often shared with others; None: nothing."""
    pull: bool = False
    """It has to be pulled for: it is in the middle of its pages, or its rules have changed or are being applied."""


def follow(commit: Commit, followers: Sequence[Follower], rules: RulesCache, now_ms: int) -> list[Follower]:
    """The followers with what they may see, as far as their cursors were handed out under it.

    Who found an empty gateway has no record that says so: it gets one, so that later cursors mean something.
    """
    return [_begin(commit, follower, rules, now_ms) for follower in followers]


def _begin(commit: Commit, follower: Follower, rules: RulesCache, now_ms: int) -> Follower:
    follower, access = _concerned(commit, follower, rules)
    known = current(commit.client(follower.client_id), commit.epoch)
    record = replace(known or ClientRecord(follower.client_id, commit.epoch, now_ms), followed=True)
    if not record.scopes and follower.cursor <= NEVER_PULLED:
        record = in_scope(record, access, commit.arrival, 0)
        record = replace(record, scopes=(replace(record.scopes[0], start=0),))
    if record != known:
        commit.put_client(record)
    scope = record.scopes[-1] if record.scopes else None
    if scope is None or not access.same_as(scope) or not 0 <= scope.start <= follower.cursor:
        return follower
    return follower._replace(access=access)


def _concerned(view: View, follower: Follower, rules: RulesCache) -> tuple[Follower, Access]:
    """The follower with what concerns it now, and what it may see."""
    access = rules.access(view, follower.claims)
    prefixes = rules.index(view.config).client_prefixes(follower.claims)
    before = follower.interest
    interest = Interest(before.buckets.union(access.keys), before.prefixes | prefixes)
    return follower._replace(interest=interest), access


def look(view: View, followers: Sequence[Follower], rules: RulesCache) -> list[Found]:
    """What each of the followers lacks, in their order."""
    found: dict[int, Found] = {}
    alike: dict[tuple[object, ...], list[tuple[int, Follower]]] = defaultdict(list)
    for place, follower in enumerate(followers):
        now = _seen(view, follower, rules)
        if now.more or now.access is None or now.access.directly is not None:
            found[place] = Found(now, None, pull=True)
        else:
            key = (now.cursor, now.limit, now.access.keys, now.interest.buckets)
            alike[key].append((place, now))
    for group in alike.values():
        for (place, _), each in zip(group, _look_at_alike(view, [follower for _, follower in group]), strict=True):
            found[place] = each
    return [found[place] for place in range(len(followers))]


def _seen(view: View, follower: Follower, rules: RulesCache) -> Follower:
    """The follower with what it may see now; with no access where its cursor was handed out under other rules."""
    known = follower.access
    if known is None:
        return follower
    if known.rules_version != view.config.rules_version:
        return follower._replace(access=None)
    if not follower.interest.prefixes:
        return follower
    follower, access = _concerned(view, follower, rules)
    return follower._replace(access=access)


def _look_at_alike(view: View, group: Sequence[Follower]) -> list[Found]:
    """What followers lack who stand at one place and may see the same."""
    first = group[0]
    assert first.access is not None
    keys = first.interest.buckets | first.access.keys
    at = Position(first.cursor, first.cursor, view.arrival, resync=False, origin=0, then=keys, now=keys, reach={})
    writers: set[str] = set()
    shared = pull_page(view, _NOBODY, at, first.access, first.limit, writers)
    if shared.has_more:
        return [Found(follower, None, pull=True) for follower in group]
    everybodys = SyncResponse(tuple(shared.deltas), view.arrival) if shared.deltas else None
    found = []
    for follower in group:
        page = everybodys
        if follower.own or follower.client_id in writers:
            apart = pull_page(view, follower.client_id, at, first.access, follower.limit)
            if apart.has_more:
                found.append(Found(follower, None, pull=True))
                continue
            page = SyncResponse(tuple(apart.deltas), view.arrival) if apart.deltas else None
        found.append(Found(follower._replace(cursor=max(view.arrival, follower.cursor), own=False), page))
    return found

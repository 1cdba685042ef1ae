"""What the followers of a gateway lack: clients that are connected and told of what is new without asking.

A follower's cursor is what the server knows that it was sent on its connection, in order; so its position needs no
record. Followers who stand at one place and may see the same lack the same, except for what they wrote themselves: one
page is made for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from lakesync.engine.access import RulesCache
from lakesync.engine.pushing import NEVER_PULLED
from lakesync.feed import pull_page
from lakesync.feed.apply import own_bucket
from lakesync.feed.memory import (
    bears_cursors,
    current,
    follows,
    in_doubt,
    in_scope,
    place,
    scope_under,
    with_broadcasts,
)
from lakesync.feed.positions import Access, Position, Reach, furthest
from lakesync.model.types import Claims, SyncResponse
from lakesync.staging.records import ARRIVAL_STEP, ClientRecord
from lakesync.staging.store import Commit, View

_NOBODY = ""
"""Stands for a client that wrote nothing; it can be no client's id."""


class Interest(NamedTuple):
    """What a notice has to name for a follower to be concerned, besides its own bucket."""

    buckets: frozenset[str] = frozenset()
    prefixes: frozenset[str] = frozenset()
    """Of bucket keys that are not in use yet; `rules.keys.prefixes_of` gives a key's own."""


_NOTHING = Interest()


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """Where followers stand and what they may see; those who share one are told the same."""

    cursor: int
    """Of the last page that they were sent."""
    limit: int
    """Deltas in a page."""
    more: bool = False
    """The cursor is in the middle of a walk."""
    beside: bool = False
    """Others of the same client, with other claims, were sent pages since; see `Found.remembered`."""
    access: Access | None = None
    """What they could see when the cursor was handed out; None where that was not looked at yet."""
    interest: Interest = _NOTHING
    """All that concerned them since they follow: rows leave buckets that they were once allowed to see."""
    knows_resync: bool = False
    """They understand RESYNC_REQUIRED, and take an INSERT of a row that they have."""
    haunted: bool = False
    """They may hold rows that the gateway never knew."""
    unplaced: bool = False
    """They did not pull on their connections yet. Their cursor is what their records prove; their own may be older, so
    what they are sent has none."""

    def value(self) -> tuple[object, ...]:
        """Equal for standings of which one may stand for the other."""
        access = self.access
        if access is None:
            return (self.cursor, self.limit, self.more, None, self.interest, *self._kind)
        # what the claims say is in the keys, except for keys that are not in use yet and for rules not yet applied
        claims = (
            msgspec.json.encode(access.claims, order="sorted") if self.interest.prefixes or access.directly else b""
        )
        keys = (access.rules_version, access.keys, claims)
        return (self.cursor, self.limit, self.more, keys, self.interest, *self._kind)

    @property
    def _kind(self) -> tuple[bool, ...]:
        return (self.haunted, self.knows_resync, self.unplaced, self.beside)


@dataclass(slots=True, eq=False)
class Follower:
    """A client that follows. Belongs to one thread; only its parts that never change are given to others."""

    client_id: str
    claims: Claims
    standing: Standing
    own: bool = True
    """There may be something that concerns it alone."""

    @property
    def cursor(self) -> int:
        """Of the last page that it was sent."""
        return self.standing.cursor

    @property
    def more(self) -> bool:
        """Whether the cursor is in the middle of a walk."""
        return self.standing.more

    @property
    def knows_resync(self) -> bool:
        """Whether it understands RESYNC_REQUIRED."""
        return self.standing.knows_resync

    @property
    def own_bucket(self) -> str:
        """The bucket key of what concerns it alone."""
        return own_bucket(self.client_id)

    def after_page(self, cursor: int, *, more: bool) -> None:
        """A page of its own was sent, whose cursor may date from another access."""
        self.standing = replace(self.standing, cursor=cursor, more=more, access=None)
        self.own = True

    def after_source(self) -> None:
        """A page of a source was sent: what it has from there is to be looked at."""
        self.standing = replace(self.standing, access=None)

    def after_push(self, cursor: int) -> None:
        """Its push was answered; it takes the answer's cursor where that is further on.

        A page mark does not say that it has all up to there, but this connection's own cursor does. Whoever had nothing
        has now what it wrote.
        """
        meant = cursor % ARRIVAL_STEP == 0 or cursor == NEVER_PULLED
        further = not self.standing.more and cursor > self.cursor and meant
        # a new one in any case: what was found before for the old one does not know of the push
        self.standing = replace(self.standing, cursor=cursor if further else self.cursor)


class Group(NamedTuple):
    """Followers of one standing."""

    standing: Standing
    clients: frozenset[str]
    apart: frozenset[str]
    """Those of them whom something may concern alone."""
    doubled: frozenset[str]
    """Those of them who follow on another connection too: what they lack may have been sent to them there."""


class Found(NamedTuple):
    """What was found for a group."""

    standing: Standing
    """Where its followers stand once they were sent their page."""
    page: SyncResponse | None = None
    """What they lack; None: nothing."""
    own: Mapping[str, SyncResponse | None] = {}
    """What those lack who lack something else."""
    remembered: frozenset[str] = frozenset()
    """Those who lack something and whose newest claims are others: they have to be pulled for, from where they stood.
    A shared page would hand out cursors of the other claims.
    """
    pull: bool = False
    """They have to be pulled for: they are in the middle of their pages, bucket keys came into use, or their rules
    have changed or are being applied."""


def follow(
    commit: Commit, newcomers: Sequence[tuple[str, Claims, Standing]], rules: RulesCache, now_ms: int
) -> list[Standing]:
    """The newcomers' standings with what they may see, as far as their cursors were handed out under it.

    Who found an empty gateway has no record that says so: it gets one, so that later cursors mean something.
    """
    known: dict[tuple[object, ...], Standing] = {}
    standings = [_begin(commit, client, claims, at, rules, now_ms) for client, claims, at in newcomers]
    return [known.setdefault(standing.value(), standing) for standing in standings]


def _begin(
    commit: Commit, client_id: str, claims: Claims, standing: Standing, rules: RulesCache, now_ms: int
) -> Standing:
    access = rules.access(commit, claims)
    interest = concerned(commit, claims, access, standing.interest, rules)
    known = current(commit.client(client_id), commit.epoch)
    record = known or ClientRecord(client_id, commit.epoch, now_ms)
    if not record.scopes and standing.cursor <= NEVER_PULLED:
        record = in_scope(record, access, commit.arrival)
        record = msgspec.structs.replace(record, scopes=(msgspec.structs.replace(record.scopes[0], start=0),))
    record = follows(record, access)
    if record != known:
        commit.put_client(record)
    scope = scope_under(record, access)
    good = scope is not None and 0 <= scope.start <= standing.cursor
    good = good and not record.sources  # a shared page does not know what one of them has from a source
    haunted = (record.haunted or standing.unplaced) and not standing.knows_resync
    beside = good and not bears_cursors(record, access)
    return replace(standing, access=access if good else None, interest=interest, haunted=haunted, beside=beside)


def resume(commit: Commit, client_id: str) -> int | None:
    """A cursor from which a client can be sent what is new before it pulls: that of the place that it surely came to.

    What it was sent since then it may have, or a part of it, or nothing.

    Returns:
        None where the client's record does not say where it was.
    """
    record = current(commit.client(client_id), commit.epoch)
    surely = place(record, record.seen) if record is not None else None
    if record is None or surely is None:
        return None
    told = furthest(with_broadcasts(record, commit.arrival).scopes)
    after, cursor = in_doubt(msgspec.structs.replace(record, followed=True), surely, commit.arrival, told)
    if after != record:
        commit.put_client(after)
    return cursor


def concerned(view: View, claims: Claims, access: Access, before: Interest, rules: RulesCache) -> Interest:
    """What concerned them before, and what concerns whoever has this access."""
    prefixes = rules.index(view.config).client_prefixes(claims)
    return Interest(before.buckets | access.keys, before.prefixes | prefixes)


def look(view: View, groups: Sequence[Group], rules: RulesCache) -> list[Found]:
    """What the followers of each group lack, in the order of the groups."""
    known: dict[tuple[object, ...], Standing] = {}
    return [_look_at(view, group, rules, known) for group in groups]


def place_of(standing: Standing, access: Access, newest: int) -> Position:
    """Where followers are who were sent all that they may see, up to their cursor."""
    keys = standing.interest.buckets | access.keys
    return Position(
        standing.cursor,
        standing.cursor,
        newest,
        resync=False,
        origin=0,
        then=keys,
        now=keys,
        reach={},
        told=0,
        haunted=standing.haunted,
        once=not standing.knows_resync,
    )


def _look_at(view: View, group: Group, rules: RulesCache, known: dict[tuple[object, ...], Standing]) -> Found:
    standing = as_of_now(view, group.standing, rules)
    access = standing.access
    if standing.more or access is None or access.directly is not None:
        return Found(standing, pull=True)
    at = place_of(standing, access, view.arrival)
    keys = at.now
    writers: set[str] = set()
    shared = pull_page(view, _NOBODY, at, access, standing.limit, writers)
    reach = dict.fromkeys(keys, (Reach(standing.cursor, view.arrival),))
    doubted = at._replace(exact=False, reach=reach, told=view.arrival)
    alone = {own_bucket(name): name for name in group.clients}
    apart = group.apart.union(alone[bucket] for bucket in view.unheard(alone, standing.cursor))
    several = group.clients if standing.beside else group.doubled
    others = {
        name: pull_page(view, name, doubted if name in several else at, access, standing.limit)
        for name in apart | several | group.clients & writers
    }
    if shared.has_more or any(page.has_more for page in others.values()):
        return Found(standing, pull=True)
    after = replace(standing, cursor=max(view.arrival, standing.cursor))
    own = {
        name: SyncResponse(tuple(page.deltas), after.cursor) if page.deltas else None for name, page in others.items()
    }
    page = SyncResponse(tuple(shared.deltas), after.cursor) if shared.deltas else None
    remembered = frozenset(name for name in several if own[name] and not _bears_cursors(view, name, access))
    return Found(known.setdefault(after.value(), after), page, own, remembered)


def _bears_cursors(view: View, client_id: str, access: Access) -> bool:
    record = current(view.client(client_id), view.epoch)
    return record is not None and bears_cursors(record, access)


def as_of_now(view: View, standing: Standing, rules: RulesCache) -> Standing:
    """The standing with what its followers may see now.

    With no access where the rules are others, or bucket keys came into use that their records have to name before rows
    are sent under them: a pull that crosses those would not know that they may be there.
    """
    access = standing.access
    if access is None:
        return standing
    if access.rules_version != view.config.rules_version:
        return replace(standing, access=None)
    if not standing.interest.prefixes:
        return standing
    latest = rules.access(view, access.claims)
    if latest.keys - access.keys:
        return replace(standing, access=None)
    return replace(standing, access=latest, interest=concerned(view, latest.claims, latest, standing.interest, rules))

"""What a client's cursor means: where it stands in the feed, what it held there, and what it was told since."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from lakesync.model.types import Claims
from lakesync.model.validation import MAX_HLC
from lakesync.staging.records import ARRIVAL_STEP, ClientRecord, Page, PastKey, Scope, StoredRow

NOTHING = -1
"""In place of a base: the client began with no rows, or with nobody knows which."""

Range = tuple[int, int]
"""Of the feed: above the first and up to the second arrival."""


class Access(NamedTuple):
    """What a client may see now."""

    claims: Claims
    """Those that the rules read."""
    keys: frozenset[str]
    rules_version: int
    directly: Callable[[StoredRow], bool] | None = None
    """While rows are brought in line with new rules: whether these let the client see a row."""

    def sees(self, row: StoredRow) -> bool:
        """Whether the client may see the row as it is now."""
        return self.shows(row) or (self.directly is not None and self.directly(row))

    def shows(self, row: StoredRow) -> bool:
        """Whether it may by the row's bucket keys, which the row's entries tell later too."""
        return any(key in self.keys for key in row.keys)

    def same_as(self, scope: Scope) -> bool:
        """Whether the scope was of these claims and rules."""
        return scope.rules_version == self.rules_version and scope.claims == self.claims

    def resets(self, scope: Scope, *, asked: bool) -> bool:
        """Whether nobody knows what a client has that may have been sent pages under this scope since its cursor.

        A page of another token is known to be applied by its cursor, which the client then sends: its rows count as
        perhaps there, and no more. That does not hold for pages without a cursor, nor for pages of other rules, which
        may be of the same token and cross a pull.

        Args:
            scope: under which it may have been sent pages.
            asked: the client sent the cursor itself. A connection's own cursor says all that was sent on it.
        """
        return not self.same_as(scope) and (scope.rules_version != self.rules_version or (asked and scope.loose))


class Reach(NamedTuple):
    """A time in which a client was sent rows under one bucket key, as arrivals."""

    at: int
    """The newest arrival when it was first sent any."""
    given: int
    """No INSERT or UPDATE was sent at a later place."""


class Position(NamedTuple):
    """Where a pull starts. The fields that a `Page` has too mean the same."""

    after: int
    base: int
    until: int
    resync: bool
    origin: int
    """Number of the scope at `base`; 0 without a base."""
    then: frozenset[str]
    """The bucket keys that were in force at `base`."""
    now: frozenset[str]
    reach: Mapping[str, Sequence[Reach]]
    """What the client may have been told since `base`, or ever, where it starts again."""
    told: int
    """No row was told since `base` at a later place, under any keys or under none."""
    exact: bool = True
    """It was told nothing beyond this cursor."""
    turn: int = 0
    redo: tuple[Range, ...] = ()
    redo_first: bool = True
    haunted: bool = False
    """It may hold rows that the gateway never knew: of none is it certain that the client lacks it."""
    once: bool = False
    """What it fails to apply is not sent again. It may have missed a DELETE like that, or left one out for an edit of
    its own: of no row that was ever taken away is it certain that the client lacks it."""
    own: int | None = None
    """Of what it wrote itself it has no more than up to this hlc; None: all of it."""

    @property
    def moved(self) -> bool:
        """Whether other keys are in force than at `base`: the walk is a transition."""
        return self.then != self.now and not self.resync


def locate(
    record: ClientRecord | None, since: int, newest: int, access: Access, line: Claims | None = None
) -> Position | None:
    """The position of a cursor; None when it cannot be served (L11) and the client must start again.

    Args:
        record: what is known of the client in this epoch. Without one it begins with nothing at `since` 0.
        newest: the newest arrival.
        line: the claims of the connection whose own cursor this is; None where the client sent it.
    """
    if record is None:
        return _begin((), newest, access) if since == 0 else None
    if since <= 1:
        given = furthest(record.scopes) > 0 or record.past or (record.wrote and since == 0)
        return again(record, newest, access) if given else _begin(record.scopes, newest, access)
    page = next((page for page in record.pages if page.cursor == since), None)
    if page is not None:
        return _in_walk(record, page, newest, access, asked=line is None)
    scope = scope_of(record, since, line) if since < newest + ARRIVAL_STEP else None
    return _at_rest(record, scope, since, newest, access, asked=line is None) if scope is not None else None


def again(record: ClientRecord, newest: int, access: Access) -> Position:
    """Where a client starts again that may hold anything: every row is sent as DELETE, then INSERT."""
    reach, told = _reach(record.past, record.scopes)
    keys = access.keys
    return Position(0, NOTHING, newest, resync=True, origin=0, then=frozenset(), now=keys, reach=reach, told=told)


def swept(at: Position) -> Position:
    """The position of a client that names itself: where it starts again, it removes in the end what it was not sent.

    So of rows that it may have from a life of the store that is lost it needs no DELETE, and is told no id: under a
    past key without an end stand also rows that came into the bucket after the client had lost sight of it.
    """
    if not at.resync:
        return at
    ended = {key: [reach for reach in times if reach.given < MAX_HLC] for key, times in at.reach.items()}
    return at._replace(reach={key: times for key, times in ended.items() if times})


def scope_of(record: ClientRecord, cursor: int, line: Claims | None = None) -> Scope | None:
    """The scope of a complete cursor.

    Args:
        record: the client's.
        cursor: one that was handed out.
        line: the claims of the connection that it is of: while others are handed cursors too, it is of these.
    """
    for scope in reversed(record.scopes):
        if line is not None and any(line.get(name) != value for name, value in scope.claims.items()):
            continue
        if scope.start == cursor or (0 <= scope.start < cursor and cursor % ARRIVAL_STEP == 0):
            return scope if not scope.end or cursor < scope.end else None
    return None


def later_scopes(record: ClientRecord, scope: Scope) -> list[Scope]:
    """The scopes after this one."""
    return [later for later in record.scopes if later.number > scope.number]


def rests(page: Page) -> bool:
    """Whether the client had exactly what it could see there."""
    return page.after == page.base and page.then == page.scope and not page.redo


def furthest(scopes: Iterable[Scope | PastKey]) -> int:
    """No row was told under any of the scopes at a later place in the feed."""
    return max((scope.told for scope in scopes), default=0)


def _begin(scopes: Iterable[Scope], newest: int, access: Access) -> Position:
    """Of what it was allowed to see before, a client that was given nothing can only have what it wrote itself."""
    reach, told = _reach((), scopes)
    keys = access.keys
    return Position(0, NOTHING, newest, resync=False, origin=0, then=keys, now=keys, reach=reach, told=told)


def _at_rest(record: ClientRecord, scope: Scope, since: int, newest: int, access: Access, *, asked: bool) -> Position:
    """At a complete cursor the client has exactly what it could see then."""
    later = later_scopes(record, scope)
    if any(access.resets(other, asked=asked) for other in later):
        return again(record, newest, access)
    reach, told = _since(record, since, scope)
    exact = told <= since and not any(other.told for other in later)
    then, now = _keys(scope, scope, access)
    moved = then != now
    return Position(
        after=since,
        base=since,
        until=newest if exact else since,
        resync=False,
        origin=scope.number,
        then=then,
        now=now,
        reach=reach,
        told=told,
        exact=exact,
        turn=since if moved else 0,
        redo=((0, since),) if moved else (),
    )


def _in_walk(record: ClientRecord, page: Page, newest: int, access: Access, *, asked: bool) -> Position:
    """At a page mark the client has what it had at the base, and what it was told on the way."""
    walk = numbered(record, page.scope)
    origin = numbered(record, page.then) if page.then else walk
    if walk is None or origin is None:
        return again(record, newest, access)
    same = access.same_as(walk)
    if any(access.resets(other, asked=asked) for other in later_scopes(record, walk)) or (
        not same and (page.resync or origin is not walk)
    ):
        return again(record, newest, access)
    if page.resync:
        anew = again(record, newest, access)
        return anew._replace(after=page.after, until=page.until, redo=page.redo, redo_first=page.redo_first)
    then, now = _keys(origin, walk, access)
    begins = not same and then != now
    exact = page.serial == record.told
    reach, told = _reach((), record.scopes) if page.base == NOTHING else _since(record, page.base, origin)
    return Position(
        after=page.after,
        base=page.base,
        until=newest if exact and rests(page) else page.until,
        resync=False,
        origin=page.then or (walk.number if begins else 0),
        then=then,
        now=now,
        reach=reach,
        told=told,
        exact=exact,
        turn=min((low for low, _ in page.redo), default=page.after) if begins else page.turn,
        redo=((0, page.after),) if begins else page.redo,
        redo_first=page.redo_first or begins,
    )


def _keys(origin: Scope, walk: Scope, access: Access) -> tuple[frozenset[str], frozenset[str]]:
    """Those in force at the base, and now. Under the same claims and rules a key that came up since is no other."""
    then = frozenset(origin.keys)
    if origin is walk and access.same_as(walk):
        return then | access.keys, then | access.keys
    return then, access.keys


def numbered(record: ClientRecord, number: int) -> Scope | None:
    """A scope by its number; None where it is forgotten."""
    return next((scope for scope in record.scopes if scope.number == number), None)


def _since(record: ClientRecord, base: int, origin: Scope) -> tuple[dict[str, list[Reach]], int]:
    """What the client may have been told since a complete cursor of the scope `origin`.

    A past key without an end is of what it was told before it came to any complete cursor.
    """
    past = [past for past in record.past if base < past.told < MAX_HLC]
    return _reach(past, [origin, *later_scopes(record, origin)])


def _reach(past: Iterable[PastKey], scopes: Iterable[Scope]) -> tuple[dict[str, list[Reach]], int]:
    """What a client was given by key, and the latest place at which it was sent a row, be it a DELETE.

    The place under a scope without keys counts too: its client was sent DELETEs.
    """
    past, scopes = list(past), list(scopes)
    reach: dict[str, list[Reach]] = {}
    for key in past:
        if key.key:
            reach.setdefault(key.key, []).append(Reach(key.at, key.told))
    for scope in scopes:
        for name in scope.keys:
            reach.setdefault(name, []).append(Reach(scope.at, scope.reached))
    return reach, max(furthest(past), furthest(scopes))

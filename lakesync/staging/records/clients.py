"""What a gateway keeps about a client: what it was told, and what it was allowed to see then."""

from __future__ import annotations

import msgspec

from lakesync.model.types import Claims
from lakesync.staging.shard_records import Handed
from lakesync.staging.source_records import SourcePosition

LOST = 0
"""In place of the epoch of a client's record: the client was seen, and what was known of it is gone."""


class Scope(msgspec.Struct, frozen=True, array_like=True):
    """What a client was allowed to see while it was told something, until the next scope."""

    number: int
    """Counts from 1."""
    claims: Claims
    """Those that the rules read."""
    rules_version: int
    keys: tuple[str, ...]
    """The bucket keys that came of them."""
    at: int
    """The newest arrival when the client was first told something under it."""
    start: int
    """Complete cursors from here on, below the next scope's, are of this one; -1: none was handed out."""
    told: int
    """No row was ever sent under it at a later place in the feed, not even a DELETE."""
    end: int = 0
    """Complete cursors from here on are not of this one, as the next scope was forgotten before it; 0: no such."""
    followed: bool = False
    """Pages may be sent under it unasked, of which nothing is kept here. Only the newest one is."""
    loose: bool = False
    """Pages were sent under it whose cursors the client does not take: it may have them at any cursor."""
    given: int = -1
    """No INSERT or UPDATE was ever sent under it at a later place in the feed; -1: not known apart from `told`."""

    @property
    def reached(self) -> int:
        """No row that the client may hold was sent under it at a later place in the feed."""
        return self.given if self.given >= 0 else self.told


class Page(msgspec.Struct, frozen=True, array_like=True):
    """A cursor in the middle of a walk: a page mark, strictly between two arrivals, of one client.

    The one with cursor 0 stands for a client that started again, or for the first time.
    """

    cursor: int
    after: int
    """In the normal order, rows whose latest change is above this are still to come."""
    base: int
    """The complete cursor at which the walk began; -1: it began with nothing, or with nobody knows what."""
    until: int
    """A row that has not changed since this arrival was met by the walk at one place only."""
    resync: bool
    """The walk began at a client that may hold rows that the gateway does not know of."""
    then: int
    """Number of the scope that held at `base`; 0 where there is no base."""
    scope: int
    """Number of the scope that the walk is made under."""
    turn: int
    """Rows whose latest change is above this are met in the normal order; 0: all of them."""
    redo: tuple[tuple[int, int], ...]
    """Ranges of the feed, above the first and up to the second arrival, to be gone through besides."""
    redo_first: bool
    """They come before the normal order, not behind it."""
    serial: int
    """How many pages the client was told up to this one; another number: it was told more since."""


class PastKey(msgspec.Struct, frozen=True, array_like=True):
    """A bucket key of a scope that is forgotten."""

    key: str
    """Empty for what was sent under the scope beyond rows that the client may hold: DELETEs."""
    at: int
    told: int
    """No row that the client may hold, with the empty key no row at all, was sent at a later place in the feed."""


class ClientRecord(msgspec.Struct, frozen=True, array_like=True):
    """All that a gateway keeps about one client."""

    client_id: str
    epoch: int
    last_seen_ms: int
    scopes: tuple[Scope, ...] = ()
    """Newest last; the newest few."""
    pages: tuple[Page, ...] = ()
    """Newest last; the newest few."""
    past: tuple[PastKey, ...] = ()
    marks: int = 0
    """Page marks handed out so far."""
    seen: int = 0
    """The cursor of the place where the client certainly was; what it was told since it may or may not have."""
    last: int = 0
    """The cursor handed out last that came with deltas."""
    told: int = 0
    """How many pages with deltas it was told."""
    wrote: bool = False
    """It pushed something."""
    followed: bool = False
    """Pages are sent to it unasked, of which nothing is kept here."""
    sources: tuple[SourcePosition, ...] = ()
    """How far the client is with each source that it ever pulled from."""
    handed: Handed | None = None
    """What cursors stand for that a sharded gateway handed out; kept in the default shard alone."""
    haunted: bool = False
    """It may hold rows that the gateway never knew, as from before the store was lost: none is certainly new to it."""

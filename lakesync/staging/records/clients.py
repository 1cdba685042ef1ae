"""What a gateway stores about a client: rows that it was sent, what it could see then, its cursors, and its actions.

`feed.client_state` creates and changes a record's scopes and pages, `feed.positions` reads a cursor's meaning from
them, `engine.source_positions` keeps positions in sources, and `engine.sharding.cursors` the cursors of sharded
gateways. The page `docs/feed.md` explains scopes, page marks and transitions.
"""

from __future__ import annotations

import msgspec

from lakesync.model.types import Claims, Position
from lakesync.rules.model import SyncRules


class AccessPeriod(msgspec.Struct, frozen=True, array_like=True):
    """A period in which a client had certain rules and claims. It may have had others in between."""

    rules: SyncRules
    claims: Claims
    """The claims that the rules read."""
    first: Position | None = None
    """The source's newest position when the period began. Row versions that were replaced up to here were not visible
    in it."""
    last: Position | None = None
    """The client was sent nothing beyond this position in the period."""


class PendingPage(msgspec.Struct, frozen=True, array_like=True):
    """A page that was sent and is not confirmed."""

    mark: int
    """The cursor of the page."""
    end: Position | None
    """Where the next page begins once this one is confirmed."""
    attempts: int
    """How often in a row a page from the same position was sent."""
    start: Position | None = None
    """The position at which the page begins."""
    has_more: bool = False
    """Whether the source had more after it."""


class SourcePosition(msgspec.Struct, frozen=True, array_like=True):
    """A client's position in one source."""

    source: str
    confirmed: Position | None = None
    """Everything up to here is confirmed; None if nothing is."""
    pending: PendingPage | None = None
    """The page that is not confirmed."""
    pass_position: Position | None = None
    """Position in the current pass over the source, for a client without a cursor or one that never confirms a page.
    None: the pass begins after `confirmed`."""
    marks: tuple[tuple[int, int], ...] = ()
    """Pairs of a page's cursor and the feed cursor that it stands for, newest first; only the newest few."""
    tables: tuple[str, ...] = ()
    """Tables of the rows that the client was sent."""
    access_periods: tuple[AccessPeriod, ...] = ()
    """The current one is last; only the latest few, each with other rules or claims."""


class CursorVector(msgspec.Struct, frozen=True, array_like=True):
    """A client's cursor and the cursor in each shard that it stands for."""

    cursor: int
    parts: tuple[tuple[str, int], ...]
    """Shard and cursor there, ordered by shard. For a shard that is missing, because it was added later, the cursor is
    0."""
    next_shard: str = ""
    """The shard at which the next page begins, so that a busy shard does not delay the others; empty for any."""


class SentCursors(msgspec.Struct, frozen=True, array_like=True):
    """The newest cursors that a client was sent."""

    highest: int
    """The highest cursor that it was ever sent."""
    confirmed: int = 0
    """The cursor of its latest request; its vector is never removed."""
    vectors: tuple[CursorVector, ...] = ()
    """The most recently used or sent cursor is last."""


LOST = 0
"""Epoch of a client whose record was erased or lost: the client was seen before, but nothing else is known."""


class Scope(msgspec.Struct, frozen=True, array_like=True):
    """What a client was allowed to see, until its next scope: its claims under one version of the rules."""

    number: int
    """Counts from 1."""
    claims: Claims
    """The claims that the rules read."""
    rules_version: int
    keys: tuple[str, ...]
    """The bucket keys of these claims."""
    at: int
    """The newest arrival when the client was first sent something in this scope."""
    start: int
    """Complete cursors from here to the start of the next scope belong to this one; -1: none was sent."""
    sent_up_to: int
    """No row, not even a DELETE, was sent in this scope at a later feed position."""
    end: int = 0
    """Complete cursors from here on do not belong to this scope, because the next scope was removed before it; 0: none.
    """
    followed: bool = False
    """Broadcasts may be sent in this scope, which are not recorded. Only the newest scope has it."""
    loose: bool = False
    """Pages were sent in this scope whose cursors the client does not store: it may have their rows at any cursor."""
    upserted_up_to: int = -1
    """No INSERT or UPDATE was sent in this scope at a later feed position; -1: only `sent_up_to` is known."""

    @property
    def reached(self) -> int:
        """No row that the client may have was sent in this scope at a later feed position."""
        return self.upserted_up_to if self.upserted_up_to >= 0 else self.sent_up_to


class Page(msgspec.Struct, frozen=True, array_like=True):
    """A page mark: a cursor in the middle of a client's pages, strictly between two arrivals.

    The one with cursor 0 belongs to a client that starts from cursor 0.
    """

    cursor: int
    after: int
    """In the normal order, rows whose latest change is above this are still to be sent."""
    base: int
    """The complete cursor at which these pages began; -1: the client had nothing, or it is unknown what it had."""
    until: int
    """A row that has not changed since this arrival has been at one feed position during these pages."""
    resync: bool
    """These pages began with a client that may have rows which the gateway does not know."""
    base_scope: int
    """Number of the scope at `base`; 0 without a base."""
    scope: int
    """Number of the scope in which these pages are sent."""
    transition_at: int
    """Rows whose latest change is above this are read in the normal order; 0: all rows."""
    rescan: tuple[tuple[int, int], ...]
    """Ranges of the feed to read in addition: above the first and up to the second arrival."""
    rescan_first: bool
    """Whether they are read before the normal order, or after it."""
    serial: int
    """How many pages the client had been sent up to this one; if the record's count differs, it was sent more since."""


class PastKey(msgspec.Struct, frozen=True, array_like=True):
    """A bucket key of a scope that was removed."""

    key: str
    """Empty for DELETEs that were sent in the scope at a later feed position than rows that the client may have."""
    at: int
    sent_up_to: int
    """No row that the client may have (with the empty key: no row at all) was sent at a later feed position."""


class ClientRecord(msgspec.Struct, frozen=True, array_like=True):
    """Everything that a gateway stores about one client."""

    client_id: str
    epoch: int
    last_seen_ms: int
    scopes: tuple[Scope, ...] = ()
    """Newest last; only the newest few."""
    pages: tuple[Page, ...] = ()
    """Newest last; only the newest few."""
    past: tuple[PastKey, ...] = ()
    marks: int = 0
    """Number of page marks that were created."""
    seen: int = 0
    """The newest cursor that the client certainly has; it may have rows that it was sent after that."""
    last: int = 0
    """The newest cursor that was sent with deltas."""
    pages_sent: int = 0
    """Number of pages with deltas that were sent."""
    wrote: bool = False
    """Whether it ever pushed."""
    followed: bool = False
    """Whether broadcasts are sent to it, which are not recorded."""
    sources: tuple[SourcePosition, ...] = ()
    """Its position in each source that it ever pulled from."""
    sent_cursors: SentCursors | None = None
    """Its cursors of a sharded gateway; only in the default shard."""
    may_hold_unknown_rows: bool = False
    """It may have rows that the gateway never knew, for example from before the store was lost. So no row is certainly
    new to it."""


class ActionRecord(msgspec.Struct, frozen=True):
    """The state of a client's action: who executes it, or its result."""

    client_id: str
    action_id: str
    idempotency_key: str | None
    attempts: int
    claim: str
    """Identifies the process and attempt that executes it, or executed it last."""
    lease_ms: int
    """Server wall time until which the holder of the claim may execute it; 0 if nobody does."""
    touched_ms: int
    """Server wall time of the latest change."""
    outcome: bytes | None = None
    """Its result; None if it has none, or may be tried again."""


class ActionEntry(msgspec.Struct, frozen=True, rename="camel"):
    """One attempt at an action, as admins see it: without params and result."""

    seq: int
    """Counts the gateway's attempts from 1."""
    at_ms: int
    """Server wall time when it ended."""
    client_id: str
    action_id: str
    connector: str
    action_type: str
    attempt: int
    code: str
    """`OK`, or the failure's code."""
    ms: int
    """How long the handler took."""

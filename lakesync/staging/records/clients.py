"""What a gateway stores about a client: what it was sent, what it could see then, its cursors, and its actions.

A store keeps one `ClientRecord` for each client. `feed.client_state` changes its scopes and pages, `feed.positions`
reads a cursor's meaning from them and defines the terms (scope, page mark, complete cursor, feed position),
`engine.source_positions` changes positions in sources, and `engine.sharding.cursors` the cursors of sharded gateways.
"""

from __future__ import annotations

import msgspec

from lakesync.model.types import Claims, Position
from lakesync.rules.model import SyncRules


class AccessPeriod(msgspec.Struct, frozen=True, array_like=True):
    """A period in which a client read a source under certain rules and claims. It may have had others in between."""

    rules: SyncRules
    claims: Claims
    """The claims that the rules read."""
    first: Position | None = None
    """The source's newest position when the period began; None if the source was empty. Row versions that were replaced
    up to here were not sent in the period."""
    last: Position | None = None
    """The position in the source up to which the client was sent rows in the period; None if it was sent none."""


class PendingPage(msgspec.Struct, frozen=True, array_like=True):
    """A page of a source that was sent, and whose receipt the client has not confirmed."""

    mark: int
    """The cursor that was sent with the page; a client that sends it back has the page."""
    end: Position | None
    """The position in the source at which the page ends."""
    attempts: int
    """How often in a row a page from the same position was sent."""
    start: Position | None = None
    """The position in the source after which the page begins; None for the beginning."""
    has_more: bool = False
    """Whether the source had more after the page."""


class SourcePosition(msgspec.Struct, frozen=True, array_like=True):
    """A client's position in one source."""

    source: str
    """The source's name."""
    confirmed: Position | None = None
    """The position up to which the client has confirmed all pages; None if it confirmed none."""
    pending: PendingPage | None = None
    """The page that is not confirmed; None if there is none."""
    pass_position: Position | None = None
    """Position in the current pass over the source, for a client without a cursor or one that never confirms a page.
    None: the pass begins after `confirmed`."""
    marks: tuple[tuple[int, int], ...] = ()
    """Pairs of a page's cursor and the feed cursor that it means, newest first; only the newest few."""
    tables: tuple[str, ...] = ()
    """Tables of the rows that the client was sent."""
    access_periods: tuple[AccessPeriod, ...] = ()
    """The current one is last. Each has other rules or claims, except that the oldest of too many are one."""


class CursorVector(msgspec.Struct, frozen=True, array_like=True):
    """A cursor of a sharded gateway, with the cursor in each shard that it means."""

    cursor: int
    parts: tuple[tuple[str, int], ...]
    """Shard and cursor there, ordered by shard. For a shard that is missing, because it was added later, the cursor is
    0."""
    next_shard: str = ""
    """The shard at which the next page begins, so that a busy shard does not delay the others; empty for any."""


class SentCursors(msgspec.Struct, frozen=True, array_like=True):
    """The newest cursors that a client of a sharded gateway was sent."""

    highest: int
    """The highest cursor that the client was ever sent."""
    confirmed: int = 0
    """The cursor of the client's latest request; its vector is never removed."""
    vectors: tuple[CursorVector, ...] = ()
    """The stored vectors; that of the most recently sent or received cursor is last."""


LOST = 0
"""Epoch of a client whose record was erased or lost: the client was seen before, but nothing else is known."""


class Scope(msgspec.Struct, frozen=True, array_like=True):
    """A period in which a client was sent rows under the same claims and rules. It ends when the next scope begins."""

    number: int
    """Counts the client's scopes from 1."""
    claims: Claims
    """The claims that the rules read."""
    rules_version: int
    """The version of the rules."""
    keys: tuple[str, ...]
    """The bucket keys that these claims could see."""
    at: int
    """The newest arrival when the client was first sent something in this scope."""
    start: int
    """The first complete cursor that was sent in this scope; -1 if none was. Later ones, up to the start of the next
    scope, belong to it too."""
    sent_up_to: int
    """The latest feed position at which a row, or a DELETE, was sent in this scope; 0 if none was."""
    end: int = 0
    """Complete cursors from here on do not belong to this scope, because the next scope was removed before it; 0 if
    that did not happen."""
    followed: bool = False
    """Whether broadcasts may be sent in this scope, which are not recorded. Only the newest scope has it."""
    loose: bool = False
    """Whether pages were sent in this scope whose cursors the client does not store: it may have their rows at any
    cursor."""
    upserted_up_to: int = -1
    """The latest feed position at which an INSERT or UPDATE was sent in this scope; -1 if only `sent_up_to` is
    known."""

    @property
    def reached(self) -> int:
        """The latest feed position at which a row was sent in this scope that the client may have."""
        return self.upserted_up_to if self.upserted_up_to >= 0 else self.sent_up_to


class Page(msgspec.Struct, frozen=True, array_like=True):
    """The meaning of a page mark: a cursor in the middle of a client's pages, strictly between two arrivals.

    The page with cursor 0 belongs to a client that starts from cursor 0.
    """

    cursor: int
    """The page mark."""
    after: int
    """The feed was read up to this arrival, except for `rescan`."""
    base: int
    """The complete cursor at which these pages began; -1 if the client had nothing then, or it is unknown what."""
    until: int
    """The newest arrival when these pages began. A row that has not changed since has had one feed position during
    them."""
    resync: bool
    """Whether these pages began with a client that may have any row."""
    base_scope: int
    """Number of the scope at `base`; 0 without a base."""
    scope: int
    """Number of the scope in which these pages are sent."""
    transition_at: int
    """Up to this arrival, only bucket keys that became active or inactive are read (a transition); 0 without one."""
    rescan: tuple[tuple[int, int], ...]
    """Ranges of the feed to read in addition: above the first and up to the second arrival."""
    rescan_first: bool
    """Whether `rescan` is read before what is above `after`."""
    serial: int
    """Number of pages with deltas that the client had been sent, this one included. If the record's `pages_sent`
    differs, the client was sent more since."""


class PastKey(msgspec.Struct, frozen=True, array_like=True):
    """A bucket key of a scope that was removed."""

    key: str
    """The bucket key. Empty for DELETEs that were sent in the scope at a later feed position than rows that the client
    may have."""
    at: int
    """The newest arrival when the client was first sent something in the scope."""
    sent_up_to: int
    """The latest feed position at which a row was sent that the client may have; with the empty key, any row."""


class ClientRecord(msgspec.Struct, frozen=True, array_like=True):
    """Everything that a gateway stores about one client."""

    client_id: str
    epoch: int
    """The store's epoch in which the record was written; `LOST` if it was erased or lost."""
    last_seen_ms: int
    """Server wall time of the client's last recorded request, in milliseconds since 1970."""
    scopes: tuple[Scope, ...] = ()
    """The newest scopes, oldest first; `feed.client_state` decides which are kept."""
    pages: tuple[Page, ...] = ()
    """The newest page marks, oldest first."""
    past: tuple[PastKey, ...] = ()
    """The bucket keys of scopes that were removed."""
    marks: int = 0
    """Number of page marks that were created."""
    seen: int = 0
    """The newest cursor that the client certainly has; it may have rows that it was sent after that."""
    last: int = 0
    """The newest cursor that was sent with deltas."""
    pages_sent: int = 0
    """Number of pages with deltas that were sent."""
    wrote: bool = False
    """Whether the client ever pushed."""
    followed: bool = False
    """Whether broadcasts are sent to the client, which are not recorded."""
    sources: tuple[SourcePosition, ...] = ()
    """The client's position in each source that it ever pulled from."""
    sent_cursors: SentCursors | None = None
    """The client's cursors of a sharded gateway; only in the default shard."""
    may_hold_unknown_rows: bool = False
    """Whether the client may have rows that the gateway never knew, for example from before the store was lost. So no
    row is certainly new to it."""


class ActionRecord(msgspec.Struct, frozen=True):
    """The state of a client's action: who executes it, or its result."""

    client_id: str
    action_id: str
    idempotency_key: str | None
    """A second key by which a repeated action is recognised; None if the client gave none."""
    attempts: int
    """Number of attempts to execute the action."""
    claim: str
    """Identifies the process and attempt that executes the action, or executed it last."""
    lease_ms: int
    """Server wall time, in milliseconds since 1970, until which the claim's process may execute the action; 0 if none
    executes it."""
    touched_ms: int
    """Server wall time of the latest change of this record, in milliseconds since 1970."""
    outcome: bytes | None = None
    """The action's result as JSON; None if it has none, or may be tried again."""


class ActionEntry(msgspec.Struct, frozen=True, rename="camel"):
    """One attempt at an action, as admins see it: without params and result."""

    seq: int
    """Counts the gateway's attempts from 1."""
    at_ms: int
    """Server wall time when it ended, in milliseconds since 1970."""
    client_id: str
    action_id: str
    connector: str
    """The connector's name."""
    action_type: str
    attempt: int
    """Counts the attempts at this action from 1."""
    code: str
    """`OK`, or the error's code."""
    ms: int
    """How many milliseconds the handler took."""

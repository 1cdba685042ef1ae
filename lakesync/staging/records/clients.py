"""What a gateway stores about a client: what it was sent, what it could see then, its cursors, and its actions.

A *gateway* is one app's stream of changes; its store keeps one `ClientRecord` for each client. `feed.client_state`
changes its scopes, `feed.client_cursors` its pages, and `feed.positions` reads from them what a cursor means.
`engine.source_progress` changes the progress in sources, `engine.sharding.vectors` the cursors of sharded gateways, and
`lakesync.actions` the records of actions.

- A *cursor* is a number that the client stores with each page of changes, and sends to continue after that page. An
  *arrival* is the gateway's own timestamp of a commit.
- At a *complete cursor*, usually an arrival, the client has exactly what it could see then. A *page mark* is a cursor
  in the middle of a series of pages, between two arrivals. A `Page` says what it means.
- An *epoch* is a number that identifies a store from its creation to its loss; a rebuild of the store begins a new one.
- The *sync rules* decide which rows a client may see. A *bucket key* names a bucket of the rules with the claims
  (fields of a token) that may see it. The *feed* of a bucket key has its rows in the order of their latest change; the
  arrival of that change is the row's *feed position*.
- A *source* is a database, named in the pull, that the gateway reads for a client in addition to its own rows. A
  `Position` in it names one delta (change of a row), up to which the source's deltas were read.
- A *sharded* gateway keeps its tables in several stores, the shards; each has cursors of its own.

For example, a client has the complete cursor 512, in its scope 1, and lacks two pages. Arrivals are multiples of 256.

1. The first page reads the feed up to 768, and its cursor is the page mark 769. The record gets `Page(cursor=769,
   read_up_to=768, base=512, base_scope=1, scope=1, …)`.
2. The client pulls with 769. The last page gets the newest arrival as its cursor, say 1536. This is a complete cursor
   of scope 1, so it needs no `Page`. It is the base of the next pages.

If the client's claims change before step 2, scope 2 begins, and the pages become a transition to it: `base_scope=1,
scope=2, transition_at=768, rescan=(Range(0, 768),)`. They read the feed from 0 to 768, but only under bucket keys that
just one of the two scopes has, and then all that is above 768.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from lakesync.model.types import Claims, Position
from lakesync.model.validation import MAX_HLC
from lakesync.rules.model import SyncRules

NO_BASE = -1
"""`base` of pages that began at no complete cursor: the client had no rows then, or it is unknown which."""
NO_CURSOR = -1
"""`Scope.first_cursor` while no complete cursor was sent in the scope."""
MORE_SENT = -1
"""`Page.pages_sent` if the client may have been sent more pages before it got the cursor: no number of pages is
negative."""
KEY_OF_DELETES = ""
"""`PastKey.key` of the value that says how far DELETEs were sent in a removed scope; no bucket key is empty."""


def pages_in_doubt(pages_sent: int) -> int:
    """Return `Page.pages_sent` for a cursor in doubt: of the pages that the client was sent, it may lack some or all.

    The result is negative, so `ClientRecord.was_sent_more_since` is true of the page. A later result differs from it if
    more pages were sent meanwhile.

    Args:
        pages_sent: the number of pages with deltas that the client was sent so far.
    """
    return -1 - pages_sent


class Range(NamedTuple):
    """A range of the feed."""

    above: int
    """The arrival after which it begins."""
    up_to: int
    """The arrival with which it ends."""


class SourceMark(NamedTuple):
    """What the mark of a source's page means in the gateway's own feed."""

    mark: int
    """The cursor that was sent with the page."""
    feed_cursor: int
    """The client's cursor in the gateway's own feed when the page was sent."""


class AccessPeriod(msgspec.Struct, frozen=True, array_like=True):
    """The time in which a client read a source under certain rules and claims.

    The client may have had other rules or claims in between. Old periods are stored because a client must be sent a
    DELETE of rows that it received in one of them and may not see now.
    """

    rules: SyncRules
    claims: Claims
    """The claims that the rules read."""
    first: Position | None = None
    """The source's newest position when the period began; None if the source was empty. A version of a row that was
    replaced up to this position was not sent in the period."""
    last: Position | None = None
    """The source's position up to which the client was sent rows in the period; None if it was sent none."""


class PendingPage(msgspec.Struct, frozen=True, array_like=True):
    """A page of a source that was sent, and whose receipt the client has not confirmed."""

    mark: int
    """The cursor that was sent with the page; a client that sends it back has the page."""
    end: Position | None
    """The position in the source at which the page ends; None if the source had no position."""
    attempts: int
    """How often in a row a page from the same position was sent."""
    start: Position | None = None
    """The position in the source after which the page begins; None for the beginning."""
    has_more: bool = False
    """Whether the source had more after the page."""


class SourceProgress(msgspec.Struct, frozen=True, array_like=True):
    """How far a client is with one source."""

    source: str
    """The source's name."""
    confirmed: Position | None = None
    """The position up to which the client has confirmed all pages; None if it confirmed none."""
    pending: PendingPage | None = None
    """The page that is not confirmed; None if all are."""
    pass_position: Position | None = None
    """For a client that does not confirm pages, as its pulls have no cursor or it never sends a page's mark back: the
    position up to which it was sent pages in the current pass over the source. None: the pass begins at the beginning
    of the source or, if the pull has a cursor, after `confirmed`."""
    marks: tuple[SourceMark, ...] = ()
    """The marks of the newest few pages, newest first: a client may pull from the gateway's own feed with one of them.
    """
    tables: tuple[str, ...] = ()
    """Tables of the rows that the client was sent."""
    access_periods: tuple[AccessPeriod, ...] = ()
    """One for each pair of rules and claims, the current one last. If there are too many, the oldest become one."""


class CursorVector(msgspec.Struct, frozen=True, array_like=True):
    """A cursor of a sharded gateway, with the cursor in each shard that it means."""

    cursor: int
    parts: tuple[tuple[str, int], ...]
    """Pairs of a shard's name and the cursor in that shard, ordered by name. A shard that was added later is missing;
    the cursor in it is 0."""
    next_shard: str = ""
    """The shard at which the next page begins, so that a busy shard does not delay the others; empty for any."""


class SentCursors(msgspec.Struct, frozen=True, array_like=True):
    """The newest cursors that a client of a sharded gateway was sent, with their vectors."""

    highest: int
    """The highest cursor that the client was ever sent."""
    confirmed: int = 0
    """The cursor of the client's latest request; its vector is never removed."""
    vectors: tuple[CursorVector, ...] = ()
    """The stored vectors; last comes the vector of the cursor that was sent or received last."""


LOST = 0
"""Epoch of a client whose record was erased or lost: the client was seen before, but nothing else is known."""


class Scope(msgspec.Struct, frozen=True, array_like=True):
    """A period in which a client was sent pages under the same claims and rules. It ends when the next scope begins.

    Each complete cursor belongs to one scope: what the client could see at that cursor depends on the claims.
    """

    number: int
    """Counts the client's scopes from 1."""
    claims: Claims
    """The claims that the rules read."""
    rules_version: int
    """The version of the rules."""
    keys: tuple[str, ...]
    """The bucket keys that these claims could see."""
    began_at: int
    """The newest arrival when the client was first sent something in this scope."""
    first_cursor: int
    """The first complete cursor that was sent in this scope; `NO_CURSOR` if none was. Later complete cursors, up to the
    first one of the next scope, belong to this scope too."""
    sent_up_to: int
    """The latest feed position at which a row, or a DELETE, was sent in this scope; 0 if none was."""
    cursors_end: int = 0
    """Complete cursors from here on belong to a later scope, which was removed from the record before this one. 0 if
    there is no such scope."""
    gets_broadcasts: bool = False
    """Whether broadcasts (pages that the server sends over a WebSocket without a request) may be sent in this scope.
    They are not recorded for each client. Only the newest scope has it."""
    has_unstored_cursors: bool = False
    """Whether pages were sent in this scope on a WebSocket whose cursors the client does not store. So a client that
    sends an older cursor may nevertheless have their rows."""
    upserted_up_to: int = -1
    """The latest feed position at which an INSERT or UPDATE was sent in this scope; -1 if only `sent_up_to` is
    known."""
    ended_at: int = MAX_HLC
    """The newest arrival when the next scope began; `MAX_HLC` if this is the newest scope."""

    @property
    def has_complete_cursor(self) -> bool:
        """Whether a complete cursor was sent in this scope."""
        return self.first_cursor != NO_CURSOR

    @property
    def may_have_up_to(self) -> int:
        """The latest feed position at which a row was sent in this scope that the client may still have.

        DELETEs do not count, as far as their positions are known separately: they leave nothing with the client.
        """
        return self.upserted_up_to if self.upserted_up_to >= 0 else self.sent_up_to


class Page(msgspec.Struct, frozen=True, array_like=True):
    """The meaning of a page mark: a cursor in the middle of a client's pages, strictly between two arrivals.

    If `cursor` is 0, it describes the pages of a client that starts from cursor 0.
    """

    cursor: int
    """The page mark."""
    read_up_to: int
    """The feed was read up to this arrival, except for `rescan`."""
    base: int
    """The complete cursor at which these pages began; `NO_BASE` if the client had nothing then, or it is unknown what.
    """
    newest_at_start: int
    """The newest arrival when these pages began. A row that has not changed since then has kept its feed position, so
    no earlier one of these pages can have sent it at another position."""
    resync: bool
    """Whether these pages began with a client that may have any row, so that each is sent as DELETE and INSERT."""
    base_scope: int
    """Number of the scope at `base`; 0 without a base."""
    scope: int
    """Number of the scope in which these pages are sent."""
    transition_at: int = 0
    """After a change of claims or rules, these pages are a transition. Up to this arrival, where the pages were when it
    began, they read only the bucket keys that just one of the two scopes has. 0 if there was no change."""
    rescan: tuple[Range, ...] = ()
    """Ranges of the feed below `read_up_to` that are still to be read: for a transition, or again."""
    rescan_first: bool = True
    """Whether `rescan` is read before what is above `read_up_to`. True in a transition, because the client was not sent
    the rows in it. False if the client may have received them in pages that it did not confirm: new rows come first."""
    pages_sent: int = MORE_SENT
    """Number of pages with deltas that the client had been sent, this one included; or `MORE_SENT`; or, for a cursor in
    doubt, a number from `pages_in_doubt`. Read it by `ClientRecord.was_sent_more_since`."""


class PastKey(msgspec.Struct, frozen=True, array_like=True):
    """A bucket key of a scope that was removed from the record. The client may still have rows under it.

    If DELETEs were sent in the scope at later feed positions than all such rows, one more value has their last position
    (`is_of_deletes`).
    """

    key: str
    """The bucket key, or `KEY_OF_DELETES`."""
    began_at: int
    """The newest arrival when the client was first sent something in the scope; -1 if that is unknown."""
    may_have_up_to: int
    """The latest feed position at which a row was sent in the scope that the client may still have, as
    `Scope.may_have_up_to`; with `KEY_OF_DELETES`, at which any row or DELETE was sent. `MAX_HLC` if that is unknown."""
    ended_at: int = MAX_HLC
    """The newest arrival when the scope ended; `MAX_HLC` if that is unknown. The client was not shown rows that joined
    the bucket later."""

    @property
    def is_of_deletes(self) -> bool:
        """Whether this is no bucket key, and says only how far DELETEs were sent in the scope."""
        return self.key == KEY_OF_DELETES


class ClientRecord(msgspec.Struct, frozen=True, array_like=True):
    """Everything that a gateway stores about one client."""

    client_id: str
    epoch: int
    """The epoch in which the record was written; `LOST` if the record was erased or lost. An erased one has
    `gets_broadcasts`, because the client may have an open WebSocket."""
    last_seen_ms: int
    """Server wall time of the client's last recorded request, in milliseconds since 1970."""
    scopes: tuple[Scope, ...] = ()
    """The newest scopes, oldest first; `feed.client_state` decides which are kept."""
    pages: tuple[Page, ...] = ()
    """The newest page marks, oldest first."""
    past_keys: tuple[PastKey, ...] = ()
    """The bucket keys of scopes that were removed."""
    mark_count: int = 0
    """Number of page marks that were created for the client; the next mark is computed from it."""
    confirmed_cursor: int = 0
    """The newest cursor that the client certainly has, because it sent this cursor. The client may also have rows of
    later pages."""
    last_sent_cursor: int = 0
    """The newest cursor that was sent with deltas, with a checkpoint, or for a push that moved it; 0 for none. Those
    from before the client last moved back (`moved_back_from`) do not count."""
    pages_sent: int = 0
    """Number of pages with deltas that were sent. It shows whether the client was sent more since a stored page."""
    has_pushed: bool = False
    """Whether the client ever pushed."""
    gets_broadcasts: bool = False
    """Whether broadcasts are sent to the client, now or earlier; these are not recorded."""
    sources: tuple[SourceProgress, ...] = ()
    """The client's progress in each source that it ever pulled from."""
    sent_cursors: SentCursors | None = None
    """The client's cursors of a sharded gateway; only in the default shard."""
    may_hold_unknown_rows: bool = False
    """Whether the client may have rows that the gateway never knew, for example from before the store was lost. So no
    row is certainly new to the client."""
    moved_back_from: int = 0
    """The highest cursor that the client may have been sent before it last moved back: it sent cursor 0, or one from
    before its confirmed cursor, because it lost its database or was restored from a backup. A request with a cursor up
    to this one may have been sent before that, and be late."""
    lost_push: int = 0
    """The arrival of the latest push whose writes the client may lack, because it lost its database after it sent the
    push; 0 for none. A replay of the log marks the client's copies of the rows of this push, and of
    earlier ones, as *astray* again (see `records.rows`)."""

    def was_sent_more_since(self, page: Page) -> bool:
        """Return whether the client was, or may have been, sent pages with deltas that the cursor of `page` omits."""
        return page.pages_sent != self.pages_sent


class ActionRecord(msgspec.Struct, frozen=True):
    """The state of a client's action (a command for a connector): which process executes it, or its result."""

    client_id: str
    action_id: str
    idempotency_key: str | None
    """A second key by which a repeated action is recognised; None if the client gave none."""
    attempts: int
    """Number of attempts to execute the action."""
    claim: str
    """Identifies the attempt that executes the action, or executed it last. A process may store a result only under the
    claim that it has, so that two processes do not both complete an action."""
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

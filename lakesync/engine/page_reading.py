"""Reads a page of what a client lacks, and decides whether the pull must be recorded; nothing is written here.

A *gateway* is one app's stream of changes. A *page* is one response with changes that the client lacks, read from the
*feed*: the gateway's rows in the order of their latest *arrival*, the gateway's own timestamp of a commit. It has a
*cursor*, with which the client requests the next page. The client's *record* says what each cursor means that the
client was sent. `SyncGateway` calls `read_page` (through `Sources.read_page`). Most pulls find nothing new: then
`unrecorded_cursor` returns the cursor of the response. Otherwise `engine.pulling` stores what the response's cursor
means.

A client's *position* is what its cursor means: up to where the feed was read, and what the client may have. A *scope*
is a period in which a client was sent pages under the same claims (fields of its token) and sync rules. At a *complete
cursor* the client has exactly what it could see; a *page mark* is a cursor in the middle of the pages that follow such
a *base*. A *transition* is a series of pages after the claims or rules changed, and a *resync* one from 0 for a client
that may have any row. A *bucket key* names a bucket of the rules with the claims that may see it; a *re-index* computes
those of all rows after the rules changed. *Broadcasts* are pages that the server sends over a WebSocket without a
request. `docs/feed.md` explains the whole.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from lakesync.engine.active_rules import RulesCache
from lakesync.engine.source_progress import MIN_CURSOR, with_restart
from lakesync.feed.client_cursors import is_latest_in_doubt
from lakesync.feed.client_state import current_record, unknown_client, with_possible_broadcasts
from lakesync.feed.positions import Position, find_page, for_full_pull, is_complete_page, locate, restart_position
from lakesync.feed.pull import MAX_PAGE_BYTES, PulledPage, pull_page
from lakesync.feed.scopes import Access
from lakesync.model.errors import ResyncRequiredError
from lakesync.model.types import Claims, SyncPage, SyncPull
from lakesync.staging.records import NO_BASE, ClientRecord
from lakesync.staging.store.feed import ClientView


class PullRequest(NamedTuple):
    """A pull that passed its checks. `SyncGateway.submit_pull` explains the flags."""

    pull: SyncPull
    claims: Claims
    """The verified claims of the client's token."""
    knows_resync: bool
    """Whether the client understands the error RESYNC_REQUIRED, and accepts an INSERT of a row that it has. Such a
    client gets the error for a cursor that cannot be served; any other is sent every row as DELETE and INSERT."""
    confirmed: bool
    """Whether the client sent the cursor itself, so that it has everything up to it. False for a page that the server
    sends without a request."""
    now_ms: int
    """Server wall time of the request, in milliseconds since 1970."""
    live: bool = False
    """Whether the page is sent on a connection that also gets broadcasts."""
    has_not_pulled: bool = False
    """Whether it is unknown which rows the client has: its database may be another one than its record describes."""
    max_bytes: int = MAX_PAGE_BYTES
    """Encoded bytes of rows at which a page is full."""


class Reading(NamedTuple):
    """A page that was read, and everything that it was computed from, so that `remember_page` sees later changes."""

    since: int
    """The requested cursor of the gateway's own feed."""
    record: ClientRecord | None
    """The client's record in this epoch, which ends when the store is rebuilt; None if it has none."""
    position: Position
    """The client's position, from which the page was read."""
    access: Access
    """What the client may see."""
    page: PulledPage
    """The page, without its cursor."""
    newest: int
    """The gateway's newest arrival (its own HLC timestamp of a commit)."""

    @property
    def is_complete(self) -> bool:
        """Whether the client has everything that it may see, once it has the page."""
        position = self.position
        if self.access.sees_by_values is not None and (
            position.is_transition
            or position.resync
            or self.page.deltas
            or not position.sent.keys() <= position.new_keys  # it was sent rows under keys that are not active now
        ):
            # A re-index is running. The client may have rows whose bucket keys are still to be updated, so a complete
            # cursor would say too much about what it has.
            return False
        return not self.page.has_more

    @property
    def nothing_sent_since(self) -> bool:
        """Whether the client was sent nothing after it got the requested cursor.

        The cursor in the response to a push may be in doubt: the client may lack pages that it was sent before. Such a
        cursor has a stored page of its own (`pages_in_doubt`), for which `Position.nothing_sent_since` is false.
        `is_latest_in_doubt` finds it: no page with deltas was sent after it.
        """
        return self.position.nothing_sent_since or (
            self.record is not None and is_latest_in_doubt(self.record, self.since)
        )

    def with_cursor(self, cursor: int) -> SyncPage:
        """Return the page as the response with this cursor."""
        return SyncPage(self.page.deltas, cursor, self.page.has_more)


def read_page(view: ClientView, request: PullRequest, rules: RulesCache) -> Reading:
    """Read a page of what the client lacks, without recording anything.

    Args:
        view: a consistent read of the gateway's store.
        request: the pull, after its checks.
        rules: the gateway's cache of compiled sync rules.

    Returns:
        The page, and what it was computed from. For a cursor that cannot be served, it is the first page of all rows.

    Raises:
        ResyncRequiredError: the cursor cannot be served, and `request.knows_resync` is true.
    """
    pull = request.pull
    access = rules.access(view, request.claims)
    record = current_record(view.client(pull.client_id), view, access.keys)
    # A client that sends a cursor may also have got broadcasts, on another connection; these are not recorded. If the
    # server sends a page by itself, the cursor is that of the last page on the same connection, which shows everything
    # that was sent there.
    with_sent = record if record is None or not request.confirmed else with_possible_broadcasts(record, view.arrival)
    position = locate(with_sent, pull.since_hlc, view.arrival, access, None if request.confirmed else request.claims)
    if position is None:
        if request.knows_resync:
            raise ResyncRequiredError(
                f"the cursor {pull.since_hlc} is not one of this gateway's: "
                "pull again from 0, keeping what was not pushed yet"
            )
        record = record or unknown_client(pull.client_id, view.epoch, access.keys, view.arrival)
        record = replace(record, may_hold_unknown_rows=True)
        position = restart_position(with_sent or record, view.arrival, access)
    if request.knows_resync:
        # at the end of a full pull, such a client removes the rows that it was not sent
        position = for_full_pull(position)
    may_hold_unknown_rows = request.has_not_pulled or (record is not None and record.may_hold_unknown_rows)
    if may_hold_unknown_rows and not request.knows_resync:  # a client that knows it accepts an INSERT of a row it has
        position = position._replace(may_hold_unknown_rows=True)
    if not (request.confirmed or request.knows_resync):
        # the server's next page continues after this one, also if the client, which cannot resync, did not apply it
        position = position._replace(no_retry=True)
    if pull.own_hlc is not None:
        position = position._replace(own_writes_up_to=pull.own_hlc)
    page = pull_page(view, pull.client_id, position, access, pull.max_deltas, max_bytes=request.max_bytes)
    return Reading(pull.since_hlc, record, position, access, page, view.arrival)


def unrecorded_cursor(request: PullRequest, reading: Reading) -> int | None:
    """Return the cursor of the response if nothing must be recorded; None if `remember_page` must record something.

    Nothing must be recorded if the client lacks nothing, and the stored record says already what the cursor means: the
    newest arrival belongs to the record's newest scope. Most pulls are such, so they need no transaction.

    Args:
        request: the pull, after its checks.
        reading: the page that was read.
    """
    record = reading.record
    # a client that starts again and may have unknown rows must be recorded as such, even if there is nothing to send
    if (
        reading.page.deltas
        or not reading.is_complete
        or (reading.position.resync and reading.position.may_hold_unknown_rows)
    ):
        return None
    if record is None:
        return 0 if reading.newest == 0 else None  # an empty gateway: a client that was sent nothing needs no record
    if reset_sources_on_restart(record, request, reading) != record:
        return None
    scope = record.scopes[-1] if record.scopes else None
    if scope is None or not scope.has_complete_cursor or not reading.access.same_as(scope):
        return None  # the record has no complete cursor under these claims and rules yet
    if not request.confirmed and not scope.gets_broadcasts:
        return None  # its first page without a request, from which on it gets broadcasts
    if request.confirmed and not reading.nothing_sent_since:
        # The response confirms the requested cursor and no more. Clients of the reference (the TypeScript system, whose
        # protocol this is) keep this cursor at an empty page, so they send it again and again.
        if reading.since != record.confirmed_cursor:
            return None
    elif request.confirmed:
        # The client has the cursor that it sent, and with it everything. The response to a later push is computed from
        # the record, so the record must show that already. Its newest confirmed cursor must be a complete one, and no
        # page may have been sent after it. If the requested cursor was a page mark, its stored page must have become
        # that of a complete cursor.
        requested = next((page for page in record.pages if page.cursor == reading.since), None)
        confirmed_page = find_page(with_possible_broadcasts(record, reading.newest), record.confirmed_cursor)
        if (
            confirmed_page is None
            or not is_complete_page(confirmed_page)
            or record.was_sent_more_since(confirmed_page)
            or (requested is not None and not is_complete_page(requested))
        ):
            return None
    return max(reading.newest, scope.first_cursor)


def reset_sources_on_restart(record: ClientRecord, request: PullRequest, reading: Reading) -> ClientRecord:
    """Return the record without its progress in sources if the client starts again, otherwise as it is.

    A source is a database from which clients pull beside the gateway's feed. A client that starts again may have lost
    its rows. Rows of a source before a stored position would then never be sent again, so the progress is removed.

    A resync that the client requested shows that it starts again. So does a client without a cursor that has a
    confirmed position: without a cursor, it cannot confirm one (see `source_progress`), so it had a cursor before. In
    a sharded gateway, `Vectors` does this instead, because a cursor of 0 in one shard only means that the shard is
    empty.
    """
    no_cursor = reading.since < MIN_CURSOR and record.sent_cursors is None
    confirmed = any(known.confirmed is not None or known.pending is not None for known in record.sources)
    restarts = request.confirmed and (reading.position.resync or (no_cursor and confirmed))
    return with_restart(record) if restarts else record


def is_start(position: Position) -> bool:
    """Return whether a position is the start of the feed, so that nothing is certain of what the client has."""
    return position.base == NO_BASE and position.read_up_to == 0

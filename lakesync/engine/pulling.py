"""A pull: reads a page and then, if anything must be recorded, stores the client's record in a transaction.

A *page* is one response with changes that the client lacks. It has a *cursor*, with which the client requests the next
page. The client's *record* says what each cursor means that the client was sent. `SyncGateway` calls `read_page`
(through `Sources.read_page`). Most pulls find nothing new: then `unrecorded_cursor` returns the cursor of the response.
Otherwise `remember_page` stores what the response's cursor means.

A *scope* is a period in which a client was sent pages under the same claims and sync rules. At a *complete cursor* the
client has exactly what it could see; a *page mark* is a cursor in the middle of the pages that follow such a *base*. A
*transition* is a series of pages after the claims or rules changed, a *resync* one from 0 for a client that may have
any row, and a *rescan* reads earlier ranges of the feed again. A *bucket key* names a bucket of the rules with the
claims that may see it; a *re-index* computes those of all rows after the rules changed. *Broadcasts* are pages that the
server sends over a WebSocket without a request. `docs/feed.md` explains the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from lakesync.engine.active_rules import RulesCache
from lakesync.engine.source_positions import MIN_CURSOR, with_restart
from lakesync.feed import MAX_PAGE_BYTES, PulledPage, pull_page
from lakesync.feed.client_state import (
    complete_page,
    current_record,
    ends_scope,
    find_page,
    has_other_access,
    is_blank,
    unknown_client,
    with_complete_cursor,
    with_page,
    with_page_mark,
    with_possible_broadcasts,
    with_scope,
    with_subscription,
)
from lakesync.feed.positions import (
    NEVER_PULLED,
    NO_BASE,
    Access,
    Position,
    for_full_pull,
    is_complete_page,
    locate,
    restart_position,
)
from lakesync.model.errors import ResyncRequiredError
from lakesync.model.types import Claims, SyncPage, SyncPull
from lakesync.staging.notices import PULLS_OVER_HTTP, Presence
from lakesync.staging.records import ARRIVAL_STEP, ClientRecord, Page
from lakesync.staging.store.feed import ClientView
from lakesync.staging.store.push import ClientCommit


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
    """The feed position from which the page was read."""
    access: Access
    """What the client may see."""
    page: PulledPage
    """The page, without its cursor."""
    newest: int
    """The gateway's newest arrival (its own HLC timestamp of a commit)."""

    @property
    def complete(self) -> bool:
        """Whether the client has everything that it may see, once it has the page."""
        position = self.position
        if self.access.sees_by_values is not None and (
            position.is_transition
            or position.resync
            or self.page.deltas
            or not position.sent.keys() <= position.new_keys
        ):
            # A re-index is running. The client may have rows whose bucket keys are still to be updated, so a complete
            # cursor would say too much about what it has.
            return False
        return not self.page.has_more

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
    record = current_record(view.client(pull.client_id), view.epoch, access.keys)
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
        position = restart_position(record, view.arrival, access)
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
        or not reading.complete
        or (reading.position.resync and reading.position.may_hold_unknown_rows)
    ):
        return None
    if record is None:
        return 0 if reading.newest == 0 else None  # an empty gateway: a client that was sent nothing needs no record
    if _reset_sources_on_restart(record, request, reading) != record:
        return None
    scope = record.scopes[-1] if record.scopes else None
    if scope is None or scope.first_cursor < 0 or not reading.access.same_as(scope):
        return None  # the record has no complete cursor under these claims and rules yet
    if not request.confirmed and not scope.gets_broadcasts:
        return None  # its first page without a request, from which on it gets broadcasts
    if request.confirmed:
        # The client has the cursor that it sent, and with it everything. The response to a later push is computed from
        # the record, so the record must show that already: by its newest confirmed cursor, and by the page of the
        # requested cursor, if that is a page mark.
        requested = next((page for page in record.pages if page.cursor == reading.since), None)
        confirmed_page = find_page(with_possible_broadcasts(record, reading.newest), record.confirmed_cursor)
        if (
            confirmed_page is None
            or not is_complete_page(confirmed_page)
            or confirmed_page.pages_sent != record.pages_sent
            or (requested is not None and not is_complete_page(requested))
        ):
            return None
    return max(reading.newest, scope.first_cursor)


def remember_page(
    commit: ClientCommit, request: PullRequest, reading: Reading, read: Callable[[ClientView, PullRequest], Reading]
) -> SyncPage:
    """Store what the response's cursor means, and return the response.

    The page was read before this transaction, so it is read again here if it may be outdated. That is so in two cases:

    - The client was sent something since, on another connection.
    - The page begins a scope (a period with the same claims and rules), and anything was pushed since. Meanwhile the
      client may have been sent a newer cursor of the previous scope, which the record does not show. The new scope must
      begin above it.

    Args:
        commit: the open transaction in the gateway's store.
        request: the pull, after its checks.
        reading: the page that was read before the transaction.
        read: reads the page again, given the transaction and the request.
    """
    client_id = request.pull.client_id
    latest = current_record(commit.client(client_id), commit.epoch, reading.access.keys)
    # The client may also have a connection with other claims. Its process must know of the claims of this page.
    has_other_connection = latest is not None and has_other_access(latest, reading.access)
    if latest is not None and (
        _sent_state(latest) != _sent_state(reading.record)
        or (ends_scope(latest, reading.access) and commit.arrival > reading.newest)
    ):
        reading = read(commit, request)
    record = latest or reading.record or ClientRecord(client_id, commit.epoch, request.now_ms)
    record = replace(
        record,
        last_seen_ms=request.now_ms,
        may_hold_unknown_rows=record.may_hold_unknown_rows
        or (reading.record is not None and reading.record.may_hold_unknown_rows),
    )
    page = reading.page
    record = with_scope(record, reading.access, reading.newest, page.sent_up_to, page.upserted_up_to, page.older_keys)
    if not request.confirmed:
        record = with_subscription(
            record, reading.access, cursor_is_unstored=request.has_not_pulled and bool(reading.page.deltas)
        )
    if request.confirmed and not reading.complete:
        # More pages follow, and a broadcast may arrive between them. So from here on, the client may have rows that
        # these pages do not contain.
        record = with_possible_broadcasts(record, reading.newest)
    if reading.page.deltas:
        record, cursor = _after_page(record, request, reading)
    else:
        record, cursor = _after_empty_page(record, request, reading)
    if reading.page.deltas or has_other_connection:
        announce_other_connection(commit, record, live=request.live)
    commit.put_client(_reset_sources_on_restart(record, request, reading))
    return reading.with_cursor(cursor)


def remember_restart(commit: ClientCommit, request: PullRequest, rules: RulesCache) -> bool:
    """Record that a client starts again, before it is sent anything.

    The sharded gateway calls it for a shard of which nothing fits in the page any more. Without this record, the
    response to a push before the client's next page would be computed from the client's earlier position in that shard.

    Args:
        commit: the open transaction in the gateway's store.
        request: the pull, after its checks.
        rules: the gateway's cache of compiled sync rules.

    Returns:
        Whether the client lacks anything in this shard.

    Raises:
        ResyncRequiredError: as `read_page`.
    """
    reading = read_page(commit, request, rules)
    client_id, position = request.pull.client_id, reading.position
    known = current_record(commit.client(client_id), commit.epoch, reading.access.keys)
    # a client without a record has no earlier position, and one at a later position does not start again
    if reading.page.deltas and reading.record is not None and _is_start(position):
        record = _with_confirmed_cursor(known or reading.record, reading, 0)
        record = replace(record, may_hold_unknown_rows=reading.record.may_hold_unknown_rows)
        record = with_scope(record, reading.access, reading.newest)
        record = _with_start_page(record, position)
        if record != known:
            commit.put_client(replace(record, last_seen_ms=request.now_ms))
    return bool(reading.page.deltas)


def _is_start(position: Position) -> bool:
    """Return whether a position is the start of the feed, so that nothing is certain of what the client has."""
    return position.base == NO_BASE and position.read_up_to == 0


def _with_start_page(record: ClientRecord, position: Position) -> ClientRecord:
    """Store what cursor 0 means until the client, which starts again, sends another one.

    Args:
        record: the client's record; the page belongs to its newest scope.
        position: the position at which the client starts.
    """
    start = _page_for_cursor(record, 0, position, position.read_up_to, position.rescan)
    return with_page(record, replace(start, pages_sent=-1))  # -1: the client may have been sent more than that


def announce_other_connection(commit: ClientCommit, record: ClientRecord, *, live: bool) -> None:
    """Notify all processes that a client was sent rows on another connection than the one that gets its broadcasts.

    From then on, the processes count these rows as possibly received by the client, and send it pages of its own.

    Args:
        commit: the transaction that records the page; the notice is sent with its commit.
        record: the client's record.
        live: whether the rows are sent on the connection that gets the broadcasts; no notice is needed then.
    """
    if record.gets_broadcasts and not live:
        commit.announce_presence((Presence(record.client_id, PULLS_OVER_HTTP),))


def remember_checkpoint(commit: ClientCommit, client_id: str, arrival: int, access: Access, now_ms: int) -> None:
    """Record that a client was sent a checkpoint (all rows as of one arrival), which it may or may not receive.

    Args:
        commit: the open transaction in the gateway's store.
        client_id: the client's id.
        arrival: the arrival at which the checkpoint was made; the client pulls from this cursor.
        access: the claims and bucket keys that decide what the client may see.
        now_ms: server wall time in milliseconds since 1970.
    """
    record = current_record(commit.client(client_id), commit.epoch) or ClientRecord(client_id, commit.epoch, now_ms)
    # all rows of the checkpoint count as sent; at least 1, because 0 means that nothing was sent
    sent_up_to = max(arrival, 1)
    record = with_scope(replace(record, last_seen_ms=now_ms), access, commit.arrival, sent_up_to, sent_up_to)
    *earlier, scope = record.scopes
    nothing = Page(  # what cursor 0 means until the client confirms that it has the checkpoint
        cursor=0,
        read_up_to=0,
        base=NO_BASE,
        newest_at_start=commit.arrival,
        resync=False,
        base_scope=0,
        scope=scope.number,
        transition_at=0,
        rescan=(),
        rescan_first=True,
        pages_sent=-1,
    )
    record = with_page(
        replace(
            record,
            scopes=(*earlier, replace(scope, first_cursor=arrival)),
            confirmed_cursor=0,
            last_sent_cursor=arrival,
        ),
        nothing,
    )
    commit.put_client(record)


def _reset_sources_on_restart(record: ClientRecord, request: PullRequest, reading: Reading) -> ClientRecord:
    """Return the record without its positions in sources if the client starts again, otherwise as it is.

    A source is a database from which clients pull beside the gateway's feed. A client that starts again may have lost
    its rows. Rows of a source before a stored position would then never be sent again, so the positions are removed.

    A resync shows that a client starts again. So does a client without a cursor that has a confirmed position: without
    a cursor, it cannot confirm one (see `source_positions`), so it had a cursor before. In a sharded gateway, `Vectors`
    does this instead, because a cursor of 0 in one shard only means that the shard is empty.
    """
    no_cursor = request.confirmed and reading.since < MIN_CURSOR and record.sent_cursors is None
    confirmed = any(known.confirmed is not None or known.pending is not None for known in record.sources)
    return with_restart(record) if reading.position.resync or (no_cursor and confirmed) else record


def _sent_state(record: ClientRecord | None) -> object:
    """Return the fields of a record on which a page depends, to compare two versions of the record."""
    if record is None:
        return None
    tables = {table for source in record.sources for table in source.tables}  # their rows may have come from a source
    return (
        record.pages_sent,
        record.scopes,
        record.pages,
        record.past_keys,
        record.has_pushed,
        record.gets_broadcasts,
        tables,
    )


def _after_page(record: ClientRecord, request: PullRequest, reading: Reading) -> tuple[ClientRecord, int]:
    """Return the record and the cursor of the response after a page with deltas.

    The response may be lost, so the client has its old cursor, and may have the page.

    Args:
        record: the client's record, whose newest scope covers the page.
        request: the pull, after its checks.
        reading: the page that was read.
    """
    position, page = reading.position, reading.page
    if request.confirmed:
        record = _with_confirmed_cursor(record, reading, 0 if _is_start(position) else reading.since)
        if _is_start(position):
            record = _with_start_page(record, position)
    if reading.complete:
        record, cursor = with_complete_cursor(record, reading.newest)
        if cursor <= record.moved_back_from:
            # a late pull may have the same cursor, from before the client moved back
            record, cursor = _with_new_number(record, cursor, reading.newest)
        return replace(record, last_sent_cursor=cursor), cursor
    # clients expect their cursor to increase, also while a rescan reads below it
    record, cursor = with_page_mark(
        record, page.read_up_to, above=reading.since if reading.since > page.read_up_to else 0
    )
    return with_page(
        replace(record, last_sent_cursor=cursor),
        _page_for_cursor(record, cursor, position, page.read_up_to, page.rescan),
    ), cursor


def _after_empty_page(record: ClientRecord, request: PullRequest, reading: Reading) -> tuple[ClientRecord, int]:
    """Return the record and the cursor of the response after a page without deltas.

    The client lacks nothing, even if the response is lost.

    Args:
        record: the client's record, whose newest scope covers the page.
        request: the pull, after its checks.
        reading: the page that was read.
    """
    since = reading.since
    if not reading.complete and since <= NEVER_PULLED:
        return record, since  # the client has no cursor yet, and gets none until it is sent rows
    # A cursor that cannot be served gets no meaning. If the client sends it again, it starts again.
    is_unknown = _is_start(reading.position) and all(page.cursor != since for page in record.pages)
    if not reading.complete:
        if is_unknown:
            record, since = with_page_mark(record, reading.page.read_up_to, above=since)
        if request.confirmed:
            record = _with_confirmed_cursor(record, reading, since)
        return with_page(
            record, _page_for_cursor(record, since, reading.position, reading.page.read_up_to, reading.page.rescan)
        ), since
    record, cursor = with_complete_cursor(record, reading.newest)
    if request.confirmed:
        record = _with_confirmed_cursor(record, reading, cursor)
    position = reading.position
    was_page_mark = since > NEVER_PULLED and (position.is_transition or position.read_up_to != position.base)
    if was_page_mark and not is_unknown:
        # if the response is lost, the client sends the mark again; it now means the same as the complete cursor
        record = with_page(record, complete_page(since, cursor, record.scopes[-1], record.pages_sent))
    return record, cursor


def _with_new_number(record: ClientRecord, cursor: int, newest: int) -> tuple[ClientRecord, int]:
    """Create a page mark that means the same as a complete cursor, and that the client never had before.

    It lies above every cursor from before the client moved back, and below the next arrival, because broadcasts read
    the feed after it.

    Args:
        record: the client's record, with at least one scope.
        cursor: the complete cursor.
        newest: the gateway's newest arrival.

    Returns:
        The record and the mark; unchanged, with the complete cursor, if no number is left below the next arrival.
    """
    if record.moved_back_from >= newest + ARRIVAL_STEP - 1:
        return record, cursor
    marked, mark = with_page_mark(record, newest)
    while mark <= record.moved_back_from:
        marked, mark = with_page_mark(marked, newest)
    return with_page(marked, complete_page(mark, cursor, record.scopes[-1], record.pages_sent)), mark


def _with_confirmed_cursor(record: ClientRecord, reading: Reading, cursor: int) -> ClientRecord:
    """Return the record after a pull: the client certainly has a cursor, unless its request may have been late.

    A request may arrive after later requests of the client. If the client lost its database in between, it does not
    have the cursor of the late request any more. So after the client has moved back, a cursor that it may have had
    before is believed only if it is the confirmed one, or the page mark of the latest page.

    Args:
        record: the client's record, with the page that was read.
        reading: the page.
        cursor: the cursor that the client has, if the request was not late: the requested one, or that of the response
            if the client lacks nothing.
    """
    since, position = reading.since, reading.position
    if _is_start(position):
        moves_back = not is_blank(reading.record)
    else:
        is_latest_mark = since == record.last_sent_cursor and any(page.cursor == since for page in record.pages)
        if since <= record.moved_back_from and since != record.confirmed_cursor and not is_latest_mark:
            return record
        confirmed = find_page(record, record.confirmed_cursor)
        reached = (position.base, position.read_up_to)
        moves_back = confirmed is not None and reached < (confirmed.base, confirmed.read_up_to)
    if moves_back:
        sent = [
            record.moved_back_from,
            record.confirmed_cursor,
            record.last_sent_cursor,
            *[page.cursor for page in record.pages],
            *[scope.first_cursor for scope in record.scopes],
        ]
        return replace(record, confirmed_cursor=cursor, last_sent_cursor=0, moved_back_from=max(reading.newest, *sent))
    return replace(record, confirmed_cursor=cursor)


def _page_for_cursor(
    record: ClientRecord, cursor: int, position: Position, after: int, rescan: tuple[tuple[int, int], ...]
) -> Page:
    """Return what a cursor means: the feed was read from the position `position` up to `after`, except for `rescan`.

    Args:
        record: the client's record; the page belongs to its newest scope.
        cursor: the cursor.
        position: the feed position from which the page was read.
        after: the arrival up to which the feed was read.
        rescan: ranges up to `after` that are still to be read.
    """
    return Page(
        cursor=cursor,
        read_up_to=after,
        base=position.base,
        newest_at_start=position.newest_at_start,
        resync=position.resync,
        base_scope=position.base_scope,
        scope=record.scopes[-1].number,
        transition_at=position.transition_at,
        rescan=rescan,
        # False also if the client was sent pages after this position: it may have rows that the rescan has not reached.
        rescan_first=position.rescan_first and position.nothing_sent_since,
        pages_sent=record.pages_sent,
    )

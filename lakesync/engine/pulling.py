"""Records a pull: stores in a transaction what the cursor of the response means, and returns the response.

`engine.page_reading` reads the page before, and finds whether there is anything to record. `SyncGateway` calls
`remember_page` then. The gateway of a *shard* (a store with some of the tables) calls `remember_restart`.

A *page* is one response with changes that the client lacks. Its *cursor* is the number that the client sends to get the
next page. A *gateway* is one app's stream of changes. The client's *record* there says what each cursor means that the
client was sent:

- After the last page of a series, the client has exactly what it may see: the response has a *complete cursor*. It is
  the newest *arrival* (the gateway's own timestamp of a commit), and the *base* of the pages that follow.
- If more pages follow, the response has a *page mark*, a cursor between two arrivals. The record gets a `Page` that
  says up to which arrival the feed (the rows in order of their latest change) was read.
- An empty page sends nothing. The client keeps its cursor, or gets the complete cursor if nothing follows.

The pull also *confirms* the cursor that the client sent: the client has stored everything up to it. The response itself
is confirmed by the client's next pull, because it may be lost.

A *scope* is a period in which a client was sent pages under the same claims (fields of its token) and sync rules. A
client's *position* is what its cursor means: up to where the feed was read, and the base, which is `NO_BASE` for a
client that starts. A *rescan* reads earlier ranges of the feed again. A *transition* is a series of pages after the
claims or rules changed, and a *resync* one from 0 for a client that may have any row. A *bucket key* names a bucket of
the rules with the claims that may see it. *Broadcasts* are pages that the server sends over a WebSocket without a
request. `NEVER_PULLED` is the cursor of a client that pushed before its first pull. `docs/feed.md` explains the whole.

A client that lost its database starts again: it pulls from cursor 0, or from the cursor of a backup. A pull that it had
sent before may still arrive after that. Its cursor must not be believed, because the client may no longer have the rows
up to it. So the record keeps `moved_back_from`, the highest cursor from before the client moved back.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from lakesync.engine.active_rules import RulesCache
from lakesync.engine.page_reading import PullRequest, Reading, is_start, read_page, reset_sources_on_restart
from lakesync.feed.client_cursors import with_complete_cursor, with_page, with_page_mark
from lakesync.feed.client_state import (
    current_record,
    ends_scope,
    is_blank,
    may_broadcast_under_other_access,
    with_newest_scope,
    with_possible_broadcasts,
    with_subscription,
)
from lakesync.feed.positions import NEVER_PULLED, Position, complete_page, find_page
from lakesync.model.types import SyncPage
from lakesync.staging.notices import PULLS_OVER_HTTP, Presence
from lakesync.staging.records import ARRIVAL_STEP, MORE_SENT, ClientRecord, Page, Range
from lakesync.staging.store.feed import ClientView
from lakesync.staging.store.push import ClientCommit


def remember_page(
    commit: ClientCommit, request: PullRequest, reading: Reading, read: Callable[[ClientView, PullRequest], Reading]
) -> SyncPage:
    """Store what the response's cursor means, and return the response.

    The steps: read the page again if it is outdated; find what the client's record says now; add the page to its newest
    scope; choose the cursor, and store what it means.

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
    latest = current_record(commit.client(client_id), commit, reading.access.keys)
    # The client may also have a connection with other claims. Its process must know of the claims of this page.
    has_other_connection = latest is not None and may_broadcast_under_other_access(latest, reading.access)
    if latest is not None and (
        _sent_state(latest) != _sent_state(reading.record)
        or (ends_scope(latest, reading.access) and commit.arrival > reading.newest)
    ):
        reading = read(commit, request)
    record = latest or reading.record or ClientRecord(client_id, commit.epoch, request.now_ms)
    # the reading sets `may_hold_unknown_rows` if it could not serve the cursor
    record = replace(
        record,
        last_seen_ms=request.now_ms,
        may_hold_unknown_rows=record.may_hold_unknown_rows
        or (reading.record is not None and reading.record.may_hold_unknown_rows),
    )
    page = reading.page  # it belongs to the newest scope from here on
    record = with_newest_scope(
        record, reading.access, reading.newest, page.sent_up_to, page.upserted_up_to, page.older_keys
    )
    if not request.confirmed:  # a page without a request; from it on, the client gets broadcasts
        record = with_subscription(
            record, reading.access, cursor_is_unstored=request.has_not_pulled and bool(page.deltas)
        )
    if request.confirmed and not reading.is_complete:
        # More pages follow, and a broadcast may arrive between them. So from here on, the client may have rows that
        # these pages do not contain.
        record = with_possible_broadcasts(record, reading.newest)
    if page.deltas:
        record, cursor = _after_page(record, request, reading)
    else:
        record, cursor = _after_empty_page(record, request, reading)
    if page.deltas or has_other_connection:
        announce_other_connection(commit, record, live=request.live)
    commit.put_client(reset_sources_on_restart(record, request, reading))
    return reading.with_cursor(cursor)


def remember_restart(commit: ClientCommit, request: PullRequest, rules: RulesCache) -> bool:
    """Record that a client starts again, before it is sent anything.

    The sharded gateway calls it for a shard of which nothing more fits in the page. Without this record, the
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
    known = current_record(commit.client(client_id), commit, reading.access.keys)
    # a client without a record has no earlier position, and one at a later position does not start again
    if reading.page.deltas and reading.record is not None and is_start(position):
        record = _with_confirmed_cursor(known or reading.record, reading, 0)
        record = replace(record, may_hold_unknown_rows=reading.record.may_hold_unknown_rows)
        record = with_newest_scope(record, reading.access, reading.newest)
        record = _with_start_page(record, position)
        if record != known:
            commit.put_client(replace(record, last_seen_ms=request.now_ms))
    return bool(reading.page.deltas)


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


def _sent_state(record: ClientRecord | None) -> object:
    """Return the fields of a record on which a page depends, to compare two versions of the record."""
    if record is None:
        return None
    # the client may have rows of these tables from sources (databases from which it pulls beside the feed)
    tables = {table for source in record.sources for table in source.tables}
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
        record = _with_confirmed_cursor(record, reading, 0 if is_start(position) else reading.since)
        if is_start(position):
            record = _with_start_page(record, position)
    if reading.is_complete:
        record, cursor = with_complete_cursor(record, reading.newest)
        if cursor <= record.moved_back_from:
            # a late pull may have the same cursor, from before the client moved back
            record, cursor = _with_unused_mark(record, cursor, reading.newest)
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

    The client lacks nothing, even if the response is lost, unless it was sent a page since the requested cursor.

    Args:
        record: the client's record, whose newest scope covers the page.
        request: the pull, after its checks.
        reading: the page that was read.
    """
    since, position = reading.since, reading.position
    if not reading.is_complete and since <= NEVER_PULLED:
        return record, since  # the client has no cursor yet, and gets none until it is sent rows
    # A cursor that cannot be served gets no meaning. If the client sends it again, it starts again.
    is_unknown = is_start(position) and all(page.cursor != since for page in record.pages)
    # Another request of the client may be under way, with another token. If a page was sent since the requested cursor,
    # the client may have that page when this response is lost, so the response confirms no more than this cursor.
    nothing_sent_since = reading.nothing_sent_since
    if not reading.is_complete:
        if is_unknown:
            record, since = with_page_mark(record, reading.page.read_up_to, above=since)
        if request.confirmed:
            record = _with_confirmed_cursor(record, reading, since)
        page = _page_for_cursor(record, since, position, reading.page.read_up_to, reading.page.rescan)
        if not nothing_sent_since:
            page = replace(page, pages_sent=MORE_SENT)
        return with_page(record, page), since
    record, cursor = with_complete_cursor(record, reading.newest)
    if request.confirmed:
        record = _with_confirmed_cursor(record, reading, cursor if nothing_sent_since else since)
    was_page_mark = since > NEVER_PULLED and (position.is_transition or position.read_up_to != position.base)
    if was_page_mark and not is_unknown and nothing_sent_since:
        # if the response is lost, the client sends the mark again; it now means the same as the complete cursor
        record = with_page(record, complete_page(since, cursor, record.scopes[-1], record.pages_sent))
    return record, cursor


def _with_start_page(record: ClientRecord, position: Position) -> ClientRecord:
    """Store what cursor 0 means until the client, which starts again, sends another one.

    Args:
        record: the client's record; the page belongs to its newest scope.
        position: the position at which the client starts.
    """
    start = _page_for_cursor(record, 0, position, position.read_up_to, position.rescan)
    return with_page(record, replace(start, pages_sent=MORE_SENT))


def _with_unused_mark(record: ClientRecord, cursor: int, newest: int) -> tuple[ClientRecord, int]:
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

    A request may arrive after later requests of the client. If the client lost its database in between, it no longer
    has the cursor of the late request. So after the client has moved back, a cursor that it may have had before counts
    only if it is the confirmed one, or the page mark of the latest page.

    Args:
        record: the client's record, with the page that was read.
        reading: the page.
        cursor: the cursor that the client has, if the request was not late: the requested one, or that of the response
            if the client lacks nothing.
    """
    since, position = reading.since, reading.position
    if is_start(position):
        moves_back = not is_blank(reading.record)
    else:
        is_latest_mark = since == record.last_sent_cursor and any(page.cursor == since for page in record.pages)
        if since <= record.moved_back_from and since != record.confirmed_cursor and not is_latest_mark:
            return record
        confirmed = find_page(record, record.confirmed_cursor)
        reached = (position.base, position.read_up_to)  # the requested cursor; a later base is a later position
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
    record: ClientRecord, cursor: int, position: Position, read_up_to: int, rescan: tuple[Range, ...]
) -> Page:
    """Return what a cursor means: the feed was read from `position` up to `read_up_to`, except for `rescan`.

    Args:
        record: the client's record; the page belongs to its newest scope.
        cursor: the cursor.
        position: the client's position, from which the page was read.
        read_up_to: the arrival up to which the feed was read.
        rescan: ranges up to `read_up_to` that are still to be read.
    """
    return Page(
        cursor=cursor,
        read_up_to=read_up_to,
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

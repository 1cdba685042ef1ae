"""Changes a client's record when a pull shows what the client has, also if the client starts again or the pull is late.

A client that lost its database starts again: it pulls from cursor 0, or from the cursor of a backup. A pull that it had
sent before may still arrive after that. Its cursor must not be believed, because the client may no longer have the rows
up to it. So the record keeps `moved_back_from`, the highest cursor from before the client moved back.

`engine.pulling` calls these functions in its transactions, for every pull that it records. A *record* is what the
gateway stores about a client. Its *scopes* are the periods in which the client was sent pages under the same claims and
rules, and its *pages* say what cursors mean. A *complete cursor* says that the client has everything that it may see up
to an arrival (the gateway's own timestamp of a commit). A *page mark* is a cursor in the middle of the pages that
follow such a *base*. A *rescan* reads ranges of the feed below a position. `docs/feed.md` explains the whole.
"""

from __future__ import annotations

from msgspec.structs import replace

from lakesync.engine.page_reading import Reading, is_start
from lakesync.feed.client_cursors import (
    complete_page,
    find_page,
    with_page,
    with_page_mark,
)
from lakesync.feed.client_state import is_blank
from lakesync.feed.positions import Position
from lakesync.staging.records import ARRIVAL_STEP, ClientRecord, Page


def with_start_page(record: ClientRecord, position: Position) -> ClientRecord:
    """Store what cursor 0 means until the client, which starts again, sends another one.

    Args:
        record: the client's record; the page belongs to its newest scope.
        position: the position at which the client starts.
    """
    start = page_for_cursor(record, 0, position, position.read_up_to, position.rescan)
    return with_page(record, replace(start, pages_sent=-1))  # -1: the client may have been sent more than that


def with_unused_mark(record: ClientRecord, cursor: int, newest: int) -> tuple[ClientRecord, int]:
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


def with_confirmed_cursor(record: ClientRecord, reading: Reading, cursor: int) -> ClientRecord:
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


def page_for_cursor(
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

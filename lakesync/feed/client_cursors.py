"""Creates cursors in a client's record; `feed.positions` says what each one means.

A client's *record* is what the gateway stores about it. `engine.pulling`, `engine.pushing` and `engine.subscriptions`
call these functions in the transaction of a pull, a push or a subscription, and store the result. All functions are
pure: those named `with_…` return a changed copy of the `ClientRecord`, the others only read it. `feed.client_state`
changes the scopes in the record. The terms:

- A *gateway* is one app's stream of changes. An *arrival* is its own timestamp of a commit. A *cursor* is the number
  that a client sends to continue after the last page that it has; `NEVER_PULLED` is that of a client that pushed before
  its first pull.
- A *scope* is a period in which a client was sent pages under the same claims and rules.
- At a *complete cursor*, the client has exactly what it could see then; it is the *base* of the pages that follow. A
  *page mark* is a cursor in the middle of these pages. The record stores a `Page` that says what the mark means.
- A cursor is *in doubt* if the client may have received all, a part or nothing of what it was sent after its latest
  *confirmed* cursor: one that the client sent back.
- A *transition* is a series of pages that takes a client from one scope (`base_scope`) to the next. Up to the arrival
  `transition_at`, it reads only rows that the change may concern.
- The *feed* has the rows in the order of their latest change, at an arrival, the row's *feed position*. A *rescan*
  reads ranges of the feed that lie below the cursor, before or after (`rescan_first`) what lies above it.
- A client *moves back* if it sends cursor 0, or one from before its confirmed cursor, because its database was lost or
  restored. `moved_back_from` is the highest cursor from before that.
- A *resync* sends every row from the beginning, as DELETE and INSERT, because the client may have any row: then it has
  no base (`NO_BASE`), or the record says `may_hold_unknown_rows`.
- `Page.pages_sent` counts the pages with deltas that the client had been sent when it got the cursor. It is `MORE_SENT`
  if it may have been sent more, and a number from `pages_in_doubt` for a cursor in doubt.

`staging.records.clients` explains all fields of the record, its scopes and its pages, with an example.
"""

from __future__ import annotations

from msgspec.structs import replace

from lakesync.feed.client_state import with_last_scope
from lakesync.feed.positions import NEVER_PULLED
from lakesync.feed.scopes import later_scopes, scope_numbered
from lakesync.model.validation import MAX_HLC
from lakesync.staging.records import ARRIVAL_STEP, NO_BASE, ClientRecord, Page, Range, pages_in_doubt

PAGES_KEPT = 16
"""The most pages in a record; a client that sends the cursor of a removed one has to start again."""


def with_complete_cursor(record: ClientRecord, newest: int) -> tuple[ClientRecord, int]:
    """Return the record after a complete cursor of its newest scope was sent, and that cursor.

    The cursor is the newest arrival, or the scope's first complete cursor (`Scope.first_cursor`) if that is higher. If
    the client may have been sent the newest arrival as a cursor in an earlier scope, or before its record was lost, it
    would have two meanings as the scope's first one. So the first one then lies between two arrivals, like a page mark.

    Args:
        record: the client's record, with at least one scope.
        newest: the gateway's newest arrival.
    """
    scope = record.scopes[-1]
    if scope.has_complete_cursor:
        return record, max(newest, scope.first_cursor)
    cursor = newest
    if len(record.scopes) > 1 or record.may_hold_unknown_rows:
        record, cursor = with_page_mark(record, newest)
    return with_last_scope(record, replace(scope, first_cursor=cursor)), cursor


def with_page_mark(record: ClientRecord, arrival: int, above: int = 0) -> tuple[ClientRecord, int]:
    """Create a page mark: a cursor between `arrival` and the next arrival.

    Args:
        record: the client's record.
        arrival: the arrival up to which the feed was read.
        above: a cursor that the mark must exceed, because clients expect their cursor to increase; 0 for none. It is
            ignored if the mark would exceed `MAX_HLC`, the highest valid cursor.

    Returns:
        The record, in which the mark is counted, and the mark.
    """
    # The marks of a client use the 255 numbers between two arrivals in turn, so that its latest 255 marks differ.
    floor = max(arrival, above) // ARRIVAL_STEP * ARRIVAL_STEP
    cursor = floor + record.mark_count % (ARRIVAL_STEP - 1) + 1
    if cursor <= above:
        cursor += ARRIVAL_STEP
    if cursor > MAX_HLC:
        return with_page_mark(record, arrival)
    return replace(record, mark_count=record.mark_count + 1), cursor


def with_page(record: ClientRecord, page: Page) -> ClientRecord:
    """Return the record with a page added; it replaces one with the same cursor.

    Above `PAGES_KEPT`, the oldest pages are removed, but not that of the client's `confirmed_cursor`.

    Args:
        record: the client's record.
        page: the page, with the cursor whose meaning it is.
    """
    pages = [each for each in record.pages if each.cursor != page.cursor]
    surplus = len(pages) + 1 - PAGES_KEPT
    if surplus > 0:
        removed = [each for each in pages if each.cursor != record.confirmed_cursor][:surplus]
        pages = [each for each in pages if each not in removed]
    return replace(record, pages=(*pages, page))


def with_cursor_in_doubt(
    record: ClientRecord, confirmed: Page, newest: int, sent_up_to: int
) -> tuple[ClientRecord, int]:
    """Create the cursor in the response to a push of a client that may not have received what it was sent.

    The client certainly has everything up to the page `confirmed`. Of what it was sent since, it may have all, a part
    or nothing. Pulls from the new cursor first return what is new, so that a client that pushes all the time gets new
    changes. Then they return again what the client was sent since `confirmed`. For example, the client certainly has
    everything up to 10, and was sent rows up to 50. A pull from the new cursor reads above 50 (`read_up_to`), and then
    the rescan (10, 50).

    Args:
        record: the client's record.
        confirmed: what the newest cursor means that the client certainly has.
        newest: the gateway's newest arrival.
        sent_up_to: the latest feed position of a row that the client was sent.

    Returns:
        The record, in which the cursor is a page mark, and the cursor.
    """
    page = _page_in_doubt(record, confirmed, newest, sent_up_to)
    for stored in record.pages:
        if stored == replace(page, cursor=stored.cursor):
            return record, stored.cursor
    # above every cursor that the client was sent, also before it last moved back
    sent = (record.last_sent_cursor, record.moved_back_from, record.confirmed_cursor, confirmed.cursor, NEVER_PULLED)
    record, cursor = with_page_mark(record, 0, above=max(sent))
    return with_page(record, replace(page, cursor=cursor)), cursor


def is_latest_in_doubt(record: ClientRecord, cursor: int) -> bool:
    """Return whether a cursor is in doubt, and the client was sent no page with deltas since it got it.

    Args:
        record: the client's record.
        cursor: the cursor; those of `with_cursor_in_doubt` are in doubt.
    """
    unchanged = pages_in_doubt(record.pages_sent)
    return any(page.cursor == cursor and page.pages_sent == unchanged for page in record.pages)


def _page_in_doubt(record: ClientRecord, confirmed: Page, newest: int, sent_up_to: int) -> Page:
    """Return the page for the cursor of `with_cursor_in_doubt`, whose arguments it takes; `Page.cursor` is still 0.

    - If the scope has not changed since `confirmed`, its pages continue, with a rescan of what the client may lack.
    - If it has changed once, they become a transition to the new scope.
    - Otherwise the client starts again.
    """
    confirmed_scope = scope_numbered(record, confirmed.scope)  # None if it was removed
    later = later_scopes(record, confirmed_scope) if confirmed_scope is not None else []
    is_transition = confirmed.base_scope not in (0, confirmed.scope)  # 0: the pages began at cursor 0, in no scope
    if confirmed_scope is None or len(later) > 1 or (later and (is_transition or confirmed.resync)):
        return _restart_in_doubt(record, newest)
    read_up_to = max(confirmed.read_up_to, sent_up_to)
    certain_up_to = min((each.above for each in confirmed.rescan), default=confirmed.read_up_to)
    if later:  # the pages become a transition to the later scope, whose keys are read from the beginning of the feed
        page = replace(confirmed, base_scope=confirmed_scope.number, scope=later[0].number, transition_at=certain_up_to)
        rescan = _rescan_in_doubt(record, Range(0, read_up_to))
    else:
        page = confirmed
        rescan = _rescan_in_doubt(record, Range(certain_up_to, read_up_to))
    return replace(
        page,
        cursor=0,
        read_up_to=read_up_to,
        rescan=rescan,
        rescan_first=False,
        pages_sent=pages_in_doubt(record.pages_sent),
    )


def _restart_in_doubt(record: ClientRecord, newest: int) -> Page:
    """Return the page of a cursor in doubt from which the client, which may have any row, starts again."""
    return Page(
        cursor=0,
        read_up_to=0,
        base=NO_BASE,
        newest_at_start=newest,
        resync=True,
        base_scope=0,
        scope=record.scopes[-1].number if record.scopes else 0,
        pages_sent=pages_in_doubt(record.pages_sent),
    )


def _rescan_in_doubt(record: ClientRecord, doubted: Range) -> tuple[Range, ...]:
    """Return the rescan of the part of the feed that the client may lack, in the order of reading.

    For example, the part is (10, 50). If the client's latest page was of an earlier rescan of it, and stopped at 30,
    (30, 50) is read first, and then (10, 30). Otherwise a client that pushes before each pull would be sent the rows
    above 10 each time, and never those above 30.
    """
    latest_rescan = next((page.rescan for page in record.pages if page.cursor == record.last_sent_cursor), ())
    stopped_at = latest_rescan[0].above if latest_rescan else doubted.above
    if not doubted.above < stopped_at < doubted.up_to:
        stopped_at = doubted.above
    ranges = (Range(stopped_at, doubted.up_to), Range(doubted.above, stopped_at))
    return tuple(each for each in ranges if each.above < each.up_to)

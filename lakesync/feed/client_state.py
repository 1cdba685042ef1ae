"""Changes of a client's record: what the gateway stores about the cursors and rows that it sent to the client.

`engine.pulling`, `engine.late_pulls`, `engine.pushing` and `engine.subscriptions` call these functions in their
transactions, and store the result. All functions are pure: they return a changed copy of the `ClientRecord`.
`feed.positions.locate` later reads from the record what a cursor means. The terms, which `feed.positions` defines in
full:

- An *arrival* is the gateway's own timestamp of a commit. A *cursor* is the number that a client sends to continue
  after the last page that it has.
- A *bucket key* names a bucket of the sync rules with the claims that may see it. The feed of a bucket key orders its
  rows by *feed position*: the arrival of a row's latest change.
- A *scope* is a period in which a client was sent pages under the same claims and rules; a *past key* is a bucket key
  of a scope that was removed from the record.
- At a *complete cursor*, the client has exactly what it could see then. A *page mark* is a cursor in the middle of a
  series of pages; the record stores a `Page` that says what it means.
- A *transition* is a series of pages that takes a client from one scope to the next. A *rescan* reads ranges of the
  feed that lie below the cursor.
- *Broadcasts* are pages that the server sends over a WebSocket without a request. They are not recorded for each
  client: `Scope.gets_broadcasts` says that they may be sent.

The fields of the record, its scopes and its pages are explained in `staging.records.clients`.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from lakesync.feed.positions import (
    NEVER_PULLED,
    NO_BASE,
    SCOPES_KEPT,
    Access,
    later_scopes,
    max_sent,
    scope_numbered,
    scope_of,
)
from lakesync.model.validation import MAX_HLC
from lakesync.staging.records import ARRIVAL_STEP, LOST, ClientRecord, Page, PastKey, Scope

PAGES_KEPT = 16
"""The most pages in a record; a client that sends the cursor of a removed one has to start again."""
PAST_KEPT = 1000
"""The most past keys in a record."""
_NO_END = MAX_HLC
"""`PastKey.sent_up_to` of a key from before a rebuild: it is unknown until when the client was sent rows under it."""


def current_record(record: ClientRecord | None, epoch: int, visible_keys: Iterable[str] = ()) -> ClientRecord | None:
    """Return the client's record for this epoch. A record from before a rebuild keeps only its bucket keys.

    Args:
        record: the stored record; None if the client has none.
        epoch: the store's epoch, a number that changes when the store is rebuilt from the lake.
        visible_keys: the bucket keys that the client may see now. If its record was erased or lost, these are all that
            is known of what it was sent.

    Returns:
        The record; None for a client that has none.
    """
    if record is None or record.epoch == epoch:
        return record
    keys = {past.key for past in record.past_keys} | {key for scope in record.scopes for key in scope.keys}
    # `LOST`: the epoch of a record that was erased or lost
    return unknown_client(record.client_id, epoch, keys.union(visible_keys) if record.epoch == LOST else keys)


def is_blank(record: ClientRecord | None) -> bool:
    """Return whether the client was never sent anything and never pushed."""
    return record is None or not (
        record.pages_sent or record.gets_broadcasts or record.has_pushed or record.past_keys or record.sources
    )


def with_possible_broadcasts(record: ClientRecord, newest: int) -> ClientRecord:
    """Return the record with everything up to `newest` as possibly sent, if broadcasts are sent to the client.

    Broadcasts are not recorded, so the client may have received all of them on its WebSocket. A request on another
    connection must take this into account.

    Args:
        record: the client's record; it is returned unchanged if no broadcasts are sent in its newest scope.
        newest: the gateway's newest arrival.
    """
    if not record.scopes or not record.scopes[-1].gets_broadcasts:
        return record
    *earlier, scope = record.scopes
    return replace(record, scopes=(*earlier, _with_rows_sent(scope, newest, newest)))


def scope_under(record: ClientRecord, access: Access) -> Scope | None:
    """Return the newest scope with the claims and rules of an access; None if there is none.

    Args:
        record: the client's record.
        access: what the client may see on its WebSocket.
    """
    return next((scope for scope in reversed(record.scopes) if access.same_as(scope)), None)


def with_subscription(record: ClientRecord, access: Access, *, cursor_is_unstored: bool = False) -> ClientRecord:
    """Return the record of a client to which broadcasts are sent from now on, in its newest scope.

    If the newest scope has other claims or rules than the connection, only `ClientRecord.gets_broadcasts` is set: the
    client gets a page of its own before any broadcast.

    Args:
        record: the client's record.
        access: what the client may see on its WebSocket; the bucket keys are added to the scope.
        cursor_is_unstored: whether a page was sent whose cursor the client does not store. A later pull under other
            claims must then start again (`Access.must_restart_after`).
    """
    record = replace(record, gets_broadcasts=True)
    if not record.scopes or not access.same_as(record.scopes[-1]):
        return record
    *earlier, known = record.scopes
    keys = tuple(sorted(access.keys.union(known.keys)))
    return replace(
        record,
        scopes=(
            *earlier,
            replace(
                known,
                keys=keys,
                gets_broadcasts=True,
                has_unstored_cursors=known.has_unstored_cursors or cursor_is_unstored,
            ),
        ),
    )


def has_other_access(record: ClientRecord, access: Access) -> bool:
    """Return whether the client may have another connection, which gets broadcasts under other claims or rules.

    Args:
        record: the client's record.
        access: what the client may see by the present request.
    """
    return record.gets_broadcasts and ends_scope(record, access)


def ends_scope(record: ClientRecord, access: Access) -> bool:
    """Return whether a page for `access` begins a new scope, because the newest one has other claims or rules.

    Args:
        record: the client's record.
        access: what the client may see by the present request.
    """
    return bool(record.scopes) and not access.same_as(record.scopes[-1])


def cursors_belong_to(record: ClientRecord, access: Access) -> bool:
    """Return whether a complete cursor that the client is sent now belongs to a scope with the claims of `access`.

    It belongs to the newest scope. So that scope must have the claims and rules of `access`, and at least one complete
    cursor.

    Args:
        record: the client's record.
        access: what the client may see on the connection in question.
    """
    scope = record.scopes[-1] if record.scopes else None
    return scope is not None and scope.first_cursor >= 0 and access.same_as(scope)


def unknown_client(client_id: str, epoch: int, keys: Iterable[str], sent_up_to: int = _NO_END) -> ClientRecord:
    """Return a record for a client that was seen before, while nothing is stored about it in this epoch.

    It may have any row that was under the keys by then, and rows that it pushed and that the gateway has lost. Both
    flags are set, because nothing shows the opposite.

    Args:
        client_id: the client's id.
        epoch: the store's epoch.
        keys: the bucket keys under which it may have been sent rows.
        sent_up_to: the newest arrival, if the client is seen for the first time in this epoch: later rows are recorded
            when they are sent. By default it is unknown until when it was sent rows under the keys.
    """
    past = tuple(PastKey(key, began_at=0, sent_up_to=sent_up_to, ended_at=sent_up_to) for key in sorted(keys))
    return ClientRecord(client_id, epoch, last_seen_ms=0, past_keys=past, has_pushed=True, may_hold_unknown_rows=True)


def with_scope(
    record: ClientRecord,
    access: Access,
    newest: int,
    sent_up_to: int = 0,
    upserted_up_to: int = 0,
    older_keys: AbstractSet[str] = frozenset(),
) -> ClientRecord:
    """Return the record after a page was sent under `access`: its newest scope has `access` and covers the page.

    The newest scope continues if it has the same claims and rules. Otherwise a new scope begins, and scopes that are
    too old are removed, with the pages that need them.

    Args:
        record: the client's record.
        access: the claims and bucket keys that decide what the client may see.
        newest: the gateway's newest arrival.
        sent_up_to: the latest feed position of a row in the page; 0 if it has none.
        upserted_up_to: the latest feed position of an INSERT or UPDATE in the page; 0 if it has none.
        older_keys: bucket keys of rows in the page that are not in `access`, because a re-index is running.
    """
    if older_keys:
        record = replace(record, past_keys=_with_older_keys(record, older_keys, newest, upserted_up_to))
    if record.scopes and access.same_as(record.scopes[-1]):  # the newest scope continues, perhaps with more keys
        *earlier, scope = record.scopes
        if not sent_up_to and access.keys.issubset(scope.keys):
            return record  # nothing changes; this is so in most pushes
        keys = tuple(sorted(access.keys.union(scope.keys)))
        scope = _with_rows_sent(replace(scope, keys=keys), sent_up_to, upserted_up_to)
    else:  # a new scope; broadcasts of the last one may have been sent up to now
        earlier = list(with_possible_broadcasts(record, newest).scopes)
        if earlier:
            earlier[-1] = replace(earlier[-1], gets_broadcasts=False, ended_at=newest)
        number = earlier[-1].number + 1 if earlier else 1
        keys = tuple(sorted(access.keys))
        scope = Scope(
            number=number,
            claims=access.claims,
            rules_version=access.rules_version,
            keys=keys,
            began_at=newest,
            first_cursor=-1,  # none yet
            sent_up_to=sent_up_to,
            upserted_up_to=upserted_up_to,
        )
    kept, removed = _within_bounds(record, (*earlier, scope))
    removed_numbers = {scope.number for scope in removed}
    return replace(
        record,
        scopes=kept,
        pages=tuple(page for page in record.pages if removed_numbers.isdisjoint((page.scope, page.base_scope))),
        past_keys=_with_past_keys(record.past_keys, removed),
        pages_sent=record.pages_sent + (sent_up_to > 0),
    )


def _with_older_keys(
    record: ClientRecord, older_keys: AbstractSet[str], newest: int, upserted_up_to: int
) -> tuple[PastKey, ...]:
    """Return the past keys after rows were sent under keys that only earlier scopes have, during a re-index.

    Only these keys are added, not the other keys of the earlier scopes: the client was sent nothing under those.

    Args:
        record: the client's record.
        older_keys: the bucket keys of the rows.
        newest: the gateway's newest arrival.
        upserted_up_to: the latest feed position of an INSERT or UPDATE that was sent.
    """
    known = [
        replace(past, sent_up_to=max(past.sent_up_to, upserted_up_to), ended_at=max(past.ended_at, newest))
        if past.key in older_keys
        else past
        for past in record.past_keys
    ]
    first_began_at: dict[str, int] = {}  # by key: when the first scope with the key began
    for scope in record.scopes:
        for key in older_keys & set(scope.keys):
            first_began_at.setdefault(key, scope.began_at)
    for past in known:
        first_began_at.pop(past.key, None)
    added = (PastKey(key, began_at, upserted_up_to, ended_at=newest) for key, began_at in first_began_at.items())
    return (*known, *added)


def _within_bounds(record: ClientRecord, scopes: tuple[Scope, ...]) -> tuple[tuple[Scope, ...], list[Scope]]:
    """Return the scopes to keep, and those to remove.

    The newest `SCOPES_KEPT` are kept. Of the older ones, those with stored pages are kept too. So a client can read a
    series of pages to its end, however often it is sent pages with other claims meanwhile. One exception: if the pages
    of a removed scope make earlier cursors useless (`Access.must_restart_after`), the scopes before it are removed too.

    Args:
        record: the client's record, with its stored pages.
        scopes: its scopes, oldest first, with the new one.
    """
    with_pages = {number for page in record.pages for number in (page.base_scope, page.scope)}
    kept: list[Scope] = []
    removed: list[Scope] = []
    for scope in scopes[:-SCOPES_KEPT]:
        if scope.number in with_pages:
            kept.append(scope)
            continue
        if scope.has_unstored_cursors or scope.rules_version != scopes[-1].rules_version:
            removed += kept
            kept = []
        elif kept and scope.first_cursor >= 0 and not kept[-1].cursors_end:
            # later cursors belonged to the removed scope, and must not be taken for cursors of the kept one
            kept[-1] = replace(kept[-1], cursors_end=scope.first_cursor)
        removed.append(scope)
    return (*kept, *scopes[-SCOPES_KEPT:]), removed


def _with_rows_sent(scope: Scope, sent_up_to: int, upserted_up_to: int) -> Scope:
    """Return the scope after rows or DELETEs were sent up to a feed position, and INSERTs or UPDATEs up to another one.

    Args:
        scope: the scope.
        sent_up_to: the latest feed position of an INSERT, an UPDATE or a DELETE.
        upserted_up_to: the latest feed position of an INSERT or UPDATE.
    """
    return replace(
        scope, sent_up_to=max(scope.sent_up_to, sent_up_to), upserted_up_to=max(scope.may_have_up_to, upserted_up_to)
    )


def with_complete_cursor(record: ClientRecord, newest: int) -> tuple[ClientRecord, int]:
    """Return the record after a complete cursor of its newest scope was sent, and that cursor.

    The first complete cursor of a scope lies between two arrivals, like a page mark, if the client may have the newest
    arrival as a cursor of before: of an earlier scope, or of a record that was forgotten in an erasure. That arrival
    would then have two meanings.

    Args:
        record: the client's record, with at least one scope.
        newest: the gateway's newest arrival.
    """
    *earlier, scope = record.scopes
    if scope.first_cursor >= 0:
        return record, max(newest, scope.first_cursor)
    cursor = newest
    if earlier or record.may_hold_unknown_rows:
        record, cursor = with_page_mark(record, newest)
    return replace(record, scopes=(*earlier, replace(scope, first_cursor=cursor))), cursor


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


def find_page(record: ClientRecord, cursor: int) -> Page | None:
    """Return what a cursor means as a page; None if the record does not say.

    Args:
        record: the client's record.
        cursor: a page mark, whose page is stored, or a complete cursor, for which a page is made.
    """
    for page in record.pages:
        if page.cursor == cursor:
            return page
    scope = scope_of(record, cursor) if cursor > NEVER_PULLED else None
    if scope is None:
        return None
    later = later_scopes(record, scope)
    nothing_sent_since = max_sent((scope, *later)) <= cursor and not any(other.sent_up_to for other in later)
    return complete_page(cursor, cursor, scope, record.pages_sent if nothing_sent_since else -1)


def may_have_been_sent(record: ClientRecord, cursor: int, newest: int) -> bool:
    """Return whether the client may have been sent a cursor.

    Args:
        record: the client's record, with the page marks that it was sent.
        cursor: the cursor in question.
        newest: the gateway's newest arrival; a cursor above it can only be a page mark.
    """
    return cursor < newest + ARRIVAL_STEP or any(page.cursor == cursor for page in record.pages)


def complete_page(cursor: int, complete: int, scope: Scope, pages_sent: int) -> Page:
    """Return a page which says that a cursor means the same as a complete cursor.

    Args:
        cursor: the cursor, which may be a page mark.
        complete: the complete cursor.
        scope: the scope of the complete cursor.
        pages_sent: the number of pages with deltas that the client had been sent when it got the cursor; -1 if it may
            have been sent more.
    """
    return Page(
        cursor=cursor,
        read_up_to=complete,
        base=complete,
        newest_at_start=complete,
        resync=False,
        base_scope=scope.number,
        scope=scope.number,
        transition_at=0,
        rescan=(),
        rescan_first=True,
        pages_sent=pages_sent,
    )


def with_cursor_in_doubt(
    record: ClientRecord, confirmed: Page, newest: int, sent_up_to: int
) -> tuple[ClientRecord, int]:
    """Create the cursor in the response to a push of a client that may not have received what it was sent.

    The client certainly has everything up to the page `confirmed`. Of what it was sent since, it may have all, a part
    or nothing. Pulls from the new cursor first return what is new, so that a client that pushes all the time gets new
    changes. Then they return again what the client was sent since `confirmed`.

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
    # above every cursor that the client was sent
    sent = (record.last_sent_cursor, record.moved_back_from, record.confirmed_cursor, confirmed.cursor, NEVER_PULLED)
    record, cursor = with_page_mark(record, 0, above=max(sent))
    return with_page(record, replace(page, cursor=cursor)), cursor


def _page_in_doubt(record: ClientRecord, confirmed: Page, newest: int, sent_up_to: int) -> Page:
    """Return the page for the cursor of `with_cursor_in_doubt`, whose arguments it takes; `Page.cursor` is still 0.

    For example, the client certainly has everything up to 10, and was sent rows up to 50. A pull from the new cursor
    reads above 50 first (`after`), and then the rescan (10, 50). If the client's last pages stopped at 30 in such a
    rescan, it reads (30, 50) first and then (10, 30): a client that pushes before each page would otherwise be sent the
    same rows each time.

    `pages_sent` is negative, because the client may have more than the page says: no number of pages equals it.
    """
    confirmed_scope = scope_numbered(record, confirmed.scope)  # None if it was removed
    later = later_scopes(record, confirmed_scope) if confirmed_scope is not None else []
    is_transition = confirmed.base_scope not in (0, confirmed.scope)  # 0: the pages began at cursor 0, in no scope
    if confirmed_scope is None or len(later) > 1 or (later and (is_transition or confirmed.resync)):
        # claims or rules changed more than once since: the client starts again, and may have any row
        return Page(
            cursor=0,
            read_up_to=0,
            base=NO_BASE,
            newest_at_start=newest,
            resync=True,
            base_scope=0,
            scope=record.scopes[-1].number if record.scopes else 0,
            transition_at=0,
            rescan=(),
            rescan_first=True,
            pages_sent=-1 - record.pages_sent,
        )
    after = max(confirmed.read_up_to, sent_up_to)
    # `low`: the client certainly has everything up to here
    low = min((start for start, _ in confirmed.rescan), default=confirmed.read_up_to)
    transition_at, base_scope, scope = confirmed.transition_at, confirmed.base_scope, confirmed.scope
    if later:  # a transition to the later scope, whose rescan begins at 0
        transition_at, base_scope, scope, low = low, confirmed_scope.number, later[0].number, 0
    # The range that the last page of a rescan has read again already comes last.
    last_rescan = next((page.rescan for page in record.pages if page.cursor == record.last_sent_cursor), ())
    continue_at = last_rescan[0][0] if last_rescan and low < last_rescan[0][0] < after else low
    rescan = tuple(part for part in ((continue_at, after), (low, continue_at)) if part[0] < part[1])
    return replace(
        confirmed,
        cursor=0,
        read_up_to=after,
        base_scope=base_scope,
        scope=scope,
        transition_at=transition_at,
        rescan=rescan,
        rescan_first=False,
        pages_sent=-1 - record.pages_sent,
    )


def _with_past_keys(past: tuple[PastKey, ...], removed: Iterable[Scope]) -> tuple[PastKey, ...]:
    """Return the past keys with those of removed scopes added.

    Above `PAST_KEPT`, the periods of each key become one; then the keys with the earliest rows are removed. The empty
    key stores the feed position of DELETEs that were sent after the rows of a scope, or in a scope without keys.

    Args:
        past: the past keys so far.
        removed: the scopes that are removed from the record.
    """
    removed = list(removed)
    added = [
        PastKey(key, scope.began_at, scope.may_have_up_to, scope.ended_at) for scope in removed for key in scope.keys
    ]
    with_later_deletes = [scope for scope in removed if scope.sent_up_to > (scope.may_have_up_to if scope.keys else 0)]
    added += [PastKey("", scope.began_at, scope.sent_up_to, scope.ended_at) for scope in with_later_deletes]
    periods = list(dict.fromkeys((*past, *added)))
    if len(periods) > PAST_KEPT:
        joined: dict[tuple[str, bool], PastKey] = {}
        for each in periods:
            # apart from periods without an end (`_NO_END`), which would remove the end of the others
            group = (each.key, each.sent_up_to == _NO_END)
            known = joined.get(group, each)
            ended_at = max(known.ended_at, each.ended_at)
            joined[group] = PastKey(
                each.key, min(known.began_at, each.began_at), max(known.sent_up_to, each.sent_up_to), ended_at
            )
        periods = list(joined.values())
    return tuple(sorted(periods, key=lambda period: period.sent_up_to)[-PAST_KEPT:])

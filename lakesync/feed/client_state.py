"""Changes of a client's record: what the gateway stores about the cursors and rows that it sent to the client.

`engine.pulling`, `engine.pushing` and `engine.subscriptions` call these functions in their commits. All are pure: they
return a changed `ClientRecord`. `feed.positions` defines the terms: scope, page mark, complete cursor, past key, feed
position.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from lakesync.feed.positions import NOTHING, SCOPES_KEPT, Access, later_scopes, max_sent, scope_numbered, scope_of
from lakesync.model.validation import MAX_HLC
from lakesync.staging.records import ARRIVAL_STEP, LOST, ClientRecord, Page, PastKey, Scope

PAGES_KEPT = 16
"""The most pages in a record; a client that sends the cursor of a removed one has to start again."""
PAST_KEPT = 1000
"""The most past keys in a record."""
_NO_END = MAX_HLC
"""`PastKey.sent_up_to` of a key whose rows the client may have whenever they came."""


def current(record: ClientRecord | None, epoch: int, sees: Iterable[str] = ()) -> ClientRecord | None:
    """Return the client's record for this epoch. A record from before a rebuild keeps only its bucket keys.

    Args:
        record: the stored record; None if the client has none.
        epoch: the store's epoch, which a rebuild increases.
        sees: the bucket keys that the client may see now; they are used if its record was erased or lost.

    Returns:
        The record; None for a client that has none.
    """
    if record is None or record.epoch == epoch:
        return record
    keys = {past.key for past in record.past} | {key for scope in record.scopes for key in scope.keys}
    return unknown_client(record.client_id, epoch, keys.union(sees) if record.epoch == LOST else keys)


def is_blank(record: ClientRecord | None) -> bool:
    """Return whether the client was never sent anything and never pushed."""
    return record is None or not (record.pages_sent or record.followed or record.wrote or record.past or record.sources)


def with_broadcasts(record: ClientRecord, newest: int) -> ClientRecord:
    """Return the record with everything up to `newest` as possibly sent, if broadcasts are sent to the client.

    Broadcasts are not recorded. So on other connections, the client may have all of them.
    """
    if not record.scopes or not record.scopes[-1].followed:
        return record
    *earlier, scope = record.scopes
    return replace(record, scopes=(*earlier, _sent(scope, newest, newest)))


def scope_under(record: ClientRecord, access: Access) -> Scope | None:
    """Return the newest scope with the claims and rules of an access; None if there is none."""
    return next((scope for scope in reversed(record.scopes) if access.same_as(scope)), None)


def follows(record: ClientRecord, access: Access, *, loose: bool = False) -> ClientRecord:
    """Return the record with the note that broadcasts are sent to the client in its newest scope.

    If that scope has other claims or rules than the access, only the record's own flag is set.

    Args:
        record: the client's record.
        access: what the client may see on its connection; the bucket keys are added to the scope.
        loose: whether a page was sent whose cursor the client does not store.
    """
    record = replace(record, followed=True)
    if not record.scopes or not access.same_as(record.scopes[-1]):
        return record
    *earlier, known = record.scopes
    keys = tuple(sorted(access.keys.union(known.keys)))
    return replace(record, scopes=(*earlier, replace(known, keys=keys, followed=True, loose=known.loose or loose)))


def has_other_access(record: ClientRecord, access: Access) -> bool:
    """Return whether the client also has a connection with other claims or rules, which gets broadcasts."""
    return record.followed and ends_scope(record, access)


def ends_scope(record: ClientRecord, access: Access) -> bool:
    """Return whether a request with an access ends the newest scope, because its claims or rules differ."""
    return bool(record.scopes) and not access.same_as(record.scopes[-1])


def owns_cursors(record: ClientRecord, access: Access) -> bool:
    """Return whether a complete cursor that is sent now belongs to this access: it is that of the newest scope."""
    scope = record.scopes[-1] if record.scopes else None
    return scope is not None and scope.start >= 0 and access.same_as(scope)


def unknown_client(client_id: str, epoch: int, keys: Iterable[str]) -> ClientRecord:
    """Return a record for a client that may have any row that was ever under these keys, and unknown rows.

    Args:
        client_id: the client's id.
        epoch: the store's epoch.
        keys: bucket keys.
    """
    past = tuple(PastKey(key, 0, _NO_END) for key in sorted(keys))
    return ClientRecord(client_id, epoch, 0, past=past, wrote=True, may_hold_unknown_rows=True)


def with_scope(
    record: ClientRecord,
    access: Access,
    newest: int,
    sent_up_to: int = 0,
    upserted_up_to: int = 0,
    older: AbstractSet[str] = frozenset(),
) -> ClientRecord:
    """Return the record after a page: what the client may see is its newest scope, which has the rows that it was sent.

    Args:
        record: the client's record.
        access: the claims and bucket keys that decide what the client may see.
        newest: the gateway's newest arrival.
        sent_up_to: the latest feed position of a row in the page; 0 if it has none.
        upserted_up_to: the latest feed position of an INSERT or UPDATE in the page; 0 if it has none.
        older: bucket keys of rows in the page that are not in `access`, because a re-index is running.
    """
    if older:
        record = replace(record, past=_with_older(record, older, upserted_up_to))
    if record.scopes and access.same_as(record.scopes[-1]):  # the newest scope continues, perhaps with more keys
        *earlier, scope = record.scopes
        keys = tuple(sorted(access.keys.union(scope.keys)))
        scope = _sent(replace(scope, keys=keys), sent_up_to, upserted_up_to)
    else:  # a new scope; broadcasts of the last one may have been sent up to now
        earlier = [replace(scope, followed=False) for scope in with_broadcasts(record, newest).scopes]
        number = earlier[-1].number + 1 if earlier else 1
        keys = tuple(sorted(access.keys))
        scope = Scope(
            number, access.claims, access.rules_version, keys, newest, -1, sent_up_to, upserted_up_to=upserted_up_to
        )
    kept, removed = _within_bounds(record, (*earlier, scope))
    removed_numbers = {scope.number for scope in removed}
    return replace(
        record,
        scopes=kept,
        pages=tuple(page for page in record.pages if removed_numbers.isdisjoint((page.scope, page.base_scope))),
        past=_past(record.past, removed),
        pages_sent=record.pages_sent + (sent_up_to > 0),
    )


def _with_older(record: ClientRecord, older: AbstractSet[str], upserted_up_to: int) -> tuple[PastKey, ...]:
    """Return the past keys after rows were sent under keys that only earlier scopes have, during a re-index.

    The other keys of these scopes are not added.

    Args:
        record: the client's record.
        older: the bucket keys of the rows.
        upserted_up_to: the latest feed position of an INSERT or UPDATE that was sent.
    """
    raised = [
        replace(past, sent_up_to=max(past.sent_up_to, upserted_up_to)) if past.key in older else past
        for past in record.past
    ]
    since: dict[str, int] = {}
    for scope in record.scopes:
        for key in older & set(scope.keys):
            since.setdefault(key, scope.at)  # of several scopes with the key, the first one
    for past in raised:
        since.pop(past.key, None)
    return (*raised, *(PastKey(key, at, upserted_up_to) for key, at in since.items()))


def _within_bounds(record: ClientRecord, scopes: tuple[Scope, ...]) -> tuple[tuple[Scope, ...], list[Scope]]:
    """Return the scopes to keep, and those to remove: old scopes in which no stored page was sent.

    A scope with stored pages is kept, so that a client can read its pages to their end, however often it is sent pages
    with other claims meanwhile. There is one exception: if a scope is removed in which the client may have been sent
    rows without their cursor (see `Access.resets`), no earlier cursor says what the client has.
    """
    with_pages = {number for page in record.pages for number in (page.base_scope, page.scope)}
    kept: list[Scope] = []
    removed: list[Scope] = []
    for scope in scopes[:-SCOPES_KEPT]:
        if scope.number in with_pages:
            kept.append(scope)
            continue
        if scope.loose or scope.rules_version != scopes[-1].rules_version:
            removed += kept
            kept = []
        elif kept and scope.start >= 0 and not kept[-1].end:
            # later cursors belonged to the removed scope, and must not be taken for cursors of the kept one
            kept[-1] = replace(kept[-1], end=scope.start)
        removed.append(scope)
    return (*kept, *scopes[-SCOPES_KEPT:]), removed


def _sent(scope: Scope, sent_up_to: int, upserted_up_to: int) -> Scope:
    """Return the scope after rows were sent up to a feed position, and INSERTs or UPDATEs up to another one."""
    return replace(
        scope, sent_up_to=max(scope.sent_up_to, sent_up_to), upserted_up_to=max(scope.reached, upserted_up_to)
    )


def with_complete_cursor(record: ClientRecord, newest: int) -> tuple[ClientRecord, int]:
    """Return the record after a complete cursor of its newest scope is sent, and that cursor.

    The first complete cursor of a scope is a page mark if there are earlier scopes, which may have had the same arrival
    as a cursor.

    Args:
        record: the client's record, with at least one scope.
        newest: the gateway's newest arrival.
    """
    *earlier, scope = record.scopes
    if scope.start >= 0:
        return record, max(newest, scope.start)
    cursor = newest
    if earlier:
        record, cursor = with_page_mark(record, newest)
    return replace(record, scopes=(*earlier, replace(scope, start=cursor))), cursor


def with_page_mark(record: ClientRecord, arrival: int, above: int = 0) -> tuple[ClientRecord, int]:
    """Return the record with one page mark more, and the new mark: a cursor between `arrival` and the next arrival.

    Args:
        record: the client's record.
        arrival: the arrival up to which the feed was read.
        above: a cursor that the mark should exceed, if there is room below the highest hlc.
    """
    # marks count through the numbers between two arrivals, so that a client's latest 255 marks differ
    floor = max(arrival, above) // ARRIVAL_STEP * ARRIVAL_STEP
    cursor = floor + record.marks % (ARRIVAL_STEP - 1) + 1
    if cursor <= above:
        cursor += ARRIVAL_STEP
    if cursor > MAX_HLC:
        return with_page_mark(record, arrival)
    return replace(record, marks=record.marks + 1), cursor


def with_page(record: ClientRecord, page: Page) -> ClientRecord:
    """Return the record with a page added; it replaces one with the same cursor.

    Above `PAGES_KEPT`, the oldest pages are removed, but not the one that the client certainly has.
    """
    pages = [each for each in record.pages if each.cursor != page.cursor]
    surplus = len(pages) + 1 - PAGES_KEPT
    if surplus > 0:
        removed = [each for each in pages if each.cursor != record.seen][:surplus]
        pages = [each for each in pages if each not in removed]
    return replace(record, pages=(*pages, page))


def find_page(record: ClientRecord, cursor: int) -> Page | None:
    """Return what a cursor means: the stored page of a page mark, or a page made for a complete cursor; else None."""
    for page in record.pages:
        if page.cursor == cursor:
            return page
    scope = scope_of(record, cursor) if cursor > 1 else None
    if scope is None:
        return None
    later = later_scopes(record, scope)
    exact = max_sent((scope, *later)) <= cursor and not any(other.sent_up_to for other in later)
    return complete_page(cursor, cursor, scope, record.pages_sent if exact else -1)


def is_possible(record: ClientRecord, cursor: int, newest: int) -> bool:
    """Return whether a client may have been sent a cursor. A cursor above the newest arrival must be a page mark."""
    return cursor < newest + ARRIVAL_STEP or any(page.cursor == cursor for page in record.pages)


def complete_page(cursor: int, complete: int, scope: Scope, serial: int) -> Page:
    """Return the page of a cursor that means the same as a complete cursor.

    Args:
        cursor: the cursor.
        complete: the complete cursor.
        scope: the scope of the complete cursor.
        serial: the number of pages with deltas that the client had been sent when it got the cursor; -1 if it may have
            been sent more.
    """
    return Page(
        cursor=cursor,
        after=complete,
        base=complete,
        until=complete,
        resync=False,
        base_scope=scope.number,
        scope=scope.number,
        transition_at=0,
        rescan=(),
        rescan_first=True,
        serial=serial,
    )


def in_doubt(record: ClientRecord, seen: Page, newest: int, sent_up_to: int) -> tuple[ClientRecord, int]:
    """Return a cursor for a client that was at `seen` and has all, a part or nothing of what it was sent since.

    A pull from this cursor first returns what is new, so that a client that pushes all the time gets it. Then it
    returns again what the client was sent since `seen`.

    Args:
        record: the client's record.
        seen: the page that the client certainly has.
        newest: the gateway's newest arrival.
        sent_up_to: the latest feed position of a row that the client was sent.

    Returns:
        The record, with the cursor as a page mark, and the cursor.
    """
    page = _page_in_doubt(record, seen, newest, sent_up_to)
    for stored in record.pages:
        if stored == replace(page, cursor=stored.cursor):
            return record, stored.cursor
    # above every cursor that the client was sent; 1 is the cursor of a client that never pulled
    record, cursor = with_page_mark(record, 0, above=max(record.last, record.seen, seen.cursor, 1))
    return with_page(record, replace(page, cursor=cursor)), cursor


def _page_in_doubt(record: ClientRecord, seen: Page, newest: int, sent_up_to: int) -> Page:
    """Return the page for `in_doubt`, without its cursor."""
    seen_scope = scope_numbered(record, seen.scope)
    later = later_scopes(record, seen_scope) if seen_scope is not None else []
    is_transition = seen.base_scope not in (0, seen.scope)
    if seen_scope is None or len(later) > 1 or (later and (is_transition or seen.resync)):
        # claims or rules changed more than once since: the client starts again, and may have any row
        return Page(
            cursor=0,
            after=0,
            base=NOTHING,
            until=newest,
            resync=True,
            base_scope=0,
            scope=record.scopes[-1].number if record.scopes else 0,
            transition_at=0,
            rescan=(),
            rescan_first=True,
            serial=-1 - record.pages_sent,
        )
    after = max(seen.after, sent_up_to)
    low = min((low for low, _ in seen.rescan), default=seen.after)
    transition_at, base_scope, scope = seen.transition_at, seen.base_scope, seen.scope
    if later:  # a transition to the later scope, whose rescan begins at 0
        transition_at, base_scope, scope, low = low, seen_scope.number, later[0].number, 0
    # the rescan continues where the client's last pages stopped, and ends with what they had read
    last_rescan = next((page.rescan for page in record.pages if page.cursor == record.last), ())
    continue_at = last_rescan[0][0] if last_rescan and low < last_rescan[0][0] < after else low
    rescan = tuple(part for part in ((continue_at, after), (low, continue_at)) if part[0] < part[1])
    return replace(
        seen,
        cursor=0,
        after=after,
        base_scope=base_scope,
        scope=scope,
        transition_at=transition_at,
        rescan=rescan,
        rescan_first=False,
        serial=-1 - record.pages_sent,
    )


def _past(past: tuple[PastKey, ...], removed: Iterable[Scope]) -> tuple[PastKey, ...]:
    """Return the past keys with those of removed scopes.

    Of too many, the periods of each key become one; then the keys with the earliest rows are dropped. The feed position
    of DELETEs that were sent after these rows, or in a scope without keys, is stored under the empty key.
    """
    removed = list(removed)
    added = [PastKey(name, scope.at, scope.reached) for scope in removed for name in scope.keys]
    with_later_deletes = [scope for scope in removed if scope.sent_up_to > (scope.reached if scope.keys else 0)]
    added += [PastKey("", scope.at, scope.sent_up_to) for scope in with_later_deletes]
    periods = list(dict.fromkeys((*past, *added)))
    if len(periods) > PAST_KEPT:
        joined: dict[tuple[str, bool], PastKey] = {}
        for each in periods:
            name = (each.key, each.sent_up_to == _NO_END)  # a period without an end says nothing of later ones
            known = joined.get(name, each)
            joined[name] = PastKey(each.key, min(known.at, each.at), max(known.sent_up_to, each.sent_up_to))
        periods = list(joined.values())
    return tuple(sorted(periods, key=lambda period: period.sent_up_to)[-PAST_KEPT:])

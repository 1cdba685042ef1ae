"""Changes of a client's record: what the gateway stores about cursors and rows that it sent, and what it forgets.

`engine.pulling`, `engine.pushing` and `engine.subscriptions` call these functions in their commits. All are pure: they
return a changed `ClientRecord`. See `docs/feed.md` for scopes and page marks.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from lakesync.feed.positions import NOTHING, SCOPES_KEPT, Access, later_scopes, max_sent, numbered, scope_of
from lakesync.model.validation import MAX_HLC
from lakesync.staging.records import ARRIVAL_STEP, LOST, ClientRecord, Page, PastKey, Scope

PAGES_KEPT = 16
PAST_KEPT = 1000
_EVER = MAX_HLC


def current(record: ClientRecord | None, epoch: int, sees: Iterable[str] = ()) -> ClientRecord | None:
    """Return the client's record for this epoch. A record from before a rebuild keeps only its bucket keys.

    Args:
        record: the stored record.
        epoch: the store's epoch.
        sees: the bucket keys that the client may see now, used if its record was lost.
    """
    if record is None or record.epoch == epoch:
        return record
    keys = {past.key for past in record.past} | {key for scope in record.scopes for key in scope.keys}
    return unknown_client(record.client_id, epoch, keys.union(sees) if record.epoch == LOST else keys)


def is_blank(record: ClientRecord | None) -> bool:
    """Return whether the client was never sent anything and never pushed."""
    return record is None or not (record.pages_sent or record.followed or record.wrote or record.past or record.sources)


def with_broadcasts(record: ClientRecord, newest: int) -> ClientRecord:
    """Return the record of a client that gets broadcasts: everything new may have been sent to it elsewhere."""
    if not record.scopes or not record.scopes[-1].followed:
        return record
    *earlier, scope = record.scopes
    return replace(record, scopes=(*earlier, _sent(scope, newest, newest)))


def scope_under(record: ClientRecord, access: Access) -> Scope | None:
    """Return the newest scope with the claims and rules of an access; None if there is none."""
    return next((scope for scope in reversed(record.scopes) if access.same_as(scope)), None)


def follows(record: ClientRecord, access: Access, *, loose: bool = False) -> ClientRecord:
    """Return the record of a client that gets broadcasts in its newest scope.

    If that scope has other claims or rules than the access, only the record's flag is set.

    Args:
        record: the client's.
        access: what its connection may see; its keys are added to the scope.
        loose: whether a page was sent whose cursor the client does not store.
    """
    record = replace(record, followed=True)
    if not record.scopes or not access.same_as(record.scopes[-1]):
        return record
    *earlier, known = record.scopes
    keys = tuple(sorted(access.keys.union(known.keys)))
    return replace(record, scopes=(*earlier, replace(known, keys=keys, followed=True, loose=known.loose or loose)))


def has_other_access(record: ClientRecord, access: Access) -> bool:
    """Return whether other connections of a client may be sent cursors of another access now."""
    return record.followed and ends_scope(record, access)


def ends_scope(record: ClientRecord, access: Access) -> bool:
    """Return whether a request with an access ends the newest scope, because its claims or rules differ."""
    return bool(record.scopes) and not access.same_as(record.scopes[-1])


def owns_cursors(record: ClientRecord, access: Access) -> bool:
    """Return whether a complete cursor that is sent now belongs to this access."""
    scope = record.scopes[-1] if record.scopes else None
    return scope is not None and scope.start >= 0 and access.same_as(scope)


def unknown_client(client_id: str, epoch: int, keys: Iterable[str]) -> ClientRecord:
    """Return the record of a client that may have any row that was ever under these keys, and rows that are unknown."""
    past = tuple(PastKey(key, 0, _EVER) for key in sorted(keys))
    return ClientRecord(client_id, epoch, 0, past=past, wrote=True, may_hold_unknown_rows=True)


def with_scope(
    record: ClientRecord,
    access: Access,
    newest: int,
    sent_up_to: int = 0,
    upserted_up_to: int = 0,
    older: AbstractSet[str] = frozenset(),
) -> ClientRecord:
    """Return the record with what the client may see as its newest scope, and with the rows that it was sent.

    Args:
        record: the client's.
        access: the claims and bucket keys that decide what the client may see.
        newest: the newest arrival.
        sent_up_to: no row was sent at a later feed position; 0 if none was sent.
        upserted_up_to: no INSERT or UPDATE was sent at a later feed position.
        older: bucket keys under which rows were sent that are not in `access`, because a re-index is running.
    """
    if older:
        record = replace(record, past=_with_older(record, older, upserted_up_to))
    if record.scopes and access.same_as(record.scopes[-1]):
        *earlier, scope = record.scopes
        keys = tuple(sorted(access.keys.union(scope.keys)))
        scope = _sent(replace(scope, keys=keys), sent_up_to, upserted_up_to)
    else:
        earlier = [replace(scope, followed=False) for scope in with_broadcasts(record, newest).scopes]
        number = earlier[-1].number + 1 if earlier else 1
        keys = tuple(sorted(access.keys))
        scope = Scope(
            number, access.claims, access.rules_version, keys, newest, -1, sent_up_to, upserted_up_to=upserted_up_to
        )
    kept, forgotten = _within_bounds(record, (*earlier, scope))
    lost = {scope.number for scope in forgotten}
    return replace(
        record,
        scopes=kept,
        pages=tuple(page for page in record.pages if page.scope not in lost and page.base_scope not in lost),
        past=_past(record.past, forgotten),
        pages_sent=record.pages_sent + (sent_up_to > 0),
    )


def _with_older(record: ClientRecord, older: AbstractSet[str], upserted_up_to: int) -> tuple[PastKey, ...]:
    """Return the past keys with those of earlier scopes under which rows were sent, and not their scopes' other keys.

    Args:
        record: the client's.
        older: the bucket keys of the rows.
        upserted_up_to: no INSERT or UPDATE was sent at a later feed position.
    """
    raised = [
        replace(past, sent_up_to=max(past.sent_up_to, upserted_up_to)) if past.key in older else past
        for past in record.past
    ]
    since: dict[str, int] = {}
    for scope in record.scopes:
        for key in older & set(scope.keys):
            since.setdefault(key, scope.at)
    for past in raised:
        since.pop(past.key, None)
    return (*raised, *(PastKey(key, at, upserted_up_to) for key, at in since.items()))


def _within_bounds(record: ClientRecord, scopes: tuple[Scope, ...]) -> tuple[tuple[Scope, ...], list[Scope]]:
    """Return the scopes to keep, and those to remove: old ones in which no stored page was sent.

    A client's pages must come to their end, however often it is sent pages with other claims meanwhile.
    The exception: once a scope is removed in which the client may have been sent rows without their cursor
    (`Access.resets`), no earlier cursor says what the client has.
    """
    walked = {number for page in record.pages for number in (page.base_scope, page.scope)}
    kept: list[Scope] = []
    forgotten: list[Scope] = []
    for scope in scopes[:-SCOPES_KEPT]:
        if scope.number in walked:
            kept.append(scope)
            continue
        if scope.loose or scope.rules_version != scopes[-1].rules_version:
            forgotten += kept
            kept = []
        elif kept and scope.start >= 0 and not kept[-1].end:
            kept[-1] = replace(kept[-1], end=scope.start)
        forgotten.append(scope)
    return (*kept, *scopes[-SCOPES_KEPT:]), forgotten


def _sent(scope: Scope, sent_up_to: int, upserted_up_to: int) -> Scope:
    """Return a scope in which rows were sent up to one feed position, and INSERTs or UPDATEs up to another."""
    return replace(
        scope, sent_up_to=max(scope.sent_up_to, sent_up_to), upserted_up_to=max(scope.reached, upserted_up_to)
    )


def with_complete_cursor(record: ClientRecord, newest: int) -> tuple[ClientRecord, int]:
    """Return the record with a complete cursor of its newest scope, and that cursor.

    If an earlier scope may have had the same cursor, a page mark makes them different.
    """
    *earlier, scope = record.scopes
    if scope.start >= 0:
        return record, max(newest, scope.start)
    cursor = newest
    if earlier:
        record, cursor = with_page_mark(record, newest)
    return replace(record, scopes=(*earlier, replace(scope, start=cursor))), cursor


def with_page_mark(record: ClientRecord, place: int, above: int = 0) -> tuple[ClientRecord, int]:
    """Return the record with one page mark more, and a cursor just above `place`.

    Args:
        record: the client's.
        place: arrival.
        above: a cursor that the new one should exceed, if there is room.
    """
    floor = max(place, above) // ARRIVAL_STEP * ARRIVAL_STEP
    cursor = floor + record.marks % (ARRIVAL_STEP - 1) + 1
    if cursor <= above:
        cursor += ARRIVAL_STEP
    if cursor > MAX_HLC:
        return with_page_mark(record, place)
    return replace(record, marks=record.marks + 1), cursor


def with_page(record: ClientRecord, page: Page) -> ClientRecord:
    """Return the record with a page; the oldest pages are removed, except one that the client certainly has."""
    pages = [kept for kept in record.pages if kept.cursor != page.cursor]
    surplus = len(pages) + 1 - PAGES_KEPT
    if surplus > 0:
        needless = [kept for kept in pages if kept.cursor != record.seen][:surplus]
        pages = [kept for kept in pages if kept not in needless]
    return replace(record, pages=(*pages, page))


def find_page(record: ClientRecord, cursor: int) -> Page | None:
    """Return what a cursor stands for; None if that is unknown."""
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
    """Return whether a cursor may have been sent to a client; a cursor above the newest arrival must be a page mark."""
    return cursor < newest + ARRIVAL_STEP or any(page.cursor == cursor for page in record.pages)


def complete_page(cursor: int, complete: int, scope: Scope, serial: int) -> Page:
    """Return the page of a cursor that means the same as a complete one.

    Args:
        cursor: the cursor.
        complete: the complete cursor.
        scope: its scope.
        serial: number of pages that the client had been sent.
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

    What is new comes first, so that a client that pushes all the time gets it; then what it was sent since.

    Args:
        record: the client's.
        seen: the page that it certainly has.
        newest: the newest arrival.
        sent_up_to: no row was sent at a later feed position.
    """
    page = _from_there(record, seen, newest, sent_up_to)
    for kept in record.pages:
        if kept == replace(page, cursor=kept.cursor):
            return record, kept.cursor
    record, cursor = with_page_mark(
        record, 0, above=max(record.last, record.seen, seen.cursor, 1)
    )  # 1: it never pulled
    return with_page(record, replace(page, cursor=cursor)), cursor


def _from_there(record: ClientRecord, seen: Page, newest: int, sent_up_to: int) -> Page:
    walk = numbered(record, seen.scope)
    later = later_scopes(record, walk) if walk is not None else []
    moves = seen.base_scope not in (0, seen.scope)
    if walk is None or len(later) > 1 or (later and (moves or seen.resync)):
        scope = record.scopes[-1].number if record.scopes else 0
        return Page(0, 0, NOTHING, newest, True, 0, scope, 0, (), True, -1 - record.pages_sent)
    after = max(seen.after, sent_up_to)
    low = min((low for low, _ in seen.rescan), default=seen.after)
    transition_at, base_scope, scope = seen.transition_at, seen.base_scope, seen.scope
    if later:
        transition_at, base_scope, scope, low = low, walk.number, later[0].number, 0
    last_rescan = next((page.rescan for page in record.pages if page.cursor == record.last), ())
    on_from = last_rescan[0][0] if last_rescan and low < last_rescan[0][0] < after else low
    rescan = tuple(part for part in ((on_from, after), (low, on_from)) if part[0] < part[1])
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


def _past(past: tuple[PastKey, ...], forgotten: Iterable[Scope]) -> tuple[PastKey, ...]:
    """Return the past keys with those of removed scopes; of too many, those with the earliest rows are dropped.

    The feed position of DELETEs that were sent after these rows, or under no key, is stored under the empty key.
    """
    forgotten = list(forgotten)
    added = [PastKey(name, scope.at, scope.reached) for scope in forgotten for name in scope.keys]
    beyond = [scope for scope in forgotten if scope.sent_up_to > (scope.reached if scope.keys else 0)]
    added += [PastKey("", scope.at, scope.sent_up_to) for scope in beyond]
    return tuple(sorted(dict.fromkeys((*past, *added)), key=lambda key: key.sent_up_to)[-PAST_KEPT:])

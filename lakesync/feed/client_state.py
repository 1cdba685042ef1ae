"""Changes of the scopes in a client's record: what the gateway stores about the rows that it sent to the client.

`engine.pulling`, `engine.pushing` and `engine.subscriptions` call these functions in the transaction of a pull, a push
or a subscription, and store the result. All functions are pure: they return a changed copy of the `ClientRecord`.
Whatever reads a record in the engine calls `current_record` first. `feed.client_cursors` changes the cursors and pages
in the record, and `feed.positions` computes from it what a cursor means. The terms:

- A *gateway* is one app's stream of changes. An *arrival* is its own timestamp of a commit. A *cursor* is the number
  that a client sends to continue after the last page that it has.
- A *bucket key* names a bucket of the sync rules with the claims that may see it. The feed of a bucket key orders its
  rows by *feed position*: the arrival of a row's latest change.
- A *scope* is a period in which a client was sent pages under the same claims and rules; a *past key* is a bucket key
  of a scope that was removed from the record.
- At a *complete cursor*, the client has exactly what it could see then.
- A DELETE leaves nothing with the client. So there are two feed positions: `sent_up_to` counts every row and DELETE
  that was sent, and `may_have_up_to` only what the client may still have, from INSERTs and UPDATEs (`upserted_up_to`).
- A *re-index* computes the bucket keys of all rows again, in the background, after the rules changed. A record belongs
  to an *epoch*, which ends when the store is rebuilt from the lake (Iceberg tables).
- *Broadcasts* are pages that the server sends over a WebSocket without a request. They are not recorded for each
  client: `Scope.gets_broadcasts` says that they may be sent.

The fields of the record, its scopes and its pages are explained in `staging.records.clients`.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from lakesync.feed.scopes import Access
from lakesync.model.validation import MAX_HLC
from lakesync.staging.records import KEY_OF_DELETES, LOST, NO_CURSOR, ClientRecord, PastKey, Scope
from lakesync.staging.store.feed import ClientView

SCOPES_KEPT = 8
"""The newest scopes of a client that are always kept. Older ones are kept only while a stored page needs them."""
PAST_KEPT = 1000
"""The most past keys in a record."""
_NO_END = MAX_HLC
"""`PastKey.may_have_up_to` of a key from before a rebuild of the store: the latest row that was sent is unknown."""


def current_record(
    record: ClientRecord | None, view: ClientView, visible_keys: Iterable[str] = ()
) -> ClientRecord | None:
    """Return the client's record for the store's epoch. A record from before a rebuild keeps only its bucket keys.

    Args:
        record: the stored record; None if the client has none.
        view: a consistent read of the gateway's store, or a commit.
        visible_keys: the bucket keys that the client may see now. If its record was erased or lost, these are all that
            is known of what it was sent.

    Returns:
        The record; None for a client that has none.
    """
    if record is None or record.epoch == view.epoch:
        return record
    if record.epoch == LOST and record.gets_broadcasts:  # an erased client: the store knows every row that it was sent
        return replace(unknown_client(record.client_id, view.epoch, visible_keys, view.arrival), gets_broadcasts=True)
    keys = {past.key for past in record.past_keys} | {key for scope in record.scopes for key in scope.keys}
    # `LOST`: the epoch of a record that was lost
    return unknown_client(record.client_id, view.epoch, keys.union(visible_keys) if record.epoch == LOST else keys)


def is_blank(record: ClientRecord | None) -> bool:
    """Return whether the client was never sent anything, never pushed, and never pulled from a source."""
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
    return with_last_scope(record, _with_rows_sent(record.scopes[-1], newest, newest))


def with_last_scope(record: ClientRecord, scope: Scope) -> ClientRecord:
    """Return the record with a changed version of its newest scope."""
    return replace(record, scopes=(*record.scopes[:-1], scope))


def scope_under(record: ClientRecord, access: Access) -> Scope | None:
    """Return the newest scope with the claims and rules of an access; None without one.

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
    scope = record.scopes[-1]
    keys = tuple(sorted(access.keys.union(scope.keys)))
    is_unstored = scope.has_unstored_cursors or cursor_is_unstored
    return with_last_scope(record, replace(scope, keys=keys, gets_broadcasts=True, has_unstored_cursors=is_unstored))


def may_broadcast_under_other_access(record: ClientRecord, access: Access) -> bool:
    """Return whether the client may get broadcasts on another connection, under other claims or rules.

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
    return scope is not None and scope.has_complete_cursor and access.same_as(scope)


def unknown_client(client_id: str, epoch: int, keys: Iterable[str], sent_up_to: int = _NO_END) -> ClientRecord:
    """Return a record for a client that was seen before, while nothing is stored about it in this epoch.

    It may have any row that was under the keys by then, and rows that it pushed and that the gateway has lost. Both
    flags are set, because nothing shows the opposite.

    Args:
        client_id: the client's id.
        epoch: the store's epoch.
        keys: the bucket keys under which it may have been sent rows.
        sent_up_to: the newest arrival, if the store knows every row that the client was sent: later rows are recorded
            when they are sent. By default, the latest row that it was sent is unknown.
    """
    past = tuple(PastKey(key, began_at=-1, may_have_up_to=sent_up_to, ended_at=sent_up_to) for key in sorted(keys))
    return ClientRecord(client_id, epoch, last_seen_ms=0, past_keys=past, has_pushed=True, may_hold_unknown_rows=True)


def with_newest_scope(
    record: ClientRecord,
    access: Access,
    newest: int,
    sent_up_to: int = 0,
    upserted_up_to: int = 0,
    older_keys: AbstractSet[str] = frozenset(),
) -> ClientRecord:
    """Return the record with a newest scope that has `access`, and that covers the page that was just sent, if any.

    The newest scope continues if it has the same claims and rules. Otherwise a new scope begins, and scopes that are
    too old are removed, with the pages that need them.

    Args:
        record: the client's record.
        access: the claims and bucket keys that decide what the client may see.
        newest: the gateway's newest arrival.
        sent_up_to: the latest feed position of a row or DELETE in the page; 0 if it has none, or if none was sent.
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
            first_cursor=NO_CURSOR,
            sent_up_to=sent_up_to,
            upserted_up_to=upserted_up_to,
            gets_broadcasts=record.gets_broadcasts and not earlier,
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

    The other keys of the earlier scopes are not added: the client was sent nothing under them.

    Args:
        record: the client's record.
        older_keys: the bucket keys of the rows.
        newest: the gateway's newest arrival.
        upserted_up_to: the latest feed position of an INSERT or UPDATE that was sent.
    """
    updated = [
        replace(past, may_have_up_to=max(past.may_have_up_to, upserted_up_to), ended_at=max(past.ended_at, newest))
        if past.key in older_keys
        else past
        for past in record.past_keys
    ]
    first_began_at: dict[str, int] = {}  # by key: when the first scope with the key began
    for scope in record.scopes:
        for key in older_keys & set(scope.keys):
            first_began_at.setdefault(key, scope.began_at)
    for past in updated:
        first_began_at.pop(past.key, None)
    added = (PastKey(key, began_at, upserted_up_to, ended_at=newest) for key, began_at in first_began_at.items())
    return (*updated, *added)


def _within_bounds(record: ClientRecord, scopes: tuple[Scope, ...]) -> tuple[tuple[Scope, ...], list[Scope]]:
    """Return the scopes to keep, and those to remove.

    The newest `SCOPES_KEPT` are kept. Of the older ones, those with stored pages are kept too. So a client can read a
    series of pages to its end, however often it is sent pages with other claims meanwhile. One exception: if the pages
    of a removed scope make earlier cursors useless (`Access.must_restart_after`), the scopes before it are removed too.

    Example: of the old scopes A, B and C, only A and C have stored pages. B is removed. A is kept, and its
    `cursors_end` becomes B's first complete cursor, so that a cursor of B is not taken for one of A.

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
        elif kept and scope.has_complete_cursor and not kept[-1].cursors_end:
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
    # not `scope.upserted_up_to`: if that is unknown (-1), `may_have_up_to` is `sent_up_to`
    return replace(
        scope, sent_up_to=max(scope.sent_up_to, sent_up_to), upserted_up_to=max(scope.may_have_up_to, upserted_up_to)
    )


def _with_past_keys(past: tuple[PastKey, ...], removed: Iterable[Scope]) -> tuple[PastKey, ...]:
    """Return the past keys with those of removed scopes added.

    Above `PAST_KEPT`, the periods of each key become one; then the keys with the earliest rows are removed.
    `KEY_OF_DELETES` gets the feed position of DELETEs that were sent after the rows of a scope, or in one without keys.

    Args:
        past: the past keys so far.
        removed: the scopes that are removed from the record.
    """
    removed = list(removed)
    added = [
        PastKey(key, scope.began_at, scope.may_have_up_to, scope.ended_at) for scope in removed for key in scope.keys
    ]
    with_later_deletes = [scope for scope in removed if scope.sent_up_to > (scope.may_have_up_to if scope.keys else 0)]
    added += [PastKey(KEY_OF_DELETES, scope.began_at, scope.sent_up_to, scope.ended_at) for scope in with_later_deletes]
    periods = list(dict.fromkeys((*past, *added)))
    if len(periods) > PAST_KEPT:
        joined: dict[tuple[str, bool, bool], PastKey] = {}
        for each in periods:
            # apart from periods without a beginning or an end (`_NO_END`), which would remove that of the others
            group = (each.key, each.began_at < 0, each.may_have_up_to == _NO_END)
            earlier = joined.get(group, each)
            joined[group] = PastKey(
                each.key,
                began_at=min(earlier.began_at, each.began_at),
                may_have_up_to=max(earlier.may_have_up_to, each.may_have_up_to),
                ended_at=max(earlier.ended_at, each.ended_at),
            )
        periods = list(joined.values())
    return tuple(sorted(periods, key=lambda period: period.may_have_up_to)[-PAST_KEPT:])

"""Computes what a client's cursor means: up to where it was sent the feed, what it had there, and got since.

`engine.page_reading` calls `locate` for every pull, and `inspection.client_position` to explain what a client has. The
result, a `Position`, determines for `feed.pull` which part of the feed to read, and for `feed.row_presence` which rows
the client may have. `docs/feed.md` explains the whole; these are its terms:

- A *gateway* is one app's stream of changes. An *arrival* is its own timestamp of a commit (a hybrid logical clock), a
  multiple of `ARRIVAL_STEP`. A *cursor* is the number that a client sends to continue after the last page that it has.
- Sync rules put rows into *buckets*. A *bucket key* names a bucket with the claims (fields of a client's token) that
  may see it. The *feed* of a bucket key has its rows in order of their latest change; the arrival of that change is the
  row's *feed position*. The row's *entry* there says when it joined the bucket, left it, and last changed in it.
- A *page* is one response with changes. A client that lacks many changes is sent several pages.
- A client's *record* is what the gateway stores about it: its scopes, and what its page marks mean.
- A *scope* is a period in which a client was sent pages under the same claims and rules. *Past keys* are the bucket
  keys of earlier scopes that were removed from the client's record.
- At a *complete cursor*, the client has exactly what it could see then. It is an arrival, except for the first one of a
  later scope, which lies between two arrivals. It is the *base* of the pages that follow.
- A *page mark* is a cursor in the middle of these pages. It lies between two arrivals, and a stored `Page` says what it
  means.
- A *transition* is a series of pages after the claims or rules changed: it also reads the rows under bucket keys that
  were active only at the base, or are active only now.
- A *resync* is a series of pages from cursor 0 for a client that may have any row.
- A *re-index* computes the bucket keys of all rows again, in the background, after the rules changed.

An example, with arrivals 100, 200 and so on instead of timestamps. A client has the complete cursor 300. It is sent
some of the changes up to 900, and the page mark 601: its base is 300, and the feed was read up to 600. If its claims
change then, a transition begins at 600. It reads the feed up to 600 again, under the keys that became active or
inactive, and continues from 600 under the old and the new keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lakesync.feed.scopes import Access, later_scopes, max_sent, scope_numbered, scope_of
from lakesync.model.types import Claims
from lakesync.model.validation import MAX_HLC
from lakesync.staging.records import ARRIVAL_STEP, MORE_SENT, NO_BASE, ClientRecord, Page, PastKey, Range, Scope

NEVER_PULLED = 1
"""Cursor of a client that pushed before its first pull. It is not 0, because a client with cursor 0 first downloads a
checkpoint (files with all rows as of one arrival)."""


class SentPeriod(NamedTuple):
    """A period in which a client was sent rows under one bucket key. All fields are arrivals.

    `feed.row_presence` compares it with a row's entry, to see whether the client may have been sent the row.
    """

    began_at: int
    """The gateway's newest arrival when the period began; -1 if that is unknown."""
    may_have_up_to: int
    """The latest feed position at which a row was sent that the client may still have."""
    ended_at: int
    """The gateway's newest arrival when the period ended, because the client's claims or the rules changed; `MAX_HLC`
    if it has not ended."""


class Position(NamedTuple):
    """Where a pull starts, and what its client may have.

    "These pages" are the series of pages that the client has been reading since the complete cursor `base`.

    `read_up_to`, `base`, `newest_at_start`, `resync`, `base_scope`, `transition_at`, `rescan` and `rescan_first` are
    stored in the `Page` of a page mark, so that the next pull continues there.
    """

    read_up_to: int
    """The feed was read up to this arrival, except for `rescan`."""
    base: int
    """The complete cursor at which these pages began; `NO_BASE` if the client had nothing, or it is unknown what."""
    newest_at_start: int
    """The newest arrival when these pages began. A row that has not changed since then has kept its feed position, so
    no earlier page can have sent it at another one."""
    old_keys: frozenset[str]
    """The bucket keys that were active at `base`."""
    new_keys: frozenset[str]
    """The bucket keys that are active now."""
    sent: Mapping[str, Sequence[SentPeriod]]
    """The periods since `base` in which the client may have been sent rows, by bucket key; in a resync, all periods."""
    sent_up_to: int
    """The latest feed position at which a row was sent since `base`, under any key."""
    resync: bool = False
    """Whether the client may have any row. Each row is then sent as DELETE and INSERT, which is right in any case."""
    base_scope: int = 0
    """`Scope.number` of the scope that `base` belongs to; 0 without a base."""
    nothing_sent_since: bool = True
    """Whether the client was sent nothing after this cursor, so that it certainly has no page that the cursor omits."""
    transition_at: int = 0
    """Up to this arrival, a transition reads the feed only under keys that became active or inactive; 0 without a
    transition."""
    rescan: tuple[Range, ...] = ()
    """Ranges of the feed to read in addition to what is above `read_up_to`: for a transition, or because it is unknown
    whether the client received the pages that were read from them."""
    rescan_first: bool = True
    """Whether `rescan` is read before what is above `read_up_to`."""
    may_hold_unknown_rows: bool = False
    """Whether the client may have rows that the gateway never knew, so that no row is certainly new to it.
    `engine.page_reading` sets this field and the two that follow; `locate` leaves their defaults."""
    no_retry: bool = False
    """Whether a change that the client fails to apply is not sent again, as in broadcasts. The client may have missed a
    DELETE, or skipped one because of an edit of its own. So a row that was ever removed is not certainly new to it."""
    own_writes_up_to: int | None = None
    """The hlc up to which the client says that it has its own writes. Later ones are sent back to it, because its
    database may be restored from a backup. None if it has all of them."""
    has_pushed: bool = False
    """Whether the client ever pushed. Only used without a base: its own writes are then all that it may have."""

    @property
    def is_transition(self) -> bool:
        """Whether the pages are a transition: the active bucket keys are not those of `base`. False in a resync."""
        return self.old_keys != self.new_keys and not self.resync


def locate(
    record: ClientRecord | None, since: int, newest: int, access: Access, connection_claims: Claims | None = None
) -> Position | None:
    """Return the position of a cursor; None if the gateway cannot serve it and the client must start from cursor 0.

    Args:
        record: the client's record, as `feed.client_state.current_record` returns it; None for a client that was never
            sent anything.
        since: the cursor. Clients that never pulled have 0 or, if they pushed, `NEVER_PULLED`.
        newest: the gateway's newest arrival.
        access: the claims and bucket keys that decide what the client may see.
        connection_claims: for a page that the server sends without a request, the claims of the connection that the
            cursor belongs to; None if the client sent the cursor itself.
    """
    confirmed = connection_claims is None  # the client sent the cursor, so it has applied everything up to it
    if record is None:
        return _at_start(None, newest, access, resync=False) if since == 0 else None
    if since <= NEVER_PULLED:
        # A client that sends 0 after a push may have lost its database, and with it its own rows. It may push again and
        # then send `NEVER_PULLED`. If it sent 0 before that, its record has a page with cursor 0.
        has_restarted = record.has_pushed and (since == 0 or any(page.cursor == 0 for page in record.pages))
        may_have_rows = max_sent(record.scopes) > 0 or bool(record.past_keys) or has_restarted
        return _at_start(record, newest, access, resync=may_have_rows)
    # The first cursor of a scope may lie between `newest` and the next arrival, as a page mark does. A still higher
    # cursor is not from this gateway.
    page = find_page(record, since, connection_claims) if may_have_been_sent(record, since, newest) else None
    return _at_page(record, page, newest, access, confirmed=confirmed) if page is not None else None


def find_page(record: ClientRecord, cursor: int, connection_claims: Claims | None = None) -> Page | None:
    """Return what a cursor means as a page; None if the record does not say.

    Args:
        record: the client's record.
        cursor: a page mark, whose page is stored, or a complete cursor, for which a page is made.
        connection_claims: as for `locate`.
    """
    for page in record.pages:
        if page.cursor == cursor:
            return page
    scope = scope_of(record, cursor, connection_claims) if cursor > NEVER_PULLED else None
    if scope is None:
        return None
    # the scopes that were removed from the record had these keys; `MAX_HLC`: it is unknown what was sent under the key
    sent = (scope.sent_up_to, *(past.may_have_up_to for past in record.past_keys if past.may_have_up_to < MAX_HLC))
    was_sent_more = max(sent) > cursor or any(later.sent_up_to for later in later_scopes(record, scope))
    return complete_page(cursor, cursor, scope, MORE_SENT if was_sent_more else record.pages_sent)


def may_have_been_sent(record: ClientRecord, cursor: int, newest: int) -> bool:
    """Return whether the client may have been sent a cursor.

    Args:
        record: the client's record, with the page marks that it was sent.
        cursor: the cursor in question.
        newest: the gateway's newest arrival; a cursor above it can only be a page mark.
    """
    return cursor < newest + ARRIVAL_STEP or any(page.cursor == cursor for page in record.pages)


def complete_page(cursor: int, complete: int, scope: Scope, pages_sent: int) -> Page:
    """Return a page by which a cursor means the same as a complete cursor.

    Args:
        cursor: the cursor, which may be a page mark.
        complete: the complete cursor.
        scope: the scope of the complete cursor.
        pages_sent: the number of pages with deltas that the client had been sent when it got the cursor; `MORE_SENT` if
            it may have been sent more.
    """
    return Page(
        cursor=cursor,
        read_up_to=complete,
        base=complete,
        newest_at_start=complete,
        resync=False,
        base_scope=scope.number,
        scope=scope.number,
        pages_sent=pages_sent,
    )


def restart_position(record: ClientRecord, newest: int, access: Access) -> Position:
    """Return the position of a client that starts again and may have any row: each is sent as DELETE and INSERT.

    Args:
        record: the client's record.
        newest: the gateway's newest arrival.
        access: the claims and bucket keys that decide what the client may see.
    """
    return _at_start(record, newest, access, resync=True)


def for_full_pull(position: Position) -> Position:
    """Return the position for a client that removes, at the end of a full pull, the rows that it was not sent.

    A full pull is all pages from cursor 0. The engine calls this function for every pull of a client that supports
    resyncs.

    Such a client needs no DELETE of rows that it was sent before the store was rebuilt from the lake, or before its
    record was erased. Of that time at most the keys are known, and not when the client could see them
    (`SentPeriod.began_at` is negative, or `may_have_up_to` is `MAX_HLC`). They also match rows that were in a bucket
    only while the client had no access to it. A DELETE would reveal the ids of these rows, so the keys are removed
    from the position.

    Args:
        position: the position of a resync; any other is returned unchanged.
    """
    if not position.resync:
        return position
    known = {
        key: [each for each in periods if each.began_at >= 0 and each.may_have_up_to < MAX_HLC]
        for key, periods in position.sent.items()
    }
    return position._replace(sent={key: periods for key, periods in known.items() if periods})


def is_complete_page(page: Page) -> bool:
    """Return whether the page's cursor means the same as a complete cursor."""
    return page.read_up_to == page.base and page.base_scope == page.scope and not page.rescan


def _at_start(record: ClientRecord | None, newest: int, access: Access, *, resync: bool) -> Position:
    """Return the position of a client before all rows.

    Args:
        record: the client's record; None if it has none.
        newest: the gateway's newest arrival.
        access: the claims and bucket keys that decide what the client may see.
        resync: whether the client may have any row. Otherwise it was sent nothing, and has only its own writes.
    """
    past, scopes = (record.past_keys, record.scopes) if record is not None else ((), ())
    sent, sent_up_to = _sent_periods(past, scopes)
    return Position(
        read_up_to=0,
        base=NO_BASE,
        newest_at_start=newest,
        resync=resync,
        old_keys=frozenset() if resync else access.keys,
        new_keys=access.keys,
        sent=sent,
        sent_up_to=sent_up_to,
        has_pushed=record is not None and record.has_pushed,
    )


def _at_page(record: ClientRecord, page: Page, newest: int, access: Access, *, confirmed: bool) -> Position:
    """Return the position after a page: the client has what it had at the base, and what it was sent since.

    If the claims or rules changed since the page was sent, these pages become a transition, or must start again.

    Args:
        record: the client's record.
        page: what the client's cursor means.
        newest: the gateway's newest arrival.
        access: the claims and bucket keys that decide what the client may see.
        confirmed: whether the client sent the cursor itself.
    """
    scopes = _valid_scopes(record, page, access, confirmed=confirmed)
    if scopes is None:
        return restart_position(record, newest, access)
    page_scope, base_scope = scopes
    rescan = page.rescan
    if rescan and later_scopes(record, page_scope):
        # These pages must now also read the bucket keys of later scopes. A row that the rescan has not reached yet may
        # have an entry under such a key at a position that was read already, but not under that key. So the rescan now
        # covers everything from its lowest position.
        rescan = (Range(min(each.above for each in rescan), page.read_up_to),)
    if page.resync:
        restarted = restart_position(record, newest, access)
        return restarted._replace(
            read_up_to=page.read_up_to,
            newest_at_start=page.newest_at_start,
            rescan=rescan,
            rescan_first=page.rescan_first,
        )
    old_keys, new_keys = _keys(base_scope, page_scope, access)
    begins_transition = not access.same_as(page_scope) and old_keys != new_keys
    nothing_sent_since = not record.was_sent_more_since(page)
    sent, sent_up_to = _sent_since(record, page.base, base_scope)
    if begins_transition:
        # The transition reads all of the feed below, under keys that became active or inactive: up to here, these pages
        # have read it under the old keys without a gap.
        transition_at = min((each.above for each in page.rescan), default=page.read_up_to)
    else:
        transition_at = page.transition_at
    return Position(
        read_up_to=page.read_up_to,
        base=page.base,
        newest_at_start=newest if nothing_sent_since and is_complete_page(page) else page.newest_at_start,
        base_scope=page.base_scope or (page_scope.number if begins_transition else 0),
        old_keys=old_keys,
        new_keys=new_keys,
        sent=sent,
        sent_up_to=sent_up_to,
        nothing_sent_since=nothing_sent_since,
        transition_at=transition_at,
        rescan=(Range(0, page.read_up_to),) if begins_transition else rescan,
        rescan_first=page.rescan_first or begins_transition,
        has_pushed=record.has_pushed,
    )


def _valid_scopes(record: ClientRecord, page: Page, access: Access, *, confirmed: bool) -> tuple[Scope, Scope] | None:
    """Return the scopes of a page and of its base; None if these pages must start again.

    Args:
        record: the client's record.
        page: what the client's cursor means.
        access: what the client may see now.
        confirmed: whether the client sent the cursor itself.
    """
    page_scope = scope_numbered(record, page.scope)
    # `page.base_scope` is 0 if these pages began at cursor 0, in no scope
    base_scope = scope_numbered(record, page.base_scope) if page.base_scope else page_scope
    if page_scope is None or base_scope is None:
        return None
    # Claims or rules that change in the middle of a transition or a resync would need a third set of keys: start again.
    # In a transition, the scope of the page is not that of its base.
    if (page.resync or base_scope is not page_scope) and not access.same_as(page_scope):
        return None
    if any(access.must_restart_after(other, confirmed=confirmed) for other in later_scopes(record, page_scope)):
        return None
    return page_scope, base_scope


def _keys(base_scope: Scope, page_scope: Scope, access: Access) -> tuple[frozenset[str], frozenset[str]]:
    """Return the bucket keys that were active at the base, and those that are active now.

    Under the same claims and rules, a key can only be new because a first row got it since. Such keys count as both, so
    that they need no transition: the client had nothing under them at the base, and the feed has all that came later.

    Args:
        base_scope: the scope of the base.
        page_scope: the scope in which these pages are sent.
        access: what the client may see now.
    """
    old_keys = frozenset(base_scope.keys)
    if base_scope is page_scope and access.same_as(page_scope):
        return old_keys | access.keys, old_keys | access.keys
    return old_keys, access.keys


def _sent_since(record: ClientRecord, base: int, base_scope: Scope) -> tuple[dict[str, list[SentPeriod]], int]:
    """Return what the client may have been sent since a base, as `_sent_periods` does.

    Removed scopes count too, as far as their past keys show that they were sent rows after the base. The client may
    have written rows under keys of a scope that was removed since the base. These keys are included, even if the client
    was sent nothing under them. Past keys with the unknown end `MAX_HLC` are not: they are from before the client
    reached any complete cursor.
    """
    past = [
        each
        for each in record.past_keys
        if base < max(each.may_have_up_to, each.ended_at) and each.may_have_up_to < MAX_HLC
    ]
    scopes = record.scopes if base == NO_BASE else [base_scope, *later_scopes(record, base_scope)]
    return _sent_periods(past, scopes)


def _sent_periods(past: Sequence[PastKey], scopes: Sequence[Scope]) -> tuple[dict[str, list[SentPeriod]], int]:
    """Return what a client was sent: periods by bucket key, and the latest feed position of a row or a DELETE.

    The position in a scope without keys counts too: its client was sent DELETEs.

    Args:
        past: keys of removed scopes.
        scopes: stored scopes.
    """
    sent: dict[str, list[SentPeriod]] = {}
    for each in past:
        if not each.is_of_deletes:
            sent.setdefault(each.key, []).append(SentPeriod(each.began_at, each.may_have_up_to, each.ended_at))
    for scope in scopes:
        for key in scope.keys:
            sent.setdefault(key, []).append(SentPeriod(scope.began_at, scope.may_have_up_to, scope.ended_at))
    return sent, max([max_sent(scopes), *[each.may_have_up_to for each in past]])

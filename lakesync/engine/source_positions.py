"""Tracks how far a client is with a source, in its record, from the cursors that it sends.

`engine.sources` calls it. A page of a source does not change the client's feed cursor. But a response may be lost. So a
page with deltas returns a mark, a number just below the request's cursor. A client that sends the mark has the page,
whether it pulls from the source or from the feed, where the mark stands for the cursor itself. Nothing else confirms a
page. A client that pushes in between sends the push's cursor instead. It gets the next pages all the same, in passes
that begin after the last confirmed page, so it never stops at a page and never misses one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from lakesync.model.types import Claims, Position
from lakesync.rules.model import SyncRules
from lakesync.staging.records import ARRIVAL_STEP, ClientRecord
from lakesync.staging.records.clients import AccessPeriod, PendingPage, SourcePosition

TOO_EARLY = 1 << 32
"""A cursor below this (0 or 1) belongs to a client that has none yet: it reads in passes, as there is no room for
marks."""

MOST_ATTEMPTS = 3
"""A page that was sent so often without confirmation is left to the next pass."""

_MARKS_KEPT = 8

_PERIODS_KEPT = 8


class Start(NamedTuple):
    """Where a pull from a source begins."""

    known: SourcePosition
    """The client's position, after what its cursor confirms."""
    cursor: int
    """The client's cursor in the gateway's own feed."""
    after: Position | None


def position_in(record: ClientRecord | None, source: str) -> SourcePosition:
    """Return a client's position in a source."""
    for known in record.sources if record is not None else ():
        if known.source == source:
            return known
    return SourcePosition(source)


def resolve(record: ClientRecord | None, since: int) -> int:
    """Return the feed cursor that a client's cursor stands for."""
    for known in record.sources if record is not None else ():
        for mark, cursor in known.marks:
            if mark == since and not _is_own(record, since):
                return cursor
    return since


def received(known: SourcePosition, since: int) -> SourcePosition:
    """Return the position after a request with this cursor: it confirms the page whose mark it is."""
    pending = known.pending
    if pending is None or pending.mark != since:
        return known
    if pending.start == known.confirmed:
        return msgspec.structs.replace(known, confirmed=pending.end, pending=None, pass_position=None)
    return _beyond(known, pending)


def begin(
    record: ClientRecord | None,
    source: str,
    since: int,
    rules: SyncRules,
    claims: Claims,
    newest: Callable[[], Position | None],
) -> Start:
    """Return where a pull with the cursor `since` begins.

    Args:
        record: the client's.
        source: its name.
        since: the cursor that the client sent.
        rules: the active rules.
        claims: the claims that the rules read.
        newest: returns the newest position of the source; called if rules or claims are new.
    """
    known = _in_access_period(position_in(record, source), rules, claims, newest)
    cursor = resolve(record, since)
    if cursor < TOO_EARLY:
        return Start(known, cursor, known.pass_position)
    known = received(known, since)
    if known.pending is not None and known.pending.attempts >= MOST_ATTEMPTS:
        known = _beyond(known, known.pending)
    if known.pending is not None:
        return Start(known, cursor, known.pending.start)
    return Start(known, cursor, known.pass_position or known.confirmed)


def end(
    start: Start,
    record: ClientRecord | None,
    since: int,
    at: Position | None,
    tables: frozenset[str],
    *,
    more: bool,
) -> tuple[SourcePosition, int]:
    """Return the position after a page, and the cursor of the response.

    Args:
        start: where it began.
        record: the client's, whose marks are in use.
        since: the cursor that the client sent.
        at: where the page ends; None if the source is empty.
        tables: of the rows that were sent; none if the page is empty.
        more: whether the source has more.
    """
    known = msgspec.structs.replace(start.known, tables=tuple(sorted({*start.known.tables, *tables})))
    known = _shown(known, at)
    if start.cursor < TOO_EARLY:
        return msgspec.structs.replace(known, pass_position=at if more else None), start.cursor
    if not tables:
        if start.after == known.confirmed:
            return msgspec.structs.replace(known, confirmed=at, pending=None, pass_position=None), since
        return msgspec.structs.replace(known, pending=None, pass_position=at if more else None), since
    times = known.pending.attempts + 1 if known.pending is not None else 1
    mark = _free_mark(record, since)
    marks = ((mark, start.cursor), *known.marks)[:_MARKS_KEPT]
    return msgspec.structs.replace(known, pending=PendingPage(mark, at, times, start.after, more), marks=marks), mark


def started_again(record: ClientRecord) -> ClientRecord:
    """Return the record of a client that starts its feed again: it may have lost its rows of sources too."""
    fresh = tuple(
        msgspec.structs.replace(known, confirmed=None, pending=None, pass_position=None) for known in record.sources
    )
    return msgspec.structs.replace(record, sources=fresh)


def after_request(record: ClientRecord, since: int) -> ClientRecord:
    """Return the record after a pull of the feed with this cursor, which may be a source's mark."""
    return msgspec.structs.replace(record, sources=tuple(received(known, since) for known in record.sources))


def with_position(record: ClientRecord, known: SourcePosition) -> ClientRecord:
    """Return the client's record with this position."""
    others = tuple(other for other in record.sources if other.source != known.source)
    return msgspec.structs.replace(record, sources=(*others, known))


def _beyond(known: SourcePosition, pending: PendingPage) -> SourcePosition:
    """Return the position after a page that is not confirmed: in this pass, or at the start of the next one."""
    return msgspec.structs.replace(known, pending=None, pass_position=pending.end if pending.has_more else None)


def _in_access_period(
    known: SourcePosition, rules: SyncRules, claims: Claims, newest: Callable[[], Position | None]
) -> SourcePosition:
    """Return the position under these rules and claims: other ones show other rows, so the source is read again.

    A client that uses two tokens in turn changes its claims often. So an earlier period with the same rules and claims
    is continued; otherwise such a client would use up the kept periods, and rows sent in the first would stay with it.
    """
    periods = known.access_periods
    same = next((each for each in periods if (each.rules, each.claims) == (rules, claims)), None)
    if same is not None and same is periods[-1]:
        return known
    others = [each for each in periods if each is not same]
    access_periods = (*others, same or AccessPeriod(rules, claims, newest()))[-_PERIODS_KEPT:]
    return msgspec.structs.replace(
        known, access_periods=access_periods, confirmed=None, pending=None, pass_position=None
    )


def _shown(known: SourcePosition, at: Position | None) -> SourcePosition:
    """Return the position after a page up to `at`."""
    now = known.access_periods[-1]
    if at is None or (now.last is not None and now.last >= at):
        return known
    return msgspec.structs.replace(
        known, access_periods=(*known.access_periods[:-1], msgspec.structs.replace(now, last=at))
    )


def _free_mark(record: ClientRecord | None, since: int) -> int:
    """Return a number below the client's cursor that is no arrival and has no other meaning for this client."""
    taken = {mark for known in record.sources for mark, _ in known.marks} if record is not None else set()
    mark = since - 1
    while mark % ARRIVAL_STEP == 0 or mark in taken or _is_own(record, mark):
        mark -= 1
    return mark


def _is_own(record: ClientRecord | None, cursor: int) -> bool:
    """Return whether the gateway's own feed sent this cursor."""
    if record is None:
        return False
    return any(page.cursor == cursor for page in record.pages) or any(scope.start == cursor for scope in record.scopes)

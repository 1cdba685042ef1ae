"""How far a client is with a source, and how its cursor, which belongs to the gateway's own feed, says so.

A source's page leaves the client's cursor where it is. But an answer may be lost, so a page with deltas hands out a
mark, just below the cursor that came in: a client that comes back with it has got the page, whether it pulls from the
source or from the feed, where the mark stands for the cursor itself. Nothing else says so. A client that pushes in
between gives no such sign, as its cursor is the push's then: it is sent the next pages all the same, in rounds that
begin behind what is known as received, so that it stands still at no page and misses none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from lakesync.model.position import Position
from lakesync.model.types import Claims
from lakesync.rules.model import SyncRules
from lakesync.staging.records import ARRIVAL_STEP, ClientRecord
from lakesync.staging.source_records import Offer, Sight, SourcePosition

TOO_EARLY = 1 << 32
"""A cursor below this, 0 or 1, is that of a client that has none yet and walks in rounds: marks have no room there."""

OFFERED_AT_ONCE = 3
"""A page that was sent so often without a sign waits for the next round."""

_MARKS_KEPT = 8

_SIGHTS_KEPT = 8


class Start(NamedTuple):
    """Where a pull from a source begins."""

    known: SourcePosition
    """As it is after what the cursor says."""
    cursor: int
    """The client's cursor in the gateway's own feed."""
    after: Position | None


def position_in(record: ClientRecord | None, source: str) -> SourcePosition:
    """What is known of a client and a source."""
    for known in record.sources if record is not None else ():
        if known.source == source:
            return known
    return SourcePosition(source)


def resolve(record: ClientRecord | None, since: int) -> int:
    """The cursor of the gateway's own feed that a client means."""
    for known in record.sources if record is not None else ():
        for mark, cursor in known.marks:
            if mark == since and not _is_own(record, since):
                return cursor
    return since


def received(known: SourcePosition, since: int) -> SourcePosition:
    """After a request with this cursor: the page is received whose mark it is."""
    offer = known.offer
    if offer is None or offer.mark != since:
        return known
    if offer.start == known.done:
        return msgspec.structs.replace(known, done=offer.end, offer=None, round=None)
    return _beyond(known, offer)


def begin(
    record: ClientRecord | None,
    source: str,
    since: int,
    rules: SyncRules,
    claims: Claims,
    newest: Callable[[], Position | None],
) -> Start:
    """Where a pull with the cursor `since` begins.

    Args:
        record: the client's.
        source: its name.
        since: the cursor that the client sent.
        rules: in force.
        claims: those that the rules read.
        newest: the newest place of the source, asked where rules or claims are new.
    """
    known = _in_sight(position_in(record, source), rules, claims, newest)
    cursor = resolve(record, since)
    if cursor < TOO_EARLY:
        return Start(known, cursor, known.round)
    known = received(known, since)
    if known.offer is not None and known.offer.times >= OFFERED_AT_ONCE:
        known = _beyond(known, known.offer)
    if known.offer is not None:
        return Start(known, cursor, known.offer.start)
    return Start(known, cursor, known.round or known.done)


def end(
    start: Start,
    record: ClientRecord | None,
    since: int,
    at: Position | None,
    tables: frozenset[str],
    *,
    more: bool,
) -> tuple[SourcePosition, int]:
    """What is known after a page that ends at `at`, and the cursor that it hands out.

    Args:
        start: where it began.
        record: the client's, in which marks are taken.
        since: the cursor that the client sent.
        at: None where the source holds nothing.
        tables: of the rows that were sent; none where the page is empty.
        more: whether the source has more.
    """
    known = msgspec.structs.replace(start.known, tables=tuple(sorted({*start.known.tables, *tables})))
    known = _shown(known, at)
    if start.cursor < TOO_EARLY:
        return msgspec.structs.replace(known, round=at if more else None), start.cursor
    if not tables:
        if start.after == known.done:
            return msgspec.structs.replace(known, done=at, offer=None, round=None), since
        return msgspec.structs.replace(known, offer=None, round=at if more else None), since
    times = known.offer.times + 1 if known.offer is not None else 1
    mark = _free_mark(record, since)
    marks = ((mark, start.cursor), *known.marks)[:_MARKS_KEPT]
    return msgspec.structs.replace(known, offer=Offer(mark, at, times, start.after, more), marks=marks), mark


def started_again(record: ClientRecord) -> ClientRecord:
    """After a client began its own feed anew: it may have lost its rows, so it begins with its sources anew too."""
    fresh = tuple(msgspec.structs.replace(known, done=None, offer=None, round=None) for known in record.sources)
    return msgspec.structs.replace(record, sources=fresh)


def after_request(record: ClientRecord, since: int) -> ClientRecord:
    """After a pull of the gateway's own feed with this cursor, which may be a source's mark."""
    return msgspec.structs.replace(record, sources=tuple(received(known, since) for known in record.sources))


def with_position(record: ClientRecord, known: SourcePosition) -> ClientRecord:
    """The client's record with this position in it."""
    others = tuple(other for other in record.sources if other.source != known.source)
    return msgspec.structs.replace(record, sources=(*others, known))


def _beyond(known: SourcePosition, offer: Offer) -> SourcePosition:
    """On to the page behind one, while something before that may be missing: the round, or the next one."""
    return msgspec.structs.replace(known, offer=None, round=offer.end if offer.more else None)


def _in_sight(
    known: SourcePosition, rules: SyncRules, claims: Claims, newest: Callable[[], Position | None]
) -> SourcePosition:
    """Rules or claims that are new show other rows, so the walk begins again, the former ones kept in mind."""
    if known.sights and (known.sights[-1].rules, known.sights[-1].claims) == (rules, claims):
        return known
    sights = (*known.sights, Sight(rules, claims, newest()))[-_SIGHTS_KEPT:]
    return msgspec.structs.replace(known, sights=sights, done=None, offer=None, round=None)


def _shown(known: SourcePosition, at: Position | None) -> SourcePosition:
    """After a page up to `at`."""
    now = known.sights[-1]
    if at is None or (now.last is not None and now.last >= at):
        return known
    return msgspec.structs.replace(known, sights=(*known.sights[:-1], msgspec.structs.replace(now, last=at)))


def _free_mark(record: ClientRecord | None, since: int) -> int:
    """A value below the client's cursor that is no arrival and means nothing else to this client."""
    taken = {mark for known in record.sources for mark, _ in known.marks} if record is not None else set()
    mark = since - 1
    while mark % ARRIVAL_STEP == 0 or mark in taken or _is_own(record, mark):
        mark -= 1
    return mark


def _is_own(record: ClientRecord | None, cursor: int) -> bool:
    """Whether the gateway's own feed handed this cursor out."""
    if record is None:
        return False
    return any(page.cursor == cursor for page in record.pages) or any(scope.start == cursor for scope in record.scopes)

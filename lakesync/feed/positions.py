"""What a client's cursor means: where it stands in the feed, and what held when it was handed out."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from lakesync.staging.records import ARRIVAL_STEP, LOST, ClientRecord, Page, Segment
from lakesync.types import Claims

SEGMENTS_KEPT = 8
PAGES_KEPT = 16
NOTHING = -1


class Position(NamedTuple):
    """Where a pull starts."""

    after: int
    """What the client lacks has `changed` above this."""
    base: int
    """The complete cursor that the client's rows date from; NOTHING when it began with none."""
    until: int | None
    """The newest arrival when the walk began that this cursor is a page of; None at a complete cursor."""
    resync: bool
    """The client may hold rows that the gateway does not know of: every row is sent as DELETE, then INSERT."""
    keys: tuple[str, ...]
    """Bucket keys under which the client may have been given rows."""


class Access(NamedTuple):
    """What a client may see now."""

    claims: Claims
    keys: tuple[str, ...]
    rules_version: int


def locate(record: ClientRecord | None, since: int, epoch: int, newest: int, access: Access) -> Position | None:
    """The position of a cursor; None when it cannot be served (L11) and the client must start again.

    A client id without a record starts with nothing at `since` 0 and is unknown elsewhere.
    """
    if record is None:
        return Position(0, NOTHING, None, False, ()) if since == 0 else None
    if since <= 1:
        return _from_nothing(record, access)
    if record.epoch != epoch or since > newest + ARRIVAL_STEP - 1:
        return None
    for page in record.pages:
        if page.cursor == since:
            if _same(page, access):
                return Position(page.after, page.base, page.until, page.resync, page.keys)
            return _from_nothing(record, access)
    for segment in reversed(record.segments):
        if segment.start == since or (segment.start < since and since % ARRIVAL_STEP == 0):
            if _same(segment, access):
                return Position(since, since, None, False, segment.keys)
            return _from_nothing(record, access)
    return None


def current(record: ClientRecord | None, epoch: int) -> ClientRecord | None:
    """The record, where it is of the store's epoch: the cursors of another say nothing here."""
    return record if record is not None and record.epoch == epoch else None


def from_nothing(record: ClientRecord | None, access: Access) -> Position:
    """Where a client that was seen before, or may have been, starts again."""
    return _from_nothing(record, access) if record is not None else Position(0, NOTHING, None, True, access.keys)


def next_mark(record: ClientRecord | None) -> int:
    """The next page mark: from 1 to ARRIVAL_STEP - 1, in turn."""
    return (record.marks if record else 0) % (ARRIVAL_STEP - 1) + 1


def remember(
    record: ClientRecord | None,
    client_id: str,
    epoch: int,
    now_ms: int,
    *,
    sent: int = 0,
    segment: Segment | None = None,
    page: Page | None = None,
) -> ClientRecord:
    """The record after an answer was handed out."""
    record = current(record, epoch) or ClientRecord(client_id, epoch, now_ms)
    segments, pages, marks = record.segments, record.pages, record.marks
    if segment is not None:
        segments = (*segments, segment)[-SEGMENTS_KEPT:]
    if page is not None:
        pages = (*(kept for kept in pages if kept.cursor != page.cursor), page)[-PAGES_KEPT:]
    if page is not None or (segment is not None and segment.start % ARRIVAL_STEP):
        marks += 1
    return msgspec.structs.replace(
        record, last_seen_ms=now_ms, sent=max(record.sent, sent), segments=segments, pages=pages, marks=marks
    )


def holds(record: ClientRecord, access: Access) -> bool:
    """Whether the newest segment already says what held at a complete cursor handed out now."""
    return bool(record.segments) and _same(record.segments[-1], access)


def _same(known: Segment | Page, access: Access) -> bool:
    return known.claims == access.claims and known.rules_version == access.rules_version


def _from_nothing(record: ClientRecord, access: Access) -> Position:
    keys = {key for segment in record.segments for key in segment.keys}
    keys |= {key for page in record.pages for key in page.keys}
    if record.epoch == LOST:
        keys |= set(access.keys)  # nobody knows what it could see: what it sees now is the best guess
    return Position(0, NOTHING, None, True, tuple(sorted(keys)))

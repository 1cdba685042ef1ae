"""A pull: a page read from a view, then, where a cursor must be remembered, a commit of the client's record."""

from __future__ import annotations

from typing import NamedTuple

from lakesync.engine.access import RulesCache
from lakesync.exceptions import ResyncRequiredError
from lakesync.feed import PulledPage, pull_page
from lakesync.feed.positions import Access, Position, current, from_nothing, holds, locate, next_mark, remember
from lakesync.staging.records import ClientRecord, Page, Segment
from lakesync.staging.store import Commit, View
from lakesync.types import Claims, SyncPull, SyncResponse


class Reading(NamedTuple):
    """A page and what was known when it was read."""

    at: Position
    access: Access
    page: PulledPage
    newest: int
    settled: bool
    """The newest arrival can be handed out as it is; nothing has to be remembered."""

    def answer(self, cursor: int) -> SyncResponse:
        """The page as the wire has it."""
        return SyncResponse(tuple(self.page.deltas), cursor, self.page.has_more)


def read_page(view: View, pull: SyncPull, claims: Claims, rules: RulesCache, *, resync_refused: bool) -> Reading:
    """What the client lacks.

    Raises:
        ResyncRequiredError: the cursor cannot be served and the client knows what to do then.
    """
    access = rules.access(view, claims)
    record = view.client(pull.client_id)
    at = locate(record, pull.since_hlc, view.epoch, view.arrival, access)
    if at is None:
        if resync_refused:
            raise ResyncRequiredError(
                f"the cursor {pull.since_hlc} is not one of this gateway's: "
                "pull again from 0, keeping what was not pushed yet"
            )
        at = from_nothing(record, access)
    page = pull_page(view, pull.client_id, at, frozenset(access.keys), pull.max_deltas)
    return Reading(at, access, page, view.arrival, _settled(record, view, access, page))


def remember_page(commit: Commit, client_id: str, reading: Reading, now_ms: int) -> int:
    """Keep what the answer's cursor means; the cursor."""
    record = current(commit.client(client_id), commit.epoch)
    access, page, at = reading.access, reading.page, reading.at
    if page.has_more:
        cursor = page.last + next_mark(record)
        keys = tuple(sorted({*at.keys, *access.keys}))
        until = reading.newest if at.until is None else at.until
        mark = Page(cursor, page.last, at.base, until, at.resync, access.claims, keys, access.rules_version)
        commit.put_client(remember(record, client_id, commit.epoch, now_ms, sent=cursor, page=mark))
        return cursor
    cursor = reading.newest
    segment = None
    if record is None or not holds(record, access):
        if record is not None and record.segments:
            cursor += next_mark(record)
        segment = Segment(cursor, access.claims, access.keys, access.rules_version)
    sent = cursor if page.deltas or segment is not None else 0
    commit.put_client(remember(record, client_id, commit.epoch, now_ms, sent=sent, segment=segment))
    return cursor


def _settled(record: ClientRecord | None, view: View, access: Access, page: PulledPage) -> bool:
    if record is None and view.arrival == 0:
        return True  # nothing was given to it, so it need not count as seen
    known = current(record, view.epoch)
    if known is None or page.has_more or not holds(known, access):
        return False
    return not page.deltas or view.arrival <= known.sent


def first_contact(commit: Commit, client_id: str, arrival: int, access: Access, now_ms: int) -> None:
    """Remember that a client was given the state at `arrival`."""
    segment = Segment(arrival, access.claims, access.keys, access.rules_version)
    commit.put_client(remember(None, client_id, commit.epoch, now_ms, sent=arrival, segment=segment))

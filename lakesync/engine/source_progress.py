"""Tracks how far a client is with a source (an adapter beside the gateway's own feed), from the cursors that it sends.

`engine.sources` calls these pure functions, and stores the results, one `SourceProgress` for each source, in the
client's record. `engine.page_reading` and `engine.sharding.vectors` call some for a pull from the gateway's own feed,
`engine.inspection` to tell where a client is. A *gateway* is one app's stream of changes, and its *feed* has the rows
in order of their latest change. A *position* is a place in the source's order of deltas (changes of rows). A client has
one *cursor* for the gateway's feed and all sources. A response may be lost, and the gateway must know whether the
client has received a page. So each page of a source has a cursor of its own, a *mark*, which the client sends back if
it has the page:

1. The client pulls from a source with cursor 900. It gets page 1 and the mark 899, which means 900 in the feed.
2. If it sends 899 next, to the source or to the feed, it has page 1, and gets page 2.
3. If it sends 900 again, the response was lost, and it is sent page 1 again.
4. If it pushed in between, it sends the cursor of the push's response, which says nothing about page 1. It is sent page
   1 again and, after `MAX_ATTEMPTS` attempts, page 2, without a confirmation of page 1.

A *pass* is such a reading of pages without confirmation, up to the source's end. The next pass begins again after the
last confirmed page. So the client is never stuck at a page, and never misses one.

A `SourceProgress` has all of this for one source: the position up to which pages are confirmed (`confirmed`), the page
that was sent and is not confirmed (`pending`), the position that a pass has reached (`pass_position`), and the newest
marks.

An *access period* is the time in which a client read a source under certain sync rules and claims (the fields of its
token, which rules read). Old periods are kept to know later which rows the client may have, and may not see now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from lakesync.model.types import Claims, Position
from lakesync.rules.model import SyncRules, all_rows_rules
from lakesync.staging.records import ARRIVAL_STEP, ClientRecord
from lakesync.staging.records.clients import AccessPeriod, PendingPage, SourceMark, SourceProgress

MIN_CURSOR = 1 << 32
"""A lower cursor is 0 or 1: the client has no cursor yet. All others are HLC timestamps, which are far above. The
gateway chooses each mark just below the client's cursor. No mark is possible below 0 or 1, so a client without a cursor
reads in passes."""

MAX_ATTEMPTS = 3
"""How often a page is sent without confirmation before a pull continues with the next page, in a pass."""

_MARKS_KEPT = 8
"""How many marks are kept per source. An older one is taken for a cursor of the feed. It is a little lower than the
cursor that it names, so the feed repeats a few changes, and omits none."""

_PERIODS_KEPT = 100
"""The most access periods (pairs of rules and claims) kept per source; of more, the oldest become one in which the
client may have been sent any row."""


class PageStart(NamedTuple):
    """Where a page of a source begins, and the client's progress before it."""

    progress: SourceProgress
    """The client's progress in the source, updated by what the client's cursor confirms."""
    cursor: int
    """The client's cursor in the gateway's own feed."""
    after: Position | None
    """The page begins after this position of the source; None for its beginning."""


def progress_in(record: ClientRecord | None, source: str) -> SourceProgress:
    """Return a client's progress in a source.

    Args:
        record: the client's record; None if it has none.
        source: the source's name.
    """
    for progress in record.sources if record is not None else ():
        if progress.source == source:
            return progress
    return SourceProgress(source)


def feed_cursor(record: ClientRecord | None, since: int) -> int:
    """Return the cursor of the gateway's feed that a client's cursor names; the cursor itself, if it is no mark.

    If the feed has sent the client the same number as a cursor, that meaning is taken.

    Args:
        record: the client's record; None if it has none.
        since: the cursor that the client sent.
    """
    for progress in record.sources if record is not None else ():
        for each in progress.marks:
            if each.mark == since and not _is_feed_cursor(record, since):
                return each.feed_cursor
    return since


def with_confirmation(record: ClientRecord | None, progress: SourceProgress, since: int) -> SourceProgress:
    """Return a client's progress after a request with the cursor `since`, which may confirm a page.

    If `since` is the mark of the unconfirmed page, the client has that page. The page counts as confirmed only if all
    pages before it are; otherwise the pass continues after it. A cursor that the feed has sent too proves nothing: the
    client may have it from there.

    Args:
        record: the client's record; None if it has none.
        progress: the client's progress in the source.
        since: the cursor that the client sent.
    """
    pending = progress.pending
    if pending is None or pending.mark != since or _is_feed_cursor(record, since):
        return progress
    if pending.start == progress.confirmed:
        return replace(progress, confirmed=pending.end, pending=None, pass_position=None)
    return _continue_pass(progress, pending)


def page_start(
    record: ClientRecord | None,
    source: str,
    since: int,
    rules: SyncRules,
    claims: Claims,
    newest: Callable[[], Position | None],
) -> PageStart:
    """Return where a pull with the cursor `since` begins.

    Args:
        record: the client's record; None if it has none.
        source: the source's name.
        since: the cursor that the client sent.
        rules: the active rules.
        claims: the claims that the rules read.
        newest: returns the newest position of the source, None if it is empty; called if rules or claims are new.
    """
    progress = _in_access_period(progress_in(record, source), rules, claims, newest)
    cursor = feed_cursor(record, since)
    if cursor < MIN_CURSOR:
        return PageStart(progress, cursor, progress.pass_position)
    progress = with_confirmation(record, progress, since)
    if progress.pending is not None and progress.pending.attempts >= MAX_ATTEMPTS:
        progress = _continue_pass(progress, progress.pending)
    if progress.pending is not None:  # the page was not confirmed, so it is sent again
        return PageStart(progress, cursor, progress.pending.start)
    return PageStart(progress, cursor, progress.pass_position or progress.confirmed)


def after_page(
    start: PageStart,
    record: ClientRecord | None,
    since: int,
    page_end: Position | None,
    tables: frozenset[str],
    *,
    has_more: bool,
) -> tuple[SourceProgress, int]:
    """Return a client's progress in the source after a page is sent, and the cursor of the response.

    Args:
        start: where the page began, as returned by `page_start`.
        record: the client's record, which has the marks and cursors that a new mark must differ from; None if it has
            none.
        since: the cursor that the client sent.
        page_end: where the page ends; None if the source is empty.
        tables: the tables of the rows in the page; empty if the page has no deltas.
        has_more: whether the source has more after the page.
    """
    progress = replace(start.progress, tables=tuple(sorted({*start.progress.tables, *tables})))
    progress = _extend_access_period(progress, page_end)
    if start.cursor < MIN_CURSOR:
        return replace(progress, pass_position=page_end if has_more else None), start.cursor
    if not tables:  # an empty page needs no mark: if the response is lost, the client misses nothing
        # if the page began at the confirmed position, the client has everything up to the page's end
        if start.after == progress.confirmed:
            return replace(progress, confirmed=page_end, pending=None, pass_position=None), since
        return replace(progress, pending=None, pass_position=page_end if has_more else None), since
    attempts = progress.pending.attempts + 1 if progress.pending is not None else 1
    mark = _free_mark(record, since)
    marks = (SourceMark(mark, start.cursor), *progress.marks)[:_MARKS_KEPT]
    return replace(progress, pending=PendingPage(mark, page_end, attempts, start.after, has_more), marks=marks), mark


def with_restart(record: ClientRecord) -> ClientRecord:
    """Return the record of a client that starts the gateway's feed again: its progress in sources is reset.

    It may have lost its rows of sources too. Marks, tables and access periods stay, because the client may still send
    an old mark, and may still have rows.
    """
    restarted = tuple(
        replace(progress, confirmed=None, pending=None, pass_position=None) for progress in record.sources
    )
    return replace(record, sources=restarted)


def after_request(record: ClientRecord, since: int) -> ClientRecord:
    """Return the record after a request with the cursor `since`, which may be the mark of a page in any source.

    Args:
        record: the client's record.
        since: the cursor that the client sent.
    """
    return replace(record, sources=tuple(with_confirmation(record, progress, since) for progress in record.sources))


def with_progress(record: ClientRecord, progress: SourceProgress) -> ClientRecord:
    """Return the client's record with this progress, which replaces that in the same source.

    Args:
        record: the client's record.
        progress: the progress in one source.
    """
    others = tuple(other for other in record.sources if other.source != progress.source)
    return replace(record, sources=(*others, progress))


def _continue_pass(progress: SourceProgress, pending: PendingPage) -> SourceProgress:
    """Return the progress with which an unconfirmed page is skipped: after the page, or at the start of the next pass.

    Args:
        progress: the client's progress.
        pending: its unconfirmed page.
    """
    return replace(progress, pending=None, pass_position=pending.end if pending.has_more else None)


def _in_access_period(
    progress: SourceProgress, rules: SyncRules, claims: Claims, newest: Callable[[], Position | None]
) -> SourceProgress:
    """Return the progress under these rules and claims. If they changed, the source is read again from its beginning.

    A client that uses two tokens in turn changes its claims often, and would use up the kept access periods. So an
    earlier period with the same rules and claims is continued. A period in which the client was sent no rows is
    removed.

    Args:
        progress: the client's progress.
        rules: the active rules.
        claims: the claims that the rules read.
        newest: returns the newest position of the source; called only if a new period begins.
    """
    periods = progress.access_periods
    same = next((each for each in periods if (each.rules, each.claims) == (rules, claims)), None)
    if same is not None and same is periods[-1]:
        return progress
    others = [each for each in periods if each is not same and each.last is not None]
    access_periods = _within_bounds((*others, same or AccessPeriod(rules, claims, first=newest())))
    return replace(progress, access_periods=access_periods, confirmed=None, pending=None, pass_position=None)


def _within_bounds(periods: tuple[AccessPeriod, ...]) -> tuple[AccessPeriod, ...]:
    """Return the periods to keep: of too many, the oldest become one in which the client may have been sent any row."""
    surplus = len(periods) - _PERIODS_KEPT
    if surplus <= 0:
        return periods
    oldest, kept = periods[: surplus + 1], periods[surplus + 1 :]
    last = max((period.last for period in oldest if period.last is not None), default=None)
    return (AccessPeriod(all_rows_rules(), {}, last=last), *kept)


def _extend_access_period(progress: SourceProgress, page_end: Position | None) -> SourceProgress:
    """Return the progress with its current access period extended to `page_end`, the end of a page that is sent."""
    period = progress.access_periods[-1]
    if page_end is None or (period.last is not None and period.last >= page_end):
        return progress
    return replace(progress, access_periods=(*progress.access_periods[:-1], replace(period, last=page_end)))


def _free_mark(record: ClientRecord | None, since: int) -> int:
    """Return a mark for the next page: a number below the client's cursor that has no other meaning for this client.

    Multiples of `ARRIVAL_STEP` are arrivals (the gateway's timestamps of commits), so they are never marks.
    """
    used = {each.mark for progress in record.sources for each in progress.marks} if record is not None else set()
    mark = since - 1
    while mark % ARRIVAL_STEP == 0 or mark in used or _is_feed_cursor(record, mark):
        mark -= 1
    return mark


def _is_feed_cursor(record: ClientRecord | None, cursor: int) -> bool:
    """Return whether the gateway's own feed sent the client this cursor, as far as its record says."""
    if record is None:
        return False
    return any(page.cursor == cursor for page in record.pages) or any(
        scope.first_cursor == cursor for scope in record.scopes
    )

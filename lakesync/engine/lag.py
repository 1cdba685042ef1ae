"""How far a client is behind: the oldest change by others that it may see and was not sent.

The console, `lakesync clients`, `/admin/metrics`, `/metrics` and explanations all show what is found here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lakesync.engine.access import RulesCache
from lakesync.engine.client_position import ClientPosition, claims_of, position_of
from lakesync.engine.explain import next_pull
from lakesync.feed import pull_page
from lakesync.feed.memory import current
from lakesync.feed.positions import Position, Range
from lakesync.model.types import RowDelta, RowKey
from lakesync.staging.records import DELETED, ClientRecord, Entry, StoredRow
from lakesync.staging.store import View

_ROWS = 32
"""Rows that the client lacks, at most, of which the oldest change is looked for."""
_READS = 20
"""Of the feed, at most, for one look at one client: about 600 entries."""


class Scanned(NamedTuple):
    """How far the feed was read for a client that was sent no more since, so that the next look goes on from there."""

    start: tuple[object, ...]
    """Where the client was, and what it could see."""
    after: int
    redo: tuple[Range, ...]


class Unsent(NamedTuple):
    """What a look at a client found."""

    since: int
    """Arrival of the oldest change that it was not sent; 0: it was sent everything."""
    row: RowKey | None = None
    """The row of that change."""
    scanned: Scanned | None = None
    done: bool = True
    """The feed was read to its end, or to rows that the client was not sent."""
    shards: Mapping[str, Unsent] = {}
    """What was found in each shard, where there are several."""


class LagQuery(NamedTuple):
    """A client to be looked at."""

    client_id: str
    where: ClientPosition
    before: Unsent | None = None
    """What the look before found, if the client was sent nothing since."""


def oldest_unsent(view: View, look: LagQuery, rules: RulesCache) -> Unsent | None:
    """The oldest change by others that a client may see and was not sent; None where it never pulled.

    The age of a row that the client lacks is counted from when it came into the client's sight, and of one that it has
    from the oldest of the columns that it lacks. A column whose value was replaced again counts from the newer value,
    unless the look before found the row already.

    Args:
        view: the gateway.
        look: the client.
        rules: the gateway's.
    """
    client_id, where, before = look
    record = view.client(client_id)
    if where.cursor is None and where.state is None and not _was_handed_a_cursor(record):
        return None
    _, claims = claims_of(record, client_id, where)
    access = rules.access(view, claims)
    known = current(record, view.epoch, access.keys)
    at = position_of(view, known, client_id, access, rules, where)
    start = (at.base, at.after, at.redo, access.rules_version, access.keys)
    going_on = at
    if before is not None and before.scanned is not None and before.scanned.start == start:
        going_on = at._replace(after=before.scanned.after, redo=before.scanned.redo)
    page = pull_page(view, client_id, going_on, access, _ROWS, most_reads=_READS)
    found = _lacking(view, client_id, page.deltas, at)
    if not found:
        return Unsent(0, scanned=Scanned(start, page.after, page.redo), done=not page.has_more)
    scanned = Scanned(start, going_on.after, going_on.redo)
    since, row = min(found)
    if (
        before is not None
        and before.row is not None
        and before.since < since
        and next_pull(view, before.row, client_id, at, access)
    ):
        return Unsent(before.since, before.row, scanned)
    return Unsent(since, row, scanned)


def _was_handed_a_cursor(record: ClientRecord | None) -> bool:
    return record is not None and (record.last > 0 or any(scope.start >= 0 for scope in record.scopes))


def _lacking(view: View, client_id: str, deltas: Sequence[RowDelta], at: Position) -> list[tuple[int, RowKey]]:
    """Since when the client has lacked something of each row of a page.

    A row that it deleted itself is not among them, although a pull may bring the DELETE once more.
    """
    lacking: dict[RowKey, list[RowDelta]] = defaultdict(list)
    for delta in deltas:
        lacking[delta.key].append(delta)
    rows = view.rows(lacking)
    entries: dict[RowKey, list[Entry]] = defaultdict(list)
    for entry in view.entries_of(lacking, sorted({*at.then, *at.now, *at.reach})):
        entries[entry.key].append(entry)
    return [
        (_since(rows[key], entries[key], lacks, at), key)
        for key, lacks in lacking.items()
        if lacks[-1].op != "DELETE" or not _deleted_itself(rows[key], entries[key], client_id)
    ]


def _deleted_itself(row: StoredRow, entries: Sequence[Entry], client_id: str) -> bool:
    """Whether it was the client that deleted a row last."""
    wrote, at = row.writers.get(client_id, (0, 0))
    return wrote == DELETED and all(entry.left <= at for entry in entries)


def _since(row: StoredRow, entries: Sequence[Entry], lacks: Sequence[RowDelta], at: Position) -> int:
    """The arrival of the oldest change of a row that the client lacks."""
    if lacks[-1].op == "DELETE":
        left = [entry.left for entry in entries if entry.left > at.base]
        return max(left, default=row.arrival)
    columns = [cell.column for delta in lacks for cell in delta.columns]
    changed = [row.touched[name] for name in columns if row.touched.get(name, 0) > at.base]
    joined = [entry.since for entry in entries if entry.inside and entry.since > at.base]
    whole = lacks[0].op != "UPDATE"
    return min((whole and joined) or changed or joined, default=row.arrival)

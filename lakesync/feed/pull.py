"""The reading side of the feed: one page of what a client lacks."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from lakesync.feed import render
from lakesync.feed.apply import own_bucket
from lakesync.feed.positions import Position
from lakesync.feed.possession import Has, may_hold_hidden, of_visible
from lakesync.staging.records import Entry, StoredRow
from lakesync.staging.store import View
from lakesync.types import RowDelta, RowKey

_CHUNK = 500


class PulledPage(NamedTuple):
    """A page, before a cursor is made of it."""

    deltas: list[RowDelta]
    last: int
    """`changed` of the last row looked at, or the newest arrival when nothing is left."""
    has_more: bool


def pull_page(
    view: View, client_id: str, at: Position, keys: frozenset[str], limit: int, writers: set[str] | None = None
) -> PulledPage:
    """What a client at `at` lacks, in order of arrival, rows whole, at least `limit` deltas when there are so many.

    Args:
        keys: the bucket keys that the client may see now.
        writers: gets the clients who may lack something else of these rows, at the same position, for having written
            to them.
    """
    buckets = sorted({*keys, *at.keys, own_bucket(client_id)})
    deltas: list[RowDelta] = []
    told: set[RowKey] = set()
    cursor = at.after
    while entries := view.entries_after(buckets, cursor, min(_CHUNK, limit + 1)):
        places = {entry.key for entry in entries}
        rows = view.rows(places)
        histories = _by_row(view.entries_of(places, buckets))
        for entry in entries:
            history = histories[entry.key]
            latest = entry.changed == max(known.changed for known in history)
            if not latest or entry.key in told:
                continue
            if len(deltas) >= limit:
                return PulledPage(deltas, cursor, True)
            deltas += _lacks(rows[entry.key], history, client_id, at, keys)
            if writers is not None:
                writers.update(rows[entry.key].writers, (part.client_id for part in rows[entry.key].state.live))
            told.add(entry.key)
            cursor = entry.changed
        cursor = max(cursor, entries[-1].changed)
    return PulledPage(deltas, view.arrival, False)


def _by_row(entries: list[Entry]) -> dict[RowKey, list[Entry]]:
    histories: dict[RowKey, list[Entry]] = defaultdict(list)
    for entry in entries:
        histories[entry.key].append(entry)
    return histories


def _lacks(row: StoredRow, history: list[Entry], client_id: str, at: Position, keys: frozenset[str]) -> list[RowDelta]:
    """What the client lacks of one row."""
    if not any(bucket in keys for bucket in row.keys):
        return [render.delete(row)] if may_hold_hidden(row, history, client_id, at) else []
    has = of_visible(row, history, client_id, at)
    if has is Has.NO:
        return render.insert(row)
    if has is Has.UNSURE:
        return [render.delete(row), *render.insert(row)]
    if has is Has.OWN:
        return render.update(row, lambda _, owner: owner != client_id)
    touched = row.touched
    return render.update(row, lambda column, owner: owner != client_id and touched.get(column, 0) > at.base)

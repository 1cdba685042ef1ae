"""The reading side of the feed: one page of what a client lacks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from lakesync.feed import render
from lakesync.feed.apply import came_with_insert, own_bucket
from lakesync.feed.positions import Access, Position, Range
from lakesync.feed.possession import (
    Has,
    certainly_lacks,
    may_hold_hidden,
    of_visible,
    writers_known_from,
)
from lakesync.model.merge import LiveDelta
from lakesync.model.types import RowDelta, RowKey
from lakesync.staging.records import Entry, StoredRow
from lakesync.staging.store import View
from lakesync.staging.stretch import Reader, Stretch
from lakesync.staging.whole import spell_client
from lakesync.wire.encoded import EncodedDeltas
from lakesync.wire.json import encode_delta

_CHUNK = 500
_FEWEST = 16
_STRETCH = 1000
"""Entries read at once: the most and the fewest one by one, and the most in a stretch."""
_FIRST = 128
"""The most entries read at once until it is known how large rows are."""
MAX_PAGE_BYTES = 4 << 20
"""A page that has so many bytes of rows is full; it exceeds that by one row at most."""


class PulledPage(NamedTuple):
    """A page, before a cursor is made of it, and what is left to walk over."""

    deltas: Sequence[RowDelta]
    has_more: bool
    after: int
    redo: tuple[Range, ...]
    told: int
    """No row was sent at a later place; 0 where none was sent."""
    given: int
    """No INSERT or UPDATE was sent at a later place; 0 where none was sent."""
    older: frozenset[str] = frozenset()
    """Bucket keys of rows that were told by none of the keys in force, as they are not in line with the rules yet."""


def pull_page(
    view: View,
    client_id: str,
    at: Position,
    access: Access,
    limit: int,
    writers: set[str] | None = None,
    most_reads: int | None = None,
    max_bytes: int = MAX_PAGE_BYTES,
) -> PulledPage:
    """What a client at `at` lacks, rows whole, at least `limit` deltas when there are so many.

    Args:
        max_bytes: a page with so many bytes of rows is full; it exceeds that by one row at most.
        most_reads: after so many reads of entries the page ends, as if it were full.
        writers: gets the clients who may lack something else of these rows, at the same position, for having written
            to them.
    """
    walk = _Walk(view, client_id, at, access, limit, writers, max_bytes)
    walk.reads_left = most_reads
    after, redo = at.after, at.redo
    if at.redo_first:
        redo = walk.again(redo)
    if not walk.full:
        after = walk.through(walk.buckets, after, view.arrival)
    if not walk.full:
        redo = walk.again(redo)
    deltas = EncodedDeltas(walk.parts, walk.count)
    return PulledPage(deltas, walk.full, after, redo, walk.told, walk.given, frozenset(walk.older))


class _Walk:
    """One page in the making."""

    def __init__(
        self,
        view: View,
        client_id: str,
        at: Position,
        access: Access,
        limit: int,
        writers: set[str] | None,
        max_bytes: int,
    ) -> None:
        self._view = view
        self._client_id = client_id
        self._at = at
        self._access = access
        self._limit = limit
        self._max_bytes = max_bytes
        self.buckets = sorted({*at.then, *at.now, *at.reach, own_bucket(client_id)})
        self._moved = at.then ^ at.now if at.moved else frozenset[str]()
        self._writers = writers
        self.parts: list[bytes] = []
        self.count = 0
        """Of the deltas in `parts`."""
        self.told = self.given = 0
        self.older: set[str] = set()
        self.full = False
        self.reads_left: int | None = None
        self._bytes = 0
        """Of `parts`."""
        self._at_once = _FIRST
        self._met: set[RowKey] = set()
        alone = writers is not None or at.moved or at.turn > 0
        in_use = [] if alone else [key for key in self.buckets if view.changed_after((key,), 0)]
        self._only = in_use[0] if len(in_use) == 1 else None
        """The one bucket key that was ever in use of those that concern the client."""
        shared = [key for key in in_use if key != own_bucket(client_id)]
        plain = not (at.resync or at.haunted or at.once) and access.directly is None and access.keys.issuperset(shared)
        self._shared = shared if plain else []
        """The bucket keys in use, where the client may see all that is inside of them."""

    def again(self, ranges: Sequence[Range]) -> tuple[Range, ...]:
        """Go through ranges of the feed: up to the turn by the keys that not both of then and now have.

        Returns:
            What is left of them.
        """
        turn = self._at.turn
        for place, (low, high) in enumerate(ranges):
            reached = self.through(sorted(self._moved), low, min(high, turn)) if low < turn else low
            if not self.full:
                reached = self.through(self.buckets, max(low, turn), high)
            if self.full:
                return ((reached, high), *ranges[place + 1 :])
        return ()

    def through(self, buckets: Sequence[str], low: int, high: int) -> int:
        """Go through a part of the feed in order of arrival; how far it was gone through."""
        cursor = low
        while cursor < high and not self.full:
            if self.reads_left is not None:
                self.full = self.reads_left == 0
                self.reads_left -= 1
                if self.full:
                    break
            self._at_once = self._next_at_once()
            if (stretch := self._stretch(cursor, high)) is not None:
                cursor = self._take(stretch, buckets, cursor)
            elif self._only is not None and self._only in buckets:
                cursor = self._one_by_one(self._only, cursor, high)
            else:
                cursor = self._by_history(buckets, cursor, high)
        return cursor

    def _stretch(self, cursor: int, high: int) -> Stretch | None:
        """The next entries, where the client lacks their rows and has met none of them on its way."""
        at, room = self._at, self._limit - self.count
        if not self._shared or self._is_full or not at.told <= cursor < at.until:
            return None
        name = self._client_id
        reader = Reader(at.base, spell_client(name), writers_known_from(at), own_bucket(name))
        return self._view.stretch(self._shared, cursor, min(high, at.until), min(room, self._at_once), reader)

    def _take(self, stretch: Stretch, buckets: Sequence[str], cursor: int) -> int:
        """Send a stretch, up to the limit; how far that is."""
        text, deltas, last = stretch.text, stretch.deltas, stretch.last
        room = self._max_bytes - self._bytes
        if self.count + deltas > self._limit or len(text) > room:
            text, deltas, entries = stretch.first(self._limit - self.count, room)
            last = self._view.entries_after(buckets, cursor, entries)[-1].changed
        if deltas:
            self._send(text, deltas)
            self.told = self.given = max(self.told, last)
        return last

    def _by_history(self, buckets: Sequence[str], low: int, high: int) -> int:
        """Go through the next entries, each row at the latest of its own."""
        cursor = low
        entries = [each for each in self._view.entries_after(buckets, low, self._wanted()) if each.changed <= high]
        places = {entry.key for entry in entries}
        rows = self._view.rows(places)
        histories = _by_row(self._view.entries_of(places, self.buckets))
        for entry in entries:
            history = histories[entry.key]
            if entry.key in self._met or not self._is_place(entry, history):
                continue
            if self._is_full:
                self.full = True
                return cursor
            self._tell(rows[entry.key], history, entry.changed)
            cursor = entry.changed
        return max(cursor, entries[-1].changed) if entries else high

    def _one_by_one(self, bucket: str, low: int, high: int) -> int:
        """Go through the next entries; a row that the client certainly lacks is sent as it is stored."""
        cursor, at = low, self._at
        visible = bucket in self._access.keys
        name, known_from = spell_client(self._client_id), writers_known_from(at)
        found = self._view.whole_rows(bucket, low, self._wanted())
        rows: dict[RowKey, StoredRow] = {}
        for table, row_id, first, since, left, changed, inside, spelled, deltas, writers, floor in found:
            if changed > high:
                return high
            if self._is_full:
                self.full = True
                return cursor
            key = (table, row_id)
            cursor = changed
            if key in self._met:
                continue
            entry = Entry(bucket, table, row_id, first, since, left, changed, bool(inside))
            plain = visible and inside and name not in writers and floor <= known_from
            if plain and spelled is not None and certainly_lacks(entry, at):
                self._met.add(key)
                self._send(spelled, deltas)
                self.told = self.given = max(self.told, changed)
            else:
                rows = rows or self._view.rows([(other.table, other.row_id) for other in found])
                self._tell(rows[key], [entry], changed)
        return cursor if found else high

    def _wanted(self) -> int:
        """How many entries to look at next: one more than may be told says whether there are more."""
        if self._bytes >= self._max_bytes:
            return 1
        return min(_CHUNK, self._at_once, max(self._limit - self.count + 1, _FEWEST))

    @property
    def _is_full(self) -> bool:
        """Whether nothing more may be sent."""
        return self.count >= self._limit or self._bytes >= self._max_bytes

    def _next_at_once(self) -> int:
        """The most entries to read at once: as many as the page may still have bytes for, by what it has so far."""
        if not self.count:
            return self._at_once
        return max(_FEWEST, min(_STRETCH, (self._max_bytes - self._bytes) * self.count // self._bytes))

    def _send(self, text: bytes, deltas: int) -> None:
        self.parts.append(text)
        self.count += deltas
        self._bytes += len(text)

    def _is_place(self, entry: Entry, history: list[Entry]) -> bool:
        """Whether the row is met here, and not at a later entry of it."""
        latest = max(known.changed for known in history)
        if entry.changed > self._at.turn:
            return entry.changed == latest
        among = max(known.changed for known in history if known.bucket in self._moved)
        return latest <= self._at.turn and entry.changed == among

    def _tell(self, row: StoredRow, history: list[Entry], place: int) -> None:
        self._met.add(row.key)
        if self._writers is not None:
            self._writers.update(row.writers, (origin.client_id for origin in row.state.origins))
        lacks = self._lacks(row, history)
        if lacks:
            for delta in lacks:
                self._send(encode_delta(delta), 1)
            self.told = max(self.told, place, self._at.turn)
            if lacks[-1].op != "DELETE":
                self.given = self.told
            if self._access.sees(row) and not self._access.shows(row):
                self.older.update(row.keys)

    def _visible(self, row: StoredRow) -> bool:
        """Whether the client may see the row, and will learn when that ends.

        While rows are brought in line with new rules, one that stands under keys of others still, which were never in
        force for this client, would be gone from them without a word to it. It comes with the keys of the new ones.
        """
        access = self._access
        return access.shows(row) or (access.sees(row) and not set(row.keys).isdisjoint(self.buckets))

    def _lacks(self, row: StoredRow, history: list[Entry]) -> list[RowDelta]:
        """What the client lacks of one row."""
        client_id, at = self._client_id, self._at
        if not self._visible(row):
            return [render.delete(row)] if may_hold_hidden(row, history, client_id, at) else []
        has = of_visible(row, history, client_id, at)
        if has is Has.NO:
            return render.insert(row) if self._access.shows(row) else []  # it comes with the keys that will tell of it
        if has is Has.OWN:
            lacks = [part for part in row.state.live if not came_with_insert(row, part.stamp, client_id)]
            if all(self._follows_insert(row, part) for part in lacks):
                stamps = {part.stamp for part in lacks}
                return render.update(row, lambda _, stamp: stamp in stamps)
            has = Has.UNSURE
        if has is Has.UNSURE:
            return [render.delete(row), *render.insert(row)]
        cells = row.state.cells
        return render.update(row, lambda column, stamp: stamp[1] != client_id and cells[column].at > at.base)

    def _follows_insert(self, row: StoredRow, part: LiveDelta) -> bool:
        """Whether a part of the row came after the client's own INSERT, by its stamp and by its arrival.

        Before that the client may have been sent a DELETE of what was there, and keep its stamp: a stamp below which
        it takes no INSERT of its own, and no UPDATE.
        """
        inserted = row.state.inserted
        if inserted is None or inserted[1] != self._client_id or part.stamp < inserted:
            return False
        came = row.writers[self._client_id].inserted
        return all(row.state.cells[column].at > came for column in part.columns)


def _by_row(entries: list[Entry]) -> dict[RowKey, list[Entry]]:
    histories: dict[RowKey, list[Entry]] = defaultdict(list)
    for entry in entries:
        histories[entry.key].append(entry)
    return histories

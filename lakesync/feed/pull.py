"""The read side of the feed: reads one page of what a client lacks.

`engine.pulling` calls `pull_page` for pulls, `engine.subscriptions` for broadcasts, `explain`, `lag` and `peek` for
their questions. It reads the feed as encoded ranges where it can, otherwise entry by entry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from lakesync.feed import render
from lakesync.feed.apply import has_from_insert, own_bucket
from lakesync.feed.positions import Access, Position, Range
from lakesync.feed.row_presence import (
    RowPresence,
    certainly_lacks,
    may_hold_hidden,
    presence_of_visible,
    writers_known_from,
)
from lakesync.model.merge import LiveDelta
from lakesync.model.types import RowDelta, RowKey
from lakesync.staging.encoded_feed import FeedRange, Reader, encode_client_id
from lakesync.staging.records import Entry, StoredRow
from lakesync.staging.store.feed import FeedView
from lakesync.wire.encoded import EncodedDeltas
from lakesync.wire.json import encode_delta

_CHUNK = 500
"""Most entries that are read at once one by one."""
_FEWEST = 16
"""Fewest entries that are read at once."""
_MOST_IN_RANGE = 1000
"""Most entries that are read at once as a range."""
_FIRST = 128
"""Most entries that are read at once while the size of rows is unknown."""
MAX_PAGE_BYTES = 4 << 20
"""A page with this many bytes of rows is full; it exceeds that by one row at most."""


class PulledPage(NamedTuple):
    """A page without its cursor, and what is left to read."""

    deltas: Sequence[RowDelta]
    has_more: bool
    after: int
    rescan: tuple[Range, ...]
    sent_up_to: int
    """No row was sent at a later feed position; 0 if none was sent."""
    upserted_up_to: int
    """No INSERT or UPDATE was sent at a later feed position; 0 if none was sent."""
    older: frozenset[str] = frozenset()
    """Bucket keys of rows that were sent although none of their keys is active, because a re-index is running."""


def pull_page(
    view: FeedView,
    client_id: str,
    at: Position,
    access: Access,
    limit: int,
    writers: set[str] | None = None,
    most_reads: int | None = None,
    max_bytes: int = MAX_PAGE_BYTES,
) -> PulledPage:
    """Return what a client lacks: whole rows, at least `limit` deltas if there are so many.

    Args:
        view: a consistent read of the gateway's store.
        client_id: the client's id.
        at: its position.
        access: the claims and bucket keys that decide what the client may see.
        limit: deltas at which the page is full.
        writers: gets the clients that wrote to these rows, and may lack something else at the same position.
        most_reads: reads of entries after which the page ends as if it were full.
        max_bytes: bytes of rows at which the page is full; it exceeds that by one row at most.
    """
    walk = _Walk(view, client_id, at, access, limit, writers, max_bytes)
    walk.reads_left = most_reads
    after, rescan = at.after, at.rescan
    if at.rescan_first:
        rescan = walk.rescan(rescan)
    if not walk.full:
        after = walk.through(walk.buckets, after, view.arrival)
    if not walk.full:
        rescan = walk.rescan(rescan)
    deltas = EncodedDeltas(walk.parts, walk.count)
    return PulledPage(deltas, walk.full, after, rescan, walk.sent_up_to, walk.upserted_up_to, frozenset(walk.older))


class _Walk:
    """Builds one page."""

    def __init__(
        self,
        view: FeedView,
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
        self.buckets = sorted({*at.old_keys, *at.new_keys, *at.sent, own_bucket(client_id)})
        self._moved = at.old_keys ^ at.new_keys if at.moved else frozenset[str]()
        self._writers = writers
        self.parts: list[bytes] = []
        self.count = 0
        """Number of deltas in `parts`."""
        self.sent_up_to = self.upserted_up_to = 0
        self.older: set[str] = set()
        self.full = False
        self.reads_left: int | None = None
        self._bytes = 0
        """Size of `parts`."""
        self._at_once = _FIRST
        self._met: set[RowKey] = set()
        alone = writers is not None or at.moved or at.transition_at > 0
        in_use = [] if alone else [key for key in self.buckets if view.changed_after((key,), 0)]
        self._only = in_use[0] if len(in_use) == 1 else None
        """The only bucket key in use that concerns the client; None if there are several."""
        shared = [key for key in in_use if key != own_bucket(client_id)]
        plain = (
            not (at.resync or at.may_hold_unknown_rows or at.no_retry)
            and access.directly is None
            and access.keys.issuperset(shared)
        )
        self._shared = shared if plain else []
        """The bucket keys in use, if the client may see everything inside them."""

    def rescan(self, ranges: Sequence[Range]) -> tuple[Range, ...]:
        """Read ranges of the feed again; up to the transition only under keys that changed.

        Returns:
            The ranges that are left.
        """
        transition_at = self._at.transition_at
        for place, (low, high) in enumerate(ranges):
            reached = self.through(sorted(self._moved), low, min(high, transition_at)) if low < transition_at else low
            if not self.full:
                reached = self.through(self.buckets, max(low, transition_at), high)
            if self.full:
                return ((reached, high), *ranges[place + 1 :])
        return ()

    def through(self, buckets: Sequence[str], low: int, high: int) -> int:
        """Read a part of the feed in order of arrival; return the position up to which it was read."""
        cursor = low
        while cursor < high and not self.full:
            if self.reads_left is not None:
                self.full = self.reads_left == 0
                self.reads_left -= 1
                if self.full:
                    break
            self._at_once = self._next_at_once()
            if (feed_range := self._encoded_range(cursor, high)) is not None:
                cursor = self._take(feed_range, buckets, cursor)
            elif self._only is not None and self._only in buckets:
                cursor = self._one_by_one(self._only, cursor, high)
            else:
                cursor = self._by_history(buckets, cursor, high)
        return cursor

    def _encoded_range(self, cursor: int, high: int) -> FeedRange | None:
        """Return the next entries as an encoded range, if the client lacks their rows.

        These pages must not contain any of them yet.
        """
        at, room = self._at, self._limit - self.count
        if not self._shared or self._is_full or not at.sent_up_to <= cursor < at.until:
            return None
        name = self._client_id
        reader = Reader(at.base, encode_client_id(name), writers_known_from(at), own_bucket(name))
        return self._view.read_range(self._shared, cursor, min(high, at.until), min(room, self._at_once), reader)

    def _take(self, feed_range: FeedRange, buckets: Sequence[str], cursor: int) -> int:
        """Send a range up to the limit; return the position up to which it was sent."""
        text, deltas, last = feed_range.text, feed_range.deltas, feed_range.last
        room = self._max_bytes - self._bytes
        if self.count + deltas > self._limit or len(text) > room:
            text, deltas, entries = feed_range.first(self._limit - self.count, room)
            last = self._view.entries_after(buckets, cursor, entries)[-1].changed
        if deltas:
            self._send(text, deltas)
            self.sent_up_to = self.upserted_up_to = max(self.sent_up_to, last)
        return last

    def _by_history(self, buckets: Sequence[str], low: int, high: int) -> int:
        """Read the next entries; send each row at its latest entry."""
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
        """Read the next entries; send a row as it is stored if the client certainly lacks it."""
        cursor, at = low, self._at
        visible = bucket in self._access.keys
        name, known_from = encode_client_id(self._client_id), writers_known_from(at)
        found = self._view.full_rows(bucket, low, self._wanted())
        rows: dict[RowKey, StoredRow] = {}
        for table, row_id, first, since, left, changed, inside, encoded, deltas, writers, floor in found:
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
            if plain and encoded is not None and certainly_lacks(entry, at):
                self._met.add(key)
                self._send(encoded, deltas)
                self.sent_up_to = self.upserted_up_to = max(self.sent_up_to, changed)
            else:
                rows = rows or self._view.rows([(other.table, other.row_id) for other in found])
                self._tell(rows[key], [entry], changed)
        return cursor if found else high

    def _wanted(self) -> int:
        """Return how many entries to read next: one more than may be sent shows whether there are more."""
        if self._bytes >= self._max_bytes:
            return 1
        return min(_CHUNK, self._at_once, max(self._limit - self.count + 1, _FEWEST))

    @property
    def _is_full(self) -> bool:
        """Whether nothing more may be sent."""
        return self.count >= self._limit or self._bytes >= self._max_bytes

    def _next_at_once(self) -> int:
        """Return how many entries to read at once: as many rows as fit in the page, by the average size so far."""
        if not self.count:
            return self._at_once
        return max(_FEWEST, min(_MOST_IN_RANGE, (self._max_bytes - self._bytes) * self.count // self._bytes))

    def _send(self, text: bytes, deltas: int) -> None:
        self.parts.append(text)
        self.count += deltas
        self._bytes += len(text)

    def _is_place(self, entry: Entry, history: list[Entry]) -> bool:
        """Return whether the row is sent at this entry, and not at a later entry of it."""
        latest = max(known.changed for known in history)
        if entry.changed > self._at.transition_at:
            return entry.changed == latest
        among = max(known.changed for known in history if known.bucket in self._moved)
        return latest <= self._at.transition_at and entry.changed == among

    def _tell(self, row: StoredRow, history: list[Entry], place: int) -> None:
        self._met.add(row.key)
        if self._writers is not None:
            self._writers.update(row.writers, (origin.client_id for origin in row.state.origins))
        lacks = self._lacks(row, history)
        if lacks:
            for delta in lacks:
                self._send(encode_delta(delta), 1)
            self.sent_up_to = max(self.sent_up_to, place, self._at.transition_at)
            if lacks[-1].op != "DELETE":
                self.upserted_up_to = self.sent_up_to
            if self._access.sees(row) and not self._access.shows(row):
                self.older.update(row.keys)

    def _visible(self, row: StoredRow) -> bool:
        """Return whether the client may see the row, and will be notified when that ends.

        During a re-index, a row may still be under keys of the old rules that this client never had: the row could
        leave them without notice to the client. Such a row is sent once it has its new keys.
        """
        access = self._access
        return access.shows(row) or (access.sees(row) and not set(row.keys).isdisjoint(self.buckets))

    def _lacks(self, row: StoredRow, history: list[Entry]) -> list[RowDelta]:
        """Return what the client lacks of one row."""
        client_id, at = self._client_id, self._at
        if not self._visible(row):
            return [render.delete(row)] if may_hold_hidden(row, history, client_id, at) else []
        has = presence_of_visible(row, history, client_id, at)
        if has is RowPresence.NO:
            return render.insert(row) if self._access.shows(row) else []  # it is sent once it has its new keys
        if has is RowPresence.OWN:
            lacks = [part for part in row.state.live if not has_from_insert(row, part.stamp, client_id)]
            if all(self._follows_insert(row, part) for part in lacks):
                stamps = {part.stamp for part in lacks}
                return render.update(row, lambda _, stamp: stamp in stamps)
        if has is RowPresence.YES:
            cells = row.state.cells
            news = render.update(row, lambda name, stamp: stamp[1] != client_id and cells[name].at > at.base)
            if not any(self._is_below_insert(row, delta) for delta in news):
                return news
        return [render.delete(row), *render.insert(row)]

    @staticmethod
    def _is_below_insert(row: StoredRow, delta: RowDelta) -> bool:
        """Return whether an UPDATE is older than the row's INSERT.

        The client may have been sent a DELETE of an earlier row between the two, and then rejects the UPDATE.
        """
        return row.state.inserted is not None and delta.stamp < row.state.inserted

    def _follows_insert(self, row: StoredRow, part: LiveDelta) -> bool:
        """Return whether a part of the row came after the client's own INSERT, by stamp and by arrival.

        Before that, the client may have been sent a DELETE of an earlier row, and keep its stamp: then it rejects its
        own INSERTs and UPDATEs below that stamp.
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

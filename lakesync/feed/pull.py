"""The read side of the feed: reads one page of what a client lacks.

`engine.page_reading` calls `pull_page` for pulls, `engine.subscriptions` for broadcasts, and `inspection.explain`,
`inspection.lag` and `inspection.peek` to see what a pull would return. A *delta* is a change of one row.

Sync rules put rows into buckets; a *bucket key* names a bucket with the claims that may see it. The feed has one
*entry* for each row and bucket key: when the row joined the bucket, left it, and last changed in it. A page reads the
entries of the client's bucket keys in the order of that last change. The time of a change is its *arrival*: the
commit's timestamp by the gateway, which is one app's stream of changes. It is the row's *feed position*.

Pages are read in one of three ways, the fastest that is right at the client's position:

- As a *range*, if the client certainly lacks every row in a part of the feed: the store returns the rows encoded.
- From *one bucket*, if only one bucket key concerns the client: each row is decided by its only entry.
- By *histories* otherwise: each row is decided by its entries under all bucket keys that concern the client.

A client's *position* says up to which arrival it was sent the feed, and so where this page begins. Its *base* is the
latest arrival at which it had exactly what it could see. A *rescan* reads ranges of the feed that lie below the
position. A *transition* is a series of pages after the client's claims or the rules changed, and a *resync* is one for
a client that may have any row. A *re-index* computes all bucket keys again after the rules changed. `feed.positions`
has more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from lakesync.feed.missing_deltas import missing_deltas
from lakesync.feed.positions import Position
from lakesync.feed.row_buckets import own_bucket
from lakesync.feed.row_presence import writers_known_from
from lakesync.feed.scopes import Access
from lakesync.model.types import RowDelta, RowKey
from lakesync.staging.encoded_feed import FeedRange, Reader, encode_client_id
from lakesync.staging.records import Entry, Range, StoredRow
from lakesync.staging.store.feed import FeedView
from lakesync.wire.encoded import EncodedDeltas
from lakesync.wire.json import encode_delta

Keyed = TypeVar("Keyed", Entry, RowDelta)

NO_CLIENT = ""
"""The id of a client that wrote nothing, so that no row is skipped as its own; no real client id is empty."""
_MAX_ENTRIES = 500
"""The most entries in one read of one bucket or of histories."""
_MIN_ENTRIES = 16
"""The fewest entries in one read, so that rows which the client has already do not cause many small reads."""
_MAX_RANGE_ENTRIES = 1000
"""The most entries in one read of a range."""
_FIRST_ENTRIES = 128
"""The most entries in the first read, while the size of rows is unknown."""
MAX_PAGE_BYTES = 4 << 20
"""A page with this many encoded bytes of rows is full; it exceeds that by one row at most."""


class PulledPage(NamedTuple):
    """A page without its cursor, and what the caller must store to continue after it."""

    deltas: Sequence[RowDelta]
    """What the client lacks of the rows that were read, encoded until it is read."""
    has_more: bool
    """Whether the page is full, so that there may be more."""
    read_up_to: int
    """The feed was read up to this arrival, except for `rescan`."""
    rescan: tuple[Range, ...]
    """Ranges of the feed up to `read_up_to` that are still to be read, as in `Position.rescan`."""
    sent_up_to: int
    """The latest feed position of a row in the page; 0 if it has none."""
    upserted_up_to: int
    """The latest feed position of an INSERT or UPDATE in the page; 0 if it has none."""
    older_keys: frozenset[str] = frozenset()
    """Bucket keys of rows that were sent although the client may not see any of these keys. During a re-index, such a
    row is visible by the new rules, but is still stored with the keys of the old ones."""


def pull_page(
    view: FeedView,
    client_id: str,
    position: Position,
    access: Access,
    limit: int,
    writers: set[str] | None = None,
    max_reads: int | None = None,
    max_bytes: int = MAX_PAGE_BYTES,
) -> PulledPage:
    """Return a page of what a client lacks. A page has whole rows, so it may exceed both limits by one row.

    Args:
        view: a consistent read of the gateway's store.
        client_id: the client's id.
        position: the client's position.
        access: the claims and bucket keys that decide what the client may see.
        limit: deltas at which the page is full.
        writers: a set to which this function adds the ids of clients that wrote to rows of the page. A broadcast sends
            one page to many clients; those that wrote to its rows may lack something else. None if not needed.
        max_reads: reads of the store after which the page ends as if it were full; None for no limit.
        max_bytes: encoded bytes of rows at which the page is full; it exceeds that by one row at most.
    """
    builder = _PageBuilder(view, client_id, position, access, limit, writers, max_reads, max_bytes)
    after, rescan = position.read_up_to, position.rescan
    if position.rescan_first:
        rescan = builder.rescan(rescan)
    if not builder.is_full:
        after = builder.read(builder.buckets, after, view.arrival)
    if not builder.is_full:
        rescan = builder.rescan(rescan)  # nothing is left of it if it was read first
    return PulledPage(
        EncodedDeltas(builder.parts, builder.count),
        has_more=builder.is_full,
        read_up_to=after,
        rescan=rescan,
        sent_up_to=builder.sent_up_to,
        upserted_up_to=builder.upserted_up_to,
        older_keys=frozenset(builder.older_keys),
    )


class _PageBuilder:
    """Builds one page by reading parts of the feed, until the page is full."""

    def __init__(
        self,
        view: FeedView,
        client_id: str,
        position: Position,
        access: Access,
        limit: int,
        writers: set[str] | None,
        reads_left: int | None,
        max_bytes: int,
    ) -> None:
        self._view = view
        self._client_id = client_id
        self._position = position
        self._access = access
        self._limit = limit
        self._max_bytes = max_bytes
        self.buckets = sorted({*position.old_keys, *position.new_keys, *position.sent, own_bucket(client_id)})
        """All bucket keys whose entries may concern the client."""
        self._transition_keys = position.old_keys ^ position.new_keys if position.is_transition else frozenset[str]()
        """The bucket keys that became active or inactive since the base. A transition reads the feed up to
        `Position.transition_at` under them only."""
        self._writers = writers
        self.parts: list[bytes] = []
        """The page's deltas, as JSON."""
        self.count = 0
        """Number of deltas in `parts`."""
        self.sent_up_to = self.upserted_up_to = 0
        self.older_keys: set[str] = set()
        # `sent_up_to`, `upserted_up_to` and `older_keys`: as in `PulledPage`
        self.is_full = False
        """Whether the page ended before the feed did."""
        self._reads_left = reads_left
        """Reads after which the page ends; None for no limit."""
        self._bytes = 0
        """Size of `parts`."""
        self._read_size = _FIRST_ENTRIES
        """The most entries in the next read."""
        self._decided: set[RowKey] = set()
        """Rows that were sent in this page, or that the client does not need. A row may have several entries, and is
        decided at the first of them that is its feed position."""
        in_use = self._keys_in_use()
        self._has_only_key = len(in_use) == 1
        """Whether one bucket key alone has entries that concern the client. False also if full histories are needed."""
        self._range_keys = self._keys_for_ranges(in_use)
        """The bucket keys of the rules that are in use, if the client may see every row inside them; empty if ranges
        cannot be used."""

    def _keys_in_use(self) -> list[str]:
        """Return the bucket keys with entries; none if the page needs full histories of rows.

        The caller needs the rows' writers, which are read only with histories. A transition compares a row's entries
        under several keys.
        """
        position = self._position
        if self._writers is not None or position.is_transition or position.transition_at > 0:
            return []
        return [key for key in self.buckets if self._view.changed_after((key,), 0)]

    def _keys_for_ranges(self, in_use: Sequence[str]) -> list[str]:
        """Return the bucket keys of the rules that are in use; none if ranges cannot be used.

        Ranges cannot be used if the client may have rows that their entries do not show, as in a resync or in a
        broadcast (`no_retry`), nor during a re-index, when bucket keys alone do not decide what it may see
        (`sees_by_values`).
        """
        position, access = self._position, self._access
        if position.resync or position.may_hold_unknown_rows or position.no_retry or access.sees_by_values is not None:
            return []
        keys_of_rules = [key for key in in_use if key != own_bucket(self._client_id)]
        return keys_of_rules if access.keys.issuperset(keys_of_rules) else []

    def rescan(self, ranges: Sequence[Range]) -> tuple[Range, ...]:
        """Read ranges of the feed below the client's position: for a transition, or because it may lack their pages.

        Up to `transition_at` only the bucket keys that became active or inactive are read, because the client has what
        it could see by the others.

        Args:
            ranges: the ranges, in the order in which they are read.

        Returns:
            The ranges that are left because the page is full.
        """
        transition_at = self._position.transition_at
        for index, (low, high) in enumerate(ranges):
            reached = (
                self.read(sorted(self._transition_keys), low, min(high, transition_at)) if low < transition_at else low
            )
            if not self.is_full:
                reached = self.read(self.buckets, max(low, transition_at), high)
            if self.is_full:
                return (Range(reached, high), *ranges[index + 1 :])
        return ()

    def read(self, buckets: Sequence[str], low: int, high: int) -> int:
        """Read a part of the feed in order of arrival, and send what the client lacks of it.

        Args:
            buckets: the bucket keys to read.
            low: the arrival after which to begin.
            high: the arrival up to which to read.

        Returns:
            The arrival up to which it was read: `high`, or less if the page is full.
        """
        reached = low
        while reached < high and not self.is_full:
            if self._reads_left is not None:
                self.is_full = self._reads_left == 0
                self._reads_left -= 1
                if self.is_full:
                    break
            self._read_size = self._next_read_size()
            if (feed_range := self._encoded_range(reached, high)) is not None:
                reached = self._send_range(feed_range, buckets, reached)
            else:
                reached = self._read_entries(buckets, reached, high)
        return reached

    def _encoded_range(self, low: int, high: int) -> FeedRange | None:
        """Return the next entries as a range, if the client certainly lacks their rows; otherwise None.

        The client certainly lacks rows above every feed position that it was sent, unless a row changed after these
        pages began: an earlier page may have sent it at its earlier feed position.

        Args:
            low: the arrival after which the range begins.
            high: the arrival up to which it may extend.
        """
        position, room = self._position, self._limit - self.count
        if not self._range_keys or self._has_no_room or not position.sent_up_to <= low < position.newest_at_start:
            return None
        name = self._client_id
        reader = Reader(position.base, encode_client_id(name), writers_known_from(position), own_bucket(name))
        return self._view.read_range(
            self._range_keys, low, min(high, position.newest_at_start), min(room, self._read_size), reader
        )

    def _send_range(self, feed_range: FeedRange, buckets: Sequence[str], low: int) -> int:
        """Send a range up to the page's limits.

        Args:
            feed_range: the range.
            buckets: the bucket keys that it was read from.
            low: the arrival after which it begins.

        Returns:
            The arrival up to which rows were sent.
        """
        text, count, last = feed_range.text, feed_range.deltas, feed_range.last
        room = self._max_bytes - self._bytes
        if self.count + count > self._limit or len(text) > room:  # send a part of the range, whole rows only
            text, count, entries = feed_range.prefix(self._limit - self.count, room)
            last = self._view.entries_after(buckets, low, entries)[-1].changed  # that of the last row of this part
        if count:
            self._send(text, count)
            self.sent_up_to = self.upserted_up_to = max(self.sent_up_to, last)
        return last

    def _read_entries(self, buckets: Sequence[str], low: int, high: int) -> int:
        """Read the next entries, and decide each row by its entries under all bucket keys.

        A row is sent at the latest of its entries, so that it is sent once. Under a single key it has one entry, so its
        history needs no further read.

        Args:
            buckets: the bucket keys to read.
            low: the arrival after which to begin.
            high: the arrival up to which to read.

        Returns:
            The arrival up to which entries were read.
        """
        reached = low
        entries = [each for each in self._view.entries_after(buckets, low, self._entry_limit()) if each.changed <= high]
        keys = {entry.key for entry in entries}
        rows = self._view.rows(keys)
        histories = group_by_row(entries if self._has_only_key else self._view.entries_of(keys, self.buckets))
        for entry in entries:
            key = entry.key
            history = histories[key]
            if key in self._decided or not self._is_feed_position(entry, history):
                continue
            if self._has_no_room:
                self.is_full = True
                return reached
            self._send_row(rows[key], history, entry.changed)
            reached = entry.changed
        return max(reached, entries[-1].changed) if entries else high

    def _entry_limit(self) -> int:
        """Return how many entries to read next: one more than may be sent shows whether there are more."""
        if self._bytes >= self._max_bytes:
            return 1
        return min(_MAX_ENTRIES, self._read_size, max(self._limit - self.count + 1, _MIN_ENTRIES))

    @property
    def _has_no_room(self) -> bool:
        """Whether nothing more may be sent."""
        return self.count >= self._limit or self._bytes >= self._max_bytes

    def _next_read_size(self) -> int:
        """Return how many entries to read next: as many rows as fit in the page, by the average size so far."""
        if not self.count:
            return self._read_size
        return max(_MIN_ENTRIES, min(_MAX_RANGE_ENTRIES, (self._max_bytes - self._bytes) * self.count // self._bytes))

    def _send(self, text: bytes, count: int) -> None:
        """Append encoded deltas to the page; `count` is their number."""
        self.parts.append(text)
        self.count += count
        self._bytes += len(text)

    def _is_feed_position(self, entry: Entry, history: list[Entry]) -> bool:
        """Return whether the row is sent at this entry, and not at another of its entries.

        A row is sent at its latest entry. In a transition, up to `transition_at`, only entries under bucket keys that
        became active or inactive are read. There, the row is sent at the latest one of these.

        Args:
            entry: the entry that was read.
            history: all entries of the row that concern the client.
        """
        latest = max(other.changed for other in history)
        if entry.changed > self._position.transition_at:
            return entry.changed == latest
        latest_transition = max(other.changed for other in history if other.bucket in self._transition_keys)
        return latest <= self._position.transition_at and entry.changed == latest_transition

    def _send_row(self, row: StoredRow, history: list[Entry], arrival: int) -> None:
        """Send what the client lacks of a row.

        Args:
            row: the row.
            history: its entries that concern the client.
            arrival: the feed position at which it is sent.
        """
        self._decided.add(row.key)
        if self._writers is not None:
            self._writers.update(row.writers, (origin.client_id for origin in row.state.origins))
        missing = missing_deltas(row, history, self._client_id, self._position, self._access, self.buckets)
        if missing:
            for delta in missing:
                self._send(encode_delta(delta), 1)
            self.sent_up_to = max(self.sent_up_to, arrival, self._position.transition_at)
            if missing[-1].op != "DELETE":
                self.upserted_up_to = self.sent_up_to
            if not self._access.sees_by_keys(row) and self._access.sees(row):
                self.older_keys.update(row.keys)


def group_by_row(items: Iterable[Keyed]) -> dict[RowKey, list[Keyed]]:
    """Group entries or deltas by row; a row without any has an empty list."""
    by_row: dict[RowKey, list[Keyed]] = defaultdict(list)
    for item in items:
        by_row[item.key].append(item)
    return by_row

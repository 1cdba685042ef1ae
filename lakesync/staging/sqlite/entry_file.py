"""Feed entries in `state.db`, and the numbers of their bucket keys. `StateFile` creates one object of each class.

A *bucket key* names a bucket of the sync rules with the claims that may see it. A *feed entry* is a row's history under
one bucket key, in four arrivals, timestamps of commits by its gateway, one app's stream of changes (see
`records.Entry`): when the row joined the bucket first (`first`) and last (`since`), when it left before that
(`left_at`), and when it last changed in it or left it (`changed`). `inside` says whether the row is in the bucket now.
The feed of a key is its entries ordered by `changed`. Each row of a commit has an arrival of its own, so no two entries
of a key have the same `changed`. In the file, bucket keys and rows are numbers, to keep entries small.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any, cast

from lakesync.model.types import RowKey
from lakesync.staging.moves import ENTRY_UPSERT, EntryChange
from lakesync.staging.records import Entry
from lakesync.staging.sqlite import bulk
from lakesync.staging.sqlite.row_file import RowFile

_MAX_CACHED = 100_000
"""The most bucket keys in the cache of numbers."""


class BucketNumbers:
    """Finds and creates the numbers of bucket keys, with a cache. Only the thread that owns the store calls it."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self._sql = sql
        self._cache: dict[tuple[str, str], int] = {}
        """`(gateway, bucket key)` → its number."""

    def clear_cache(self) -> None:
        """Clear the cache, after a rollback."""
        self._cache.clear()

    def find(self, gateway: str, name: str) -> int | None:
        """Return a key's number; None if it has none.

        Args:
            gateway: the gateway's id.
            name: the bucket key.
        """
        cached = self._cache.get((gateway, name))
        if cached is not None:
            return cached
        row = self._sql.execute("SELECT id FROM bucket WHERE gateway = ? AND name = ?", (gateway, name)).fetchone()
        return None if row is None else self._cache_number(gateway, name, int(row[0]))

    def find_or_create(self, gateway: str, name: str) -> int:
        """Return a key's number; create one if it has none.

        Args:
            gateway: the gateway's id.
            name: the bucket key.
        """
        found = self.find(gateway, name)
        if found is not None:
            return found
        number = self._sql.execute("INSERT INTO bucket (gateway, name) VALUES (?, ?)", (gateway, name)).lastrowid
        assert number is not None
        return self._cache_number(gateway, name, number)

    def names(self, gateway: str, prefix: str) -> Iterator[str]:
        """Return the numbered keys that start with `prefix`, in order.

        Args:
            gateway: the gateway's id.
            prefix: the beginning of the keys; empty for all.
        """
        rows = self._sql.execute(
            "SELECT name FROM bucket WHERE gateway = ? AND name >= ? ORDER BY name", (gateway, prefix)
        )
        return takewhile(lambda name: name.startswith(prefix), (name for (name,) in rows))

    def _cache_number(self, gateway: str, name: str, number: int) -> int:
        """Cache a number; a full cache is cleared first."""
        if len(self._cache) >= _MAX_CACHED:
            self._cache.clear()
        self._cache[gateway, name] = number
        return number


_COLUMNS = 7
"""Number of columns of table `entry`."""
_PUT = f"ON CONFLICT (bucket, number) DO UPDATE SET {ENTRY_UPSERT}"
"""SQL: how an inserted change is combined with the stored entry of the same row and bucket key."""
_ENTRY = "r.table_name, r.row_id, e.first, e.since, e.left_at, e.changed, e.inside"
"""SQL: the columns of a feed entry, as `_entry` takes them. `left_at` is `Entry.left_before`."""
# Every entry has a row. LEFT JOIN keeps SQLite from reading `row_state` first.
_AFTER = (
    f"SELECT {_ENTRY} FROM entry e LEFT JOIN row_state r ON r.number = e.number"
    " WHERE e.bucket = ? AND e.changed > ? AND e.changed <= ? ORDER BY e.changed, e.number LIMIT ?"
)
"""SQL: the entries of one bucket key that changed in a range of arrivals, in the order of the feed."""
_OF = (
    f"SELECT {_ENTRY} FROM entry e LEFT JOIN row_state r ON r.number = e.number"
    " WHERE e.bucket = ? AND e.number IN ({})"
)
"""SQL: the entries of some rows under one bucket key."""
_IN_NUMBER_RANGE = (
    "SELECT number, first, since, left_at, changed, inside FROM entry"
    " WHERE bucket = ? AND number BETWEEN ? AND ? LIMIT ?"
)
"""SQL: the entries of one bucket key in a range of row numbers."""
_MAX_SEARCHED_BUCKETS = 16
"""With more bucket keys than this, each probably has few of the rows that are searched. `entries_of` then reads the
entries of a key by a range of row numbers, instead of naming every row in every statement."""


class EntryFile:
    """Reads and writes entries of the file. The modules `state` and `state_file` call it, in the store's thread."""

    def __init__(self, sql: sqlite3.Connection, buckets: BucketNumbers, rows: RowFile) -> None:
        self._sql = sql
        self._buckets = buckets
        self._rows = rows

    def put(self, gateway: str, changes: Iterable[tuple[int, str, EntryChange]]) -> None:
        """Write changes of entries.

        Args:
            gateway: the gateway's id.
            changes: for each change the row's number, the bucket key, and the change.
        """
        values: list[int] = []
        find_or_create = self._buckets.find_or_create
        for number, bucket, change in changes:
            arrivals = (change.first, change.since, change.left, change.changed)
            inside = bool(change.inside)  # for None (unchanged), `ENTRY_UPSERT` keeps the stored value
            values += (find_or_create(gateway, bucket), number, *arrivals, inside)
        bulk.insert_flat(self._sql, "entry", _COLUMNS, values, _PUT)

    def entries_after(
        self, gateway: str, buckets: Collection[str], after: int, up_to: int, limit: int
    ) -> Iterator[Entry]:
        """Return entries ordered by `changed`, and those with the same `changed` by bucket key.

        One range of the index is read for each bucket key, and the ranges are merged, only as far as the caller reads.

        Args:
            gateway: the gateway's id.
            buckets: the bucket keys whose entries are returned.
            after: the arrival after which entries changed.
            up_to: the arrival up to which entries changed.
            limit: the most entries to read of each bucket key. So only the first `limit` of the result are complete:
                after them, entries of a bucket key may be missing.
        """
        ranges = [self._range(gateway, bucket, after, up_to, limit) for bucket in buckets]
        return heapq.merge(*ranges, key=_feed_order)

    def entries_of(self, gateway: str, keys: Collection[RowKey], buckets: Collection[str]) -> list[Entry]:
        """Return every entry of these rows under these bucket keys.

        Args:
            gateway: the gateway's id.
            keys: the rows' keys.
            buckets: the bucket keys.
        """
        rows = {number: key for key, number in self._rows.numbers(gateway, keys).items()}
        if not rows:
            return []
        bounds = (min(rows), max(rows))
        found: list[Entry] = []
        for bucket in buckets:
            number = self._buckets.find(gateway, bucket)
            if number is None:
                continue
            entries = None
            if len(buckets) > _MAX_SEARCHED_BUCKETS:
                entries = self._in_number_range(bucket, number, rows, bounds)
            if entries is None:
                entries = [_entry(bucket, row) for row in bulk.search(self._sql, _OF, (number,), list(rows))]
            found += entries
        return found

    def changed_after(self, gateway: str, bucket: str, after: int) -> bool:
        """Return whether any entry under a bucket key has `changed > after`."""
        number = self._buckets.find(gateway, bucket)
        query = "SELECT 1 FROM entry WHERE bucket = ? AND changed > ? LIMIT 1"
        return number is not None and self._sql.execute(query, (number, after)).fetchone() is not None

    def _range(self, gateway: str, bucket: str, after: int, up_to: int, limit: int) -> Iterator[Entry]:
        """Yield one bucket key's entries ordered by `changed`; see `entries_after`."""
        number = self._buckets.find(gateway, bucket)
        if number is not None:
            for row in self._sql.execute(_AFTER, (number, after, up_to, limit)):
                yield _entry(bucket, row)

    def _in_number_range(
        self, bucket: str, bucket_number: int, rows: Mapping[int, RowKey], bounds: tuple[int, int]
    ) -> list[Entry] | None:
        """Return the entries of some rows under one bucket key, by reading its entries in a range of row numbers.

        Args:
            bucket: the bucket key.
            bucket_number: its number.
            rows: the rows' keys, by row number.
            bounds: the lowest and the highest of these numbers.

        Returns:
            The entries; None if the bucket key has more entries in the range than there are rows, so that a search for
            each row is cheaper.
        """
        limit = len(rows) + 1
        entries = self._sql.execute(_IN_NUMBER_RANGE, (bucket_number, *bounds, limit)).fetchall()
        if len(entries) == limit:
            return None
        return [_entry(bucket, (*rows[number], *rest)) for number, *rest in entries if number in rows]


def _entry(bucket: str, row: tuple[Any, ...]) -> Entry:
    """Return an entry, given its bucket key and the columns of `_ENTRY`."""
    table, row_id, first, since, left_before, changed, inside = cast("tuple[str, str, int, int, int, int, int]", row)
    return Entry(bucket, table, row_id, first, since, left_before, changed, bool(inside))


def _feed_order(entry: Entry) -> tuple[int, str, str, str]:
    """Return a sort key: the order in which the feed is read."""
    # entries with the same `changed` are of one row, under several bucket keys
    return (entry.changed, entry.table, entry.row_id, entry.bucket)

"""`state.db`: rows and feed entries in a transaction that stays open and is committed behind the journal."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import msgspec

from lakesync.staging.head import Head
from lakesync.staging.moves import fold
from lakesync.staging.records import Entry, Move, StoredRow
from lakesync.staging.sqlite.files import STATE_FILE, connect, migrate
from lakesync.types import RowKey

_PUT_ROW = (
    "INSERT INTO row_state VALUES (?, ?, ?, ?)"
    " ON CONFLICT (gateway, table_name, row_id) DO UPDATE SET body = excluded.body"
)
_GET_ROW = "SELECT body FROM row_state WHERE gateway = ? AND table_name = ? AND row_id = ?"
_SCAN_ROWS = (
    "SELECT body FROM row_state WHERE gateway = ? AND (table_name, row_id) > (?, ?) ORDER BY table_name, row_id LIMIT ?"
)
_PUT_ENTRY = (
    "INSERT INTO entry VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, coalesce(?8, 0))"
    " ON CONFLICT (bucket, table_name, row_id) DO UPDATE SET"
    " first = CASE first WHEN 0 THEN excluded.first ELSE first END,"
    " since = CASE excluded.since WHEN 0 THEN since ELSE excluded.since END,"
    " left_at = CASE excluded.left_at WHEN 0 THEN left_at ELSE excluded.left_at END,"
    " changed = excluded.changed, inside = coalesce(?8, inside)"
)
_ENTRIES_AFTER = (
    "SELECT table_name, row_id, first, since, left_at, changed, inside FROM entry"
    " WHERE bucket = ? AND changed > ? AND changed <= ? ORDER BY changed, table_name, row_id LIMIT ?"
)
_ENTRY_OF = (
    "SELECT table_name, row_id, first, since, left_at, changed, inside FROM entry"
    " WHERE bucket = ? AND table_name = ? AND row_id = ?"
)
_decode_row = msgspec.json.Decoder(StoredRow).decode
_encode = msgspec.json.Encoder().encode


class Applied(NamedTuple):
    """How far `state.db` holds one shard of a gateway, durably."""

    epoch: int
    seq: int
    rules_version: int


class State:
    """The state's connection. Between `begin` and `commit` the write-behind is SQLite's page cache.

    All methods belong to the owner thread.
    """

    def __init__(self, folder: Path, store_id: str) -> None:
        """Open or make `state.db`; one that belongs to another journal is emptied.

        Raises:
            StagingVersionError: it was written by a newer version.
        """
        self.path = folder / STATE_FILE
        self.sql = connect(self.path)
        migrate(self.sql, "sqlite/state", self.path)
        self.pending_rows = 0
        """Rows written since the last commit."""
        self._buckets: dict[tuple[str, str], int] = {}
        self._adopt(store_id)

    def close(self) -> None:
        """Release the file; what was not committed is made again from the journal."""
        self.sql.close()

    def _adopt(self, store_id: str) -> None:
        found = self.sql.execute("SELECT store_id FROM store").fetchone()
        if found is None or found[0] != store_id:
            self.empty()
            self.sql.execute("INSERT OR REPLACE INTO store VALUES (1, ?)", (store_id,))

    def empty(self) -> None:
        """Forget everything, to be made again."""
        self._buckets.clear()
        for table in ("applied", "row_state", "bucket", "entry"):
            self.sql.execute(f"DELETE FROM {table}")

    # -- transactions --------------------------------------------------------------------------------------------

    @property
    def intact(self) -> bool:
        """Whether the open transaction is still there: SQLite ends it on its own when, say, the disk is full."""
        return self.sql.in_transaction

    def begin(self) -> None:
        """Open the long transaction."""
        self.sql.execute("BEGIN IMMEDIATE")

    def commit(self, heads: Iterable[tuple[Head, int]]) -> None:
        """Make everything durable, with the applied seq of each head, and open the next transaction."""
        self.sql.executemany(
            "INSERT OR REPLACE INTO applied VALUES (?, ?, ?, ?, ?)",
            [(head.gateway, head.shard, head.epoch, seq, head.config.rules_version) for head, seq in heads],
        )
        self.sql.execute("COMMIT")
        self.begin()
        self.pending_rows = 0

    def rollback(self) -> None:
        """Give up everything since the last commit."""
        self._buckets.clear()
        if self.sql.in_transaction:
            self.sql.execute("ROLLBACK")

    def mark(self, name: str) -> None:
        """Begin a group or a work."""
        self.sql.execute(f"SAVEPOINT {name}")

    def keep(self, name: str) -> None:
        """Keep what was done since the mark."""
        self.sql.execute(f"RELEASE {name}")

    def take_back(self, name: str) -> None:
        """Take back what was done since the mark."""
        self._buckets.clear()
        self.sql.execute(f"ROLLBACK TO {name}")
        self.sql.execute(f"RELEASE {name}")

    def applied(self) -> dict[tuple[str, str], Applied]:
        """`(gateway, shard)` → what is durably held."""
        rows = self.sql.execute("SELECT gateway, shard, epoch, applied_seq, rules_version FROM applied")
        return {(gateway, shard): Applied(*rest) for gateway, shard, *rest in rows}

    # -- rows ----------------------------------------------------------------------------------------------------

    def rows(self, gateway: str, keys: Collection[RowKey]) -> dict[RowKey, StoredRow]:
        """The stored rows among `keys`."""
        execute = self.sql.execute
        found = {}
        for key in keys:
            body = execute(_GET_ROW, (gateway, *key)).fetchone()
            if body is not None:
                found[key] = _decode_row(body[0])
        return found

    def put_rows(self, gateway: str, rows: Iterable[StoredRow]) -> None:
        """Write rows whole."""
        values = [(gateway, row.table, row.row_id, _encode(row)) for row in rows]
        self.sql.executemany(_PUT_ROW, values)
        self.pending_rows += len(values)

    def scan_rows(self, gateway: str, after: RowKey | None, limit: int) -> list[StoredRow]:
        """Rows in key order, after a key."""
        rows = self.sql.execute(_SCAN_ROWS, (gateway, *(after or ("", "")), limit)).fetchall()
        return [_decode_row(body) for (body,) in rows]

    # -- entries -------------------------------------------------------------------------------------------------

    def put_moves(self, gateway: str, moves: Iterable[Move]) -> None:
        """Write feed entries."""
        self.sql.executemany(
            _PUT_ENTRY,
            [
                (self._make_bucket(gateway, bucket), table, row_id, *change)
                for (bucket, table, row_id), change in fold(moves).items()
            ],
        )

    def entries_after(
        self, gateway: str, buckets: Collection[str], since: int, until: int, limit: int
    ) -> Iterator[Entry]:
        """Entries in order of `changed`: one index range a bucket, merged, read no further than asked for."""
        ranges = [self._range(gateway, bucket, since, until, limit) for bucket in buckets]
        return heapq.merge(*ranges, key=_feed_order)

    def _range(self, gateway: str, bucket: str, since: int, until: int, limit: int) -> Iterator[Entry]:
        number = self._bucket(gateway, bucket)
        if number is not None:
            for row in self.sql.execute(_ENTRIES_AFTER, (number, since, until, limit)):
                yield _entry(bucket, row)

    def entries_of(self, gateway: str, keys: Collection[RowKey], buckets: Collection[str]) -> list[Entry]:
        """Every entry of these rows under these buckets."""
        found = []
        for bucket in buckets:
            number = self._bucket(gateway, bucket)
            if number is None:
                continue
            for key in keys:
                row = self.sql.execute(_ENTRY_OF, (number, *key)).fetchone()
                if row is not None:
                    found.append(_entry(bucket, row))
        return found

    def changed_after(self, gateway: str, buckets: Collection[str], since: int) -> bool:
        """Whether any entry under `buckets` has `changed > since`."""
        for bucket in buckets:
            number = self._bucket(gateway, bucket)
            query = "SELECT 1 FROM entry WHERE bucket = ? AND changed > ? LIMIT 1"
            if number is not None and self.sql.execute(query, (number, since)).fetchone() is not None:
                return True
        return False

    def buckets(self, gateway: str, prefix: str) -> list[str]:
        """The bucket keys in use that start with `prefix`."""
        rows = self.sql.execute(
            "SELECT name FROM bucket WHERE gateway = ? AND name >= ? ORDER BY name", (gateway, prefix)
        )
        return list(takewhile(lambda name: name.startswith(prefix), (name for (name,) in rows)))

    def _bucket(self, gateway: str, name: str) -> int | None:
        known = self._buckets.get((gateway, name))
        if known is not None:
            return known
        found = self.sql.execute("SELECT id FROM bucket WHERE gateway = ? AND name = ?", (gateway, name)).fetchone()
        if found is None:
            return None
        number = int(found[0])
        self._buckets[gateway, name] = number
        return number

    def _make_bucket(self, gateway: str, name: str) -> int:
        known = self._bucket(gateway, name)
        if known is not None:
            return known
        number = self.sql.execute("INSERT INTO bucket (gateway, name) VALUES (?, ?)", (gateway, name)).lastrowid
        assert number is not None
        self._buckets[gateway, name] = number
        return number


def _entry(bucket: str, row: sqlite3.Row | tuple[str, str, int, int, int, int, int]) -> Entry:
    table, row_id, first, since, left, changed, inside = row
    return Entry(bucket, table, row_id, first, since, left, changed, bool(inside))


def _feed_order(entry: Entry) -> tuple[int, str, str, str]:
    return (entry.changed, entry.table, entry.row_id, entry.bucket)

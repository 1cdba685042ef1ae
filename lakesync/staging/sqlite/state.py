"""`state.db`: rows and feed entries, first in memory, then in the file, always behind the journal.

What commits write goes into a layer in memory. A reading of rows looks there first; a reading of entries has the
layer's entries written to the file's open transaction before. `freeze` and `write_on` write rows and entries bit by
bit, so that no push waits for long. `commit` ends the transaction: the file then holds the rows of one place in the
journal, and the entries of that place or of a later one, which a replay from there makes the same again.
"""

from __future__ import annotations

import heapq
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from lakesync.staging.head import Head
from lakesync.staging.hot_rows import HotRow
from lakesync.staging.moves import EntryChange, Stays
from lakesync.staging.records import Entry, Move, StoredRow
from lakesync.staging.sqlite import bulk, pending
from lakesync.staging.sqlite.checkpointer import Checkpointer
from lakesync.staging.sqlite.files import STATE_FILE, connect, migrate
from lakesync.staging.sqlite.pending import EntryKey, Layer
from lakesync.staging.sqlite.rowcache import RowCache
from lakesync.staging.sqlite.stretch import MOST_BUCKETS, Buckets, read_stretch
from lakesync.staging.sqlite.undo import Undo
from lakesync.staging.stretch import Reader, Stretch
from lakesync.staging.whole import WholeRow, spelled_of
from lakesync.types import RowKey

T = TypeVar("T")

_PAGES_MIB = 128
"""What SQLite may hold of the file: 10,000 scattered rows, each on a page of its own and in one of the index."""
_CACHED_BYTES = 16 << 20
"""What is held of decoded rows, by their size in the file; in memory they take several times as much."""
_BUCKETS_KNOWN = 100_000
_AT_ONCE = 256
"""Rows or entries that one statement looks for."""
_BIT = 64
"""Rows or entries that are written at a time."""
_WIDTHS = (1, 16, 128, _AT_ONCE)
"""How many row ids a statement that looks for some asks for."""
_PUT_ROW = (
    "ON CONFLICT (gateway, table_name, row_id) DO UPDATE SET body = excluded.body, spelled = excluded.spelled,"
    " deltas = excluded.deltas, writers = excluded.writers, writers_floor = excluded.writers_floor"
)
_GET_ROWS = "SELECT body FROM row_state WHERE gateway = ? AND table_name = ? AND row_id IN ({})"
_SCAN_ROWS = (
    "SELECT body FROM row_state WHERE gateway = ? AND (table_name, row_id) > (?, ?) ORDER BY table_name, row_id LIMIT ?"
)
_PUT_ENTRY = (
    "ON CONFLICT (bucket, table_name, row_id) DO UPDATE SET"
    " first = CASE first WHEN 0 THEN excluded.first ELSE first END,"
    " since = CASE excluded.since WHEN 0 THEN since ELSE excluded.since END,"
    " left_at = CASE excluded.left_at WHEN 0 THEN left_at ELSE excluded.left_at END,"
    " changed = max(changed, excluded.changed),"
    # neither joined nor left: as it was
    " inside = CASE WHEN excluded.since = 0 AND excluded.left_at = 0 THEN inside ELSE excluded.inside END"
)
_ENTRY = "table_name, row_id, first, since, left_at, changed, inside"
_ENTRIES_AFTER = (
    f"SELECT {_ENTRY} FROM entry WHERE bucket = ? AND changed > ? AND changed <= ?"
    " ORDER BY changed, table_name, row_id LIMIT ?"
)
_ENTRIES_OF = f"SELECT {_ENTRY} FROM entry WHERE bucket = ? AND table_name = ? AND row_id IN ({{}})"
_WHOLE_ROWS = (
    "SELECT e.table_name, e.row_id, e.first, e.since, e.left_at, e.changed, e.inside,"
    " r.spelled, coalesce(r.deltas, 0), coalesce(r.writers, x'5b5d'), coalesce(r.writers_floor, 0)"
    " FROM entry e LEFT JOIN row_state r"
    " ON r.gateway = ? AND r.table_name = e.table_name AND r.row_id = e.row_id"
    " WHERE e.bucket = ? AND e.changed > ? AND e.changed <= ? ORDER BY e.changed, e.table_name, e.row_id LIMIT ?"
)
_decode_row = msgspec.json.Decoder(StoredRow).decode
_encode = msgspec.json.Encoder().encode


class Applied(NamedTuple):
    """How far `state.db` holds one shard of a gateway."""

    epoch: int
    seq: int
    rules_version: int


class State:
    """The state's connection and what is not yet written. All methods belong to the owner thread."""

    def __init__(self, folder: Path, store_id: str) -> None:
        """Open or make `state.db`; one that belongs to another journal is emptied.

        Raises:
            StagingVersionError: it was written by a newer version.
        """
        self.path = folder / STATE_FILE
        self.sql = connect(self.path, _PAGES_MIB)
        self.sql.execute("PRAGMA synchronous=NORMAL")
        self.sql.execute("PRAGMA wal_autocheckpoint=0").fetchall()
        migrate(self.sql, "sqlite/state", self.path)
        self._buckets: dict[tuple[str, str], int] = {}
        self._cache = RowCache(_CACHED_BYTES)
        self._forget()
        self._adopt(store_id)
        self._checkpointer = Checkpointer(self.path)

    def close(self) -> None:
        """Release the file; what was not committed is made again from the journal."""
        self._checkpointer.stop()
        self.sql.close()

    def _adopt(self, store_id: str) -> None:
        found = self.sql.execute("SELECT store_id FROM store").fetchone()
        if found is None or found[0] != store_id:
            self.empty()
            self.sql.execute("INSERT OR REPLACE INTO store VALUES (1, ?)", (store_id,))

    def empty(self) -> None:
        """Forget everything, to be made again."""
        for table in ("applied", "row_state", "bucket", "entry"):
            self.sql.execute(f"DELETE FROM {table}")
        self._forget()

    def _forget(self) -> None:
        """Nothing is in memory, nothing in an open transaction."""
        self._front = Layer()
        self._frozen: Layer | None = None
        self._writing: Iterator[None] = iter(())
        self.left = 0
        """About how many rows and entries of what is frozen are not written yet."""
        self._undo = Undo()
        self._guards = 0
        self._whole = False
        self.settled = False
        """More was written since the last `freeze` than what was frozen."""
        self._buckets.clear()
        self._cache.clear()
        self._begun = False

    # -- the journal's groups and works --------------------------------------------------------------------------

    def mark(self) -> int:
        """Begin a work."""
        return self._undo.mark()

    def take_back(self, mark: int) -> None:
        """Take back what was done since the mark; 0 is the beginning of the group."""
        self._undo.take_back(mark)

    def keep(self) -> None:
        """Keep what the group did."""
        self._undo.forget()
        if self._guards:
            self._guards = 0
            self.sql.execute("RELEASE guard_1")

    # -- from memory to the file ---------------------------------------------------------------------------------

    @property
    def intact(self) -> bool:
        """Whether file and memory hold what they should: SQLite ends a transaction on its own when a disk is full."""
        return self._whole and (self.sql.in_transaction or not self._begun)

    @property
    def waiting(self) -> int:
        """Rows in memory that are to be written, at most; apart from what is frozen."""
        return self._front.count

    @property
    def frozen(self) -> bool:
        """Whether a layer is being written bit by bit."""
        return self._frozen is not None

    def freeze(self) -> None:
        """Set apart what is in memory now, for `write_on`."""
        self._finish()
        self.settled = False
        self._frozen, self._front = self._front, Layer()
        self.left = 2 * self._frozen.count
        self._writing = self._written(self._frozen)

    def write_on(self) -> bool:
        """Write a bit of what was frozen; whether that was all.

        Raises:
            sqlite3.Error: it cannot be written; the state is not intact any more.
        """
        try:
            for _ in self._writing:
                return False
        except BaseException:  # whatever it was, what is left of the layer will not be written
            self._whole = False
            raise
        self._frozen = None
        return True

    def settle(self) -> None:
        """Write everything that is in memory; in a group, so that it can be taken back."""
        self._finish()
        if not self._front:
            return
        layer = self._front
        if self._undo.mark() > 0:
            self._guard(layer)
        self._frozen, self._front = layer, Layer()
        self._writing = self._written(layer)
        self._finish()
        self.settled = True

    def _settle_entries(self) -> None:
        """Write the entry changes that are in memory; in a group, so that they can be taken back."""
        frozen, front = self._frozen, self._front
        if frozen is not None and frozen.changes:
            if frozen.rows_written:
                self._finish()
            else:
                self._write_entries(frozen)
        if front.changes:
            if self._undo.mark() > 0:
                self._guard(front)
            self._write_entries(front)

    def _write_entries(self, layer: Layer) -> None:
        self._begin()
        try:
            for _ in self._written_entries(layer.take_changes().folded(layer.rows)):
                pass
        except sqlite3.Error:
            self._whole = False
            raise

    def _finish(self) -> None:
        while not self.write_on():
            pass

    def _guard(self, layer: Layer) -> None:
        """Have what is written from here on taken back with the work, and what was in memory be there again."""
        self._begin()
        changes = layer.changes
        self._guards += 1
        self.sql.execute(f"SAVEPOINT guard_{self._guards}")

        def restore() -> None:
            self.sql.execute(f"ROLLBACK TO guard_{self._guards}")
            self.sql.execute(f"RELEASE guard_{self._guards}")
            self._guards -= 1
            self._front = layer
            layer.changes = changes
            self._buckets.clear()
            self._cache.clear()

        self._undo.add(restore)

    def _begin(self) -> None:
        if not self._begun:
            self.sql.execute("BEGIN IMMEDIATE")
            self._begun = True

    def _written(self, layer: Layer) -> Iterator[None]:
        """Write a layer, rows first; stops after each bit.

        New rows stand in the file as they came, which is how a page reads them; entries are written in order of keys.
        """
        self._begin()
        for gateway, waiting in layer.rows.items():
            for keys in _parts(list(waiting), _BIT):
                rows = [waiting[key].merged() for key in keys]
                bodies = [_encode(row) for row in rows]
                stored = [_stored(gateway, row, body) for row, body in zip(rows, bodies, strict=True)]
                bulk.insert(self.sql, "row_state", stored, _PUT_ROW)
                for row, body in zip(rows, bodies, strict=True):
                    self._cache.put(gateway, row, len(body))
                self.left -= len(keys)
                yield
        layer.rows_written = True
        yield from self._written_entries(layer.changes.folded(layer.rows))

    def _written_entries(self, folded: Mapping[str, Mapping[EntryKey, EntryChange]]) -> Iterator[None]:
        self.left = sum(map(len, folded.values()))
        for gateway, changes in folded.items():
            for places in _parts(sorted(changes), _BIT):
                values = []
                for bucket, table, row_id in places:
                    change = changes[bucket, table, row_id]
                    number = self._make_bucket(gateway, bucket)
                    arrivals = (change.first, change.since, change.left, change.changed)
                    values.append((number, table, row_id, *arrivals, bool(change.inside)))
                bulk.insert(self.sql, "entry", values, _PUT_ENTRY)
                self.left -= len(places)
                yield

    def commit(self, heads: Iterable[tuple[Head, int]]) -> None:
        """End the transaction, with the applied seq of each head that moved. What is frozen must be written.

        Durable after a crash of the process; after one of the machine the file may be at an earlier commit.
        """
        self._begin()
        self.sql.executemany(
            "INSERT OR REPLACE INTO applied VALUES (?, ?, ?, ?, ?)",
            [(head.gateway, head.shard, head.epoch, seq, head.config.rules_version) for head, seq in heads],
        )
        self.sql.execute("COMMIT")
        self._begun = False
        self._checkpointer.want()

    @contextmanager
    def without_checkpoints(self) -> Iterator[None]:
        """While nothing but this connection touches the file: a checkpoint under way has ended, none begins."""
        with self._checkpointer.under_way:
            yield

    def harden(self) -> None:
        """Make what was committed outlast a crash of the machine."""
        file = os.open(f"{self.path}-wal", os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def rollback(self) -> None:
        """Give up everything since the last commit; not intact from here on."""
        if self.sql.in_transaction:
            self.sql.execute("ROLLBACK")
        self._forget()

    def restart(self) -> None:
        """Begin at the last commit, to be brought up to the journal."""
        self.rollback()
        self._whole = True

    def applied(self) -> dict[tuple[str, str], Applied]:
        """`(gateway, shard)` → what the file holds."""
        rows = self.sql.execute("SELECT gateway, shard, epoch, applied_seq, rules_version FROM applied")
        return {(gateway, shard): Applied(*rest) for gateway, shard, *rest in rows}

    # -- rows ----------------------------------------------------------------------------------------------------

    def rows(self, gateway: str, keys: Collection[RowKey]) -> dict[RowKey, StoredRow]:
        """The stored rows among `keys`, not to be changed."""
        front, frozen = self._unwritten(gateway)
        found: dict[RowKey, StoredRow] = {}
        written = []
        for key in keys:
            hot = front.get(key) or frozen.get(key)
            if hot is not None:
                found[key] = hot.merged()
            else:
                written.append(key)
        return found | self._written_rows(gateway, written) if written else found

    def hot_rows(self, gateway: str, keys: Collection[RowKey]) -> dict[RowKey, HotRow]:
        """The stored rows among `keys`, not merged where they need not be."""
        front, frozen = (held.get for held in self._unwritten(gateway))
        found = {key: hot for key in keys if (hot := front(key)) is not None}
        if len(found) < len(keys):
            missing = [key for key in keys if key not in found]
            found.update((key, hot) for key in missing if (hot := frozen(key)) is not None)
            missing = [key for key in missing if key not in found]
            found.update((key, HotRow.of(row)) for key, row in self._written_rows(gateway, missing).items())
        return found

    def _written_rows(self, gateway: str, keys: Iterable[RowKey]) -> dict[RowKey, StoredRow]:
        found: dict[RowKey, StoredRow] = {}
        missing: dict[str, list[str]] = {}
        for key in keys:
            row = self._cache.get(gateway, key)
            if row is not None:
                found[key] = row
            else:
                missing.setdefault(key[0], []).append(key[1])
        for table, row_ids in missing.items():
            for (body,) in self._search(_GET_ROWS, (gateway, table), row_ids):
                row = _decode_row(body)
                self._cache.put(gateway, row, len(body))
                found[row.key] = row
        return found

    def _unwritten(self, gateway: str) -> tuple[dict[RowKey, HotRow], dict[RowKey, HotRow]]:
        """The rows in memory that the file may not hold: the newer layer, then the older one."""
        frozen = self._frozen.rows.get(gateway, {}) if self._frozen is not None else {}
        return self._front.rows.get(gateway, {}), frozen  # a layer that is being written must not grow

    def put_rows(self, gateway: str, rows: Mapping[RowKey, HotRow], stays: Stays) -> None:
        """Write rows, and what they tell of `stay` moves; they must not be changed afterwards."""
        pending.put_rows(self._front, gateway, rows, self._undo)
        if stays:
            pending.put_stays(self._front, gateway, rows, stays, self._undo)

    def put_whole_rows(self, gateway: str, rows: Iterable[StoredRow]) -> None:
        """Write rows that somebody merged; what those in memory tell of `stay` moves is kept."""
        front = self._front.rows[gateway]
        hot = {row.key: HotRow.of(row, before.stayed if (before := front.get(row.key)) else 0) for row in rows}
        pending.put_rows(self._front, gateway, hot, self._undo)

    def scan_rows(self, gateway: str, after: RowKey | None, limit: int) -> list[StoredRow]:
        """Rows in key order, after a key."""
        self.settle()
        rows = self.sql.execute(_SCAN_ROWS, (gateway, *(after or ("", "")), limit)).fetchall()
        return [_decode_row(body) for (body,) in rows]

    def _search(self, query: str, scope: tuple[Any, ...], row_ids: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Rows of a query over some row ids, in few statements of few forms."""
        for part in _parts(row_ids, _AT_ONCE):
            width = next(width for width in _WIDTHS if width >= len(part))
            filled = [*part, *[part[-1]] * (width - len(part))]
            yield from self.sql.execute(query.format(",".join("?" * width)), (*scope, *filled)).fetchall()

    # -- entries -------------------------------------------------------------------------------------------------

    def put_moves(self, gateway: str, moves: Collection[Move]) -> None:
        """Write feed entries."""
        if moves:
            pending.put_moves(self._front, gateway, moves, self._undo)

    def entries_after(
        self, gateway: str, buckets: Collection[str], since: int, until: int, limit: int
    ) -> Iterator[Entry]:
        """Entries in order of `changed`: one index range a bucket, merged, read no further than asked for."""
        self._settle_entries()
        ranges = [self._range(gateway, bucket, since, until, limit) for bucket in buckets]
        return heapq.merge(*ranges, key=_feed_order)

    def _range(self, gateway: str, bucket: str, since: int, until: int, limit: int) -> Iterator[Entry]:
        number = self._bucket(gateway, bucket)
        if number is not None:
            for row in self.sql.execute(_ENTRIES_AFTER, (number, since, until, limit)):
                yield _entry(bucket, row)

    def whole_rows(self, gateway: str, bucket: str, since: int, until: int, limit: int) -> list[WholeRow]:
        """Entries under one bucket in order of `changed`, with their rows."""
        self._settle_entries()
        number = self._bucket(gateway, bucket)
        if number is None:
            return []
        found = self.sql.execute(_WHOLE_ROWS, (gateway, number, since, until, limit)).fetchall()
        front, frozen = self._unwritten(gateway)
        if not front and not frozen:
            return list(map(WholeRow._make, found))
        whole = []
        for entry in map(WholeRow._make, found):
            hot = front.get(entry.key) or frozen.get(entry.key)
            whole.append(entry if hot is None else entry.of_row(hot.merged()))
        return whole

    def stretch(
        self, gateway: str, buckets: Sequence[str], since: int, until: int, limit: int, reader: Reader
    ) -> Stretch | None:
        """A stretch of the feed as `View.stretch` has it; none where one of its rows is in memory alone."""
        self._settle_entries()
        shared = [number for bucket in buckets if (number := self._bucket(gateway, bucket)) is not None]
        numbers = Buckets(shared, self._bucket(gateway, reader.own))
        if not shared or len(shared) >= MOST_BUCKETS:
            return None
        front, frozen = self._unwritten(gateway)
        waits = bool(front or frozen)
        stretch, keys = read_stretch(self.sql, gateway, numbers, since, until, limit, reader, with_keys=waits)
        if waits and not (front.keys().isdisjoint(keys) and frozen.keys().isdisjoint(keys)):
            return None
        return stretch

    def entries_of(self, gateway: str, keys: Collection[RowKey], buckets: Collection[str]) -> list[Entry]:
        """Every entry of these rows under these buckets."""
        self._settle_entries()
        places: dict[str, list[str]] = {}
        for table, row_id in keys:
            places.setdefault(table, []).append(row_id)
        found = []
        for bucket in buckets:
            number = self._bucket(gateway, bucket)
            if number is not None:
                for table, row_ids in places.items():
                    found += [_entry(bucket, row) for row in self._search(_ENTRIES_OF, (number, table), row_ids)]
        return found

    def changed_after(self, gateway: str, buckets: Collection[str], since: int) -> bool:
        """Whether any entry under `buckets` has `changed > since`."""
        layers = [layer.newest for layer in (self._front, self._frozen) if layer is not None]
        for bucket in buckets:
            if any((gateway, bucket) in layer and layer[gateway, bucket] > since for layer in layers):
                return True
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
        found = set(takewhile(lambda name: name.startswith(prefix), (name for (name,) in rows)))
        for layer in (self._front, self._frozen):
            if layer is not None:
                found |= {name for where, name in layer.newest if where == gateway and name.startswith(prefix)}
        return sorted(found)

    def _bucket(self, gateway: str, name: str) -> int | None:
        known = self._buckets.get((gateway, name))
        if known is not None:
            return known
        found = self.sql.execute("SELECT id FROM bucket WHERE gateway = ? AND name = ?", (gateway, name)).fetchone()
        if found is None:
            return None
        return self._know_bucket(gateway, name, int(found[0]))

    def _make_bucket(self, gateway: str, name: str) -> int:
        known = self._bucket(gateway, name)
        if known is not None:
            return known
        number = self.sql.execute("INSERT INTO bucket (gateway, name) VALUES (?, ?)", (gateway, name)).lastrowid
        assert number is not None
        return self._know_bucket(gateway, name, number)

    def _know_bucket(self, gateway: str, name: str, number: int) -> int:
        if len(self._buckets) >= _BUCKETS_KNOWN:
            self._buckets.clear()
        self._buckets[gateway, name] = number
        return number


def _stored(gateway: str, row: StoredRow, body: bytes) -> tuple[Any, ...]:
    """A row as the file has it."""
    return (gateway, row.table, row.row_id, body, *spelled_of(row))


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _entry(bucket: str, row: tuple[Any, ...]) -> Entry:
    table, row_id, first, since, left, changed, inside = cast("tuple[str, str, int, int, int, int, int]", row)
    return Entry(bucket, table, row_id, first, since, left, changed, bool(inside))


def _feed_order(entry: Entry) -> tuple[int, str, str, str]:
    return (entry.changed, entry.table, entry.row_id, entry.bucket)

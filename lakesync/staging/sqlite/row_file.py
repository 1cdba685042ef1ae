"""Rows in `state.db`: their numbers, their two forms, and a cache of decoded rows. `StateFile` creates a `RowFile`.

A row is stored in two tables. `row_state` has it encoded as it is sent to clients, so that a pull need not decode it.
`row_body` has it with its *merge state* (for each column's value, the delta that wrote it, and that
delta's timestamp), so that a push can merge into it.
A row that consists of one INSERT is in `row_state` only, because the INSERT contains everything; the column `born` has
the arrival (the commit's timestamp) of the INSERT and its bucket keys.

Each row has a number, by which feed entries refer to it; an entry says when the row joined a bucket, left it, and last
changed in it. A row that has feed entries but was not written yet has only
its number. SQLite stores rows in order of their numbers. So rows under one bucket key (a bucket of the sync rules that
a client sees) get close numbers, and a pull of them reads few pages of the file.

A row's *key* is its table and row id; a gateway is one app's stream of changes. The row's *writers* are the clients
that pushed a delta (change) of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from sys import intern

import msgspec

from lakesync.model.merge import LiveDelta
from lakesync.model.types import RowKey, row_ids_by_table
from lakesync.staging.encoded_feed import encode_full_row
from lakesync.staging.records import StoredRow, Writer, decode_row, encode_row
from lakesync.staging.sqlite import bulk
from lakesync.wire.json import decode_deltas

_LEASE = 64
"""How many row numbers are reserved at a time for rows under one bucket key."""
_MAX_LEASES = 50_000
"""The most bucket keys with reserved numbers; with more, all reservations are dropped, and their numbers stay
unused."""
_FIND = "SELECT table_name, row_id, number FROM row_state WHERE gateway = ? AND table_name = ? AND row_id IN ({})"
"""SQL: the numbers of some rows of a table."""


def grouping_key(bucket_keys: Sequence[str]) -> str:
    """Return one of a row's bucket keys. A new row is stored beside the other rows with the same grouping key.

    It is the longest key, which has the most conditions and so probably the fewest rows.

    Args:
        bucket_keys: the row's bucket keys.

    Returns:
        One of the keys; empty without keys.
    """
    return bucket_keys[0] if len(bucket_keys) == 1 else max(bucket_keys, key=len, default="")


class RowNumbers:
    """Finds the numbers of rows, and creates new ones. `_LEASE` numbers at a time are reserved for a bucket key."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self._sql = sql
        self._leases: dict[tuple[str, str], Iterator[int]] = {}
        """The reserved numbers that are not used yet, by gateway and grouping key."""
        self._next = 0
        """The lowest number that is neither used nor reserved; 0 before it is read from the file."""

    def find(self, gateway: str, keys: Collection[RowKey]) -> dict[RowKey, int]:
        """Return the numbers of those rows that have one.

        Args:
            gateway: the gateway's id.
            keys: the rows' keys.
        """
        return {
            (name, row_id): number
            for table, wanted in row_ids_by_table(keys).items()
            for name, row_id, number in bulk.search(self._sql, _FIND, (gateway, table), wanted)
        }

    def new(self, gateway: str, bucket_keys: Sequence[str]) -> int:
        """Return a number for a new row: the next one that is reserved for its grouping key.

        Args:
            gateway: the gateway's id.
            bucket_keys: the row's bucket keys.
        """
        group = (gateway, grouping_key(bucket_keys))
        number = next(self._leases.get(group, iter(())), None)
        if number is None:
            number = self._lease(group)
        return number

    def _lease(self, group: tuple[str, str]) -> int:
        """Reserve `_LEASE` numbers for a gateway and grouping key, and return the first of them."""
        if self._next == 0:
            (highest,) = self._sql.execute("SELECT max(number) FROM row_state").fetchone()
            self._next = (highest or 0) + 1
        first, self._next = self._next, self._next + _LEASE
        if len(self._leases) >= _MAX_LEASES:
            self._leases.clear()
        self._leases[group] = iter(range(first + 1, self._next))
        return first


class CachedRow(msgspec.Struct, frozen=True, gc=False):
    """A row of the file, in the cache. The cached `row` must not be changed."""

    row: StoredRow
    number: int
    """The row's number in the file."""
    size: int
    """Number of bytes in which the row is stored."""


class RowCache:
    """Caches rows up to about a number of stored bytes; the least recently used ones are dropped first.

    It has two generations, because they are cheaper than the exact order of use. When the young one is full, it becomes
    the old one, and the previous old one is dropped. A row that is read becomes young again.
    """

    def __init__(self, max_bytes: int) -> None:
        """Create an empty cache.

        Args:
            max_bytes: about the most bytes that the cached rows take in the file.
        """
        self._max_young_bytes = max_bytes // 2
        self.clear()

    def clear(self) -> None:
        """Drop all rows."""
        self._young: dict[tuple[str, str, str], CachedRow] = {}
        """The young generation: `(gateway, table, row id)` → row."""
        self._old: dict[tuple[str, str, str], CachedRow] = {}
        """The old generation, with the same keys."""
        self._young_bytes = 0

    def get(self, gateway: str, key: RowKey) -> CachedRow | None:
        """Return a cached row; None if it is not cached."""
        cache_key = (gateway, *key)
        cached = self._young.get(cache_key)
        if cached is None:
            cached = self._old.pop(cache_key, None)
            if cached is None:
                return None
            self._add(cache_key, cached)
        return cached

    def put(self, gateway: str, cached: CachedRow) -> None:
        """Cache a row."""
        cache_key = (gateway, cached.row.table, cached.row.row_id)
        previous = self._young.get(cache_key)
        if previous is None:
            self._old.pop(cache_key, None)
        else:
            self._young_bytes -= previous.size
        self._add(cache_key, cached)

    def _add(self, cache_key: tuple[str, str, str], cached: CachedRow) -> None:
        """Add a row to the young generation, which becomes the old one first if it is full."""
        if self._young_bytes > self._max_young_bytes:
            self._old, self._young, self._young_bytes = self._young, {}, 0
        self._young[cache_key] = cached
        self._young_bytes += cached.size


_CACHED_BYTES = 16 << 20
"""Size of cached rows, as stored; decoded they take several times as much memory."""
_ROW_STATE = "row_state (number, gateway, table_name, row_id, spelled, deltas, writers, writers_floor, born)"
"""SQL: the table of rows as they are sent to clients, with its columns. Four of them are the fields of a `FullRow`, of
which `spelled` is `encoded`. `born` has arrival and bucket keys of a row that consists of one INSERT, else null."""
_ROW_STATE_COLUMNS = 9
"""Number of columns of `_ROW_STATE`."""
_UPDATE_ROW_STATE = (
    "ON CONFLICT (number) DO UPDATE SET spelled = excluded.spelled, deltas = excluded.deltas,"
    " writers = excluded.writers, writers_floor = excluded.writers_floor, born = excluded.born"
)
_UPDATE_ROW_BODY = "ON CONFLICT (number) DO UPDATE SET body = excluded.body"
_READ_COLUMNS = "body, born, iif(born IS NULL, NULL, spelled) FROM row_state LEFT JOIN row_body USING (number)"
"""SQL: the arguments of `_read`, in order: the columns that are needed to decode a row in either of its two forms."""
_GET = f"SELECT row_id, number, {_READ_COLUMNS} WHERE gateway = ? AND table_name = ? AND row_id IN ({{}})"
"""SQL: some rows of a table."""
_SCAN = (
    f"SELECT {_READ_COLUMNS} WHERE gateway = ? AND (table_name, row_id) > (?, ?)"
    " AND (body IS NOT NULL OR born IS NOT NULL) ORDER BY table_name, row_id LIMIT ?"
)
"""SQL: the next rows in key order, without those that have only a number."""
_MAX_ABSENT = 50_000
"""The most keys that are remembered as absent in the file."""
_decode_insert_position = msgspec.json.Decoder(tuple[int, tuple[str, ...]]).decode
_encode = msgspec.json.Encoder().encode


class RowFile:
    """Reads and writes rows of the file. Only the thread that owns the store calls its methods."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self._sql = sql
        self._numbers = RowNumbers(sql)
        self._cache = RowCache(_CACHED_BYTES)
        self._absent: set[tuple[str, RowKey]] = set()
        """Keys that were searched and are not in the file, so new rows are not searched again."""

    def clear_cache(self) -> None:
        """Clear the cache after a rollback. Keys that are known to be absent stay so: a rollback only removes rows."""
        self._cache.clear()

    def get(self, gateway: str, keys: Iterable[RowKey]) -> dict[RowKey, StoredRow]:
        """Return the rows among `keys`; they must not be changed.

        Args:
            gateway: the gateway's id.
            keys: the rows' keys.
        """
        found: dict[RowKey, StoredRow] = {}
        missing: dict[str, list[str]] = {}
        for key in keys:
            cached = self._cache.get(gateway, key)
            if cached is not None:
                found[key] = cached.row
            else:
                missing.setdefault(key[0], []).append(key[1])
        for table, row_ids in missing.items():
            absent = dict.fromkeys(row_ids)
            for row_id, number, *stored in bulk.search(self._sql, _GET, (gateway, table), row_ids):
                absent.pop(row_id, None)
                row = _read(*stored)
                if row is not None:
                    size = sum(len(value) for value in stored if value is not None)
                    self._cache.put(gateway, CachedRow(row, number, size))
                    found[row.key] = row
            self._note_absent([(gateway, (table, row_id)) for row_id in absent])
        return found

    def _note_absent(self, gateway_keys: Collection[tuple[str, RowKey]]) -> None:
        """Remember keys, each with its gateway, that are not in the file; a full memory is cleared first."""
        if len(self._absent) + len(gateway_keys) > _MAX_ABSENT:
            self._absent.clear()
        self._absent.update(gateway_keys)

    def scan(self, gateway: str, after: RowKey | None, limit: int) -> list[StoredRow]:
        """Return rows in key order.

        Args:
            gateway: the gateway's id.
            after: the row key after which to continue; None for the first rows.
            limit: the most rows to return.
        """
        rows = self._sql.execute(_SCAN, (gateway, *(after or ("", "")), limit)).fetchall()
        return [row for stored in rows if (row := _read(*stored)) is not None]

    def put(self, gateway: str, rows: Sequence[StoredRow]) -> list[int]:
        """Write rows to the file.

        Args:
            gateway: the gateway's id.
            rows: the rows; each row key occurs once. The cache keeps the objects, so they must not be changed later.

        Returns:
            The rows' numbers, in order.
        """
        gateway_keys = [(gateway, row.key) for row in rows]
        existing = self.numbers(gateway, [each[1] for each in gateway_keys if each not in self._absent])
        numbers: list[int] = []
        row_states: list[object] = []  # values of table `row_state`, row after row
        bodies = []
        for row in rows:
            number = existing.get(row.key)
            live = row.fold().state.live  # `fold` merges pending deltas; `live` has those whose values the row has
            insert_position = None
            if number is None:
                number = self._numbers.new(gateway, row.keys)
                # only for a new number: an older one may have a row in `row_body`, which `_read` would prefer
                insert_position = _encode((row.arrival, row.keys)) if _is_one_insert(row, live) else None
            numbers.append(number)
            row_states += (number, gateway, row.table, row.row_id, *encode_full_row(row, live), insert_position)
            if insert_position is None:
                body = encode_row(row, live)
                bodies.append((number, body))
                self._cache.put(gateway, CachedRow(row, number, len(body)))
        bulk.insert_flat(self._sql, _ROW_STATE, _ROW_STATE_COLUMNS, row_states, _UPDATE_ROW_STATE)
        bulk.insert(self._sql, "row_body", bodies, _UPDATE_ROW_BODY)
        self._absent.difference_update(gateway_keys)
        return numbers

    def numbers(self, gateway: str, keys: Iterable[RowKey]) -> dict[RowKey, int]:
        """Return the numbers of those rows that have one.

        Args:
            gateway: the gateway's id.
            keys: the rows' keys.
        """
        found: dict[RowKey, int] = {}
        missing = []
        for key in keys:
            cached = self._cache.get(gateway, key)
            if cached is not None:
                found[key] = cached.number
            else:
                missing.append(key)
        return found | self._numbers.find(gateway, missing) if missing else found

    def make_numbers(
        self, gateway: str, keys: Mapping[RowKey, None], bucket_keys: Callable[[RowKey], Sequence[str]]
    ) -> dict[RowKey, int]:
        """Return the numbers of rows; create those that are missing.

        Args:
            gateway: the gateway's id.
            keys: the rows' keys, in the order in which new numbers are given.
            bucket_keys: returns the bucket keys of a row, given its key.
        """
        numbers = self.numbers(gateway, keys)
        if len(numbers) < len(keys):
            new = {key: self._numbers.new(gateway, bucket_keys(key)) for key in keys if key not in numbers}
            self._absent.difference_update([(gateway, key) for key in new])
            rows = [(number, gateway, *key) for key, number in new.items()]
            bulk.insert(self._sql, "row_state (number, gateway, table_name, row_id)", rows)
            numbers |= new
        return numbers


def _is_one_insert(row: StoredRow, live: Sequence[LiveDelta]) -> bool:
    """Return whether a row consists of one INSERT, so that the INSERT and its arrival contain everything.

    Args:
        row: the row.
        live: `row.state.live`.
    """
    if len(live) != 1 or not live[0].whole or row.state.inserted != live[0].stamp or row.state.tombstone is not None:
        return False
    only_writer = {live[0].client_id: Writer(row.arrival, row.arrival)}
    if row.writers_floor or row.no_update_before or row.writers != only_writer:
        return False
    return all(cell.at == row.arrival for cell in row.state.cells.values())


def _read(body: bytes | None, insert_position: bytes | None, encoded: bytes | None) -> StoredRow | None:
    """Decode a row of the file.

    Args:
        body: the row with its merge state; None if it is not stored so.
        insert_position: arrival and bucket keys of a row that consists of one INSERT (column `born`); None for any
            other row.
        encoded: that INSERT, as it is sent; None for any other row.

    Returns:
        The row; None if the file has only its number.
    """
    if body is not None:
        return decode_row(body)
    if insert_position is None or encoded is None:
        return None
    arrival, bucket_keys = _decode_insert_position(insert_position)
    (delta,) = decode_deltas(b"[%b]" % encoded)
    return StoredRow.of_insert((intern(delta.table), delta.row_id), delta, delta.client_id, arrival, bucket_keys)

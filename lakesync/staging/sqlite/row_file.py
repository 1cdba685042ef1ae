"""Rows in `state.db`: as they are sent, where the feed finds them by number, and apart from that as they are kept.

A row that the feed knows of and the file does not hold yet has its number alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from lakesync.staging.records import StoredRow
from lakesync.staging.sqlite import bulk
from lakesync.staging.sqlite.numbers import Numbers
from lakesync.staging.sqlite.rowcache import Held, RowCache
from lakesync.staging.whole import spelled_of
from lakesync.types import RowKey

_CACHED_BYTES = 16 << 20
"""What is held of decoded rows, by their size in the file; in memory they take several times as much."""
_SENT = "row_state (number, gateway, table_name, row_id, spelled, deltas, writers, writers_floor)"
_PUT_SENT = (
    "ON CONFLICT (number) DO UPDATE SET spelled = excluded.spelled, deltas = excluded.deltas,"
    " writers = excluded.writers, writers_floor = excluded.writers_floor"
)
_PUT_KEPT = "ON CONFLICT (number) DO UPDATE SET body = excluded.body"
_GET = (
    "SELECT number, body FROM row_state CROSS JOIN row_body USING (number)"
    " WHERE gateway = ? AND table_name = ? AND row_id IN ({})"
)
_SCAN = (
    "SELECT body FROM row_state CROSS JOIN row_body USING (number)"
    " WHERE gateway = ? AND (table_name, row_id) > (?, ?) ORDER BY table_name, row_id LIMIT ?"
)
_decode = msgspec.json.Decoder(StoredRow).decode
_encode = msgspec.json.Encoder().encode


class RowFile:
    """Reads and writes rows of the file. All methods belong to the owner thread."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self._sql = sql
        self._numbers = Numbers(sql)
        self._cache = RowCache(_CACHED_BYTES)

    def forget(self) -> None:
        """What is remembered may not be what the file holds."""
        self._cache.clear()

    def get(self, gateway: str, keys: Iterable[RowKey]) -> dict[RowKey, StoredRow]:
        """The rows among `keys`, not to be changed."""
        found: dict[RowKey, StoredRow] = {}
        missing: dict[str, list[str]] = {}
        for key in keys:
            held = self._cache.get(gateway, key)
            if held is not None:
                found[key] = held.row
            else:
                missing.setdefault(key[0], []).append(key[1])
        for table, row_ids in missing.items():
            for number, body in bulk.search(self._sql, _GET, (gateway, table), row_ids):
                row = _decode(body)
                self._cache.put(gateway, Held(row, number, len(body)))
                found[row.key] = row
        return found

    def scan(self, gateway: str, after: RowKey | None, limit: int) -> list[StoredRow]:
        """Rows in key order, after a key."""
        rows = self._sql.execute(_SCAN, (gateway, *(after or ("", "")), limit)).fetchall()
        return [_decode(body) for (body,) in rows]

    def put(self, gateway: str, rows: Sequence[StoredRow]) -> None:
        """Write rows, which must not be changed afterwards."""
        keys = [(row.table, row.row_id) for row in rows]
        numbers = self.numbers(gateway, keys)
        sent, kept = [], []
        for key, row in zip(keys, rows, strict=True):
            number = numbers.get(key)
            if number is None:
                number = self._numbers.new(gateway, row.keys)
            body = _encode(row)
            sent.append((number, gateway, *key, *spelled_of(row)))
            kept.append((number, body))
            self._cache.put(gateway, Held(row, number, len(body)))
        bulk.insert(self._sql, _SENT, sent, _PUT_SENT)
        bulk.insert(self._sql, "row_body", kept, _PUT_KEPT)

    def numbers(self, gateway: str, keys: Iterable[RowKey]) -> dict[RowKey, int]:
        """The numbers of those rows that have one."""
        found: dict[RowKey, int] = {}
        missing = []
        for key in keys:
            held = self._cache.get(gateway, key)
            if held is not None:
                found[key] = held.number
            else:
                missing.append(key)
        return found | self._numbers.find(gateway, missing) if missing else found

    def make_numbers(
        self, gateway: str, keys: Collection[RowKey], seen_under: Callable[[RowKey], Sequence[str]]
    ) -> dict[RowKey, int]:
        """The numbers of rows; those that are not in the file yet are given one.

        Args:
            seen_under: the bucket keys of a row.
        """
        found = self.numbers(gateway, keys)
        if len(found) < len(keys):
            new = {key: self._numbers.new(gateway, seen_under(key)) for key in keys if key not in found}
            rows = [(number, gateway, *key) for key, number in new.items()]
            bulk.insert(self._sql, "row_state (number, gateway, table_name, row_id)", rows)
            found |= new
        return found

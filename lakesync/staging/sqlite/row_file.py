"""Rows in `state.db`, in two forms: encoded as they are sent, for the feed, and with their merge state.

A row that consists of one INSERT is stored in the first form only, because that contains everything. A row that has
feed entries but was not written yet has only its number.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from lakesync.model.merge import LiveDelta, RowState
from lakesync.model.types import RowKey
from lakesync.staging.records import StoredRow, Writer, decode_row, encode_row
from lakesync.staging.sqlite import bulk
from lakesync.staging.sqlite.numbers import Numbers
from lakesync.staging.sqlite.rowcache import Held, RowCache
from lakesync.staging.whole import spelled_of
from lakesync.wire.json import decode_deltas

_CACHED_BYTES = 16 << 20
"""Size of cached rows, as stored; decoded they take several times as much memory."""
_SENT = "row_state (number, gateway, table_name, row_id, spelled, deltas, writers, writers_floor, born)"
_WIDE = 9
"""Number of columns of `_SENT`."""
_PUT_SENT = (
    "ON CONFLICT (number) DO UPDATE SET spelled = excluded.spelled, deltas = excluded.deltas,"
    " writers = excluded.writers, writers_floor = excluded.writers_floor, born = excluded.born"
)
_PUT_KEPT = "ON CONFLICT (number) DO UPDATE SET body = excluded.body"
_KEPT = "body, born, iif(born IS NULL, NULL, spelled) FROM row_state LEFT JOIN row_body USING (number)"
_GET = f"SELECT row_id, number, {_KEPT} WHERE gateway = ? AND table_name = ? AND row_id IN ({{}})"
_SCAN = (
    f"SELECT {_KEPT} WHERE gateway = ? AND (table_name, row_id) > (?, ?) AND (body IS NOT NULL OR born IS NOT NULL)"
    " ORDER BY table_name, row_id LIMIT ?"
)
_ABSENT_KEPT = 50_000
_decode_born = msgspec.json.Decoder(tuple[int, tuple[str, ...]]).decode
_encode = msgspec.json.Encoder().encode


class RowFile:
    """Reads and writes rows of the file. All methods belong to the owner thread."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self._sql = sql
        self._numbers = Numbers(sql)
        self._cache = RowCache(_CACHED_BYTES)
        self._absent: set[tuple[str, RowKey]] = set()
        """Keys that were searched and are not in the file, so new rows are not searched again."""

    def forget(self) -> None:
        """Clear the cache after a rollback. Absent keys stay known."""
        self._cache.clear()

    def get(self, gateway: str, keys: Iterable[RowKey]) -> dict[RowKey, StoredRow]:
        """Return the rows among `keys`; they must not be changed."""
        found: dict[RowKey, StoredRow] = {}
        missing: dict[str, list[str]] = {}
        for key in keys:
            held = self._cache.get(gateway, key)
            if held is not None:
                found[key] = held.row
            else:
                missing.setdefault(key[0], []).append(key[1])
        for table, row_ids in missing.items():
            absent = dict.fromkeys(row_ids)
            for row_id, number, *kept in bulk.search(self._sql, _GET, (gateway, table), row_ids):
                absent.pop(row_id, None)
                row = _read(*kept)
                if row is not None:
                    self._cache.put(gateway, Held(row, number, sum(len(part) for part in kept if part is not None)))
                    found[row.key] = row
            self._note_absent([(gateway, (table, row_id)) for row_id in absent])
        return found

    def _note_absent(self, places: Collection[tuple[str, RowKey]]) -> None:
        if len(self._absent) + len(places) > _ABSENT_KEPT:
            self._absent.clear()
        self._absent.update(places)

    def scan(self, gateway: str, after: RowKey | None, limit: int) -> list[StoredRow]:
        """Return rows in key order, after a key."""
        rows = self._sql.execute(_SCAN, (gateway, *(after or ("", "")), limit)).fetchall()
        return [row for kept in rows if (row := _read(*kept)) is not None]

    def put(self, gateway: str, rows: Sequence[StoredRow]) -> list[int]:
        """Write rows, each key once, and return their numbers; the rows must not be changed afterwards."""
        places = [(gateway, row.key) for row in rows]
        known = self.numbers(gateway, [place[1] for place in places if place not in self._absent])
        numbers: list[int] = []
        sent: list[object] = []
        kept = []
        for row in rows:
            number, live, born = known.get(row.key), row.fold().state.live, None
            if number is None:
                number = self._numbers.new(gateway, row.keys)
                born = _encode((row.arrival, row.keys)) if _is_its_insert(row, live) else None
            numbers.append(number)
            sent += (number, gateway, row.table, row.row_id, *spelled_of(row, live), born)
            if born is None:
                body = encode_row(row, live)
                kept.append((number, body))
                self._cache.put(gateway, Held(row, number, len(body)))
        bulk.insert_flat(self._sql, _SENT, _WIDE, sent, _PUT_SENT)
        bulk.insert(self._sql, "row_body", kept, _PUT_KEPT)
        self._absent.difference_update(places)
        return numbers

    def numbers(self, gateway: str, keys: Iterable[RowKey]) -> dict[RowKey, int]:
        """Return the numbers of those rows that have one."""
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
        self, gateway: str, keys: Mapping[RowKey, None], seen_under: Callable[[RowKey], Sequence[str]]
    ) -> dict[RowKey, int]:
        """Return the numbers of rows; create those that are missing.

        Args:
            gateway: its id.
            keys: of the rows.
            seen_under: returns the bucket keys of a row.
        """
        found = self.numbers(gateway, keys)
        if len(found) < len(keys):
            new = {key: self._numbers.new(gateway, seen_under(key)) for key in keys if key not in found}
            self._absent.difference_update([(gateway, key) for key in new])
            rows = [(number, gateway, *key) for key, number in new.items()]
            bulk.insert(self._sql, "row_state (number, gateway, table_name, row_id)", rows)
            found |= new
        return found


def _is_its_insert(row: StoredRow, live: Sequence[LiveDelta]) -> bool:
    """Return whether a row consists of one INSERT, so that the INSERT and its arrival contain everything."""
    if len(live) != 1 or not live[0].whole or row.state.inserted != live[0].stamp or row.state.tombstone is not None:
        return False
    if row.writers_floor or row.emptied or row.writers != {live[0].client_id: Writer(row.arrival, row.arrival)}:
        return False
    return all(cell.at == row.arrival for cell in row.state.cells.values())


def _read(body: bytes | None, born: bytes | None, spelled: bytes | None) -> StoredRow | None:
    """Decode a row of the file; None if it has only a number."""
    if body is not None:
        return decode_row(body)
    if born is None or spelled is None:
        return None
    at, keys = _decode_born(born)
    (delta,) = decode_deltas(b"[%b]" % spelled)
    state = RowState.of_insert(delta, at)
    return StoredRow(delta.table, delta.row_id, at, state, {delta.client_id: Writer(at, at)}, keys=keys)

"""What is kept of a settled row: the stamps of its columns, without its values, in few bytes.

Nearly all rows consist of one delta or two. Of such a row a record of 16 or 28 bytes is kept: the number of a layout,
which says how the columns are shared out, then each delta's hlc and the number of its client, oldest first. Any other
row's record is JSON text.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import repeat
from operator import gt
from struct import Struct, unpack
from typing import NamedTuple, cast

import msgspec

from lakesync.model.merge import RowState
from lakesync.model.types import Stamp

Record = bytearray | bytes | str
"""Made as a bytearray, which sqlite3 takes in a fraction of the time of bytes."""

_TABLE = "CREATE TABLE IF NOT EXISTS _lakesync_names (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)"
_ONE, _TWO = Struct("<IQI"), Struct("<IQIQI")
_NONE = -1
_AT_ONCE = 500
_encode = msgspec.json.Encoder().encode


class Layout(NamedTuple):
    """How a row's columns are shared out among the deltas that it consists of."""

    parts: tuple[tuple[str, ...], ...]
    """The columns of each, oldest first."""
    inserted: int = 0
    """Which of them is the row's INSERT; below 0 where none is."""


class Stamps(msgspec.Struct, array_like=True):
    """A row's state without its values."""

    parts: list[tuple[int, str, tuple[str, ...]]]
    tombstone: Stamp | None
    inserted: Stamp | None


_decode_layout = msgspec.json.Decoder(Layout).decode
_decode_stamps = msgspec.json.Decoder(Stamps).decode


def known_of(table: str) -> str:
    """Where records are kept of the rows of a table that has a schema, by row id alone: the smallest tree there is."""
    return f'"_lakesync_known_{table}"'


def stamps_of(state: RowState) -> Stamps:
    """A state's stamps."""
    parts = [(part.hlc, part.client_id, tuple(part.columns)) for part in state.live]
    return Stamps(parts, state.tombstone, state.inserted)


class Names:
    """The numbers of client ids and layouts, in the database; none is ever given up."""

    def __init__(self, db: sqlite3.Connection, transaction: Callable[[], AbstractContextManager[None]]) -> None:
        """Args: transaction: makes what happens inside one, or part of the one that is open."""
        self._db = db
        self._transaction = transaction
        self._numbers: dict[str, int] = {}
        self._layouts: dict[int, Layout] = {}
        self._clients: dict[int, str] = {}
        self._after: dict[tuple[int, tuple[str, ...]], tuple[int, tuple[int, ...]]] = {}

    def make(self) -> None:
        """Create what they are kept in."""
        self._db.execute(_TABLE)

    def forget(self) -> None:
        """Look numbers up anew: a transaction was undone in which some may have been made."""
        for known in (self._numbers, self._layouts, self._clients, self._after):
            known.clear()

    def lacks(self, layout: Layout, clients: Iterable[str]) -> bool:
        """Whether a number would have to be looked up."""
        known = self._numbers
        return _spelled(layout) not in known or not all(f"={client}" in known for client in set(clients))

    def records(self, layout: Layout, hlcs: Sequence[int], clients: Sequence[str]) -> list[Record]:
        """The records of rows of one layout: the stamps of the first row's parts, of the second's, and so on."""
        count = len(layout.parts)
        if count not in (1, 2):
            stamps = list(zip(hlcs, clients, strict=True))
            return [_text(layout, stamps[place : place + count]) for place in range(0, len(stamps), count)]
        number = self._number(_spelled(layout))
        who = {client: self._number(f"={client}") for client in set(clients)}
        numbers = [who[client] for client in clients]
        if count == 1:
            return list(map(bytearray, map(_ONE.pack, repeat(number), hlcs, numbers)))
        packed = map(_TWO.pack, repeat(number), hlcs[::2], numbers[::2], hlcs[1::2], numbers[1::2])
        return list(map(bytearray, packed))

    def record(self, stamps: Stamps) -> Record:
        """One row's record."""
        parts = [(stamp[:2], stamp[2]) for stamp in stamps.parts]
        inserted = _NONE
        if stamps.inserted is not None:
            if all(stamp != stamps.inserted for stamp, _ in parts):
                parts = sorted([*parts, (stamps.inserted, ())], key=lambda part: part[0])
            inserted = [stamp for stamp, _ in parts].index(stamps.inserted)
        if stamps.tombstone is not None or not 0 < len(parts) <= 2:
            return _encode(stamps).decode()
        layout = Layout(tuple(columns for _, columns in parts), inserted)
        return self.records(layout, [hlc for (hlc, _), _ in parts], [client for (_, client), _ in parts])[0]

    def stamps(self, record: Record) -> Stamps:
        """What a record holds."""
        if isinstance(record, str):
            return _decode_stamps(record)
        number, *numbers = _struct(record).unpack(record)
        layout = self._layout(number)
        stamped = [(hlc, self._client(client)) for hlc, client in zip(numbers[::2], numbers[1::2], strict=True)]
        parts = [(*stamp, names) for stamp, names in zip(stamped, layout.parts, strict=True) if names]
        return Stamps(parts, None, stamped[layout.inserted] if layout.inserted >= 0 else None)

    def overwritten(self, record: Record, hlc: int, client: str, columns: tuple[str, ...]) -> Record | None:
        """The record of a row after an UPDATE of these columns; None where it is not newer than all of the row."""
        if isinstance(record, str):
            return self._overwritten(record, hlc, client, columns)
        number, *old = _struct(record).unpack(record)
        newest = old[-2]
        if hlc < newest or (hlc == newest and client <= self._client(old[-1])):
            return None
        after = self._after.get((number, columns)) or self._changed(number, columns)
        number, kept = after
        if len(kept) == 1:
            place = kept[0] * 2
            return bytearray(_TWO.pack(number, old[place], old[place + 1], hlc, self._number(f"={client}")))
        if kept:
            return self._overwritten(record, hlc, client, columns)
        return bytearray(_ONE.pack(number, hlc, self._number(f"={client}")))

    def overwritten_all(
        self, records: Sequence[Record], hlcs: Sequence[int], clients: Sequence[str], columns: tuple[str, ...]
    ) -> Sequence[Record | None]:
        """The same for rows whose records begin alike."""
        if isinstance(records[0], str):
            return self._each_overwritten(records, hlcs, clients, columns)
        first, *stamps = _fields(cast("Sequence[bytes]", records))
        number, kept = self._after.get((first[0], columns)) or self._changed(first[0], columns)
        if len(kept) > 1 or not all(map(gt, hlcs, stamps[-2])):
            return self._each_overwritten(records, hlcs, clients, columns)
        who = {client: self._number(f"={client}") for client in set(clients)}
        by = [who[client] for client in clients]
        left = stamps[kept[0] * 2 : kept[0] * 2 + 2] if kept else ()
        pack = _TWO.pack if kept else _ONE.pack
        return list(map(bytearray, map(pack, repeat(number), *left, hlcs, by)))

    def _each_overwritten(
        self, records: Sequence[Record], hlcs: Sequence[int], clients: Sequence[str], columns: tuple[str, ...]
    ) -> Sequence[Record | None]:
        told = zip(records, hlcs, clients, strict=True)
        return [self.overwritten(record, hlc, client, columns) for record, hlc, client in told]

    def _overwritten(self, record: Record, hlc: int, client: str, columns: tuple[str, ...]) -> Record | None:
        stamps = self.stamps(record)
        newest = stamps.parts[-1][:2] if stamps.parts else (0, "")
        if stamps.tombstone is not None or (hlc, client) <= newest:
            return None
        left = [(*part[:2], tuple(name for name in part[2] if name not in columns)) for part in stamps.parts]
        return self.record(Stamps([*[part for part in left if part[2]], (hlc, client, columns)], None, stamps.inserted))

    def _changed(self, number: int, columns: tuple[str, ...]) -> tuple[int, tuple[int, ...]]:
        """The layout of a row after a newer UPDATE of these columns, and which of its parts are left."""
        parts, inserted = self._layout(number)
        left = [tuple(name for name in part if name not in columns) for part in parts]
        kept = tuple(place for place, part in enumerate(left) if part or place == inserted)
        layout = Layout((*(left[place] for place in kept), columns), kept.index(inserted) if inserted >= 0 else _NONE)
        found = self._after[number, columns] = (self._number(_spelled(layout)) if len(kept) < 2 else 0, kept)
        return found

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self._find(name)
        return number

    def _find(self, name: str) -> int:
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO _lakesync_names (name) VALUES (?)", (name,))
            return int(self._db.execute("SELECT number FROM _lakesync_names WHERE name = ?", (name,)).fetchone()[0])

    def _layout(self, number: int) -> Layout:
        layout = self._layouts.get(number)
        if layout is None:
            layout = self._layouts[number] = _decode_layout(self._name(number))
        return layout

    def _client(self, number: int) -> str:
        client = self._clients.get(number)
        if client is None:
            client = self._clients[number] = self._name(number)[1:]
        return client

    def _name(self, number: int) -> str:
        return str(self._db.execute("SELECT name FROM _lakesync_names WHERE number = ?", (number,)).fetchone()[0])


def _struct(record: bytes | bytearray) -> Struct:
    return _ONE if len(record) == _ONE.size else _TWO


def _fields(records: Sequence[bytes]) -> list[list[int]]:
    """The numbers of records of one length, by place: of all the first, of all the second, and so on.

    Some records are taken apart at once, so that no object is made of a record.
    """
    one = _struct(records[0]).format
    width = len(one) - 1
    found: list[list[int]] = [[] for _ in range(width)]
    for start in range(0, len(records), _AT_ONCE):
        some = records[start : start + _AT_ONCE]
        numbers = unpack("<" + one[1:] * len(some), b"".join(some))
        for place in range(width):
            found[place] += numbers[place::width]
    return found


def _spelled(layout: Layout) -> str:
    return _encode(layout).decode()


def _text(layout: Layout, stamped: Sequence[Stamp]) -> str:
    parts = [(*stamp, names) for stamp, names in zip(stamped, layout.parts, strict=True) if names]
    return _encode(Stamps(parts, None, stamped[layout.inserted])).decode()

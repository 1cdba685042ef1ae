"""Compact records of a row's stamps: which delta last wrote each column.

A delta is a change of some columns of one row. Its *stamp* is its hlc (hybrid logical clock) and the id of the client
that wrote it; in a merge, the greater stamp wins. A client keeps the stamps of each row, to merge later deltas.
`row_storage` and the modules that write pages in bulk store a record for each row without edits (changes that were not
acknowledged), whose values are in the app's table.

Nearly all rows consist of one or two deltas. Such a row has a binary record of 16 or 28 bytes: the number of a
*layout*, which says which delta wrote which columns; then each delta's hlc and the number of its client, oldest first.
The record of any other row is JSON text. The table `_lakesync_names` has the numbers of layouts and client ids.
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
"""A row's record: binary, or JSON text. New binary records are bytearrays, because sqlite3 binds these in a fraction of
the time that it takes for bytes."""

_TABLE = "CREATE TABLE IF NOT EXISTS _lakesync_names (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)"
"""Creates the table of numbers."""
_ONE_DELTA, _TWO_DELTAS = Struct("<IQI"), Struct("<IQIQI")
"""Binary records: the layout's number, then the hlc and client number of each delta."""
_NOT_INSERTED = -1
"""`Layout.inserted` of a row whose INSERT is unknown."""
_UNPACKED_TOGETHER = 500
"""Records unpacked by one call."""
_encode = msgspec.json.Encoder().encode


class Layout(NamedTuple):
    """Which delta of a row wrote which columns."""

    parts: tuple[tuple[str, ...], ...]
    """The columns whose newest value each delta wrote, oldest delta first."""
    inserted: int = 0
    """The index of the row's INSERT in `parts`; -1 if it is unknown."""


class Stamps(msgspec.Struct, array_like=True):
    """A row's state without its values."""

    parts: list[tuple[int, str, tuple[str, ...]]]
    """The hlc, client id and columns of each delta, oldest first."""
    tombstone: Stamp | None
    """The stamp of the newest DELETE; None if the row was never deleted."""
    inserted: Stamp | None
    """The stamp of the newest INSERT; None if it is unknown."""


_decode_layout = msgspec.json.Decoder(Layout).decode
_decode_stamps = msgspec.json.Decoder(Stamps).decode


def known_table(table: str) -> str:
    """Return the quoted name of the table with the records of a synced table's rows."""
    return f'"_lakesync_known_{table}"'


def stamps_of(state: RowState) -> Stamps:
    """Return the stamps of a row state."""
    parts = [(part.hlc, part.client_id, tuple(part.columns)) for part in state.live]
    return Stamps(parts, state.tombstone, state.inserted)


class StampCodec:
    """Encodes and decodes records. It numbers layouts and client ids in the database; no number is ever reused."""

    def __init__(self, db: sqlite3.Connection, transaction: Callable[[], AbstractContextManager[None]]) -> None:
        """Create a codec with an empty cache.

        Args:
            db: the app's database.
            transaction: opens a transaction, or joins the open one.
        """
        self._db = db
        self._transaction = transaction
        self._numbers: dict[str, int] = {}
        """Cached numbers by name: a layout's JSON, or `=` and a client id."""
        self._layouts: dict[int, Layout] = {}
        """Cached layouts by number."""
        self._clients: dict[int, str] = {}
        """Cached client ids by number."""
        self._updated_layouts: dict[tuple[int, tuple[str, ...]], tuple[int, tuple[int, ...]]] = {}
        """Cached results of `_layout_after`."""

    def create_table(self) -> None:
        """Create the table of numbers."""
        self._db.execute(_TABLE)

    def clear_cache(self) -> None:
        """Forget all numbers in memory: a transaction was rolled back that may have created some."""
        for cache in (self._numbers, self._layouts, self._clients, self._updated_layouts):
            cache.clear()

    def needs_new_numbers(self, layout: Layout, clients: Iterable[str]) -> bool:
        """Return whether encoding rows would write new numbers of layouts or clients to the database.

        Args:
            layout: the rows' layout.
            clients: the client ids of their deltas.
        """
        cached = self._numbers
        return _layout_name(layout) not in cached or not all(f"={client}" in cached for client in set(clients))

    def encode_rows(self, layout: Layout, hlcs: Sequence[int], clients: Sequence[str]) -> list[Record]:
        """Return the records of rows that have the same layout.

        Args:
            layout: the layout of every row.
            hlcs: the hlcs of the first row's deltas, then of the second's, and so on.
            clients: the client ids of the same deltas.
        """
        count = len(layout.parts)
        if count not in (1, 2):
            stamps = list(zip(hlcs, clients, strict=True))
            return [_text_record(layout, stamps[start : start + count]) for start in range(0, len(stamps), count)]
        number = self._number(_layout_name(layout))
        numbers = self._client_numbers(clients)
        if count == 1:
            return list(map(bytearray, map(_ONE_DELTA.pack, repeat(number), hlcs, numbers)))
        packed = map(_TWO_DELTAS.pack, repeat(number), hlcs[::2], numbers[::2], hlcs[1::2], numbers[1::2])
        return list(map(bytearray, packed))

    def encode(self, stamps: Stamps) -> Record:
        """Return the record of one row."""
        parts = [((hlc, client), columns) for hlc, client, columns in stamps.parts]
        inserted = _NOT_INSERTED
        if stamps.inserted is not None:
            if all(stamp != stamps.inserted for stamp, _ in parts):  # all columns of the INSERT were overwritten
                parts = sorted([*parts, (stamps.inserted, ())], key=lambda part: part[0])
            inserted = [stamp for stamp, _ in parts].index(stamps.inserted)
        if stamps.tombstone is not None or not 0 < len(parts) <= 2:
            return _encode(stamps).decode()
        layout = Layout(tuple(columns for _, columns in parts), inserted)
        return self.encode_rows(layout, [hlc for (hlc, _), _ in parts], [client for (_, client), _ in parts])[0]

    def decode(self, record: Record) -> Stamps:
        """Return the stamps in a record."""
        if isinstance(record, str):
            return _decode_stamps(record)
        number, *numbers = _struct_of(record).unpack(record)
        layout = self._layout(number)
        stamps = [(hlc, self._client(client)) for hlc, client in zip(numbers[::2], numbers[1::2], strict=True)]
        parts = [(*stamp, names) for stamp, names in zip(stamps, layout.parts, strict=True) if names]
        return Stamps(parts, None, stamps[layout.inserted] if layout.inserted >= 0 else None)

    def after_updates(
        self, records: Sequence[Record], hlcs: Sequence[int], clients: Sequence[str], columns: tuple[str, ...]
    ) -> list[Record | None]:
        """Return the records of rows after an UPDATE of each.

        Updates of the same columns change all rows of one layout alike: the new layout, and which deltas still own a
        column, are found once. Then each binary record is made from the stamps that are kept and the update's.

        Args:
            records: the records before the updates; all binary with the same layout, or all text.
            hlcs: the updates' hlcs.
            clients: the ids of the clients that made the updates.
            columns: the columns that every update writes.

        Returns:
            The new records; None for an update that is not newer than every delta of its row, which must be merged.
        """
        updates = zip(records, hlcs, clients, strict=True)
        if isinstance(records[0], str):
            return [self._after_update_decoded(*update, columns) for update in updates]
        # each a list over the rows: the layout's number, then each delta's hlc and client number in turn
        layouts, *stamps = _unpack_columns(cast("Sequence[bytes]", records))
        number, kept_indexes = self._layout_after(layouts[0], columns)
        if len(kept_indexes) > 1:  # two, and the update: too many for a binary record
            return [self._after_update_decoded(*update, columns) for update in updates]
        kept_stamps = stamps[kept_indexes[0] * 2 : kept_indexes[0] * 2 + 2] if kept_indexes else ()
        pack = _TWO_DELTAS.pack if kept_indexes else _ONE_DELTA.pack
        updated = map(bytearray, map(pack, repeat(number), *kept_stamps, hlcs, self._client_numbers(clients)))
        newest_hlcs, newest_clients = stamps[-2:]
        if all(map(gt, hlcs, newest_hlcs)):
            return list(updated)
        newest = zip(newest_hlcs, map(self._client, newest_clients), strict=True)
        are_newer = map(gt, zip(hlcs, clients, strict=True), newest)
        return [record if is_newer else None for record, is_newer in zip(updated, are_newer, strict=True)]

    def _after_update_decoded(self, record: Record, hlc: int, client: str, columns: tuple[str, ...]) -> Record | None:
        """Do the same as `after_updates`, for one row, by decoding its record."""
        stamps = self.decode(record)
        newest = stamps.parts[-1][:2] if stamps.parts else (0, "")
        if stamps.tombstone is not None or (hlc, client) <= newest:
            return None
        remaining = [(*part[:2], _remaining_columns(part[2], columns)) for part in stamps.parts]
        parts = [*[part for part in remaining if part[2]], (hlc, client, columns)]
        return self.encode(Stamps(parts, None, stamps.inserted))

    def _layout_after(self, number: int, columns: tuple[str, ...]) -> tuple[int, tuple[int, ...]]:
        """Return the number of a row's layout after a newer UPDATE of these columns, and the indexes of deltas to keep.

        A delta is kept if it still owns a column, or is the INSERT. The number is 0 if two or more are kept, because no
        binary record has three deltas.
        """
        cached = self._updated_layouts.get((number, columns))
        if cached is not None:
            return cached
        parts, inserted = self._layout(number)
        remaining = [_remaining_columns(part, columns) for part in parts]
        kept_indexes = tuple(index for index, part in enumerate(remaining) if part or index == inserted)
        insert_index = kept_indexes.index(inserted) if inserted >= 0 else _NOT_INSERTED
        layout = Layout((*(remaining[index] for index in kept_indexes), columns), insert_index)
        result = (self._number(_layout_name(layout)) if len(kept_indexes) < 2 else 0, kept_indexes)
        self._updated_layouts[number, columns] = result
        return result

    def _client_numbers(self, clients: Sequence[str]) -> list[int]:
        """Return the number of each client id, by which records refer to it."""
        numbers = {client: self._number(f"={client}") for client in set(clients)}
        return [numbers[client] for client in clients]

    def _number(self, name: str) -> int:
        """Return the number of a layout's or client's name; create it if it has none."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self._stored_number(name)
        return number

    def _stored_number(self, name: str) -> int:
        """Return the number of a client id or layout in the database; a new one gets the next number."""
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO _lakesync_names (name) VALUES (?)", (name,))
            return int(self._db.execute("SELECT number FROM _lakesync_names WHERE name = ?", (name,)).fetchone()[0])

    def _layout(self, number: int) -> Layout:
        """Return the layout that has a number."""
        layout = self._layouts.get(number)
        if layout is None:
            layout = self._layouts[number] = _decode_layout(self._name(number))
        return layout

    def _client(self, number: int) -> str:
        """Return the client id that has a number."""
        client = self._clients.get(number)
        if client is None:
            client = self._clients[number] = self._name(number)[1:]
        return client

    def _name(self, number: int) -> str:
        """Return the client id or layout that has a number."""
        return str(self._db.execute("SELECT name FROM _lakesync_names WHERE number = ?", (number,)).fetchone()[0])


def _remaining_columns(part: tuple[str, ...], columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return what a delta still owns after an UPDATE of these columns, in the order of `RowState.live`."""
    remaining = [name for name in part if name not in columns]
    return part if len(remaining) == len(part) else tuple(sorted(remaining))


def _struct_of(record: bytes | bytearray) -> Struct:
    """Return the format of a binary record, which its length shows."""
    return _ONE_DELTA if len(record) == _ONE_DELTA.size else _TWO_DELTAS


def _unpack_columns(records: Sequence[bytes]) -> list[list[int]]:
    """Return the fields of records of one length, by field.

    Many records are unpacked by one call, so that no object is made for a record.
    """
    record_format = _struct_of(records[0]).format  # begins with `<`, the byte order
    width = len(record_format) - 1
    fields: list[list[int]] = [[] for _ in range(width)]
    for start in range(0, len(records), _UNPACKED_TOGETHER):
        chunk = records[start : start + _UNPACKED_TOGETHER]
        numbers = unpack("<" + record_format[1:] * len(chunk), b"".join(chunk))
        for index in range(width):
            fields[index] += numbers[index::width]
    return fields


def _layout_name(layout: Layout) -> str:
    """Return the name under which a layout gets a number: its JSON."""
    return _encode(layout).decode()


def _text_record(layout: Layout, stamps: Sequence[Stamp]) -> str:
    """Return the JSON record of a row that has too many deltas for a binary one."""
    parts = [(*stamp, names) for stamp, names in zip(stamps, layout.parts, strict=True) if names]
    return _encode(Stamps(parts, None, stamps[layout.inserted])).decode()

"""Many rows at once: settled rows, which have no edits, and whose values their table holds as they are.

Values are looked at by column, a statement takes many rows, and no object is made of a row. What does not fit goes the
way of `lakesync.client.core.pages`, row by row, with the same outcome.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from lakesync.client.stamps import Layout, Record
from lakesync.schema import ColumnType

T = TypeVar("T")
Value = bytes | memoryview | msgspec.Raw
Part = tuple[str, str, int, str, tuple[str, ...], Sequence[Any]]
"""A delta that makes a row or adds to it: table, row id, hlc, client id, its columns, and their values as JSON text."""
Types = Mapping[str, Mapping[str, ColumnType]]

_NOTHING = type(None)
_FITTING: dict[ColumnType, frozenset[type]] = {
    "string": frozenset({str, _NOTHING}),
    "number": frozenset({int, float, _NOTHING}),
    "boolean": frozenset({bool, _NOTHING}),
    "null": frozenset({_NOTHING}),
}
_LEAST, _MOST = -(2**63), 2**63 - 1024
"""Within them, a number is one that SQLite holds as it is."""
_decode = msgspec.json.Decoder().decode


class MisfitError(Exception):
    """A table has no schema, lacks a column, or a type does not hold a value: these rows go the other way."""


class Group:
    """Rows of one table, each of as many deltas, which have the same columns."""

    def __init__(self, table: str, parts: tuple[tuple[str, ...], ...]) -> None:
        self.table = table
        self.layout = Layout(parts)
        """The columns by delta, the INSERT first."""
        self.names = tuple([name for part in parts for name in part])
        self.row_ids: list[str] = []
        self.values: list[Any] = []
        """Of the first row, then of the second, and so on, in the order of `names`."""
        self.hlcs: list[int] = []
        self.clients: list[str] = []
        """Of each delta of each row."""

    def columns(self, types: Types) -> list[Sequence[Any]]:
        """The values by column, as SQLite takes them.

        Raises:
            MisfitError: a value is not of its column's type, or a column is named twice.
        """
        kinds, names = types.get(self.table), self.names
        if kinds is None or not all(name in kinds for name in names) or len(set(names)) < len(names):
            raise MisfitError
        return [_column(kinds[name], self.values[place :: len(names)]) for place, name in enumerate(names)]


class Groups:
    """New rows, grouped as they come; the parts of a row come one after another, its INSERT first."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, tuple[tuple[str, ...], ...]], Group] = {}

    def __iter__(self) -> Iterator[Group]:
        return (group for group in self._groups.values() if group.row_ids)

    @property
    def highest(self) -> int:
        """The highest hlc."""
        return max((max(group.hlcs) for group in self), default=0)

    def add(self, parts: Iterable[Part]) -> None:
        """Take rows in.

        Raises:
            MisfitError: the parts of a row do not stand in order of stamp.
        """
        group = Group("", ())
        last, newest = ("", ""), (0, "")
        for table, row_id, hlc, client_id, names, values in parts:
            stamp = (hlc, client_id)
            if row_id == last[1] and table == last[0]:
                if stamp <= newest:
                    raise MisfitError
                group = self._moved(group, names)
            else:
                last = (table, row_id)
                if (names,) != group.layout.parts or table != group.table:
                    group = self._group(table, (names,))
                group.row_ids.append(row_id)
            newest = stamp
            group.hlcs.append(hlc)
            group.clients.append(client_id)
            group.values += values

    def _moved(self, group: Group, names: tuple[str, ...]) -> Group:
        """Take the last row of a group to one of rows that have a further part; what it had is there already."""
        further = self._group(group.table, (*group.layout.parts, names))
        count = len(group.layout.parts)
        further.row_ids.append(group.row_ids.pop())
        further.hlcs += _taken(group.hlcs, count)
        further.clients += _taken(group.clients, count)
        further.values += _taken(group.values, len(group.names))
        return further

    def _group(self, table: str, parts: tuple[tuple[str, ...], ...]) -> Group:
        found = self._groups.get((table, parts))
        if found is None:
            found = self._groups[table, parts] = Group(table, parts)
        return found


def insert(
    db: sqlite3.Connection,
    group: Group,
    columns: Sequence[Sequence[Any]],
    records: Sequence[Record],
    generation: int,
) -> None:
    """Write rows that are not there, and what is known of them."""
    names = "".join(f', "{name}"' for name in group.names)
    marks = ", ?" * len(group.names)
    order = _order(group.row_ids)
    db.executemany(
        f'INSERT OR REPLACE INTO "{group.table}" (row_id{names}) VALUES (?{marks})',
        _in_order(order, group.row_ids, *columns),
    )
    db.executemany(
        "INSERT OR REPLACE INTO _lakesync_known (tbl, row_id, generation, stamps, whole) "
        f"VALUES ('{group.table}', ?, {generation}, ?, NULL)",
        _in_order(order, group.row_ids, records),
    )


def update(db: sqlite3.Connection, group: Group, columns: Sequence[Sequence[Any]], records: Sequence[Record]) -> None:
    """Change columns of rows that are there, and what is known of them."""
    table, row_ids = group.table, group.row_ids
    changes = ", ".join(f'"{name}" = ?' for name in group.names)
    order = _order(row_ids)
    db.executemany(f'UPDATE "{table}" SET {changes} WHERE row_id = ?', _in_order(order, *columns, row_ids))
    db.executemany(
        f"UPDATE _lakesync_known SET stamps = ? WHERE tbl = '{table}' AND row_id = ?",
        _in_order(order, records, row_ids),
    )


def _taken(values: list[T], count: int) -> list[T]:
    """The last values of a list, taken out of it."""
    start = len(values) - count
    taken = values[start:]
    del values[start:]
    return taken


def _order(row_ids: list[str]) -> list[int]:
    """In which rows are written: neighbours share pages of the file."""
    return sorted(range(len(row_ids)), key=row_ids.__getitem__)


def _in_order(order: list[int], *columns: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    return zip(*(map(column.__getitem__, order) for column in columns), strict=True)


def _column(kind: ColumnType, values: Sequence[Value]) -> Sequence[Any]:
    if kind == "json":
        return [None if (text := bytes(value).decode()) == "null" else text for value in values]
    joined = b",".join(values)
    try:
        found: list[Any] = _decode(b"[" + joined + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise MisfitError from None
    if len(found) != len(values) or not set(map(type, found)) <= _FITTING[kind]:
        raise MisfitError
    if kind == "number":
        numbers = [value for value in found if value is not None]
        if numbers and (min(numbers) < _LEAST or max(numbers) > _MOST):
            raise MisfitError
    if kind == "boolean":  # sqlite3 takes long over what is no int, float, str or bytearray
        return [None if value is None else int(value) for value in found]
    return found

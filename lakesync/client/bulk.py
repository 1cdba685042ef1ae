"""Many rows at once: settled rows, which have no edits, and whose values their table holds as they are.

Values are looked at by column, a statement takes many rows, and no object is made of a row. What does not fit goes the
way of `lakesync.client.core.pages`, row by row, with the same outcome.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from lakesync.schema import ColumnType
from lakesync.types import RowKey

Value = bytes | memoryview | msgspec.Raw
Part = tuple[str, str, int, str, tuple[str, ...], Sequence[Any]]
"""A delta that makes a row or adds to it: table, row id, hlc, client id, its columns, and their values as JSON text."""
Types = Mapping[str, Mapping[str, ColumnType]]

_KNOW = "INSERT OR REPLACE INTO _lakesync_known (tbl, row_id, generation, stamps, whole) VALUES (?, ?, ?, ?, NULL)"
_NOTHING = type(None)
_FITTING: dict[ColumnType, frozenset[type]] = {
    "string": frozenset({str, _NOTHING}),
    "number": frozenset({int, float, _NOTHING}),
    "boolean": frozenset({bool, _NOTHING}),
    "null": frozenset({_NOTHING}),
}
_SAFE_DIGITS = 18
"""Of an integer that has certainly no more than 64 bits."""
_decode = msgspec.json.Decoder().decode
_spelled = msgspec.json.Encoder().encode


class MisfitError(Exception):
    """A table has no schema, lacks a column, or a type does not hold a value: these rows go the other way."""


class Group:
    """Rows of one table with the same columns."""

    def __init__(self, table: str, names: tuple[str, ...]) -> None:
        self.table = table
        self.names = names
        self.row_ids: list[str] = []
        self.values: list[Sequence[Any]] = []
        self.stamps: list[str] = []
        """Of each row, what is kept of it: `SqliteRows`' stamps."""

    def columns(self, types: Types) -> list[Sequence[Any]]:
        """The values by column, as SQLite takes them.

        Raises:
            MisfitError: a value is not of its column's type.
        """
        kinds = types.get(self.table)
        if kinds is None or not all(name in kinds for name in self.names):
            raise MisfitError
        by_column = zip(*self.values, strict=True) if self.names else ()
        return [_column(kinds[name], values) for name, values in zip(self.names, by_column, strict=True)]


class Groups:
    """New rows, grouped as they come; the parts of a row come one after another, its INSERT first."""

    def __init__(self) -> None:
        self.highest = 0
        """The highest hlc."""
        self._groups: dict[tuple[str, tuple[str, ...]], Group] = {}
        self._texts: dict[str | tuple[str, ...], str] = {}

    def __iter__(self) -> Iterator[Group]:
        return (group for group in self._groups.values() if group.row_ids)

    def add(self, parts: Iterable[Part]) -> None:
        """Take rows in.

        Raises:
            MisfitError: two parts of a row have a column in common, or do not stand in order of stamp.
        """
        texts, spell = self._texts, self.spell
        group = Group("", ())
        last, live, inserted, newest = ("", ""), "", "", (0, "")
        highest = self.highest
        for table, row_id, hlc, client_id, columns, cells in parts:
            names, values = columns, cells
            highest = max(highest, hlc)
            stamp = f"{hlc},{texts.get(client_id) or spell(client_id)}"
            part = f"[{stamp},{texts.get(names) or spell(names)}]" if names else ""
            if (table, row_id) == last:  # a further part: the row has its columns too
                group.row_ids.pop()
                group.stamps.pop()
                live = f"{live},{part}" if live and part else live + part
                values = [*group.values.pop(), *values]
                names = group.names + names
                if len(set(names)) < len(names) or (hlc, client_id) <= newest:
                    raise MisfitError
            else:
                last, live, inserted = (table, row_id), part, f"[{stamp}]"
            newest = (hlc, client_id)
            if names != group.names or table != group.table:
                group = self._group(table, names)
            group.row_ids.append(row_id)
            group.values.append(values)
            group.stamps.append(f"[[{live}],null,{inserted}]")
        self.highest = highest

    def spell(self, what: str | tuple[str, ...]) -> str:
        """The JSON of a client id or of column names, remembered."""
        return self._texts.setdefault(what, _spelled(what).decode())

    def _group(self, table: str, names: tuple[str, ...]) -> Group:
        found = self._groups.get((table, names))
        if found is None:
            found = self._groups[table, names] = Group(table, names)
        return found


def insert(db: sqlite3.Connection, group: Group, columns: Sequence[Sequence[Any]], generation: int) -> None:
    """Write rows that are not there, and what is known of them."""
    names = "".join(f', "{name}"' for name in group.names)
    marks = ", ?" * len(group.names)
    db.executemany(
        f'INSERT OR REPLACE INTO "{group.table}" (row_id{names}) VALUES (?{marks})',
        sorted(zip(group.row_ids, *columns, strict=True)),  # neighbours share pages of the file
    )
    table = group.table
    kept = sorted(zip(group.row_ids, group.stamps, strict=True))
    db.executemany(_KNOW, [(table, row_id, generation, stamps.encode()) for row_id, stamps in kept])


def make_pile(db: sqlite3.Connection, table: str, columns: Iterable[str]) -> None:
    """Make a table for new rows in the order in which they come: nothing is looked for in it but all of it."""
    names = "".join(f', "{name}"' for name in columns)
    db.execute(f"CREATE TABLE {pile_of(table)} (row_id, stamps{names})")


def pile_of(table: str) -> str:
    """Where new rows of a table are piled up."""
    return f'"_lakesync_pile_{table}"'


def pile(db: sqlite3.Connection, group: Group, columns: Sequence[Sequence[Any]]) -> None:
    """Add new rows, with what is known of them, to the pile of their table."""
    names = "".join(f', "{name}"' for name in group.names)
    marks = ", ?" * len(group.names)
    db.executemany(
        f"INSERT INTO {pile_of(group.table)} (row_id, stamps{names}) VALUES (?, CAST(? AS BLOB){marks})",
        zip(group.row_ids, group.stamps, *columns, strict=True),
    )


def sort_out(db: sqlite3.Connection, keys: Iterable[RowKey], generation: int) -> None:
    """Take rows from the piles into their tables."""
    for table, row_id in keys:
        db.execute(f'CREATE INDEX IF NOT EXISTS "_lakesync_pile_by_{table}" ON {pile_of(table)} (row_id)')
        found = db.execute(f"SELECT * FROM {pile_of(table)} WHERE row_id = ?", (row_id,))
        names = [f'"{name}"' for name, *_ in found.description][2:]
        for _, stamps, *cells in found.fetchall():
            columns, marks = "".join(f", {name}" for name in names), ", ?" * len(cells)
            db.execute(f'INSERT OR REPLACE INTO "{table}" (row_id{columns}) VALUES (?{marks})', (row_id, *cells))
            db.execute(_KNOW, (table, row_id, generation, stamps))


def update(db: sqlite3.Connection, group: Group, columns: Sequence[Sequence[Any]]) -> None:
    """Change columns of rows that are there, and what is known of them."""
    changes = ", ".join(f'"{name}" = ?' for name in group.names)
    db.executemany(f'UPDATE "{group.table}" SET {changes} WHERE row_id = ?', zip(*columns, group.row_ids, strict=True))
    table = group.table
    kept = sorted(zip(group.row_ids, group.stamps, strict=True))
    db.executemany(
        "UPDATE _lakesync_known SET stamps = ? WHERE tbl = ? AND row_id = ?",
        [(stamps.encode(), table, row_id) for row_id, stamps in kept],
    )


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
    if kind == "number" and max(map(len, joined.split(b","))) > _SAFE_DIGITS:
        raise MisfitError
    return found

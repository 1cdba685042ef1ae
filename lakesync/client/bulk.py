"""Many rows written at once: rows of which nothing is known yet and that have no edits, as a first sync brings them.

Values are looked at by column, statements take many rows, and of a row no object is made.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from lakesync.client.sql_values import FITTING
from lakesync.schema import ColumnType

Value = bytes | memoryview
Part = tuple[str, str, int, str, tuple[str, ...], Sequence[Any]]
"""A delta that makes a row or adds to it: table, row id, hlc, client id, its columns, and their values as JSON text."""

_decode = msgspec.json.Decoder().decode
_spelled = msgspec.json.Encoder().encode
_KNOWN = "INSERT OR REPLACE INTO _lakesync_known (tbl, row_id, generation, stamps, whole) VALUES (?, ?, ?, ?, NULL)"


class Misfit(Exception):  # noqa: N818 it is no error: these rows go another way
    """A row cannot be written this way: its table has no schema, lacks a column, or its type does not hold a value."""


class _Group:
    """Rows of one table with the same columns."""

    def __init__(self, table: str, names: tuple[str, ...]) -> None:
        self.table = table
        self.names = names
        self.row_ids: list[str] = []
        self.values: list[Sequence[Value]] = []
        self.live: list[str] = []
        """Of each row, its parts with columns as the store spells them."""
        self.inserted: list[str] = []
        """And the stamp of its INSERT."""


def write_new(
    db: sqlite3.Connection,
    types: Mapping[str, Mapping[str, ColumnType]],
    generation: int,
    parts: Iterable[Part],
) -> tuple[int, int]:
    """Write rows and what is known of them; `(rows, highest hlc)`. The parts of a row stand together, INSERT first.

    Raises:
        Misfit: a row cannot be written this way; some may be written already.
    """
    groups, highest = _grouped(parts)
    for group in groups.values():
        kinds = types.get(group.table)
        if kinds is None or not all(name in kinds for name in group.names):
            raise Misfit
        columns = [_column(kinds[name], values) for name, values in zip(group.names, _transposed(group), strict=True)]
        names = "".join(f', "{name}"' for name in group.names)
        marks = ", ?" * len(group.names)
        try:
            db.executemany(
                f'INSERT OR REPLACE INTO "{group.table}" (row_id{names}) VALUES (?{marks})',
                zip(group.row_ids, *columns, strict=True),
            )
        except OverflowError:  # an integer beyond 64 bits
            raise Misfit from None
        table = group.table
        db.executemany(
            _KNOWN,
            [
                (table, row_id, generation, f"[[{live}],null,{inserted}]".encode())
                for row_id, live, inserted in zip(group.row_ids, group.live, group.inserted, strict=True)
            ],
        )
    return sum(len(group.row_ids) for group in groups.values()), highest


def _grouped(parts: Iterable[Part]) -> tuple[dict[tuple[str, tuple[str, ...]], _Group], int]:
    groups: dict[tuple[str, tuple[str, ...]], _Group] = {}
    texts: dict[str | tuple[str, ...], str] = {}
    group = _Group("", ())
    highest = 0
    last = ("", "")
    for table, row_id, hlc, client_id, columns, cells in parts:
        names, values = columns, cells
        highest = max(highest, hlc)
        stamp = f"{hlc},{texts.get(client_id) or _spell(texts, client_id)}"
        live = f"[{stamp},{texts.get(names) or _spell(texts, names)}]" if names else ""
        inserted = f"[{stamp}]"
        if (table, row_id) == last:  # a further part: the row has its columns too
            group.row_ids.pop()
            live = ",".join(filter(None, (group.live.pop(), live)))
            inserted = group.inserted.pop()
            values = [*group.values.pop(), *values]
            names = group.names + names
            if len(set(names)) < len(names):
                raise Misfit
        last = (table, row_id)
        if names != group.names or table != group.table:
            group = groups.get((table, names)) or groups.setdefault((table, names), _Group(table, names))
        group.row_ids.append(row_id)
        group.values.append(values)
        group.live.append(live)
        group.inserted.append(inserted)
    return groups, highest


def _spell(texts: dict[str | tuple[str, ...], str], what: str | tuple[str, ...]) -> str:
    return texts.setdefault(what, _spelled(what).decode())


def _transposed(group: _Group) -> Iterable[Sequence[Value]]:
    return zip(*group.values, strict=True) if group.names else ()


def _column(kind: ColumnType, values: Sequence[Value]) -> list[Any]:
    """A column's values as SQLite takes them."""
    fitting = FITTING[kind]
    if not {value[0] for value in values} <= fitting:
        raise Misfit
    if kind == "json":
        return [None if value == b"null" else bytes(value).decode() for value in values]
    try:
        found: list[Any] = _decode(b"[" + b",".join(values) + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Misfit from None
    if len(found) != len(values):
        raise Misfit
    return found

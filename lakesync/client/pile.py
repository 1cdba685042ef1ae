"""Rows of a first sync, piled up as they come in a file beside the app's."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lakesync.client.bulk import write_rows
from lakesync.client.groups import Group
from lakesync.client.sql_values import from_sql
from lakesync.client.stamps import Names, Record
from lakesync.model.schema import ColumnType
from lakesync.model.types import ColumnValue, RowDelta, RowKey
from lakesync.wire.json import decode_deltas, encode_deltas

_REST = "CREATE TABLE rest (number INTEGER PRIMARY KEY, deltas BLOB NOT NULL)"


def make(db: sqlite3.Connection, tables: Mapping[str, Iterable[str]]) -> None:
    """Make a pile for each table, of these columns, and one for what has to be merged."""
    for table, columns in tables.items():
        names = "".join(f', "{name}"' for name in columns)
        db.execute(f"CREATE TABLE {name_of(table)} (row_id, stamps{names})")
    db.execute(_REST)


def name_of(table: str) -> str:
    """The pile of a table's rows, without their database's name."""
    return f'"pile_{table}"'


def add(db: sqlite3.Connection, group: Group, columns: Sequence[Sequence[Any]], records: Sequence[Record]) -> None:
    """Add new rows, with what is known of them; the records' numbers are the app's database's."""
    names = "".join(f', "{name}"' for name in group.names)
    head = f"INSERT INTO {name_of(group.table)} (row_id, stamps{names})"
    write_rows(db, head, f"(?, ?{', ?' * len(group.names)})", [group.row_ids, records, *columns])


def add_rest(db: sqlite3.Connection, deltas: Iterable[RowDelta]) -> None:
    """Add whole rows that have to be merged, one by one."""
    db.execute("INSERT INTO rest (deltas) VALUES (?)", (encode_deltas(deltas),))


def rest(db: sqlite3.Connection, schema: str) -> Iterator[tuple[RowDelta, ...]]:
    """What `add_rest` was given."""
    for (number,) in db.execute(f"SELECT number FROM {schema}.rest ORDER BY number").fetchall():
        ((deltas,),) = db.execute(f"SELECT deltas FROM {schema}.rest WHERE number = ?", (number,))
        yield tuple(decode_deltas(deltas))


def deltas_of(
    db: sqlite3.Connection,
    schema: str,
    keys: Collection[RowKey],
    types: Mapping[str, Mapping[str, ColumnType]],
    names: Names,
) -> list[RowDelta]:
    """Rows of the piles as the deltas that make them, INSERT first; ids mean nothing."""
    found: list[RowDelta] = []
    for table in {table for table, _ in keys}:
        wanted = {row_id for of, row_id in keys if of == table}
        columns = types[table]
        listed = "".join(f', "{name}"' for name in columns)
        for row_id, record, *cells in db.execute(f"SELECT row_id, stamps{listed} FROM {schema}.{name_of(table)}"):
            if row_id not in wanted:
                continue
            values = {name: from_sql(kind, cell) for (name, kind), cell in zip(columns.items(), cells, strict=True)}
            stamps = names.stamps(record)
            if stamps.inserted is not None:
                found.append(RowDelta("INSERT", table, row_id, stamps.inserted[1], (), stamps.inserted[0], ""))
            for hlc, client, part in stamps.parts:
                held = tuple(ColumnValue(name, values[name]) for name in part)
                found.append(RowDelta("UPDATE", table, row_id, client, held, hlc, ""))
    return found

"""Staging tables: where `checkpoint_load` collects the rows of a first sync, in a file next to the app's.

They are no part of the gateway's staging store. The app must not see a part of a checkpoint, so the rows stay in this
second file until all have arrived, and one commit copies them into the app's database.

Each synced table has a staging table `pile_TABLE` with the row ids, records (stamps) and values of its rows. The table
`rest` holds deltas that must be merged row by row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lakesync.client.sqlite.row_groups import RowGroup, execute_for_rows
from lakesync.client.sqlite.sql_values import from_sql
from lakesync.client.sqlite.stamps import Record, StampCodec
from lakesync.model.schema import ColumnType
from lakesync.model.types import ColumnValue, RowDelta, RowKey
from lakesync.wire.json import decode_deltas, encode_deltas

_REST = "CREATE TABLE rest (number INTEGER PRIMARY KEY, deltas BLOB NOT NULL)"


def create(db: sqlite3.Connection, tables: Mapping[str, Iterable[str]]) -> None:
    """Create the staging tables.

    Args:
        db: an empty database.
        tables: the columns of each synced table.
    """
    for table, columns in tables.items():
        names = "".join(f', "{name}"' for name in columns)
        db.execute(f"CREATE TABLE {name_of(table)} (row_id, stamps{names})")
    db.execute(_REST)


def name_of(table: str) -> str:
    """Return the quoted name of a table's staging table."""
    return f'"pile_{table}"'


def add(db: sqlite3.Connection, group: RowGroup, columns: Sequence[Sequence[Any]], records: Sequence[Record]) -> None:
    """Add new rows.

    Args:
        db: the database with the staging tables.
        group: the rows.
        columns: the values of each column of the group, as SQLite binds them.
        records: the rows' records, encoded with the numbers of the app's database.
    """
    names = "".join(f', "{name}"' for name in group.names)
    head = f"INSERT INTO {name_of(group.table)} (row_id, stamps{names})"
    execute_for_rows(db, head, f"(?, ?{', ?' * len(group.names)})", [group.row_ids, records, *columns])


def add_rest(db: sqlite3.Connection, deltas: Iterable[RowDelta]) -> None:
    """Add deltas of whole rows that must be merged row by row.

    Args:
        db: the database with the staging tables.
        deltas: all deltas of one or more rows.
    """
    db.execute("INSERT INTO rest (deltas) VALUES (?)", (encode_deltas(deltas),))


def read_rest(db: sqlite3.Connection, database: str) -> Iterator[tuple[RowDelta, ...]]:
    """Yield the deltas of each `add_rest`.

    Args:
        db: the app's database.
        database: the name under which the database with the staging tables is attached.
    """
    for (number,) in db.execute(f"SELECT number FROM {database}.rest ORDER BY number").fetchall():
        ((deltas,),) = db.execute(f"SELECT deltas FROM {database}.rest WHERE number = ?", (number,))
        yield tuple(decode_deltas(deltas))


def read_rows(
    db: sqlite3.Connection,
    database: str,
    keys: Collection[RowKey],
    types: Mapping[str, Mapping[str, ColumnType]],
    stamp_codec: StampCodec,
) -> list[RowDelta]:
    """Return rows as the deltas that create them, the INSERT first, without delta ids.

    Args:
        db: the app's database.
        database: the name under which the database with the staging tables is attached.
        keys: the rows to read; those that are not staged are skipped.
        types: the column types of each table.
        stamp_codec: decodes the records.
    """
    result: list[RowDelta] = []
    for table in {table for table, _ in keys}:
        wanted = {row_id for key_table, row_id in keys if key_table == table}
        columns = types[table]
        selected = "".join(f', "{name}"' for name in columns)
        for row_id, record, *cells in db.execute(f"SELECT row_id, stamps{selected} FROM {database}.{name_of(table)}"):
            if row_id not in wanted:
                continue
            values = {name: from_sql(kind, cell) for (name, kind), cell in zip(columns.items(), cells, strict=True)}
            stamps = stamp_codec.decode(record)
            if stamps.inserted is not None:
                result.append(RowDelta("INSERT", table, row_id, stamps.inserted[1], (), stamps.inserted[0], ""))
            for hlc, client, part in stamps.parts:
                cells_of_part = tuple(ColumnValue(name, values[name]) for name in part)
                result.append(RowDelta("UPDATE", table, row_id, client, cells_of_part, hlc, ""))
    return result

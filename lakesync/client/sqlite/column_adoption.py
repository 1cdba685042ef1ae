"""Adoption of columns: what happens to a synced table's rows when its schema gets a new column.

`SqliteClientStore` calls it. The app's table may already have the column, with values that were never pushed, and the
gateway may have values of it for rows that the table has. The change journal is a pair of tables for each synced table,
in which triggers keep each row that the app writes, as it was before (`before_table`) and as it is now (`after_table`).
Their columns `there` and `here` say whether the row exists. The next sync makes edits of the journalled rows, which are
changes to push.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from msgspec import Raw
from msgspec.structs import replace

from lakesync.client.sqlite.row_storage import LISTED_VALUES, value_list
from lakesync.client.sqlite.sql_values import SqlValue, to_sql
from lakesync.client.sqlite.table_validation import columns_of
from lakesync.client.sqlite.triggers import NOW_MS, after_table, before_table
from lakesync.model.errors import SchemaError
from lakesync.model.schema import TableSchema
from lakesync.model.types import RowKey

VisibleRows = Mapping[RowKey, Mapping[str, Raw] | None]
"""Rows as the app should see them: the gateway's values with the edits."""


def merge_schemas(old: TableSchema, new: TableSchema) -> TableSchema:
    """Return the new schema, followed by the columns that only the old one has: no column is ever removed.

    Args:
        old: the schema that the table has.
        new: the app's or the gateway's schema.

    Raises:
        SchemaError: a column has another type, or differs only in case.
    """
    columns = {column.name.lower(): column for column in new.columns}
    for column in old.columns:
        new_column = columns.get(column.name.lower(), column)
        if new_column.name != column.name:
            raise SchemaError(
                f"column {column.name!r} of table {old.table!r} in this database differs only in case from "
                f"{new_column.name!r}, and SQLite ignores case: use the same name in the app's schema and at the "
                "gateway"
            )
        if new_column.type != column.type:
            raise SchemaError(
                f"column {column.name!r} of table {old.table!r} is {column.type} in this database and cannot become "
                f"{new_column.type}: add a column under another name"
            )
    kept = tuple(column for column in old.columns if column.name.lower() not in columns)
    return replace(new, columns=new.columns + kept)


def existing_columns(db: sqlite3.Connection, schema: TableSchema, added: list[str]) -> dict[str, str]:
    """Return the added columns that the app's table already has, each with its DEFAULT as SQL (`NULL` if it has none).

    Args:
        db: the app's database.
        schema: the table's new schema.
        added: the columns that the schema did not have before.
    """
    existing = columns_of(db, schema.table)
    return {name: existing[name.lower()].default or "NULL" for name in added if name.lower() in existing}


def journal_existing_values(
    db: sqlite3.Connection, schema: TableSchema, existing: Mapping[str, str], visible: VisibleRows
) -> None:
    """Write the app's values in existing columns into the change journal, as if they were written now.

    A column's DEFAULT is not a write: it would appear newer than what other clients wrote. Where the gateway has a
    value, the app's is not a write either, because it is unknown which one is newer. The caller overwrites it with the
    gateway's, in journalled rows by `fill_journalled_rows`.

    Args:
        db: the app's database.
        schema: the table's new schema.
        existing: the result of `existing_columns`.
        visible: rows for which the gateway has values in columns that the table lacked.
    """
    _add_values_to_journalled_rows(db, schema.table, existing)
    _journal_further_rows(db, schema, existing, visible)


def fill_journalled_rows(db: sqlite3.Connection, schema: TableSchema, added: list[str], visible: VisibleRows) -> None:
    """Write the gateway's values of added columns into rows that are in the journal, and into the journal.

    Other columns of these rows are not touched, because the app's writes to them are not edits yet.

    Args:
        db: the app's database.
        schema: the table's new schema.
        added: the added columns.
        visible: the journalled rows.
    """
    table, types = schema.table, schema.types
    for (_, row_id), row in visible.items():
        cells: dict[str, SqlValue] = {name: to_sql(types[name], row[name]) for name in added if row and name in row}
        if cells:
            in_table = ", ".join(f'"{name}" = ?' for name in cells)
            in_journal = ", ".join(f'"c_{name}" = ?' for name in cells)
            db.execute(f'UPDATE "{table}" SET {in_table} WHERE row_id = ?', [*cells.values(), row_id])
            for journal in (before_table(table), after_table(table)):
                db.execute(f"UPDATE {journal} SET {in_journal} WHERE row_id = ?", [*cells.values(), row_id])


def _add_values_to_journalled_rows(db: sqlite3.Connection, table: str, existing: Mapping[str, str]) -> None:
    """Add the values of existing columns to the journal's rows. A DEFAULT goes into both tables, so it is no change."""
    before, after = before_table(table), after_table(table)
    for name, default in existing.items():
        had_default = f'{before}.there AND t."{name}" IS ({default})'
        for journal, where in ((before, had_default), (after, f"{after}.here")):
            db.execute(
                f'UPDATE {journal} SET "c_{name}" = t."{name}" FROM "{table}" t '
                f"WHERE t.row_id = {journal}.row_id AND {where}"
            )


def _journal_further_rows(
    db: sqlite3.Connection, schema: TableSchema, existing: Mapping[str, str], visible: VisibleRows
) -> None:
    """Add rows to the journal in which the app has written an existing column, and whose value the gateway lacks.

    Example: the app has written 3 into a column with DEFAULT 0. Then the row is added with NULL to `before_table` and
    with 3 to `after_table`; other columns have their present values in both.
    """
    table, before, after = schema.table, before_table(schema.table), after_table(schema.table)
    is_written = " OR ".join(
        f'("{name}" IS NOT NULL AND "{name}" IS NOT ({default}) AND row_id NOT IN {LISTED_VALUES})'
        for name, default in existing.items()
    )
    at_gateway = [
        value_list(row_id for (_, row_id), row in visible.items() if row is not None and name in row)
        for name in existing
    ]
    source = f'FROM "{table}" WHERE ({is_written}) AND row_id NOT IN (SELECT row_id FROM {before})'
    cells = {f'"c_{name}"': f'"{name}"' for name in schema.types}
    names, current = ", ".join(cells), ", ".join(cells.values())
    insert = f"INSERT INTO {after} (row_id, at, here, {names}) SELECT row_id, {NOW_MS}, 1, {current} {source}"
    db.execute(insert, at_gateway)
    for name, default in existing.items():  # before, the column had its DEFAULT or no value
        cells[f'"c_{name}"'] = f'CASE WHEN "{name}" IS ({default}) THEN "{name}" END'
    previous = ", ".join(cells.values())
    db.execute(f"INSERT INTO {before} (row_id, there, {names}) SELECT row_id, 1, {previous} {source}", at_gateway)

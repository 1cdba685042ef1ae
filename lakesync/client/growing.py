"""Columns that become synchronised in a table that has rows: what stands in them here, and what the gateway has."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from msgspec import Raw

from lakesync.client.sql_values import SqlValue, to_sql
from lakesync.client.tracking import NOW_MS, after_of, before_of
from lakesync.model.schema import TableSchema
from lakesync.model.types import RowKey

Shown = Mapping[RowKey, Mapping[str, Raw] | None]


def new_columns(before: TableSchema | None, schema: TableSchema) -> list[str]:
    """Those that a table's schema did not have before."""
    return [name for name in schema.types if before is None or name not in before.types]


def own_columns(db: sqlite3.Connection, schema: TableSchema, new: list[str]) -> dict[str, str]:
    """New ones that the app's table has already, each with what SQLite fills in, as SQL."""
    found = db.execute(f'PRAGMA table_info("{schema.table}")').fetchall()
    there = {name.lower(): default for _, name, _, _, default, _ in found}
    return {name: there[name.lower()] or "NULL" for name in new if name.lower() in there}


def take_over(db: sqlite3.Connection, schema: TableSchema, own: Mapping[str, str], shown: Shown) -> None:
    """What the app has in columns of its own counts as written now.

    Not what SQLite filled in by itself: of every row it would seem newer than what others wrote. Nor where the gateway
    has a value: nobody knows which is newer, and only that one is everybody's.
    """
    table, before, after = schema.table, before_of(schema.table), after_of(schema.table)
    for name in own:
        told = [(row_id,) for (_, row_id), row in shown.items() if row is not None and name in row]
        db.executemany(f'UPDATE "{table}" SET "{name}" = NULL WHERE row_id = ?', told)
    filled = {name: f'"{name}" IS ({default})' for name, default in own.items()}
    for name, condition in filled.items():
        for journal, which in ((before, f"{before}.there AND t.{condition}"), (after, f"{after}.here")):
            db.execute(
                f'UPDATE {journal} SET "c_{name}" = t."{name}" FROM "{table}" t '
                f"WHERE t.row_id = {journal}.row_id AND {which}"
            )
    written = " OR ".join(f'("{name}" IS NOT NULL AND NOT {condition})' for name, condition in filled.items())
    which = f'FROM "{table}" WHERE ({written}) AND row_id NOT IN (SELECT row_id FROM {before})'
    cells = {f'"c_{name}"': f'"{name}"' for name in schema.types}
    listed, values = ", ".join(cells), ", ".join(cells.values())
    db.execute(f"INSERT INTO {after} (row_id, at, here, {listed}) SELECT row_id, {NOW_MS}, 1, {values} {which}")
    cells |= {f'"c_{name}"': f'CASE WHEN {condition} THEN "{name}" END' for name, condition in filled.items()}
    db.execute(f"INSERT INTO {before} (row_id, there, {listed}) SELECT row_id, 1, {', '.join(cells.values())} {which}")


def fill(db: sqlite3.Connection, schema: TableSchema, new: list[str], shown: Shown) -> None:
    """Write new columns alone, as the gateway has them, into rows that the app wrote and nobody looked at yet."""
    table, types = schema.table, schema.types
    for (_, row_id), row in shown.items():
        cells: dict[str, SqlValue] = {name: to_sql(types[name], row[name]) for name in new if row and name in row}
        if cells:
            there = ", ".join(f'"{name}" = ?' for name in cells)
            kept = ", ".join(f'"c_{name}" = ?' for name in cells)
            db.execute(f'UPDATE "{table}" SET {there} WHERE row_id = ?', [*cells.values(), row_id])
            for journal in (before_of(table), after_of(table)):
                db.execute(f"UPDATE {journal} SET {kept} WHERE row_id = ?", [*cells.values(), row_id])

"""Destination tables in SQLite: a row as its merged state says, beside what belongs to the user."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from lakesync.lww import RowState
from lakesync.schema import Column, TableSchema

_TYPES = {"string": "TEXT", "number": "NUMERIC", "boolean": "INTEGER", "json": "TEXT", "null": "TEXT"}


def ensure_table(sql: sqlite3.Connection, schema: TableSchema) -> None:
    """Make the table, or add the columns that it lacks; `row_id` is always one."""
    name = destination(schema)
    sql.execute(f"CREATE TABLE IF NOT EXISTS {_q(name)} ({', '.join(_definitions(schema))})")
    present = {row[1] for row in sql.execute(f"PRAGMA table_info({_q(name)})")}
    for column in schema.columns:
        if column.name not in present:
            sql.execute(f"ALTER TABLE {_q(name)} ADD COLUMN {_definition(column)}")
    sql.execute(f"CREATE UNIQUE INDEX IF NOT EXISTS {_q(f'lakesync_row_{name}')} ON {_q(name)} (row_id)")
    if schema.external_id_column is not None:
        index = _q(f"lakesync_external_{name}")
        sql.execute(f"CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {_q(name)} ({_q(schema.external_id_column)})")


def write_rows(sql: sqlite3.Connection, schema: TableSchema, states: Mapping[str, RowState], now_ms: int) -> None:
    """Bring rows in line with their states, within the caller's transaction."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")
    for row_id, state in states.items():
        if state.visible:
            _write(sql, schema, row_id, state, now)
        elif schema.soft_delete:
            sql.execute(
                f"UPDATE {_q(destination(schema))} SET deleted_at = ?, synced_at = ? WHERE row_id = ?"
                " AND deleted_at IS NULL",
                (now, now, row_id),
            )
        else:
            sql.execute(f"DELETE FROM {_q(destination(schema))} WHERE row_id = ?", (row_id,))


def destination(schema: TableSchema) -> str:
    """The name of the destination's table."""
    return schema.source_table or schema.table


def _write(sql: sqlite3.Connection, schema: TableSchema, row_id: str, state: RowState, now: str) -> None:
    """The row found by its id, else by its key or external id, else a new one."""
    values = state.values()
    cells: dict[str, Any] = {
        column.name: _value(column, values[column.name]) if column.name in values else None for column in schema.columns
    }
    cells |= {"row_id": row_id, "synced_at": now}
    if schema.soft_delete:
        cells["deleted_at"] = None
    name, names = _q(destination(schema)), [_q(column) for column in cells]
    assignments = ", ".join(f"{column} = ?" for column in names)
    found = sql.execute(f"UPDATE {name} SET {assignments} WHERE row_id = ?", (*cells.values(), row_id))
    if found.rowcount:
        return
    key = (schema.external_id_column,) if schema.external_id_column is not None else schema.primary_key
    taken = ", ".join(f"{column} = excluded.{column}" for column in names)
    sql.execute(
        f"INSERT INTO {name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        f" ON CONFLICT ({', '.join(_q(column) for column in key)}) DO UPDATE SET {taken}",
        tuple(cells.values()),
    )


def _definitions(schema: TableSchema) -> list[str]:
    columns = ["row_id TEXT NOT NULL", *(_definition(column) for column in schema.columns)]
    columns += ["props TEXT NOT NULL DEFAULT '{}'", "synced_at TEXT NOT NULL"]
    if schema.soft_delete:
        columns.append("deleted_at TEXT")
    return [*columns, f"PRIMARY KEY ({', '.join(_q(column) for column in schema.primary_key)})"]


def _definition(column: Column) -> str:
    return f"{_q(column.name)} {_TYPES[column.type]}"


def _value(column: Column, raw: msgspec.Raw) -> Any:
    value = msgspec.json.decode(raw)
    if value is not None and (column.type == "json" or isinstance(value, dict | list)):
        return bytes(raw).decode()
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(value)
    return value


def _q(name: str) -> str:
    """A checked identifier, quoted."""
    return '"' + name.replace('"', '""') + '"'

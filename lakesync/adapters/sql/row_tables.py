"""Destination tables in a SQL database: tables with the current rows of synced tables. `SqlAdapter` calls this module.

The *content* of a row (`RowContent`) is the merge of all its deltas, the changes that clients have made. A row is
identified by `(gateway, row_id)`; a *gateway* is one app's stream of changes. The schema's primary key and external id
have non-unique indexes on values of any length, because two devices may use one key offline. With soft delete, a
deleted row stays in the table, marked as deleted.

Besides the schema's columns the table has system columns, such as `last_arrival` (the gateway's timestamp of the row's
newest delta). The column `props` belongs to the user: it gets its default when a row is inserted, and is never written
afterwards. A value that the database rejects is written as null, and recorded with the reason as a *dead letter*.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from lakesync.adapters.base import WHOLE_ROW, DeadLetter
from lakesync.adapters.deltas import BUCKETS, NO_CONTENT, RowContent, RowId, bucket_of
from lakesync.adapters.sql.backend import Column, Connection, Dialect, load_scratch_table
from lakesync.adapters.sql.follower_state import ROW_KEYS_TABLE, load_row_keys, replace_dead_letters
from lakesync.adapters.sql.row_values import (
    cell_columns,
    key_of,
    loaded_columns,
    row_values,
    system_column,
    user_columns,
)
from lakesync.model.errors import SchemaError
from lakesync.model.hlc import wall_clock
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

_SCRATCH = "lakesync_rows"
"""The scratch table of rows to merge."""
_SAVEPOINT_NUMBERS = count(1)
"""Makes savepoint names unique: in MySQL a second savepoint with the same name removes the first."""


def table_name(schema: TableSchema) -> str:
    """Return the name of the destination table."""
    return schema.source_table or schema.table


def locks_of(dialect: Dialect, schema: TableSchema, rows: Iterable[RowId] | None = None) -> list[str]:
    """Return the names of the locks that a writer of a destination table takes, in an order that all writers share.

    Args:
        dialect: the database's dialect. If it has no concurrent writers, a table has a single lock.
        schema: the table's schema.
        rows: the rows to write; None locks all rows.
    """
    name = f"table {table_name(schema)}"
    if not dialect.concurrent_writers:
        return [name]
    buckets = range(BUCKETS) if rows is None else sorted({bucket_of(row_id) for _, row_id in rows})
    return [f"{name} {bucket:02d}" for bucket in buckets]


@contextmanager
def savepoint(connection: Connection, dialect: Dialect) -> Iterator[None]:
    """Roll back only the statements of a `with` block if one fails, and keep the transaction open.

    Args:
        connection: with an open transaction.
        dialect: the database's dialect.
    """
    if not dialect.has_transactions:
        yield
        return
    name = f"lakesync_part_{next(_SAVEPOINT_NUMBERS)}"
    connection.execute(f"SAVEPOINT {name}")
    try:
        yield
    except BaseException as error:
        if connection.statement_error(error) is None:
            raise  # the connection may be lost; then the whole transaction is rolled back
        connection.execute(f"ROLLBACK TO SAVEPOINT {name}")
        with suppress(Exception):
            connection.execute(f"RELEASE SAVEPOINT {name}")
        raise
    connection.execute(f"RELEASE SAVEPOINT {name}")


def ensure_table(connection: Connection, dialect: Dialect, schema: TableSchema) -> None:
    """Create the table, or add its missing columns.

    Args:
        connection: an open connection.
        dialect: the database's dialect.
        schema: the table's schema.

    Raises:
        SchemaError: LakeSync did not create the table, or the schema gained a column that collides with a system
            column.
    """
    name, quote = dialect.quote(table_name(schema)), dialect.quote
    present = set(connection.column_names(table_name(schema)))
    columns = [column._replace(name=quote(column.name)) for column in table_columns(schema)]
    if not present:
        props = Column(quote(system_column(schema, "props")), "json", default="'{}'")
        key = [quote(column) for column in key_of(schema)]
        statements = [*dialect.create_table(name, [*columns, props], key), *_indexes(dialect, schema, ())]
        with connection.transaction():
            for statement in statements:
                connection.execute(statement)
        return
    if "row_id" not in present:
        raise SchemaError(
            f"the destination's table {table_name(schema)!r} was not created by LakeSync: it has no column row_id. "
            "Rename the table, or set another sourceTable in the schema."
        )
    if {system_column(schema, "gateway"), system_column(schema, "last_arrival")} - present:
        raise SchemaError(
            f"the destination's table {table_name(schema)!r} was created by an earlier version without the column "
            "gateway. Rename the table; it is created and filled again."
        )
    _check_system_columns(schema, present)
    for column in columns:
        if column.name not in {quote(present_name) for present_name in present}:
            connection.execute(
                f"ALTER TABLE {name} ADD COLUMN {dialect.column_definition(column._replace(required=False))}"
            )
    for statement in _indexes(dialect, schema, present):
        connection.execute(statement)


def _indexes(dialect: Dialect, schema: TableSchema, present: Collection[str]) -> Iterator[str]:
    """Yield statements that index each column of the schema's primary key and external id, unless it is `present`."""
    key_columns = dict.fromkeys((*schema.primary_key, *filter(None, [schema.external_id_column])))
    columns = {column.name: column for column in table_columns(schema)}
    for name in key_columns:
        if name == "row_id" or name in present:
            continue
        text = f"{table_name(schema)}.{name}"
        index = f"lakesync_key_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        column = columns[name]
        yield from dialect.create_lookup_index(
            index, dialect.quote(table_name(schema)), column._replace(name=dialect.quote(column.name))
        )


def _check_system_columns(schema: TableSchema, present: Collection[str]) -> None:
    """Check that no column of the schema collides with a system column of an existing table."""
    name = table_name(schema)
    for usual in ("props", "synced_at", "last_arrival", "checksum", *(("deleted_at",) if schema.soft_delete else ())):
        new_name = system_column(schema, usual)
        if new_name != usual and usual in present and new_name not in present:
            raise SchemaError(
                f"the schema of {schema.table!r} has a new column {usual!r}, which is a system column of the "
                f"destination's table {name!r}. Run: ALTER TABLE {name} RENAME COLUMN {usual} TO {new_name}"
            )


def write_contents(
    connection: Connection, dialect: Dialect, schema: TableSchema, contents: Mapping[RowId, RowContent]
) -> None:
    """Write rows from their contents, and their dead letters, within the caller's transaction.

    Args:
        connection: with an open transaction.
        dialect: the database's dialect.
        schema: the table's schema.
        contents: row → content.
    """
    if not contents:
        return
    values = row_values(schema, contents, wall_clock(), dialect.max_json_depth)
    letters = [*values.letters, *_write_fitting_rows(connection, dialect, schema, values.rows)]
    remove_rows(connection, dialect, schema, values.removed)
    replace_dead_letters(connection, dialect, schema.table, contents, letters)


def remove_rows(connection: Connection, dialect: Dialect, schema: TableSchema, rows: Collection[RowId]) -> None:
    """Delete rows from the table, within the caller's transaction.

    Args:
        connection: an open connection.
        dialect: the database's dialect.
        schema: the table's schema.
        rows: `(gateway, row id)` of each row to delete.
    """
    if not rows:
        return
    load_row_keys(connection, dialect, rows)
    name = dialect.quote(table_name(schema))
    is_same = " AND ".join(
        f"k.{key} = {name}.{dialect.quote(column)}"
        for key, column in zip(("gateway", "row_id"), key_of(schema), strict=True)
    )
    connection.execute(f"DELETE FROM {name} WHERE EXISTS (SELECT 1 FROM {ROW_KEYS_TABLE} k WHERE {is_same})")


def rebuild_rows(
    connection: Connection,
    dialect: Dialect,
    schema: TableSchema,
    rows: Sequence[RowId],
    contents: Mapping[RowId, RowContent],
) -> None:
    """Rewrite rows after an erasure, within the caller's transaction.

    Rows that are no longer visible are deleted first, so that their `props` are lost. With soft delete, those that have
    content left are then written again, marked as deleted.

    Args:
        connection: with an open transaction.
        dialect: the database's dialect.
        schema: the table's schema.
        rows: the rows to rebuild.
        contents: row → content; rows without deltas are absent.
    """
    invisible = [row for row in rows if row not in contents or not contents[row].state.visible]
    remove_rows(connection, dialect, schema, invisible)
    write_contents(connection, dialect, schema, {row: contents.get(row, NO_CONTENT) for row in rows})


def load_rows(connection: Connection, dialect: Dialect, schema: TableSchema, rows: pa.Table) -> str:
    """Load rows into a scratch table, and return that table's name.

    Args:
        connection: an open connection.
        dialect: the database's dialect.
        schema: the table's schema.
        rows: the rows, with the columns of `row_values.rows_schema`.
    """
    columns = [column._replace(name=dialect.quote(column.name), required=False) for column in loaded_columns(schema)]
    key = [dialect.quote(column) for column in key_of(schema)]
    load_scratch_table(connection, dialect, _SCRATCH, columns, key, rows)
    return _SCRATCH


def merge_rows(connection: Connection, dialect: Dialect, schema: TableSchema, scratch: str) -> None:
    """Merge loaded rows into the table, each with the checksum of its cells as stored by the database.

    Args:
        connection: an open connection.
        dialect: the database's dialect.
        schema: the table's schema.
        scratch: the scratch table that `load_rows` returned.
    """
    columns = [dialect.quote(column.name) for column in table_columns(schema)]
    key = [dialect.quote(column) for column in key_of(schema)]
    update = [column for column in columns if column not in key]
    checksum = f"{checksum_of(dialect, schema)} AS {dialect.quote(system_column(schema, 'checksum'))}"
    source = f"(SELECT {scratch}.*, {checksum} FROM {scratch})"
    connection.execute(dialect.merge_statement(dialect.quote(table_name(schema)), source, columns, key, update))


def checksum_of(dialect: Dialect, schema: TableSchema) -> str:
    """Return the SQL expression for the checksum of a row's values and of whether it is marked as deleted.

    Args:
        dialect: the database's dialect.
        schema: the table's schema.
    """
    cells = [column._replace(name=dialect.quote(column.name)) for column in cell_columns(schema)]
    parts = [f"COALESCE('=' || {dialect.text_expression(cell)}, '-')" for cell in cells]
    if schema.soft_delete:
        parts.append(f"CASE WHEN {dialect.quote(system_column(schema, 'deleted_at'))} IS NULL THEN '-' ELSE '+' END")
    return dialect.checksum_expression(" || '|' || ".join(parts))


def _write_fitting_rows(
    connection: Connection, dialect: Dialect, schema: TableSchema, rows: pa.Table
) -> Iterator[DeadLetter]:
    """Write rows and yield dead letters for values that the database rejects. Bisects the rows to find them."""
    if not len(rows) or _write_or_reason(connection, dialect, schema, rows) is None:
        return
    if len(rows) == 1:
        yield from _write_fitting_cells(connection, dialect, schema, rows)
        return
    half = len(rows) // 2
    yield from _write_fitting_rows(connection, dialect, schema, rows.slice(0, half))
    yield from _write_fitting_rows(connection, dialect, schema, rows.slice(half))


def _write_fitting_cells(
    connection: Connection, dialect: Dialect, schema: TableSchema, row: pa.Table
) -> Iterator[DeadLetter]:
    """Write a rejected row with those of its values that the database accepts."""
    import pyarrow as pa

    gateway, row_id = (row.column(index)[0].as_py() for index in range(2))
    columns = [column for column in user_columns(schema) if row.column(column.name).null_count == 0]
    indexes = {column.name: row.schema.get_field_index(column.name) for column in columns}
    # Writes the row without values first, then adds each value, and keeps those with which the row is accepted.
    accepted = row
    for index in indexes.values():
        accepted = accepted.set_column(index, row.schema.field(index), pa.nulls(1, row.schema.field(index).type))
    reason = _write_or_reason(connection, dialect, schema, accepted)
    if reason is not None:  # a constraint that the row violates even without values
        yield DeadLetter(gateway, schema.table, row_id, WHOLE_ROW, "null", reason)
        return
    for column in columns:
        index = indexes[column.name]
        candidate = accepted.set_column(index, row.schema.field(index), row.column(index))
        reason = _write_or_reason(connection, dialect, schema, candidate)
        if reason is None:
            accepted = candidate
        else:
            value = row.column(index)[0].as_py()
            text = value if column.type in ("number", "json") else msgspec.json.encode(value).decode()
            yield DeadLetter(gateway, schema.table, row_id, column.name, text, reason)


def _write_or_reason(connection: Connection, dialect: Dialect, schema: TableSchema, rows: pa.Table) -> str | None:
    """Write rows atomically. Returns the reason if the database rejects one of their values."""
    try:
        with savepoint(connection, dialect):
            merge_rows(connection, dialect, schema, load_rows(connection, dialect, schema, rows))
    except Exception as error:
        rejection = connection.statement_error(error)
        if rejection is None or not rejection.is_value_error:
            raise
        return rejection.reason
    return None


def table_columns(schema: TableSchema) -> list[Column]:
    """Return all columns of a destination table except `props`; `loaded_columns` come first."""
    return [*loaded_columns(schema), Column(system_column(schema, "checksum"), "integer", required=False)]

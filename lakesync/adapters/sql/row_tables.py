"""Destination tables in a SQL database: tables with the current rows of synced tables. `SqlAdapter` calls this module.

The *content* of a row (`RowContent`) is the merge of all its deltas, the changes that clients have made. A row is
identified by `(gateway, row_id)`; a *gateway* is one app's stream of changes. The schema's primary key and external id
have indexes on values of any length. They are not unique, because two devices may use one key offline. With soft
delete, a deleted row stays in the table, marked as deleted.

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
from lakesync.adapters.deltas import HASH_SLOTS, NO_CONTENT, RowContent, RowId, hash_slot_of
from lakesync.adapters.sql.backend import Column, Connection, Dialect, load_scratch_table
from lakesync.adapters.sql.follower_state import (
    ROW_KEYS_TABLE,
    load_row_keys,
    make_locks,
    replace_dead_letters,
    take_locks,
)
from lakesync.adapters.sql.row_values import (
    cell_columns,
    key_of,
    loaded_columns,
    row_values,
    system_column,
    user_columns,
)
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import SchemaError
from lakesync.model.hlc import wall_clock
from lakesync.model.schema import Column as SchemaColumn
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

_SCRATCH = "lakesync_rows"
"""The scratch (temporary) table that rows are loaded into, before one statement merges them."""
_KEYS = "_lakesync_keys"
"""Alias of `ROW_KEYS_TABLE` in statements that name a destination table too, which cannot have this prefix."""
_GROUP = 32
"""Columns in one group of a row's checksum: a table of 1,000 columns has about as many groups."""
_SAVEPOINT_NUMBERS = count(1)
"""Makes savepoint names unique: in MySQL a second savepoint with the same name removes the first."""


def table_name(schema: TableSchema) -> str:
    """Return the name of the destination table."""
    return schema.source_table or schema.table


def stored_schema(dialect: Dialect, schema: TableSchema) -> TableSchema:
    """Return a schema with each column of its destination table once.

    Gateways with namespaces of their own may spell a column differently, so the joined schema of all has both
    spellings. If the database ignores case, both are one column there, with the first spelling and type.

    Args:
        dialect: the database's dialect.
        schema: the table's schema.
    """
    columns: dict[str, SchemaColumn] = {}
    for column in schema.columns:
        columns.setdefault(dialect.folded(column.name), column)
    return msgspec.structs.replace(schema, columns=tuple(columns.values()))


def table_columns(schema: TableSchema) -> list[Column]:
    """Return all columns of a destination table except `props`: those that are loaded, and the row's `checksum`."""
    return [*loaded_columns(schema), Column(system_column(schema, "checksum"), "integer", required=False)]


def row_checksum(dialect: Dialect, schema: TableSchema) -> str:
    """Return the SQL expression for the checksum of a row's values and of whether it is marked as deleted.

    Args:
        dialect: the database's dialect.
        schema: the table's schema.
    """
    cells = [column._replace(name=dialect.quote(column.name)) for column in cell_columns(schema)]
    parts = [f"COALESCE('=' || {dialect.text_expression(cell)}, '-')" for cell in cells]
    if schema.soft_delete:
        parts.append(f"CASE WHEN {dialect.quote(system_column(schema, 'deleted_at'))} IS NULL THEN '-' ELSE '+' END")
    # in groups, because SQLite limits how deep an expression is nested
    groups = (" || '|' || ".join(parts[start : start + _GROUP]) for start in range(0, len(parts), _GROUP))
    return dialect.checksum_expression(" || '|' || ".join(f"({group})" for group in groups))


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
            raise  # the connection may be lost: the caller rolls back the whole transaction
        connection.execute(f"ROLLBACK TO SAVEPOINT {name}")
        with suppress(Exception):
            connection.execute(f"RELEASE SAVEPOINT {name}")
        raise
    connection.execute(f"RELEASE SAVEPOINT {name}")


def remove_rows(connection: Connection, dialect: Dialect, table: str, rows: Collection[RowId]) -> int:
    """Delete rows of a destination table without its schema, and their dead letters; return the number of rows.

    Args:
        connection: with an open transaction.
        dialect: the database's dialect.
        table: the destination table's name. Dead letters under this name are deleted too.
        rows: `(gateway, row id)` of each row.
    """
    replace_dead_letters(connection, dialect, table, rows, ())
    present = connection.column_names(table)
    # by name without the prefix of `system_column`; of several, the table's first column is the system's `gateway`
    names = {name.lower().lstrip("_"): name for name in reversed(present)}
    if "row_id" not in present or not {"gateway", "last_arrival", "checksum"} <= names.keys():
        return 0  # not created by LakeSync
    return _delete_rows(
        connection, dialect, dialect.quote(table), [dialect.quote(names["gateway"]), dialect.quote("row_id")], rows
    )


class RowTable:
    """The destination table of one schema, over one connection."""

    def __init__(self, connection: Connection, dialect: Dialect, schema: TableSchema) -> None:
        """Name the table; nothing is read or written yet.

        Args:
            connection: an open connection.
            dialect: the database's dialect.
            schema: the table's schema.
        """
        self._connection = connection
        self._dialect = dialect
        self._schema = stored_schema(dialect, schema)
        self._name = dialect.quote(table_name(schema))
        self._key = [dialect.quote(column) for column in key_of(schema)]

    def ensure(self) -> None:
        """Create the table and its locks, or add missing columns.

        Raises:
            SchemaError: LakeSync did not create the table, it has the rows of another synced table, a name is too long
                for the database, or the schema gained a column that collides with a system column.
        """
        connection, dialect, schema = self._connection, self._dialect, self._schema
        _check_lengths(schema, dialect.max_name_chars)
        present = set(connection.column_names(table_name(schema)))
        if present:
            _check_columns(schema, present)
        # this also checks whose rows the table has
        make_locks(connection, dialect, self._lock_names(), schema.table, is_new=not present)
        if present:
            for column in self._missing_columns(present):
                self._add_column(column)
        else:
            props = Column(dialect.quote(system_column(schema, "props")), "json", default="'{}'")
            columns = self._columns()
            self._define(dialect.create_table(self._name, [*columns, props], self._key, self._indexes(columns)))

    def take_locks(self, rows: Iterable[RowId] | None = None) -> None:
        """Take the locks of rows until the end of the transaction; None takes those of all rows."""
        take_locks(self._connection, self._lock_names(rows))

    def write(self, contents: Mapping[RowId, RowContent]) -> None:
        """Write rows from their contents, and their dead letters, within the caller's transaction.

        Args:
            contents: row → content.
        """
        if not contents:
            return
        values = row_values(
            self._schema, contents, wall_clock(), self._dialect.max_json_depth, fold=self._dialect.folded
        )
        letters = [*values.letters, *self._write_fitting_rows(values.rows)]
        self._remove(values.removed)
        replace_dead_letters(self._connection, self._dialect, self._schema.table, contents, letters)

    def rebuild(self, rows: Sequence[RowId], contents: Mapping[RowId, RowContent]) -> None:
        """Rewrite rows after an erasure, within the caller's transaction.

        Rows that are no longer visible are deleted first, because `write` would keep their `props`. With soft delete,
        those that have content left are then written again, marked as deleted.

        Args:
            rows: the rows to rebuild.
            contents: row → content; rows without deltas are absent.
        """
        self._remove([row for row in rows if row not in contents or not contents[row].state.visible])
        self.write({row: contents.get(row, NO_CONTENT) for row in rows})

    def load(self, rows: pa.Table) -> None:
        """Load rows into the scratch (temporary) table from which `merge` takes them.

        Args:
            rows: the rows, with the columns of `row_values.rows_schema`.
        """
        quote = self._dialect.quote
        columns = [column._replace(name=quote(column.name), required=False) for column in loaded_columns(self._schema)]
        load_scratch_table(self._connection, self._dialect, _SCRATCH, columns, self._key, rows)

    def merge(self) -> None:
        """Merge loaded rows into the table, each with the checksum of its cells as stored by the database."""
        dialect = self._dialect
        columns = [column.name for column in self._columns()]
        update = [column for column in columns if column not in self._key]
        name = dialect.quote(system_column(self._schema, "checksum"))
        source = f"(SELECT {_SCRATCH}.*, {row_checksum(dialect, self._schema)} AS {name} FROM {_SCRATCH})"
        self._connection.execute(dialect.merge_statement(self._name, source, columns, self._key, update))

    def _missing_columns(self, present: Iterable[str]) -> list[Column]:
        """Return the columns, with quoted names, that are not among `present` ones of the database."""
        dialect = self._dialect
        present_names = {dialect.folded(dialect.quote(name)) for name in present}
        return [column for column in self._columns() if dialect.folded(column.name) not in present_names]

    def _add_column(self, column: Column) -> None:
        """Add a column and its index to the table, unless another process adds them at the same time."""
        connection, table = self._connection, table_name(self._schema)
        column = column._replace(required=False)
        try:
            self._define(self._dialect.add_column(self._name, column, self._indexes([column])))
        except Exception:
            if column.name in {each.name for each in self._missing_columns(connection.column_names(table))}:
                raise

    def _columns(self) -> list[Column]:
        """Return `table_columns` with quoted names."""
        return [column._replace(name=self._dialect.quote(column.name)) for column in table_columns(self._schema)]

    def _lock_names(self, rows: Iterable[RowId] | None = None) -> list[str]:
        """Return the names of the locks of rows, or of all rows, in an order that all writers share.

        A lock covers the rows of one hash slot. Without concurrent writers, a table has one lock.
        """
        own_name = table_name(self._schema)
        name = f"table {own_name.lower() if self._dialect.ignores_case_of_tables else own_name}"
        if not self._dialect.concurrent_writers:
            return [name]
        slots = range(HASH_SLOTS) if rows is None else sorted({hash_slot_of(row_id) for _, row_id in rows})
        return [f"{name} {slot:02d}" for slot in slots]

    def _indexes(self, columns: Iterable[Column]) -> dict[str, str]:
        """Return the lookup indexes of those columns, with quoted names, that have a key: name → what it indexes."""
        schema, dialect = self._schema, self._dialect
        by_name = {column.name: column for column in columns}
        indexes = {}
        for name in dict.fromkeys((*schema.primary_key, *filter(None, [schema.external_id_column]))):
            column = by_name.get(dialect.quote(name))
            indexed = dialect.lookup_index(column) if column is not None and name != "row_id" else None
            if indexed is not None:
                digest = hashlib.sha256(f"{table_name(schema)}.{name}".encode()).hexdigest()
                indexes[f"lakesync_key_{digest[:16]}"] = indexed
        return indexes

    def _define(self, statements: Iterable[str]) -> None:
        """Execute statements that create a table or a column together with its indexes."""
        with self._connection.transaction():
            for statement in statements:
                self._connection.execute(statement)
                crash_point("sql.defined")  # tests kill the process here

    def _remove(self, rows: Collection[RowId]) -> None:
        """Delete rows, `(gateway, row id)`, from the table, within the caller's transaction."""
        if rows:
            _delete_rows(self._connection, self._dialect, self._name, self._key, rows)

    def _write_fitting_rows(self, rows: pa.Table) -> Iterator[DeadLetter]:
        """Write rows and yield dead letters for values that the database rejects. Bisects the rows to find them."""
        if not len(rows) or self._write_or_reason(rows) is None:
            return
        if len(rows) == 1:
            yield from self._write_fitting_cells(rows)
            return
        half = len(rows) // 2
        yield from self._write_fitting_rows(rows.slice(0, half))
        yield from self._write_fitting_rows(rows.slice(half))

    def _write_fitting_cells(self, row: pa.Table) -> Iterator[DeadLetter]:
        """Write a rejected row with those of its values that the database accepts."""
        import pyarrow as pa

        table = self._schema.table
        gateway, row_id = (row.column(index)[0].as_py() for index in range(2))
        columns = [column for column in user_columns(self._schema) if row.column(column.name).null_count == 0]
        indexes = {column.name: row.schema.get_field_index(column.name) for column in columns}
        # Writes the row without values first, then adds each value, and keeps those with which the row is accepted.
        accepted = row
        for index in indexes.values():
            accepted = accepted.set_column(index, row.schema.field(index), pa.nulls(1, row.schema.field(index).type))
        reason = self._write_or_reason(accepted)
        if reason is not None:  # a constraint that the row violates even without values
            yield DeadLetter(gateway, table, row_id, WHOLE_ROW, "null", reason)
            return
        for column in columns:
            index = indexes[column.name]
            candidate = accepted.set_column(index, row.schema.field(index), row.column(index))
            reason = self._write_or_reason(candidate)
            if reason is None:
                accepted = candidate
            else:
                value = row.column(index)[0].as_py()
                text = value if column.type in ("number", "json") else msgspec.json.encode(value).decode()
                yield DeadLetter(gateway, table, row_id, column.name, text, reason)

    def _write_or_reason(self, rows: pa.Table) -> str | None:
        """Write rows atomically. Returns the reason if the database rejects one of their values."""
        try:
            with savepoint(self._connection, self._dialect):
                self.load(rows)
                self.merge()
        except Exception as error:
            rejection = self._connection.statement_error(error)
            if rejection is None or not rejection.is_value_error:
                raise
            return rejection.reason
        return None


def _delete_rows(
    connection: Connection, dialect: Dialect, table: str, key: Sequence[str], rows: Collection[RowId]
) -> int:
    """Delete rows, `(gateway, row id)`, of a destination table with this key, both quoted; return their number."""
    load_row_keys(connection, dialect, rows)
    is_same = " AND ".join(
        f"{_KEYS}.{name} = {table}.{column}" for name, column in zip(("gateway", "row_id"), key, strict=True)
    )
    return connection.execute(
        f"DELETE FROM {table} WHERE EXISTS (SELECT 1 FROM {ROW_KEYS_TABLE} {_KEYS} WHERE {is_same})"
    )


def _check_lengths(schema: TableSchema, limit: int | None) -> None:
    """Check that the database does not cut a name; a second name with the same beginning would then mean the same.

    Args:
        schema: the table's schema.
        limit: the characters that the database keeps; None if it keeps all.
    """
    if limit is None:
        return
    if len(table_name(schema)) > limit:
        raise SchemaError(
            f"the table name {table_name(schema)!r} has more than the destination's limit of {limit} characters; set a "
            "shorter sourceTable in the schema"
        )
    for column in table_columns(schema):
        if len(column.name) > limit:
            raise SchemaError(
                f"the column name {column.name!r} of table {schema.table!r} has more than the destination's limit of "
                f"{limit} characters; use a shorter name"
            )


def _check_columns(schema: TableSchema, present: Collection[str]) -> None:
    """Check that LakeSync created an existing table, and that no column of the schema collides with a system column."""
    name = table_name(schema)
    if "row_id" not in present:
        raise SchemaError(
            f"the destination's table {name!r} was not created by LakeSync: it has no column row_id. "
            "Rename the table, or set another sourceTable in the schema."
        )
    if not {system_column(schema, "gateway"), system_column(schema, "last_arrival")} <= set(present):
        raise SchemaError(
            f"the destination's table {name!r} was created by an earlier version without the column "
            "gateway. Rename the table; it is created and filled again."
        )
    for usual in ("props", "synced_at", "last_arrival", "checksum", *(("deleted_at",) if schema.soft_delete else ())):
        new_name = system_column(schema, usual)
        if new_name != usual and usual in present and new_name not in present:
            raise SchemaError(
                f"the schema of {schema.table!r} has a new column {usual!r}, which is a system column of the "
                f"destination's table {name!r}. Run: ALTER TABLE {name} RENAME COLUMN {usual} TO {new_name}"
            )

"""Access to synced tables by row id, as an alternative to SQL: `db["todos"].insert(title="Buy oat milk")`.

Apps get a `Table` from a `Client`, which has all of them in its `Tables`. `SyncTracker` offers the same with the method
names of the reference, the TypeScript system whose wire protocol LakeSync implements. Triggers of LakeSync on the
tables track every write, and reject values that the gateway would reject.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, Protocol

import msgspec

from lakesync.client.sqlite.database import LocalDB, database_error
from lakesync.client.sqlite.sql_values import INT64, SqlValue, python_value
from lakesync.model.delta import MAX_DEPTH, jcs_raw
from lakesync.model.errors import DuplicateError, NotFoundError, ValidationError
from lakesync.model.schema import ColumnType, TableSchema

Row = dict[str, Any]
"""A row as an app sees it: Python values by column, with `row_id`."""


class Table:
    """A synced table: `db["todos"]`. Each write is a transaction of its own, unless one is open.

    Every method that writes raises DbError if the database cannot be written now.
    """

    def __init__(self, db: LocalDB, schema: TableSchema, on_write: Callable[[], None]) -> None:
        """Create an accessor of an existing table.

        Args:
            db: the app's database.
            schema: the table's schema.
            on_write: called after each committed write.
        """
        self.schema = schema
        self._db = db
        self._on_write = on_write
        self._types = schema.types
        # with the table's name, because SQLite reads a quoted name of no column as a text
        names = ", ".join(f'"{schema.table}"."{name}"' for name in self._types)
        self._select = f'SELECT row_id, {names} FROM "{schema.table}"'

    @property
    def name(self) -> str:
        """The table's name."""
        return self.schema.table

    def insert(self, values: Mapping[str, Any] | None = None, /, *, row_id: str | None = None, **columns: Any) -> str:
        """Insert a row.

        Args:
            values: columns by name, optionally with `row_id`.
            row_id: the row's id; None generates one.
            columns: columns by name, in place of or in addition to `values`.

        Returns:
            The row's id.

        Raises:
            DuplicateError: a row with this id exists.
            ValidationError: a column is unknown or does not accept its value.
        """
        row = self._merge_arguments(values, columns, row_id)
        row_id = row.pop("row_id") if "row_id" in row else _new_id()
        _check_id(row_id)
        names, cells = self._cells(row)
        marks = ", ?" * len(names)
        try:
            self._write(f'INSERT INTO "{self.name}" (row_id{_column_list(names)}) VALUES (?{marks})', [row_id, *cells])
        except sqlite3.IntegrityError as error:
            if row_id in self:
                raise DuplicateError(f"table {self.name!r} already has a row {row_id!r}: update it") from error
            raise ValidationError(str(error)) from error
        return row_id

    def update(self, row_id: str, values: Mapping[str, Any] | None = None, /, **columns: Any) -> None:
        """Update columns of a row.

        Args:
            row_id: the row's id.
            values: columns by name.
            columns: columns by name, in place of or in addition to `values`.

        Raises:
            NotFoundError: the row does not exist.
            ValidationError: a column is unknown or does not accept its value.
        """
        names, cells = self._cells(self._merge_arguments(values, columns, row_id, is_update=True))
        if not names:
            raise ValidationError(f"update of row {row_id!r} of {self.name!r} names no column: name one to change")
        changes = ", ".join(f'"{name}" = ?' for name in names)
        if not self._write_checked(f'UPDATE "{self.name}" SET {changes} WHERE row_id = ?', [*cells, row_id]):
            raise NotFoundError(f"table {self.name!r} has no row {row_id!r}: insert it, or use upsert")

    def upsert(self, row_id: str, values: Mapping[str, Any] | None = None, /, **columns: Any) -> None:
        """Update columns of a row, or insert it.

        Args:
            row_id: the row's id.
            values: columns by name.
            columns: columns by name, in place of or in addition to `values`.

        Raises:
            ValidationError: a column is unknown or does not accept its value.
        """
        _check_id(row_id)
        names, cells = self._cells(self._merge_arguments(values, columns, row_id, is_update=True))
        marks = ", ?" * len(names)
        changes = ", ".join(f'"{name}" = excluded."{name}"' for name in names)
        on_conflict = f"DO UPDATE SET {changes}" if names else "DO NOTHING"
        self._write_checked(
            f'INSERT INTO "{self.name}" AS app (row_id{_column_list(names)}) VALUES (?{marks}) '
            f"ON CONFLICT (row_id) {on_conflict}",
            [row_id, *cells],
        )

    def delete(self, row_id: str) -> bool:
        """Delete a row; return whether it existed."""
        return bool(self._write_checked(f'DELETE FROM "{self.name}" WHERE row_id = ?', [row_id]))

    def get(self, row_id: str) -> Row | None:
        """Return a row, including its `row_id`; None if it does not exist."""
        with self._db.exclusive():
            rows = self._db.read(f"{self._select} WHERE row_id = ?", (row_id,))
        return self._row(rows[0]) if rows else None

    def rows(self, where: str = "1", params: Any = (), *, order_by: str = "row_id") -> list[Row]:
        """Return the rows that fulfil a condition: `rows("done AND title = ?", ["Buy oat milk"])`.

        `where` and `order_by` become part of the SQL text; pass values from outside the program only as `params`.

        Args:
            where: an SQL condition.
            params: values for its placeholders.
            order_by: an SQL ORDER BY list.
        """
        with self._db.exclusive():
            rows = self._db.read(f"{self._select} WHERE {where} ORDER BY {order_by}", params)
        return [self._row(row) for row in rows]

    def __getitem__(self, row_id: str) -> Row:
        """Return a row.

        Raises:
            NotFoundError: the row does not exist.
        """
        row = self.get(row_id)
        if row is None:
            raise NotFoundError(f"table {self.name!r} has no row {row_id!r}")
        return row

    def __contains__(self, row_id: object) -> bool:
        with self._db.exclusive():
            return bool(self._db.read(f'SELECT 1 FROM "{self.name}" WHERE row_id = ?', (row_id,)))

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows())

    def __len__(self) -> int:
        with self._db.exclusive():
            return int(self._db.read(f'SELECT count(*) FROM "{self.name}"')[0][0])

    def _row(self, cells: tuple[Any, ...]) -> Row:
        """Return a row for the app from the cells that `_select` returns."""
        values = zip(self._types.items(), cells[1:], strict=True)
        return {"row_id": cells[0], **{name: python_value(kind, cell) for (name, kind), cell in values}}

    def _merge_arguments(
        self, values: Mapping[str, Any] | None, columns: dict[str, Any], row_id: str | None, *, is_update: bool = False
    ) -> dict[str, Any]:
        """Return the columns of a call as one mapping.

        Args:
            values: columns as a mapping; it may contain `row_id`, as in a row that was read.
            columns: columns as keyword arguments, which have precedence.
            row_id: the id that the call passes by itself; None if it passes none.
            is_update: whether to leave `row_id` out of the result, because it cannot change.

        Raises:
            ValidationError: `values` is not a mapping, or names another row id than the call.
        """
        if values is not None and not isinstance(values, dict | Mapping):
            raise ValidationError(
                f"{values!r:.60} is not a row: pass one row as a mapping or as keyword arguments. For many rows, call "
                "this method in db.transaction()."
            )
        row = {**(values or {}), **columns} if columns else dict(values or ())
        if row_id is not None and row.setdefault("row_id", row_id) != row_id:
            advice = "a row's id cannot change; insert another row" if is_update else "pass only one of them"
            raise ValidationError(f"row_id is {row['row_id']!r} in the values and {row_id!r} in the call: {advice}")
        if is_update:
            row.pop("row_id", None)
        return row

    def _cells(self, values: Mapping[str, Any]) -> tuple[list[str], list[SqlValue]]:
        """Return the columns' names, and their values for SQLite."""
        names: list[str] = []
        cells: list[SqlValue] = []
        for name, value in values.items():
            kind = self._types.get(name)
            if kind is None:
                raise ValidationError(
                    f"table {self.name!r} has no column {name!r}: its schema has {', '.join(self._types)}"
                )
            names.append(name)
            if value is None or (kind != "json" and type(value) is str and value.isascii()):
                cells.append(value)
                continue
            try:
                cells.append(_json_text(value) if kind == "json" else _checked_value(kind, value))
            except ValueError as error:
                raise ValidationError(f"column {name!r} of {self.name!r} takes {error}") from error
        return names, cells

    def _write_checked(self, statement: str, cells: list[Any]) -> int:
        """Do the same as `_write`, and raise ValidationError for a violated constraint or trigger."""
        try:
            return self._write(statement, cells)
        except sqlite3.IntegrityError as error:
            raise ValidationError(str(error)) from error

    def _write(self, statement: str, cells: list[Any]) -> int:
        """Run a write in the open transaction, or in its own; return the number of written rows."""
        with self._db.exclusive():
            in_transaction = self._db.conn.in_transaction
            with nullcontext() if in_transaction else self._db.transaction():
                try:
                    count = self._db.conn.execute(statement, cells).rowcount
                except sqlite3.OperationalError as error:
                    raise database_error(error, str(self._db.path)) from error
        if not in_transaction:
            self._on_write()
        return count


class Tables:
    """The synced tables of a client, by name."""

    def __init__(
        self, db: LocalDB, schemas: Callable[[], Mapping[str, TableSchema]], on_write: Callable[[], None]
    ) -> None:
        """Create the accessors of the tables of these schemas.

        Args:
            db: the app's database.
            schemas: returns the committed schemas by table: columns may be added at any time.
            on_write: called after each committed write.
        """
        self._db = db
        self._schemas = schemas
        self._on_write = on_write
        self._tables: dict[str, Table] = {}

    def __getitem__(self, table: str) -> Table:
        """Return a synced table.

        Raises:
            NotFoundError: the table is not synchronised.
        """
        schema = self._schemas().get(table)
        if schema is None:
            raise NotFoundError(f"table {table!r} is not synchronised: pass its schema when you open the database")
        if table not in self._tables or self._tables[table].schema != schema:
            self._tables[table] = Table(self._db, schema, self._on_write)
        return self._tables[table]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the synced tables."""
        return iter(list(self._schemas()))

    def __contains__(self, table: object) -> bool:
        return table in self._schemas()

    def query(self, sql: str, params: Any = ()) -> list[Row]:
        """Return the rows of a query. See `LocalDB.query`."""
        return self._db.query(sql, params)


class _TablesAndQueries(Protocol):
    """The methods of `Client` and `Tables` that `SyncTracker` calls."""

    def __getitem__(self, table: str) -> Table:
        """Return a synced table."""

    def query(self, sql: str, params: Any = ...) -> list[Row]:
        """Return the rows of a query."""


class SyncTracker:
    """Local writes and queries as in the reference's class of this name. Every method names its table."""

    def __init__(self, tables: _TablesAndQueries) -> None:
        """Wrap a client.

        Args:
            tables: the client, or its tables.
        """
        self._tables = tables

    def insert(self, table: str, row_id: str, data: Mapping[str, Any]) -> None:
        """See `Table.insert`."""
        self._tables[table].insert(data, row_id=row_id)

    def update(self, table: str, row_id: str, data: Mapping[str, Any]) -> None:
        """See `Table.update`."""
        self._tables[table].update(row_id, data)

    def delete(self, table: str, row_id: str) -> None:
        """See `Table.delete`."""
        self._tables[table].delete(row_id)

    def query(self, sql: str, params: Any = ()) -> list[Row]:
        """See `LocalDB.query`."""
        return self._tables.query(sql, params)


_ACCEPTED_TYPES: dict[ColumnType, tuple[type, ...]] = {
    "string": (str, bytes),
    "number": (int, float, str, bytes),
    "boolean": (int, str, bytes),
    "null": (str, bytes),
}
"""Python types that sqlite3 can bind for a column. The triggers reject wrong texts and all bytes."""
_MAYBE_BEYOND_DOUBLES = re.compile(rb"[0-9]{309}")
"""A number with 309 digits may be an integer above the largest double, about 1.8e308."""
_encode = msgspec.json.Encoder().encode


def _checked_value(kind: ColumnType, value: Any) -> Any:
    """Return a value if SQLite can bind it without changing it.

    Raises:
        ValueError: it cannot; the message continues "column … takes".
    """
    if not isinstance(value, _ACCEPTED_TYPES[kind]):
        raise ValueError(f"a {kind}, not {value!r}: convert it")  # noqa: TRY004 reported as one kind of error
    if isinstance(value, int):
        if value not in INT64:
            raise ValueError(f"integers of 64 bits, not {value}: pass a float, or store it as text")
    elif isinstance(value, str):
        _check_text(value)
    elif isinstance(value, float) and math.isnan(value):
        raise ValueError("no NaN: pass None or a finite number")
    return value


def _json_text(value: Any) -> str:
    """Return a value as JSON text.

    Raises:
        ValueError: the value has no JSON form; the message continues "column … takes".
    """
    try:
        text = _encode(value)
        if b"null" in text:
            # raises for NaN and infinities, which msgspec writes as null
            json.dumps(value, allow_nan=False, default=str)
        if text.count(b"[") + text.count(b"{") > MAX_DEPTH or _MAYBE_BEYOND_DOUBLES.search(text):
            jcs_raw(text)  # raises for too many levels, and for numbers beyond the doubles
    except (TypeError, ValueError, RecursionError, ValidationError) as error:
        raise ValueError(f"JSON: {error}") from error
    return text.decode()


def _check_text(text: str) -> None:
    """Check that a text has no lone surrogate, which UTF-8 cannot encode; raise ValueError if it has one."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"Unicode text: {error}") from error


def _check_id(row_id: object) -> None:
    """Check that a row id is text without lone surrogates; raise ValidationError if not."""
    if not isinstance(row_id, str):
        raise ValidationError(f"row_id is {row_id!r}, it must be text: pass str(…)")
    try:
        _check_text(row_id)
    except ValueError as error:
        raise ValidationError(f"row_id takes {error}") from error


def _new_id() -> str:
    """Return a unique id that starts with the time, so that new rows are neighbours in the file."""
    return f"{time.time_ns() // 1_000_000:012x}{uuid.uuid4().hex[12:]}"


def _column_list(names: list[str]) -> str:
    """Return columns as the continuation of an SQL list, each quoted and after a comma."""
    return "".join(f', "{name}"' for name in names)

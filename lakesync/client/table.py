"""One table of an app, by row id: the short way beside SQL."""

from __future__ import annotations

import math
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from lakesync.client.database import LocalDB
from lakesync.client.sql_values import SqlValue, python_value
from lakesync.exceptions import DuplicateError, NotFoundError, ValidationError
from lakesync.schema import ColumnType, TableSchema

Row = dict[str, Any]


class Table:
    """`db["todos"]`. Each call is a transaction of its own, unless one is open."""

    def __init__(self, db: LocalDB, schema: TableSchema, wrote: Callable[[], None]) -> None:
        """Args: wrote: told after a write."""
        self.schema = schema
        self._db = db
        self._wrote = wrote
        self._types = schema.types
        names = ", ".join(f'"{name}"' for name in self._types)
        self._select = f'SELECT row_id, {names} FROM "{schema.table}"'

    @property
    def name(self) -> str:
        """The table's name."""
        return self.schema.table

    def insert(self, values: Mapping[str, Any] | None = None, /, *, row_id: str | None = None, **columns: Any) -> str:
        """Add a row; its id, a new one unless it is given.

        Raises:
            DuplicateError: there is a row of that id.
            ValidationError: a column is unknown, or does not take the value.
        """
        row_id = _new_id() if row_id is None else row_id
        _check_id(row_id)
        names, cells = self._cells({**(values or {}), **columns})
        marks = ", ?" * len(names)
        try:
            self._write(f'INSERT INTO "{self.name}" (row_id{_listed(names)}) VALUES (?{marks})', [row_id, *cells])
        except sqlite3.IntegrityError as error:
            if row_id in self:
                raise DuplicateError(f"table {self.name!r} has a row {row_id!r} already: update it") from error
            raise ValidationError(str(error)) from error
        return row_id

    def update(self, row_id: str, values: Mapping[str, Any] | None = None, /, **columns: Any) -> None:
        """Change columns of a row.

        Raises:
            NotFoundError: there is no such row.
            ValidationError: a column is unknown, or does not take the value.
        """
        names, cells = self._cells({**(values or {}), **columns})
        if not names:
            raise ValidationError(f"no column of {self.name!r} is named: say what to change")
        changes = ", ".join(f'"{name}" = ?' for name in names)
        if not self._checked(f'UPDATE "{self.name}" SET {changes} WHERE row_id = ?', [*cells, row_id]):
            raise NotFoundError(f"table {self.name!r} has no row {row_id!r}: insert it, or use upsert")

    def upsert(self, row_id: str, values: Mapping[str, Any] | None = None, /, **columns: Any) -> None:
        """Change columns of a row, or add it.

        Raises:
            ValidationError: a column is unknown, or does not take the value.
        """
        _check_id(row_id)
        names, cells = self._cells({**(values or {}), **columns})
        marks = ", ?" * len(names)
        changes = ", ".join(f'"{name}" = excluded."{name}"' for name in names)
        then = f"DO UPDATE SET {changes}" if names else "DO NOTHING"
        self._checked(
            f'INSERT INTO "{self.name}" (row_id{_listed(names)}) VALUES (?{marks}) ON CONFLICT (row_id) {then}',
            [row_id, *cells],
        )

    def delete(self, row_id: str) -> bool:
        """Remove a row; whether it was there."""
        return bool(self._checked(f'DELETE FROM "{self.name}" WHERE row_id = ?', [row_id]))

    def get(self, row_id: str) -> Row | None:
        """A row, its id among its columns; None where it is not there."""
        found = self._db.conn.execute(f"{self._select} WHERE row_id = ?", (row_id,)).fetchone()
        return None if found is None else self._row(found)

    def rows(self, where: str = "1", params: Any = (), *, order_by: str = "row_id") -> list[Row]:
        """Rows, by a condition in SQL."""
        return [
            self._row(row) for row in self._db.conn.execute(f"{self._select} WHERE {where} ORDER BY {order_by}", params)
        ]

    def __getitem__(self, row_id: str) -> Row:
        """A row.

        Raises:
            NotFoundError: there is none of that id.
        """
        row = self.get(row_id)
        if row is None:
            raise NotFoundError(f"table {self.name!r} has no row {row_id!r}")
        return row

    def __contains__(self, row_id: object) -> bool:
        return self._db.conn.execute(f'SELECT 1 FROM "{self.name}" WHERE row_id = ?', (row_id,)).fetchone() is not None

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows())

    def __len__(self) -> int:
        return int(self._db.conn.execute(f'SELECT count(*) FROM "{self.name}"').fetchone()[0])

    def _row(self, cells: tuple[Any, ...]) -> Row:
        values = zip(self._types.items(), cells[1:], strict=True)
        return {"row_id": cells[0], **{name: python_value(kind, cell) for (name, kind), cell in values}}

    def _cells(self, values: Mapping[str, Any]) -> tuple[list[str], list[SqlValue]]:
        names, cells = [], []
        for name, value in values.items():
            kind = self._types.get(name)
            if kind is None:
                raise ValidationError(
                    f"table {self.name!r} has no column {name!r}: its schema has {', '.join(self._types)}"
                )
            names.append(name)
            if kind != "json" and not isinstance(
                value, _HELD[kind] | bytes | None
            ):  # bytes are the triggers' to refuse
                raise ValidationError(f"column {name!r} of {self.name!r} takes a {kind}, not {value!r}: convert it")
            if isinstance(value, float) and math.isnan(value):  # SQLite would take it for NULL
                raise ValidationError(f"column {name!r} of {self.name!r} takes no NaN: give None, or a finite number")
            if kind == "json" and value is not None:
                try:
                    value = msgspec.json.encode(value).decode()  # noqa: PLW2901 as the column holds it
                except (TypeError, UnicodeEncodeError) as error:
                    raise ValidationError(f"column {name!r} of {self.name!r} takes JSON: {error}") from error
            cells.append(value)
        return names, cells

    def _checked(self, statement: str, cells: list[Any]) -> int:
        try:
            return self._write(statement, cells)
        except sqlite3.IntegrityError as error:
            raise ValidationError(str(error)) from error

    def _write(self, statement: str, cells: list[Any]) -> int:
        conn = self._db.conn
        if conn.in_transaction:
            return conn.execute(statement, cells).rowcount
        with self._db.transaction():
            count = conn.execute(statement, cells).rowcount
        self._wrote()
        return count


_HELD: dict[ColumnType, Any] = {"string": str, "number": int | float | str, "boolean": int | str, "null": str}
"""What sqlite3 can be given for a column; which texts, and all bytes, are refused, the triggers say."""


def _check_id(row_id: object) -> None:
    if not isinstance(row_id, str):
        raise ValidationError(f"a row's id is text, not {row_id!r}: give str(…)")


def _new_id() -> str:
    """Unique, and in order of time, so that new rows stand together in the file."""
    return f"{time.time_ns() // 1_000_000:012x}{uuid.uuid4().hex[12:]}"


def _listed(names: list[str]) -> str:
    return "".join(f', "{name}"' for name in names)

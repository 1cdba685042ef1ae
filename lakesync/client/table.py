"""One table of an app, by row id: the short way beside SQL."""

from __future__ import annotations

import json
import math
import re
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from lakesync.client.database import LocalDB, fault
from lakesync.client.sql_values import SqlValue, python_value
from lakesync.model.delta import MAX_DEPTH, jcs_raw
from lakesync.model.errors import DuplicateError, NotFoundError, ValidationError
from lakesync.model.schema import ColumnType, TableSchema

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
        """Add a row; its id, a new one unless it is given, by itself or among the values.

        Raises:
            DuplicateError: there is a row of that id.
            ValidationError: a column is unknown, or does not take the value.
        """
        given = self._given(values, columns, row_id)
        row_id = given.pop("row_id") if "row_id" in given else _new_id()
        _check_id(row_id)
        names, cells = self._cells(given)
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
        names, cells = self._cells(self._given(values, columns, row_id, fixed=True))
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
        names, cells = self._cells(self._given(values, columns, row_id, fixed=True))
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
        with self._db.alone():
            found = self._db.conn.execute(f"{self._select} WHERE row_id = ?", (row_id,)).fetchone()
        return None if found is None else self._row(found)

    def rows(self, where: str = "1", params: Any = (), *, order_by: str = "row_id") -> list[Row]:
        """Rows, by a condition in SQL: `rows("done AND title = ?", ["Buy oat milk"])`."""
        with self._db.alone():
            found = self._db.conn.execute(f"{self._select} WHERE {where} ORDER BY {order_by}", params).fetchall()
        return [self._row(row) for row in found]

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
        with self._db.alone():
            found = self._db.conn.execute(f'SELECT 1 FROM "{self.name}" WHERE row_id = ?', (row_id,)).fetchone()
        return found is not None

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows())

    def __len__(self) -> int:
        with self._db.alone():
            return int(self._db.conn.execute(f'SELECT count(*) FROM "{self.name}"').fetchone()[0])

    def _row(self, cells: tuple[Any, ...]) -> Row:
        values = zip(self._types.items(), cells[1:], strict=True)
        return {"row_id": cells[0], **{name: python_value(kind, cell) for (name, kind), cell in values}}

    def _given(
        self, values: Mapping[str, Any] | None, columns: dict[str, Any], row_id: str | None, *, fixed: bool = False
    ) -> dict[str, Any]:
        """What a call names; `row_id` among it as a row that was read has it, but left out where it is `fixed`."""
        if values is not None and not isinstance(values, dict | Mapping):
            raise ValidationError(
                f"{values!r:.60} is no row: give one, as a mapping or by name; for many, call this in db.transaction()"
            )
        given = {**(values or {}), **columns} if columns else dict(values or ())
        if row_id is not None and given.setdefault("row_id", row_id) != row_id:
            what = "a row's id stays; add another row" if fixed else "say one of the two"
            raise ValidationError(f"row_id is {given['row_id']!r} among the values, and {row_id!r}: {what}")
        if fixed:
            given.pop("row_id", None)
        return given

    def _cells(self, values: Mapping[str, Any]) -> tuple[list[str], list[SqlValue]]:
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
                cells.append(_json(value) if kind == "json" else _plain(kind, value))
            except ValueError as error:
                raise ValidationError(f"column {name!r} of {self.name!r} takes {error}") from error
        return names, cells

    def _checked(self, statement: str, cells: list[Any]) -> int:
        try:
            return self._write(statement, cells)
        except sqlite3.IntegrityError as error:
            raise ValidationError(str(error)) from error

    def _write(self, statement: str, cells: list[Any]) -> int:
        with self._db.alone():
            if self._db.conn.in_transaction:
                return self._run(statement, cells)
            with self._db.transaction():
                count = self._run(statement, cells)
        self._wrote()
        return count

    def _run(self, statement: str, cells: list[Any]) -> int:
        try:
            return self._db.conn.execute(statement, cells).rowcount
        except sqlite3.OperationalError as error:
            raise fault(error, str(self._db.path)) from error


_HELD: dict[ColumnType, tuple[type, ...]] = {
    "string": (str, bytes),
    "number": (int, float, str, bytes),
    "boolean": (int, str, bytes),
    "null": (str, bytes),
}
"""What sqlite3 can be given for a column; which texts, and all bytes, are refused, the triggers say."""
_INTEGERS = range(-(2**63), 2**63)
_HUGE = re.compile(rb"[0-9]{309}")
"""What may be a number beyond all doubles."""
_encode = msgspec.json.Encoder().encode


def _plain(kind: ColumnType, value: Any) -> Any:
    """A value as a column of this type holds it.

    Raises:
        ValueError: SQLite would not take it, or for something else.
    """
    if not isinstance(value, _HELD[kind]):
        raise ValueError(f"a {kind}, not {value!r}: convert it")  # noqa: TRY004 told as one error
    if isinstance(value, int):
        if value not in _INTEGERS:
            raise ValueError(f"integers of 64 bits, not {value}: give a float, or keep it as text")
    elif isinstance(value, str):
        _check_text(value)
    elif isinstance(value, float) and math.isnan(value):
        raise ValueError("no NaN: give None, or a finite number")
    return value


def _json(value: Any) -> str:
    """A value as JSON text.

    Raises:
        ValueError: it has none.
    """
    try:
        text = _encode(value)
        if b"null" in text:
            json.dumps(value, allow_nan=False, default=str)  # msgspec writes null for NaN and infinities
        if text.count(b"[") + text.count(b"{") > MAX_DEPTH or _HUGE.search(text):
            jcs_raw(text)
    except (TypeError, ValueError, RecursionError, ValidationError) as error:
        raise ValueError(f"JSON: {error}") from error
    return text.decode()


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"Unicode text: {error}") from error


def _check_id(row_id: object) -> None:
    if not isinstance(row_id, str):
        raise ValidationError(f"a row's id is text, not {row_id!r}: give str(…)")
    try:
        _check_text(row_id)
    except ValueError as error:
        raise ValidationError(f"a row's id takes {error}") from error


def _new_id() -> str:
    """Unique, and in order of time, so that new rows stand together in the file."""
    return f"{time.time_ns() // 1_000_000:012x}{uuid.uuid4().hex[12:]}"


def _listed(names: list[str]) -> str:
    return "".join(f', "{name}"' for name in names)

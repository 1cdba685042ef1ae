"""SQLite: one file on one machine, to be looked into with any tool."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakesync.adapters.checksums import checksum
from lakesync.adapters.sql import Column, Connection, Dialect, Kind, Refusal, SqlAdapter, Value
from lakesync.adapters.sql.executor import arrow_of
from lakesync.adapters.sql.pool import Pool
from lakesync.model.errors import AdapterError

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES: dict[Kind, str] = {"integer": "INTEGER", "number": "NUMERIC", "boolean": "INTEGER"}


class SqliteAdapter(SqlAdapter):
    """Over a file; one process writes it at a time, any number may read."""

    def __init__(self, path: Path | str) -> None:
        """Args: path: made, with its folder, when it is not there.

        Raises:
            AdapterError: it is no database of SQLite, or cannot be opened.
        """
        self.path = Path(path).expanduser().absolute()
        super().__init__(SqliteExecutor(self.path), SqliteDialect())
        self.prepare()

    def _forget(self, connection: Connection, tables: Sequence[str]) -> None:  # noqa: ARG002 the file is all of them
        """Write the file anew, and cut its log."""
        connection.execute("VACUUM")
        ((busy, _, _),) = connection.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        if busy:
            raise AdapterError(
                f"the database {self.path} still holds in its log what was erased, as somebody reads it: let that end, "
                "and repeat the erasure"
            )


class SqliteDialect(Dialect):
    """SQL as SQLite has it."""

    def column(self, kind: Kind) -> str:
        """The type of a column; text compares by its bytes, which is by code point."""
        return _TYPES.get(kind, "TEXT")

    def scratch(self, name: str, columns: Sequence[Column], key: Sequence[str]) -> Sequence[str]:
        """A temporary table, made again."""
        defined = ", ".join([*map(self.define, columns), f"PRIMARY KEY ({', '.join(key)})"])
        return [f"DROP TABLE IF EXISTS temp.{name}", f"CREATE TEMP TABLE {name} ({defined})"]

    def merge(self, table: str, scratch: str, columns: Sequence[str], key: Sequence[str], update: Sequence[str]) -> str:
        """INSERT … ON CONFLICT."""
        names = ", ".join(columns)
        do = f"UPDATE SET {', '.join(f'{column} = excluded.{column}' for column in update)}" if update else "NOTHING"
        return (
            f"INSERT INTO {table} ({names}) SELECT {names} FROM {scratch} s WHERE true"
            f" ON CONFLICT ({', '.join(key)}) DO {do}"
        )

    def checksum(self, text: str) -> str:
        """By a function of the connection."""
        return f"lakesync_checksum({text})"

    def table(self, name: str, columns: Sequence[Column], key: Sequence[str]) -> Sequence[str]:
        """A table that lies in the order of its key."""
        return [f"{statement} WITHOUT ROWID" for statement in super().table(name, columns, key)]


class SqliteExecutor:
    """Connections to a file."""

    def __init__(self, path: Path) -> None:
        """Args: path: made, with its folder, at the first connection."""
        self._path = path
        self._pool = Pool(self._opened, lambda _: True, lambda sql: sql.close())

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A connection of the pool."""
        try:
            with self._pool.lease() as sql:
                yield _SqliteConnection(sql)
        except (sqlite3.Error, OSError) as error:
            raise AdapterError(f"the database {self._path} cannot be used: {error}") from error

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()

    def _opened(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        sql = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        for pragma in ("busy_timeout=20000", "journal_mode=WAL", "synchronous=FULL", "temp_store=MEMORY"):
            sql.execute(f"PRAGMA {pragma}").fetchall()
        sql.create_function("lakesync_checksum", 1, checksum, deterministic=True)
        return sql


class _SqliteConnection:
    def __init__(self, sql: sqlite3.Connection) -> None:
        self._sql = sql

    def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
        return max(0, self._sql.execute(statement, [_spelled(value) for value in values]).rowcount)

    def rows(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        return self._sql.execute(statement, values).fetchall()

    def arrow(self, statement: str, values: Sequence[Value], schema: pa.Schema) -> pa.Table:
        return arrow_of(self.rows(statement, values), schema)

    def columns(self, table: str) -> list[str]:
        return [name for (name,) in self._sql.execute("SELECT name FROM pragma_table_info(?)", [table])]

    def load(self, table: str, rows: pa.Table) -> None:
        import pyarrow as pa

        columns = []
        for column in rows.columns:
            values = column.to_pylist()
            columns.append([_spelled(value) for value in values] if pa.types.is_timestamp(column.type) else values)
        places = ", ".join("?" * len(columns))
        alone = not self._sql.in_transaction
        if alone:
            self._sql.execute("BEGIN")
        self._sql.executemany(f"INSERT INTO temp.{table} VALUES ({places})", zip(*columns, strict=True))
        if alone:
            self._sql.execute("COMMIT")

    def refusal(self, error: BaseException) -> Refusal | None:
        if not isinstance(error, sqlite3.Error) or not self._sql.in_transaction:
            return None
        return Refusal(str(error), isinstance(error, (sqlite3.IntegrityError, sqlite3.DataError)))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._sql.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._sql.execute("COMMIT")
        except BaseException:
            if self._sql.in_transaction:
                self._sql.execute("ROLLBACK")
            raise


def _spelled(value: Value) -> str | int | None:
    return value.isoformat(timespec="milliseconds") if isinstance(value, datetime) else value

"""Queries of the app with a result of another form than rows: live queries, and pandas, polars or Arrow frames.

`Client.watch` returns a `Watch`; `Client.to_pandas`, `to_polars` and `to_arrow` call the functions. All run in a
connection of their own that cannot write. SQLite notifies no other connection of a commit, so a watch checks at
intervals whether there was one. The type of a frame's column follows from its values. If a whole table is read, its
schema gives the types of columns without values.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from lakesync.client.sqlite.database import connect_read_only
from lakesync.client.sqlite.query_rows import distinct_names, rows_as_dicts, run_query
from lakesync.client.sqlite.tables import Row
from lakesync.model.errors import extra
from lakesync.model.schema import ColumnType, TableSchema

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

MIN_INTERVAL_SECONDS = 0.05
"""Seconds between checks whether a connection of this process or another has committed."""
MAX_INTERVAL_SECONDS = 0.25
"""The interval grows to this many seconds while there are no commits, because each check wakes the processor."""


class Watch:
    """Iterates over the results of a query: the current one, then each changed one.

    LakeSync's triggers on synced tables count the writes, so a query that reads only such tables runs again when one of
    them was written to. A query that reads other tables too runs after every commit, and its result is compared with
    the previous one.
    """

    def __init__(
        self,
        path: Path,
        sql: str,
        params: Any,
        synced: Collection[str],
        closed: threading.Event,
    ) -> None:
        """Prepare the query.

        Args:
            path: the app's database.
            sql: one statement that returns rows.
            params: values for its placeholders.
            synced: the names of the synced tables.
            closed: set when the client is closed.
        """
        self._db = connect_read_only(path)
        self._lock = threading.Lock()
        self._closed = False
        self._sql, self._params = sql, params
        self._database_closed = closed
        self.tables = self._find_tables()
        """The tables that the query reads."""
        self._synced = sorted(self.tables & set(synced))
        self._reads_other_tables = bool(self.tables - set(synced))
        self._data_version = -1
        """SQLite's number that changes with each commit of another connection, at the newest check; -1 before."""
        self._counters: list[Any] | None = None
        """The numbers of writes to the synced tables, when the query last ran; None before."""
        self._result: list[Row] | None = None
        """The newest result, if the query reads tables whose writes are not counted."""
        self.interval = MIN_INTERVAL_SECONDS
        """Seconds until the next check."""

    def __iter__(self) -> Iterator[list[Row]]:
        """Yield results until the watch or the database is closed."""
        while (rows := self.next()) is not None:
            yield rows

    def next(self, timeout: float | None = None) -> list[Row] | None:
        """Wait for the next result.

        Args:
            timeout: seconds; None waits without limit.

        Returns:
            The rows; None after the timeout, or if the watch or the database was closed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (self._closed or self._database_closed.is_set()):
            if (rows := self._check()) is not None:
                self.interval = MIN_INTERVAL_SECONDS
                return rows
            seconds = self.interval if deadline is None else min(self.interval, deadline - time.monotonic())
            self.interval = min(MAX_INTERVAL_SECONDS, self.interval * 1.1)
            if seconds <= 0:
                return None
            self._database_closed.wait(seconds)
        self.close()
        return None

    def close(self) -> None:
        """Stop watching; a waiting `next` returns None. Any thread may call it."""
        with self._lock:
            self._closed = True
            self._db.close()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):  # else __init__ failed
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> list[Row] | None:
        """Return the result if it has changed, else None."""
        with self._lock:
            return None if self._closed else self._changed_result()

    def _changed_result(self) -> list[Row] | None:
        """Run the query if one of its tables may have changed, and return its result.

        Return None if the query did not run, or if no synced table was written to and the result is the same.
        """
        data_version = self._db.execute("PRAGMA data_version").fetchone()[0]
        if data_version == self._data_version:
            return None
        self._db.execute("BEGIN")  # so that counters and rows are from one snapshot
        try:
            counters = [
                self._db.execute("SELECT changes FROM _lakesync_tables WHERE tbl = ?", (table,)).fetchone()
                for table in self._synced
            ]
            if self._counters == counters and not self._reads_other_tables:
                self._data_version = data_version
                return None
            rows = rows_as_dicts(run_query(self._db.execute, self._sql, self._params))
        finally:
            self._db.execute("ROLLBACK")
        self._data_version = data_version  # not before: a query that failed runs again
        is_same = self._counters == counters and rows == self._result
        self._counters, self._result = counters, rows if self._reads_other_tables else None
        return None if is_same else rows

    def _find_tables(self) -> set[str]:
        """Return the tables that the query reads, which SQLite reports to an authoriser while it compiles the query."""
        tables: set[str] = set()

        def authorise(action: int, first: str | None, *_: object) -> int:
            if action == sqlite3.SQLITE_READ and first is not None:
                tables.add(first)
            return sqlite3.SQLITE_OK

        self._db.execute("SELECT 1 FROM sqlite_schema")  # loads the schema, which may read `sqlite_stat1`
        self._db.set_authorizer(authorise)
        try:
            self._db.execute(f"EXPLAIN {self._sql}", self._params).fetchall()
        finally:
            self._db.set_authorizer(None)
        return tables


class Column(NamedTuple):
    """A column of a result."""

    cells: list[Any]
    """The column's values, one for each row."""
    kind: ColumnType | None
    """The column's type in the table's schema, if that is known and no cell has a value: all are NULL, or there are no
    rows. Otherwise None: the type follows from the cells."""


Columns = Mapping[str, Column]
"""The columns of a result by name."""
_NAME = re.compile(r"\w+")
"""A table's name, as distinguished from a query."""


def read_columns(path: Path, schema: TableSchema | None, sql: str, params: Any) -> Columns:
    """Run a query and return its result by column. A name that is taken gets a number, as `row_id_1`.

    Args:
        path: the app's database.
        schema: the table's schema if `sql` is the name of a synced table, else None. Its booleans become bool; JSON
            stays text.
        sql: a query, or the name of a table.
        params: values for the query's placeholders.

    Raises:
        ValidationError: the statement returns no rows, or writes.
    """
    types: dict[str, ColumnType] = {} if schema is None else {"row_id": "string", **schema.types}
    if schema is not None:
        names = ", ".join(f'"{schema.table}"."{name}"' for name in types)
        sql = f'SELECT {names} FROM "{schema.table}" ORDER BY row_id'
    elif _NAME.fullmatch(sql):
        sql = f'SELECT * FROM "{sql}"'
    with closing(connect_read_only(path)) as db:
        cursor = run_query(db.execute, sql, params)
        result_names = distinct_names([column[0] for column in cursor.description])
        rows = cursor.fetchall()
    columns = list(zip(*rows, strict=True)) if rows else [() for _ in result_names]
    return {name: _column(types.get(name), cells) for name, cells in zip(result_names, columns, strict=True)}


def to_pandas(columns: Columns) -> pd.DataFrame:
    """Return a result as a pandas frame.

    Raises:
        ConfigurationError: pandas is not installed.
    """
    with extra("pandas", "to_pandas needs pandas"):
        import pandas as pd

    def series(cells: list[Any], kind: ColumnType | None) -> pd.Series[Any]:
        if kind == "number":
            return pd.Series(cells, dtype="float64")
        type_if_empty = "bool" if kind == "boolean" else "object"
        return pd.Series(cells, dtype=type_if_empty if kind is not None and not cells else None)

    return pd.DataFrame({name: series(*column) for name, column in columns.items()})


def to_polars(columns: Columns) -> pl.DataFrame:
    """Return a result as a polars frame. A column with values of several types gets a type for all of them.

    Raises:
        ConfigurationError: polars is not installed.
    """
    with extra("polars", "to_polars needs polars"):
        import polars as pl
    kinds = {None: None, "number": pl.Float64, "boolean": pl.Boolean}  # None: polars infers the type
    return pl.DataFrame(
        [pl.Series(name, cells, kinds.get(kind, pl.String), strict=False) for name, (cells, kind) in columns.items()]
    )


def to_arrow(columns: Columns) -> pa.Table:
    """Return a result as an Arrow table. A column with values of several types becomes text.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    with extra("parquet", "to_arrow needs pyarrow"):
        import pyarrow as pa
    kinds = {None: None, "number": pa.float64(), "boolean": pa.bool_()}  # None: Arrow infers the type
    return pa.table(
        {name: pa.array(_of_one_type(cells), kinds.get(kind, pa.string())) for name, (cells, kind) in columns.items()}
    )


def _of_one_type(cells: list[Any]) -> list[Any]:
    """Return the cells of a column as text if they have several types, else unchanged."""
    if len({type(cell) for cell in cells} - {type(None)}) < 2:
        return cells
    return [_as_text(cell) for cell in cells]


def _as_text(cell: Any) -> str | None:
    """Return a cell as text; bytes that are no UTF-8 lose what cannot be decoded."""
    if isinstance(cell, bytes):
        return cell.decode(errors="replace")
    return None if cell is None else str(cell)


def _column(kind: ColumnType | None, cells: Sequence[Any]) -> Column:
    """Return a column with booleans as bool, and with integers as float if the column has floats too.

    Args:
        kind: the column's type in the schema; None if it is not a synced table's.
        cells: the values as SQLite returns them.
    """
    types = {type(cell) for cell in cells} - {type(None)}
    if not types:
        return Column(list(cells), kind)
    if kind == "boolean":
        return Column([None if cell is None else bool(cell) for cell in cells], None)
    if types == {int, float}:  # Arrow does not convert large integers to doubles by itself
        return Column([float(cell) if type(cell) is int else cell for cell in cells], None)
    return Column(list(cells), None)

"""`SqlSource`: polls SQL databases for a connector. Each table is a user's query, whose result is synced.

A poll reads the rows that changed since the last one, by a *cursor column*, whose value grows with each change
(`lakesync.connectors.sql.cursor_column`). Without such a column it reads all rows. A *census*, a list of all row ids,
finds deleted rows. The pipeline's poll tasks call the source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from lakesync.connectors.base import (
    Census,
    ConnectorConfig,
    Cursor,
    Page,
    ParallelRead,
    Probe,
    SourceRow,
    Table,
    Usage,
    describe_clock_skew,
)
from lakesync.connectors.sql.cursor_column import cursor_value, greater, settle, start_value
from lakesync.connectors.sql.reader import Reader, Snapshot, to_json_value
from lakesync.model.errors import ConfigurationError
from lakesync.model.schema import Column, TableSchema, is_identifier

PARALLEL_ROWS = 200_000
"""A complete read of a table with at least this many rows is divided into parts, which Spark's tasks read at once."""

ROWS_PER_PART = 100_000
"""Rows of one part, approximately, unless there would be more than `MAX_PARTS`."""
MAX_PARTS = 32
"""Number of parts, at most."""

_IDS_PER_STATEMENT = 500
"""Row ids in the condition of one statement, at most."""


class PolledTable(NamedTuple):
    """An entry of `ingest.tables`."""

    table: str
    """The synced table that receives the rows."""
    query: str
    """A SELECT, without a semicolon at its end."""
    row_id: str
    """The column with the row id."""
    cursor_column: str | None
    """None if each poll reads all rows; the pipeline then finds the changed ones by comparison."""
    lookback: int | None
    """How far before the settled value of the cursor column a poll starts: in milliseconds, or in the units of a column
    of numbers. None for the default."""

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> PolledTable:
        """Parse an entry."""
        strategy = entry["strategy"]
        return cls(
            entry["table"],
            query=entry["query"].strip().rstrip(";"),
            row_id=entry.get("rowIdColumn", "id"),
            cursor_column=strategy["cursorColumn"] if strategy["type"] == "cursor" else None,
            lookback=strategy.get("lookbackMs"),
        )


class SqlSource:
    """Polls the tables of one connector from a database. `connectors.base.Source` documents the methods.

    A poll's cursor, with which the next poll continues, has the table's `query`; if that changes, the table is read
    from its beginning. With a cursor column, it also has the column's highest value that any poll has read (`at`), and
    `settled` and `pending` (see `cursor_column.settle`).
    """

    def __init__(self, make: Callable[[ConnectorConfig], Reader], config: ConnectorConfig) -> None:
        """Create the source.

        Args:
            make: creates a reader; a module-level function, because it is pickled for other processes.
            config: the connector's configuration.
        """
        self._make = make
        self._config = config
        self._reader = make(config)
        self._calls = 0
        entries = [PolledTable.of(each) for each in (config.ingest or {}).get("tables", ())]
        self._polled = {each.table: each for each in entries}
        self.tables = tuple(
            Table(
                each.table,
                schema=partial(self._schema, each),
                needs_census=each.cursor_column is None,
                origin=f"{self._reader.database} {each.cursor_column or ''}",
            )
            for each in entries
        )

    @property
    def usage(self) -> Usage:
        """Statements executed; a database has no budget."""
        return Usage(self._calls)

    def changes(self, table: str, cursor: Cursor | None) -> Iterator[Page]:
        """Yield rows at or above the cursor, lowest first; all rows if the table has no cursor column."""
        polled = self._polled[table]
        if cursor is not None and cursor.get("query") != polled.query:
            cursor = None
        with self._reader.snapshot() as snapshot:
            if polled.cursor_column is None:
                yield from self._read_all(snapshot, polled)
            else:
                yield from self._read_from_cursor(snapshot, polled, polled.cursor_column, cursor)

    def split(self, table: str, cursor: Cursor | None) -> ParallelRead | None:
        """Divide a complete read of a large table into ranges of its row ids, if these are integers."""
        polled = self._polled[table]
        column = polled.cursor_column
        if cursor is not None and cursor.get("query") == polled.query:
            return None  # only changed rows land, which `changes` finds: all rows of the parts would land
        key = self._quoted(polled.row_id)
        newest = f"MAX({self._quoted(column)})" if column is not None else "0"
        with self._reader.snapshot() as snapshot:
            column_types = {each.name: each.type for each in snapshot.columns(polled.query)}
            if column_types.get(polled.row_id) != "number":
                return None
            self._calls += 1
            query = f"SELECT COUNT(*), MIN({key}), MAX({key}), {newest} FROM ({polled.query}) polled"
            _, ((count, low, high, highest),) = next(snapshot.query_pages(query))  # one page with one row
            cursor_after: dict[str, Any] = {"query": polled.query}
            if column is not None:
                reached = cursor_value(to_json_value(highest, column))
                cursor_after |= {"at": reached, **settle(None, snapshot.horizon, reached)}
        if count < PARALLEL_ROWS or not isinstance(low, int) or not isinstance(high, int):
            return None
        parts = min(math.ceil(count / ROWS_PER_PART), MAX_PARTS)
        bounds = [low + (high + 1 - low) * part // parts for part in range(parts + 1)]
        ranges = [KeyRange(self._make, self._config, table, *each) for each in pairwise(bounds)]
        return ParallelRead(ranges, cursor_after)

    def rows_in_range(self, table: str, low: int, high: int) -> Iterator[list[SourceRow]]:
        """Yield rows with `low` <= row id < `high`.

        Args:
            table: one of `tables`.
            low: inclusive lower bound.
            high: exclusive upper bound.
        """
        polled = self._polled[table]
        key = self._quoted(polled.row_id)
        statement = f"SELECT * FROM ({polled.query}) polled WHERE {key} >= ? AND {key} < ?"
        with self._reader.snapshot() as snapshot:
            yield from self._rows(snapshot, polled, statement, [low, high])

    def census(self, table: str) -> Census | None:
        """List the ids of all rows."""
        return Census(None, self._ids(self._polled[table]))

    def read(self, table: str, row_ids: Sequence[str]) -> Iterator[Page]:
        """Yield rows by id."""
        polled = self._polled[table]
        with self._reader.snapshot() as snapshot:
            for rows in self._rows_by_id(snapshot, polled, row_ids, "*"):
                yield Page(table, rows)

    def find_deleted(self, table: str, rows: Sequence[SourceRow]) -> set[str]:
        """Return the ids of the rows that the query no longer returns."""
        polled = self._polled[table]
        existing: set[str] = set()
        with self._reader.snapshot() as snapshot:
            for found in self._rows_by_id(snapshot, polled, [row.row_id for row in rows], self._quoted(polled.row_id)):
                existing |= {row.row_id for row in found}
        return {row.row_id for row in rows} - existing

    def probes(self) -> Iterator[Probe]:
        """Check that the user can run the connector's queries."""
        yield Probe("credentials", self._check_credentials)
        yield Probe("clock", self._check_clock)
        for polled in self._polled.values():
            yield Probe(polled.table, partial(self._check_query, polled))

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()

    def _check_credentials(self) -> str:
        with self._reader.snapshot():
            return "connected"

    def _check_clock(self) -> str:
        with self._reader.snapshot() as snapshot:
            _, ((now,),) = next(snapshot.query_pages("SELECT CURRENT_TIMESTAMP"))
        return describe_clock_skew(
            (now if now.tzinfo else now.replace(tzinfo=UTC)).timestamp() * 1000, "the database's"
        )

    def _check_query(self, polled: PolledTable) -> str:
        """Probe: check that a query has the columns that the poll needs, and that a row can be read."""
        with self._reader.snapshot() as snapshot:
            columns = [column.name for column in snapshot.columns(polled.query)]
            _check_names(polled, columns)
            for needed in filter(None, (polled.row_id, polled.cursor_column)):
                if needed not in columns:
                    raise ConfigurationError(
                        f"the query of {polled.table} has no column {needed!r}: it has {', '.join(columns)}"
                    )
            rows = next(self._rows(snapshot, polled, f"SELECT * FROM ({polled.query}) polled LIMIT 1"), [])
        return f"readable, with the columns {', '.join(columns)}{'' if rows else '; it has no rows'}"

    def _read_all(self, snapshot: Snapshot, polled: PolledTable) -> Iterator[Page]:
        """Yield all rows of a table in pages."""
        for rows in self._rows(snapshot, polled, f"SELECT * FROM ({polled.query}) polled"):
            yield Page(polled.table, rows, {"query": polled.query})

    def _read_from_cursor(
        self, snapshot: Snapshot, polled: PolledTable, column: str, cursor: Cursor | None
    ) -> Iterator[Page]:
        """Yield rows from the start value of a poll on, in order of the cursor column, `column`."""
        quoted_column = self._quoted(column)
        start = start_value(cursor, polled.lookback)
        where = f" WHERE {quoted_column} >= ?" if start is not None else ""
        order = f"{quoted_column}, {self._quoted(polled.row_id)}"
        statement = f"SELECT * FROM ({polled.query}) polled{where} ORDER BY {order}"
        highest = cursor["at"] if cursor is not None else None  # of all polls
        reached = None  # the highest value of this poll
        for rows in self._rows(snapshot, polled, statement, [] if start is None else [start]):
            values = (cursor_value(row.columns.get(column)) for row in reversed(rows))
            last = next((value for value in values if value is not None), None)
            highest, reached = greater(highest, last), greater(reached, last)
            progress = {"at": highest, **settle(cursor, snapshot.horizon, reached)}
            newest = {row.row_id: row for row in rows}  # of several rows with one id, the last has the highest cursor
            yield Page(polled.table, [*newest.values()], {"query": polled.query, **progress})

    def _ids(self, polled: PolledTable) -> Iterator[Sequence[str]]:
        """Yield the row ids of a table, for a census."""
        key = self._quoted(polled.row_id)
        with self._reader.snapshot() as snapshot:
            for rows in self._rows(snapshot, polled, f"SELECT {key} FROM ({polled.query}) polled"):
                yield [row.row_id for row in rows]

    def _rows_by_id(
        self, snapshot: Snapshot, polled: PolledTable, row_ids: Sequence[str], columns: str
    ) -> Iterator[list[SourceRow]]:
        """Yield some columns of rows by their ids, which are compared as text.

        The database may write a value in another way than a row id, for example blanks at the end of a `char`, or the
        time of a timestamp. So if ids are not found, all rows are read.
        """
        text = self._reader.text(self._quoted(polled.row_id))
        missing = set(row_ids)
        for start in range(0, len(row_ids), _IDS_PER_STATEMENT):
            batch = row_ids[start : start + _IDS_PER_STATEMENT]
            placeholders = ", ".join("?" * len(batch))
            statement = f"SELECT {columns} FROM ({polled.query}) polled WHERE {text} IN ({placeholders})"
            for rows in self._rows(snapshot, polled, statement, batch):
                missing.difference_update(row.row_id for row in rows)
                yield rows
        if missing:
            for rows in self._rows(snapshot, polled, f"SELECT {columns} FROM ({polled.query}) polled"):
                yield [row for row in rows if row.row_id in missing]

    def _rows(
        self, snapshot: Snapshot, polled: PolledTable, statement: str, values: Sequence[Any] = ()
    ) -> Iterator[list[SourceRow]]:
        """Yield the rows of a statement, page by page.

        Raises:
            ConfigurationError: the query has no column with the row id or two columns of one name, or a row has no id.
        """
        self._calls += 1
        for names, rows in snapshot.query_pages(statement, values):
            _check_names(polled, names)
            if polled.row_id not in names:
                raise ConfigurationError(
                    f"the query of {polled.table} has no column {polled.row_id!r}: set another rowIdColumn "
                    f"(it has {', '.join(names)})"
                )
            yield [_row(names, row, polled) for row in rows]

    def _schema(self, polled: PolledTable) -> TableSchema | None:
        """Return the query's columns as a schema; None if a name is not a valid identifier."""
        with self._reader.snapshot() as snapshot:
            self._calls += 1
            columns = snapshot.columns(polled.query)
        if not all(is_identifier(column.name) for column in columns):
            return None
        return TableSchema(polled.table, tuple(Column(column.name, column.type) for column in columns))

    def _quoted(self, name: str) -> str:
        return self._reader.quoted(name)


@dataclass(frozen=True)
class KeyRange:
    """`TablePart`: the rows of a table between two row ids, read with a connection of its own."""

    make: Callable[[ConnectorConfig], Reader]
    """Creates a reader, as for `SqlSource`."""
    config: ConnectorConfig
    table: str
    low: int
    """Inclusive."""
    high: int
    """Exclusive."""

    def pages(self) -> Iterator[list[SourceRow]]:
        """Yield its rows."""
        source = SqlSource(self.make, self.config)
        try:
            yield from source.rows_in_range(self.table, self.low, self.high)
        finally:
            source.close()


def _check_names(polled: PolledTable, names: Sequence[str]) -> None:
    """Check that no two columns of a query have the same name, because a row would have only one of them.

    Raises:
        ConfigurationError: two columns have the same name.
    """
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(
                f"the query of {polled.table} has several columns {name!r}: name each in its SELECT, with AS"
            )


def _row(names: Sequence[str], row: tuple[Any, ...], polled: PolledTable) -> SourceRow:
    """Convert a database row.

    Raises:
        ConfigurationError: the row id is null, or a number cannot be represented exactly.
    """
    columns = {name: to_json_value(value, name) for name, value in zip(names, row, strict=True)}
    key = columns[polled.row_id]
    if key is None:
        raise ConfigurationError(f"a row of {polled.table} has no {polled.row_id}: exclude such rows in its query")
    return SourceRow(key if isinstance(key, str) else str(key), columns)

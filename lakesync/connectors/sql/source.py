"""SQL source: each table is a query, read by a cursor column or completely."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.probes import Probe, describe_clock_skew
from lakesync.connectors.source import Census, Cursor, Page, ParallelRead, SourceRow, Table, Usage
from lakesync.connectors.sql.reader import AgeHorizon, Reader, Snapshot, TransactionHorizon
from lakesync.connectors.sql.values import format_time, to_json_value
from lakesync.model.errors import ConfigurationError
from lakesync.model.schema import Column, TableSchema, is_identifier

LOOKBACK_MS = 60_000
"""Default overlap before a cursor that is a time."""

LOOKBACK = 1_000
"""Overlap before a cursor that is a number."""

_MAX_PENDING = 50
"""Cursor values waiting for open transactions; more wait for the next poll."""

PARALLEL_ROWS = 200_000
"""A complete read of a table with at least this many rows is divided."""

ROWS_PER_PART = 100_000
MAX_PARTS = 32

_IDS_PER_STATEMENT = 500
"""Row ids per statement."""


class PolledTable(NamedTuple):
    """An entry of `ingest.tables`."""

    table: str
    query: str
    row_id: str
    cursor: str | None
    """None if the table is read completely and compared."""
    lookback_ms: int | None

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> PolledTable:
        """Parse an entry."""
        how = entry["strategy"]
        by = how["cursorColumn"] if how["type"] == "cursor" else None
        query = entry["query"].strip().rstrip(";")
        return cls(entry["table"], query, entry.get("rowIdColumn", "id"), by, how.get("lookbackMs"))


class SqlSource:
    """Polls the tables of one connector from a database.

    A cursor stores the highest value read, and whether rows may still appear below it: a transaction stamps rows when
    it writes them, and shows them when it commits. With a transaction horizon (Postgres), a value is settled only when
    every transaction open at the time of reading has ended, however long that takes; the lookback covers transactions
    that were open before they first wrote. With an age horizon (MySQL), a time is settled except for the age of the
    oldest transaction. Without a horizon only the lookback protects against missed rows.
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
            Table(each.table, schema=partial(self._schema, each), counted=each.cursor is None) for each in entries
        )

    @property
    def usage(self) -> Usage:
        """Statements executed; a database has no budget."""
        return Usage(self._calls)

    def changes(self, table: str, cursor: Cursor | None) -> Iterator[Page]:
        """Yield rows at or above the cursor, lowest first; every row if the table is compared."""
        polled = self._polled[table]
        if cursor is not None and cursor.get("query") != polled.query:
            cursor = None
        with self._reader.snapshot() as snapshot:
            if polled.cursor is None:
                yield from self._read_all(snapshot, polled)
            else:
                yield from self._read_above_cursor(snapshot, polled, polled.cursor, cursor)

    def split(self, table: str, cursor: Cursor | None) -> ParallelRead | None:
        """Divide a complete read of a large table by ranges of its row ids, if these are integers."""
        polled = self._polled[table]
        if polled.cursor is not None and cursor is not None and cursor.get("query") == polled.query:
            return None
        key = self._quoted(polled.row_id)
        newest = f"MAX({self._quoted(polled.cursor)})" if polled.cursor is not None else "0"
        with self._reader.snapshot() as snapshot:
            kinds = {column.name: column.type for column in snapshot.columns(polled.query)}
            if kinds.get(polled.row_id) != "number":
                return None
            self._calls += 1
            query = f"SELECT COUNT(*), MIN({key}), MAX({key}), {newest} FROM ({polled.query}) polled"
            count, low, high, last = next(snapshot.query_pages(query))[1][0]
            at = to_json_value(last, polled.cursor or "")
            passed = _cursor_progress(None, snapshot.horizon, at) if polled.cursor is not None else {}
        if count < PARALLEL_ROWS or not isinstance(low, int) or not isinstance(high, int):
            return None
        parts = min(-(-count // ROWS_PER_PART), MAX_PARTS)
        bounds = [low + (high + 1 - low) * part // parts for part in range(parts + 1)]
        pieces = [KeyRange(self._make, self._config, table, *each) for each in pairwise(bounds)]
        return ParallelRead(pieces, {"query": polled.query, "at": at, **passed} if passed else {"query": polled.query})

    def within(self, table: str, low: int, high: int) -> Iterator[list[SourceRow]]:
        """Yield rows with `low` <= row id < `high`.

        Args:
            table: an output table.
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

    def gone(self, table: str, rows: Sequence[SourceRow]) -> set[str]:
        """Return rows that the query no longer returns."""
        polled = self._polled[table]
        there: set[str] = set()
        with self._reader.snapshot() as snapshot:
            for found in self._rows_by_id(snapshot, polled, [row.row_id for row in rows], self._quoted(polled.row_id)):
                there |= {row.row_id for row in found}
        return {row.row_id for row in rows} - there

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
            ((now,),) = next(snapshot.query_pages("SELECT CURRENT_TIMESTAMP"))[1]
        return describe_clock_skew(
            (now if now.tzinfo else now.replace(tzinfo=UTC)).timestamp() * 1000, "the database's"
        )

    def _check_query(self, polled: PolledTable) -> str:
        with self._reader.snapshot() as snapshot:
            columns = [column.name for column in snapshot.columns(polled.query)]
            for needed in filter(None, (polled.row_id, polled.cursor)):
                if needed not in columns:
                    raise ConfigurationError(
                        f"the query of {polled.table} has no column {needed!r}: it has {', '.join(columns)}"
                    )
            rows = next(self._rows(snapshot, polled, f"SELECT * FROM ({polled.query}) polled LIMIT 1"), [])
        return f"readable, with the columns {', '.join(columns)}{'' if rows else '; it has no rows'}"

    def _read_all(self, snapshot: Snapshot, polled: PolledTable) -> Iterator[Page]:
        for rows in self._rows(snapshot, polled, f"SELECT * FROM ({polled.query}) polled"):
            yield Page(polled.table, rows, {"query": polled.query})

    def _read_above_cursor(
        self, snapshot: Snapshot, polled: PolledTable, column: str, cursor: Cursor | None
    ) -> Iterator[Page]:
        by = self._quoted(column)
        begin = _start_value(cursor, polled.lookback_ms)
        where = f" WHERE {by} >= ?" if begin is not None else ""
        statement = f"SELECT * FROM ({polled.query}) polled{where} ORDER BY {by}, {self._quoted(polled.row_id)}"
        newest, place = (cursor["at"] if cursor is not None else None), None
        for rows in self._rows(snapshot, polled, statement, [] if begin is None else [begin]):
            last = next((value for row in reversed(rows) if (value := row.columns.get(column)) is not None), None)
            newest, place = _greater(newest, last), _greater(place, last)
            yield Page(
                polled.table,
                rows,
                {"query": polled.query, "at": newest, **_cursor_progress(cursor, snapshot.horizon, place)},
            )

    def _ids(self, polled: PolledTable) -> Iterator[Sequence[str]]:
        key = self._quoted(polled.row_id)
        with self._reader.snapshot() as snapshot:
            for rows in self._rows(snapshot, polled, f"SELECT {key} FROM ({polled.query}) polled"):
                yield [row.row_id for row in rows]

    def _rows_by_id(
        self, snapshot: Snapshot, polled: PolledTable, row_ids: Sequence[str], columns: str
    ) -> Iterator[list[SourceRow]]:
        key = self._quoted(polled.row_id)
        for start in range(0, len(row_ids), _IDS_PER_STATEMENT):
            batch = row_ids[start : start + _IDS_PER_STATEMENT]
            placeholders = ", ".join("?" * len(batch))
            text = self._reader.text(key)
            yield from self._rows(
                snapshot,
                polled,
                f"SELECT {columns} FROM ({polled.query}) polled WHERE {text} IN ({placeholders})",
                list(batch),
            )

    def _rows(
        self, snapshot: Snapshot, polled: PolledTable, statement: str, values: Sequence[Any] = ()
    ) -> Iterator[list[SourceRow]]:
        self._calls += 1
        for names, rows in snapshot.query_pages(statement, values):
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
    """The rows of a table between two row ids, read with a connection of its own."""

    make: Callable[[ConnectorConfig], Reader]
    config: ConnectorConfig
    table: str
    low: int
    high: int

    def pages(self) -> Iterator[list[SourceRow]]:
        """Yield its rows."""
        source = SqlSource(self.make, self.config)
        try:
            yield from source.within(self.table, self.low, self.high)
        finally:
            source.close()


def _cursor_progress(
    cursor: Cursor | None, horizon: TransactionHorizon | AgeHorizon | None, reached_now: Any
) -> dict[str, Any]:
    """Return the settled value, and the values that wait for open transactions.

    A value is settled by the first snapshot that sees all transactions that were open when it was read. The next poll
    starts at the settled value.
    """
    if not isinstance(horizon, TransactionHorizon):
        moment = _parse_time(reached_now) if isinstance(reached_now, str) else None
        if horizon is not None and moment is not None:
            reached_now = format_time(moment - timedelta(seconds=horizon.seconds))
        return {"settled": reached_now, "pending": []}
    settled = cursor["settled"] if cursor is not None else None
    pending: list[list[Any]] = []
    for number, reached in [*(cursor["pending"] if cursor is not None else ()), [horizon.next, reached_now]]:
        if number <= horizon.oldest_open and _greater(reached, reached_now) == reached_now:
            settled = _greater(settled, reached)
        elif not pending or pending[-1][0] != number:
            pending.append([number, reached])
    return {"settled": settled, "pending": pending[:_MAX_PENDING]}


def _start_value(cursor: Cursor | None, lookback_ms: int | None) -> Any:
    """Return where to start reading; None for the beginning."""
    at = cursor["settled"] if cursor is not None else None
    if at is None:
        return None
    if isinstance(at, str):
        moment = _parse_time(at)
        back = timedelta(milliseconds=LOOKBACK_MS if lookback_ms is None else lookback_ms)
        return at if moment is None else moment - back
    return at - (LOOKBACK if lookback_ms is None else lookback_ms)


def _greater(one: Any, other: Any) -> Any:
    """Return the greater of two cursor values; texts that are times are compared as times."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, str) and (first := _parse_time(one)) is not None and (second := _parse_time(other)) is not None:
        return other if second > first else one
    return max(one, other)


def _parse_time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _row(names: Sequence[str], row: tuple[Any, ...], polled: PolledTable) -> SourceRow:
    columns = {name: to_json_value(value, name) for name, value in zip(names, row, strict=True)}
    key = columns[polled.row_id]
    if key is None:
        raise ConfigurationError(f"a row of {polled.table} has no {polled.row_id}: exclude such rows in its query")
    return SourceRow(key if isinstance(key, str) else str(key), columns)

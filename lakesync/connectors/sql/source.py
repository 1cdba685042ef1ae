"""A database as a source: each of its tables is a query, read by a cursor or whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.probing import Probe, clock_told
from lakesync.connectors.source import Census, Cursor, Page, SourceRow, Spread, Table, Usage
from lakesync.connectors.sql.reader import Horizon, Reader, Reading, Unseen
from lakesync.connectors.sql.values import as_json, instant
from lakesync.model.errors import ConfigurationError
from lakesync.model.schema import Column, TableSchema, is_identifier

LOOKBACK_MS = 60_000
"""How far behind a cursor that is a time is looked again, unless told otherwise."""

LOOKBACK = 1_000
"""How far behind a cursor that is a number."""

_PLACES = 50
"""Places that wait for open transactions; further ones wait for the next reading."""

SPREAD_ROWS = 200_000
"""Rows of a table from which a reading of all of it is divided."""

ROWS_A_PART = 100_000
MOST_PARTS = 32

_IDS = 500
"""Row ids in one statement."""


class Polled(NamedTuple):
    """One entry of `ingest.tables`."""

    table: str
    query: str
    row_id: str
    cursor: str | None
    """None: all of it is read and compared."""
    lookback_ms: int | None

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Polled:
        """As it was registered."""
        how = entry["strategy"]
        by = how["cursorColumn"] if how["type"] == "cursor" else None
        query = entry["query"].strip().rstrip(";")
        return cls(entry["table"], query, entry.get("rowIdColumn", "id"), by, how.get("lookbackMs"))


class SqlSource:
    """A database, for the tables of one connector.

    A cursor holds the highest value seen, and whether rows may yet appear below it: a transaction stamps its rows when
    it writes them, and shows them when it commits. Where the database tells of its transactions (Postgres), a value
    counts as passed only when every transaction that was open when it was read has ended, however long that takes; the
    lookback is for those that took their time before they first wrote. Where it tells how long the oldest has been open
    (MySQL), a time counts as passed but for so long. Elsewhere the lookback is all there is.
    """

    def __init__(self, make: Callable[[ConnectorConfig], Reader], config: ConnectorConfig) -> None:
        """Args: make: a reader of the connector's database; a function by name, as other processes are told of it."""
        self._make = make
        self._config = config
        self._reader = make(config)
        self._calls = 0
        entries = [Polled.of(each) for each in (config.ingest or {}).get("tables", ())]
        self._polled = {each.table: each for each in entries}
        self.tables = tuple(
            Table(each.table, schema=partial(self._schema, each), counted=each.cursor is None) for each in entries
        )

    @property
    def usage(self) -> Usage:
        """Statements run; a database has no budget."""
        return Usage(self._calls)

    def changes(self, table: str, cursor: Cursor | None) -> Iterator[Page]:
        """Rows at or above the cursor, lowest first; every row where the table is compared whole."""
        polled = self._polled[table]
        if cursor is not None and cursor.get("query") != polled.query:
            cursor = None
        with self._reader.reading() as reading:
            if polled.cursor is None:
                yield from self._whole(reading, polled)
            else:
                yield from self._above(reading, polled, polled.cursor, cursor)

    def spread(self, table: str, cursor: Cursor | None) -> Spread | None:
        """A large table by ranges of its row ids, where these are whole numbers and all of it is to be read."""
        polled = self._polled[table]
        if polled.cursor is not None and cursor is not None and cursor.get("query") == polled.query:
            return None
        key = self._quoted(polled.row_id)
        newest = f"MAX({self._quoted(polled.cursor)})" if polled.cursor is not None else "0"
        with self._reader.reading() as reading:
            kinds = {column.name: column.type for column in reading.columns(polled.query)}
            if kinds.get(polled.row_id) != "number":
                return None
            self._calls += 1
            told = f"SELECT COUNT(*), MIN({key}), MAX({key}), {newest} FROM ({polled.query}) polled"
            count, low, high, last = next(reading.pages(told))[1][0]
            at = as_json(last, polled.cursor or "")
            passed = _passed(None, reading.horizon, at) if polled.cursor is not None else {}
        if count < SPREAD_ROWS or not isinstance(low, int) or not isinstance(high, int):
            return None
        parts = min(-(-count // ROWS_A_PART), MOST_PARTS)
        bounds = [low + (high + 1 - low) * part // parts for part in range(parts + 1)]
        pieces = [KeyRange(self._make, self._config, table, *each) for each in pairwise(bounds)]
        return Spread(pieces, {"query": polled.query, "at": at, **passed} if passed else {"query": polled.query})

    def within(self, table: str, low: int, high: int) -> Iterator[list[SourceRow]]:
        """The rows whose ids are from `low` to below `high`."""
        polled = self._polled[table]
        key = self._quoted(polled.row_id)
        statement = f"SELECT * FROM ({polled.query}) polled WHERE {key} >= ? AND {key} < ?"
        with self._reader.reading() as reading:
            yield from self._rows(reading, polled, statement, [low, high])

    def census(self, table: str) -> Census | None:
        """The ids of all rows."""
        return Census(None, self._ids(self._polled[table]))

    def read(self, table: str, row_ids: Sequence[str]) -> Iterator[Page]:
        """Rows by id."""
        polled = self._polled[table]
        with self._reader.reading() as reading:
            for rows in self._named(reading, polled, row_ids, "*"):
                yield Page(table, rows)

    def gone(self, table: str, rows: Sequence[SourceRow]) -> set[str]:
        """Those that the query does not give any more."""
        polled = self._polled[table]
        there: set[str] = set()
        with self._reader.reading() as reading:
            for found in self._named(reading, polled, [row.row_id for row in rows], self._quoted(polled.row_id)):
                there |= {row.row_id for row in found}
        return {row.row_id for row in rows} - there

    def probes(self) -> Iterator[Probe]:
        """Whether the user may run the connector's queries."""
        yield Probe("credentials", self._connected)
        yield Probe("clock", self._clock)
        for polled in self._polled.values():
            yield Probe(polled.table, partial(self._one_page, polled))

    def close(self) -> None:
        """Close its connections."""
        self._reader.close()

    def _connected(self) -> str:
        with self._reader.reading():
            return "connected"

    def _clock(self) -> str:
        with self._reader.reading() as reading:
            ((now,),) = next(reading.pages("SELECT CURRENT_TIMESTAMP"))[1]
        return clock_told((now if now.tzinfo else now.replace(tzinfo=UTC)).timestamp() * 1000, "the database's")

    def _one_page(self, polled: Polled) -> str:
        with self._reader.reading() as reading:
            columns = [column.name for column in reading.columns(polled.query)]
            for needed in filter(None, (polled.row_id, polled.cursor)):
                if needed not in columns:
                    raise ConfigurationError(
                        f"the query of {polled.table} has no column {needed!r}: it has {', '.join(columns)}"
                    )
            rows = next(self._rows(reading, polled, f"SELECT * FROM ({polled.query}) polled LIMIT 1"), [])
        return f"readable, with the columns {', '.join(columns)}{'' if rows else '; no row is in it'}"

    def _whole(self, reading: Reading, polled: Polled) -> Iterator[Page]:
        for rows in self._rows(reading, polled, f"SELECT * FROM ({polled.query}) polled"):
            yield Page(polled.table, rows, {"query": polled.query})

    def _above(self, reading: Reading, polled: Polled, column: str, cursor: Cursor | None) -> Iterator[Page]:
        by = self._quoted(column)
        begin = _begin(cursor, polled.lookback_ms)
        where = f" WHERE {by} >= ?" if begin is not None else ""
        statement = f"SELECT * FROM ({polled.query}) polled{where} ORDER BY {by}, {self._quoted(polled.row_id)}"
        newest, place = (cursor["at"] if cursor is not None else None), None
        for rows in self._rows(reading, polled, statement, [] if begin is None else [begin]):
            last = next((value for row in reversed(rows) if (value := row.columns.get(column)) is not None), None)
            newest, place = _later(newest, last), _later(place, last)
            yield Page(
                polled.table, rows, {"query": polled.query, "at": newest, **_passed(cursor, reading.horizon, place)}
            )

    def _ids(self, polled: Polled) -> Iterator[Sequence[str]]:
        key = self._quoted(polled.row_id)
        with self._reader.reading() as reading:
            for rows in self._rows(reading, polled, f"SELECT {key} FROM ({polled.query}) polled"):
                yield [row.row_id for row in rows]

    def _named(self, reading: Reading, polled: Polled, row_ids: Sequence[str], what: str) -> Iterator[list[SourceRow]]:
        key = self._quoted(polled.row_id)
        for start in range(0, len(row_ids), _IDS):
            piece = row_ids[start : start + _IDS]
            marks = ", ".join("?" * len(piece))
            text = self._reader.text(key)
            yield from self._rows(
                reading, polled, f"SELECT {what} FROM ({polled.query}) polled WHERE {text} IN ({marks})", list(piece)
            )

    def _rows(
        self, reading: Reading, polled: Polled, statement: str, values: Sequence[Any] = ()
    ) -> Iterator[list[SourceRow]]:
        self._calls += 1
        for names, rows in reading.pages(statement, values):
            if polled.row_id not in names:
                raise ConfigurationError(
                    f"the query of {polled.table} has no column {polled.row_id!r}: name another as rowIdColumn "
                    f"(it has {', '.join(names)})"
                )
            yield [_row(names, row, polled) for row in rows]

    def _schema(self, polled: Polled) -> TableSchema | None:
        """The columns of the query as a schema; None where their names are none that a gateway takes."""
        with self._reader.reading() as reading:
            self._calls += 1
            columns = reading.columns(polled.query)
        if not all(is_identifier(column.name) for column in columns):
            return None
        return TableSchema(polled.table, tuple(Column(column.name, column.type) for column in columns))

    def _quoted(self, name: str) -> str:
        return self._reader.quoted(name)


@dataclass(frozen=True)
class KeyRange:
    """The rows of a table between two row ids, read by a connection of its own."""

    make: Callable[[ConnectorConfig], Reader]
    config: ConnectorConfig
    table: str
    low: int
    high: int

    def pages(self) -> Iterator[list[SourceRow]]:
        """Its rows."""
        source = SqlSource(self.make, self.config)
        try:
            yield from source.within(self.table, self.low, self.high)
        finally:
            source.close()


def _passed(cursor: Cursor | None, horizon: Horizon | Unseen | None, place: Any) -> dict[str, Any]:
    """Up to where nothing new can appear once a reading has come to a place, and the places that wait for that.

    A place is passed by the first reading that sees all transactions that were open when the place was reached: so it
    is where the next reading begins.
    """
    if not isinstance(horizon, Horizon):
        moment = _moment(place) if isinstance(place, str) else None
        if horizon is not None and moment is not None:
            place = instant(moment - timedelta(seconds=horizon.seconds))
        return {"settled": place, "pending": []}
    settled = cursor["settled"] if cursor is not None else None
    waiting: list[list[Any]] = []
    for number, reached in [*(cursor["pending"] if cursor is not None else ()), [horizon.next, place]]:
        if number <= horizon.oldest_open and _later(reached, place) == place:
            settled = _later(settled, reached)
        elif not waiting or waiting[-1][0] != number:
            waiting.append([number, reached])
    return {"settled": settled, "pending": waiting[:_PLACES]}


def _begin(cursor: Cursor | None, lookback_ms: int | None) -> Any:
    """From where to read; None: from the start."""
    at = cursor["settled"] if cursor is not None else None
    if at is None:
        return None
    if isinstance(at, str):
        moment = _moment(at)
        back = timedelta(milliseconds=LOOKBACK_MS if lookback_ms is None else lookback_ms)
        return at if moment is None else moment - back
    return at - (LOOKBACK if lookback_ms is None else lookback_ms)


def _later(one: Any, other: Any) -> Any:
    """The higher of two values of a cursor's column; texts that are times are compared as such."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, str) and (first := _moment(one)) is not None and (second := _moment(other)) is not None:
        return other if second > first else one
    return max(one, other)


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _row(names: Sequence[str], row: tuple[Any, ...], polled: Polled) -> SourceRow:
    columns = {name: as_json(value, name) for name, value in zip(names, row, strict=True)}
    key = columns[polled.row_id]
    if key is None:
        raise ConfigurationError(f"a row of {polled.table} has no {polled.row_id}: leave such rows out of its query")
    return SourceRow(key if isinstance(key, str) else str(key), columns)

"""Salesforce as a source: records by `SystemModstamp`, deleted ones with them, large first loads as a bulk job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import islice
from typing import Any

from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.conditions import condition
from lakesync.connectors.http import PlaceLostError
from lakesync.connectors.probing import Probe, clock_told
from lakesync.connectors.salesforce import bulk
from lakesync.connectors.salesforce.api import JobEndedError, SalesforceClient
from lakesync.connectors.salesforce.rows import OBJECTS, line_row, literal, milliseconds, quoted, record_row
from lakesync.connectors.source import Census, Cursor, Page, SourceRow, Table, Usage
from lakesync.connectors.tables import SALESFORCE, SALESFORCE_SWITCHES

OVERLAP_MS = 300_000
"""How far behind the newest change a poll looks again: a transaction shows its changes when it ends, stamped with when
they were made."""

BULK_ROWS = 20_000
"""A first load of more records is a bulk job."""

ROWS_A_PAGE = 2_000
"""Rows of a piece of a bulk job that are held at once."""

_PIECE = 200
_LOG_MS = 29 * 86_400_000


class SalesforceSource:
    """An organisation as one user sees it. A cursor knows for which filter it is: with another it begins again."""

    resumable = True

    def __init__(self, config: ConnectorConfig, *, bulk_rows: int | None = None, **patience: Any) -> None:
        """Args: bulk_rows: instead of `BULK_ROWS`; patience: of `HttpApi`."""
        settings = config.settings
        self._client = SalesforceClient(settings, hosts=config.hosts, **patience)
        self._filter: str | None = settings.get("soqlFilter")
        self._condition = condition(self._filter, "soqlFilter") if self._filter else ""
        self._bulk_rows = BULK_ROWS if bulk_rows is None else bulk_rows
        schemas = {schema.table: schema for schema in SALESFORCE}
        self.tables = tuple(
            Table(table, schema=partial(schemas.get, table))
            for table in schemas
            if settings.get(SALESFORCE_SWITCHES[table], True)
        )

    @property
    def usage(self) -> Usage:
        """Calls made, and what the day's budget allows yet."""
        return self._client.usage

    def changes(self, table: str, cursor: Cursor | None) -> Iterator[Page]:
        """Records changed since a cursor, deleted ones included."""
        if cursor is None or cursor["filter"] != self._filter:
            return self._first(table)
        if "job" in cursor:
            return self._resumed(table, cursor)
        return self._changed(table, cursor["modified"])

    def census(self, table: str) -> Census | None:
        """The ids of all records."""
        return Census(None, self._ids(table))

    def read(self, table: str, row_ids: Sequence[str]) -> Iterator[Page]:
        """Records by id."""
        for piece in _divided(row_ids):
            for page in self._client.query(self._select(table, f"Id IN ({_list(piece)})")):
                yield Page(table, [record_row(table, record) for record in page["records"]])

    def gone(self, table: str, rows: Sequence[SourceRow]) -> set[str]:
        """Those that are deleted, or outside of the filter.

        A record of which nothing is told, neither by queries nor by the log of deletes, is hidden from this user, or
        was deleted for good more than 30 days ago: it stays.
        """
        ids = {row.row_id for row in rows}
        logged = self._log(table) & ids
        deleted, here = self._there(table, ids - logged)
        if self._filter and here and (outside := here - self._matching(table, here)):
            # what was hidden between the two questions is not outside of the filter
            deleted |= set().union(*self._there(table, outside))
        return logged | deleted

    def _there(self, table: str, ids: set[str]) -> tuple[set[str], set[str]]:
        """Which of these records are deleted, and which are there, as far as the user sees them."""
        deleted, here = set[str](), set[str]()
        for piece in _divided(sorted(ids)):
            soql = f"SELECT Id, IsDeleted FROM {OBJECTS[table].name} WHERE Id IN ({_list(piece)})"
            for page in self._client.query(soql, deleted=True):
                for record in page["records"]:
                    (deleted if record["IsDeleted"] else here).add(record["Id"])
        return deleted, here

    def probes(self) -> Iterator[Probe]:
        """Whether the user may read what the connector polls."""
        yield Probe("credentials", self._signed_in)
        yield Probe("clock", self._clock)
        for table in self.tables:
            yield Probe(table.name, partial(self._one_page, table.name))

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def _signed_in(self) -> str:
        self._client.call("GET", "/limits")
        usage = self._client.usage
        return "signed in" + (f", {usage.left} of {usage.limit} calls a day are left" if usage.limit else "")

    def _clock(self) -> str:
        answer = self._client.call("GET", "/limits")
        return clock_told(parsedate_to_datetime(answer.headers["Date"]).timestamp() * 1000, "the organisation's")

    def _one_page(self, table: str) -> str:
        records = next(self._client.query(f"{self._select(table)} LIMIT 1"))["records"]
        if records:
            return f"readable, the first is {records[0]['Id']}"
        return f"readable, and empty: check {'soqlFilter, and ' if self._filter else ''}what is shared with the user"

    def _first(self, table: str) -> Iterator[Page]:
        count = next(self._client.query(self._where(f"SELECT COUNT() FROM {OBJECTS[table].name}")))["totalSize"]
        if count <= self._bulk_rows:
            yield from self._changed(table, 0)
            return
        job, made = bulk.begin(self._client, self._select(table))
        # a kill from here on costs nothing: the job is found again
        cursor = {**self._cursor(milliseconds(made)), "job": job, "locator": None}
        yield Page(table, [], cursor)
        yield from self._loaded(table, cursor)

    def _resumed(self, table: str, cursor: Cursor) -> Iterator[Page]:
        """What is left of an earlier poll's job; all of it by a new one, where that job gives nothing any more."""
        try:
            yield from self._loaded(table, cursor)
        except JobEndedError:
            yield from self._first(table)

    def _loaded(self, table: str, cursor: Cursor) -> Iterator[Page]:
        bulk.wait(self._client, cursor["job"])
        for piece in bulk.pieces(self._client, cursor["job"], cursor["locator"]):
            done = self._cursor(cursor["modified"])
            place = done if piece.locator is None else {**cursor, "locator": piece.locator}
            rows = (line_row(table, line) for line in piece.lines)
            some = list(islice(rows, ROWS_A_PAGE))
            while following := list(islice(rows, ROWS_A_PAGE)):
                yield Page(table, some)
                some = following
            yield Page(table, some, place)
        bulk.end(self._client, cursor["job"])
        yield from self._changed(table, cursor["modified"])

    def _changed(self, table: str, place: int) -> Iterator[Page]:
        """Records modified since a place, oldest first. No time of this machine's clock is in it."""
        newest = place
        while True:
            begun = newest
            since = literal(max(newest - OVERLAP_MS, 0))
            soql = self._select(table, f"SystemModstamp >= {since}", more=", IsDeleted, SystemModstamp")
            try:
                for page in self._client.query(f"{soql} ORDER BY SystemModstamp ASC, Id ASC", deleted=True):
                    records = page["records"]
                    newest = max([newest, *(milliseconds(record["SystemModstamp"]) for record in records)])
                    yield Page(
                        table,
                        [record_row(table, record) for record in records if not record["IsDeleted"]],
                        self._cursor(newest),
                        deleted=[record["Id"] for record in records if record["IsDeleted"]],
                    )
                return
            except PlaceLostError:
                if newest == begun:
                    raise

    def _ids(self, table: str) -> Iterator[Sequence[str]]:
        for page in self._client.query(self._where(f"SELECT Id FROM {OBJECTS[table].name}")):
            yield [record["Id"] for record in page["records"]]

    def _matching(self, table: str, ids: set[str]) -> set[str]:
        name = OBJECTS[table].name
        found = set()
        for piece in _divided(sorted(ids)):
            for page in self._client.query(self._where(f"SELECT Id FROM {name}", f"Id IN ({_list(piece)})")):
                found |= {record["Id"] for record in page["records"]}
        return found

    def _log(self, table: str) -> set[str]:
        """What the log of deletes holds of an object, by Salesforce's clock."""
        name = OBJECTS[table].name
        answer = self._client.call("GET", "/limits")
        now = int(parsedate_to_datetime(answer.headers["Date"]).timestamp() * 1000)
        span = {"start": literal(now - _LOG_MS), "end": literal(now + 60_000)}
        told = self._client.call("GET", f"/sobjects/{name}/deleted", params=span).json()
        return {record["id"] for record in told["deletedRecords"]}

    def _select(self, table: str, *conditions: str, more: str = "") -> str:
        found = OBJECTS[table]
        return self._where(f"SELECT {', '.join(found.fields.values())}{more} FROM {found.name}", *conditions)

    def _where(self, select: str, *conditions: str) -> str:
        parts = [*([f"({self._condition})"] if self._condition else []), *conditions]
        return f"{select} WHERE {' AND '.join(parts)}" if parts else select

    def _cursor(self, modified: int) -> dict[str, Any]:
        return {"modified": modified, "filter": self._filter}


def _divided(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), _PIECE):
        yield ids[start : start + _PIECE]


def _list(ids: Sequence[str]) -> str:
    return ", ".join(map(quoted, ids))

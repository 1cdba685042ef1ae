"""Salesforce source: records by `SystemModstamp` including deleted ones; large first loads as a bulk job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import islice
from typing import Any

from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.http_api import CursorLostError
from lakesync.connectors.probes import Probe, describe_clock_skew
from lakesync.connectors.salesforce import bulk
from lakesync.connectors.salesforce.api import BulkJobLostError, SalesforceClient
from lakesync.connectors.salesforce.rows import (
    OBJECTS,
    csv_row,
    datetime_literal,
    record_row,
    soql_literal,
    to_milliseconds,
)
from lakesync.connectors.salesforce.schemas import SALESFORCE, SALESFORCE_SWITCHES
from lakesync.connectors.source import Census, Cursor, Page, SourceRow, Table, Usage
from lakesync.connectors.user_filters import balanced_condition

OVERLAP_MS = 300_000
"""How far before the newest change a poll reads again.

Changes become visible when their transaction commits, but carry the time at which they were made.
"""

BULK_ROWS = 20_000
"""A first load of more records uses a bulk job."""

ROWS_PER_PAGE = 2_000
"""Rows of a bulk job held at once."""

_IDS_PER_QUERY = 200
_DELETED_LOG_MS = 29 * 86_400_000


class SalesforceSource:
    """Polls an organisation as one user sees it. A cursor stores its filter; another filter starts the poll again."""

    resumable = True

    def __init__(self, config: ConnectorConfig, *, bulk_rows: int | None = None, **http_options: Any) -> None:
        """Create the source.

        Args:
            config: the connector's configuration.
            bulk_rows: overrides `BULK_ROWS`.
            http_options: keyword arguments of `HttpApi`.
        """
        settings = config.settings
        self._client = SalesforceClient(settings, hosts=config.hosts, **http_options)
        self._filter: str | None = settings.get("soqlFilter")
        self._condition = balanced_condition(self._filter, "soqlFilter") if self._filter else ""
        self._bulk_rows = BULK_ROWS if bulk_rows is None else bulk_rows
        schemas = {schema.table: schema for schema in SALESFORCE}
        self.tables = tuple(
            Table(table, schema=partial(schemas.get, table))
            for table in schemas
            if settings.get(SALESFORCE_SWITCHES[table], True)
        )

    @property
    def usage(self) -> Usage:
        """Calls made, and the remainder of the daily limit."""
        return self._client.usage

    def changes(self, table: str, cursor: Cursor | None) -> Iterator[Page]:
        """Yield records changed since a cursor, including deleted ones."""
        if cursor is None or cursor["filter"] != self._filter:
            return self._first_load(table)
        if "job" in cursor:
            return self._resume_load(table, cursor)
        return self._changed_since(table, cursor["modified"])

    def census(self, table: str) -> Census | None:
        """List the ids of all records."""
        return Census(None, self._ids(table))

    def read(self, table: str, row_ids: Sequence[str]) -> Iterator[Page]:
        """Yield records by id."""
        for batch in _batches(row_ids):
            for page in self._client.query(self._select(table, f"Id IN ({_soql_list(batch)})")):
                yield Page(table, [record_row(table, record) for record in page["records"]])

    def gone(self, table: str, rows: Sequence[SourceRow]) -> set[str]:
        """Return records that are deleted or no longer match the filter.

        A record that neither queries nor the log of deletes mention is hidden from this user, or was deleted more than
        30 days ago; it is kept.
        """
        ids = {row.row_id for row in rows}
        logged = self._deleted_log(table) & ids
        deleted, here = self._deleted_and_existing(table, ids - logged)
        if self._filter and here and (outside := here - self._matching(table, here)):
            # what was hidden between the two questions is not outside of the filter
            deleted |= set().union(*self._deleted_and_existing(table, outside))
        return logged | deleted

    def _deleted_and_existing(self, table: str, ids: set[str]) -> tuple[set[str], set[str]]:
        """Return which of these records are deleted and which exist, as far as the user sees them."""
        deleted, here = set[str](), set[str]()
        for batch in _batches(sorted(ids)):
            soql = f"SELECT Id, IsDeleted FROM {OBJECTS[table].name} WHERE Id IN ({_soql_list(batch)})"
            for page in self._client.query(soql, deleted=True):
                for record in page["records"]:
                    (deleted if record["IsDeleted"] else here).add(record["Id"])
        return deleted, here

    def probes(self) -> Iterator[Probe]:
        """Check that the user can read what the connector polls."""
        yield Probe("credentials", self._check_credentials)
        yield Probe("clock", self._check_clock)
        for table in self.tables:
            yield Probe(table.name, partial(self._check_page, table.name))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _check_credentials(self) -> str:
        self._client.call("GET", "/limits")
        usage = self._client.usage
        return "signed in" + (f", {usage.left} of {usage.limit} calls a day are left" if usage.limit else "")

    def _check_clock(self) -> str:
        answer = self._client.call("GET", "/limits")
        return describe_clock_skew(
            parsedate_to_datetime(answer.headers["Date"]).timestamp() * 1000, "the organisation's"
        )

    def _check_page(self, table: str) -> str:
        records = next(self._client.query(f"{self._select(table)} LIMIT 1"))["records"]
        if records:
            return f"readable, the first is {records[0]['Id']}"
        return f"readable, but empty: check {'soqlFilter, and ' if self._filter else ''}what is shared with the user"

    def _first_load(self, table: str) -> Iterator[Page]:
        count = next(self._client.query(self._where(f"SELECT COUNT() FROM {OBJECTS[table].name}")))["totalSize"]
        if count <= self._bulk_rows:
            yield from self._changed_since(table, 0)
            return
        job, made = bulk.start_job(self._client, self._select(table))
        # a kill from here on costs nothing: the job is found again
        cursor = {**self._cursor(to_milliseconds(made)), "job": job, "locator": None}
        yield Page(table, [], cursor)
        yield from self._read_job(table, cursor)

    def _resume_load(self, table: str, cursor: Cursor) -> Iterator[Page]:
        """Yield the rest of an earlier poll's job, or start a new job if that one is lost."""
        try:
            yield from self._read_job(table, cursor)
        except BulkJobLostError:
            yield from self._first_load(table)

    def _read_job(self, table: str, cursor: Cursor) -> Iterator[Page]:
        bulk.wait_for_job(self._client, cursor["job"])
        for batch in bulk.read_results(self._client, cursor["job"], cursor["locator"]):
            done = self._cursor(cursor["modified"])
            place = done if batch.locator is None else {**cursor, "locator": batch.locator}
            rows = (csv_row(table, line) for line in batch.lines)
            some = list(islice(rows, ROWS_PER_PAGE))
            while following := list(islice(rows, ROWS_PER_PAGE)):
                yield Page(table, some)
                some = following
            yield Page(table, some, place)
        bulk.delete_job(self._client, cursor["job"])
        yield from self._changed_since(table, cursor["modified"])

    def _changed_since(self, table: str, place: int) -> Iterator[Page]:
        """Yield records modified since a position, oldest first. This machine's clock is not used."""
        newest = place
        while True:
            begun = newest
            since = datetime_literal(max(newest - OVERLAP_MS, 0))
            soql = self._select(table, f"SystemModstamp >= {since}", more=", IsDeleted, SystemModstamp")
            try:
                for page in self._client.query(f"{soql} ORDER BY SystemModstamp ASC, Id ASC", deleted=True):
                    records = page["records"]
                    newest = max([newest, *(to_milliseconds(record["SystemModstamp"]) for record in records)])
                    yield Page(
                        table,
                        [record_row(table, record) for record in records if not record["IsDeleted"]],
                        self._cursor(newest),
                        deleted=[record["Id"] for record in records if record["IsDeleted"]],
                    )
                return
            except CursorLostError:
                if newest == begun:
                    raise

    def _ids(self, table: str) -> Iterator[Sequence[str]]:
        for page in self._client.query(self._where(f"SELECT Id FROM {OBJECTS[table].name}")):
            yield [record["Id"] for record in page["records"]]

    def _matching(self, table: str, ids: set[str]) -> set[str]:
        name = OBJECTS[table].name
        found = set()
        for batch in _batches(sorted(ids)):
            for page in self._client.query(self._where(f"SELECT Id FROM {name}", f"Id IN ({_soql_list(batch)})")):
                found |= {record["Id"] for record in page["records"]}
        return found

    def _deleted_log(self, table: str) -> set[str]:
        """Return the ids in an object's log of deletes, by Salesforce's clock."""
        name = OBJECTS[table].name
        answer = self._client.call("GET", "/limits")
        now = int(parsedate_to_datetime(answer.headers["Date"]).timestamp() * 1000)
        span = {"start": datetime_literal(now - _DELETED_LOG_MS), "end": datetime_literal(now + 60_000)}
        answer_body = self._client.call("GET", f"/sobjects/{name}/deleted", params=span).json()
        return {record["id"] for record in answer_body["deletedRecords"]}

    def _select(self, table: str, *conditions: str, more: str = "") -> str:
        found = OBJECTS[table]
        return self._where(f"SELECT {', '.join(found.fields.values())}{more} FROM {found.name}", *conditions)

    def _where(self, select: str, *conditions: str) -> str:
        parts = [*([f"({self._condition})"] if self._condition else []), *conditions]
        return f"{select} WHERE {' AND '.join(parts)}" if parts else select

    def _cursor(self, modified: int) -> dict[str, Any]:
        return {"modified": modified, "filter": self._filter}


def _batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), _IDS_PER_QUERY):
        yield ids[start : start + _IDS_PER_QUERY]


def _soql_list(ids: Sequence[str]) -> str:
    return ", ".join(map(soql_literal, ids))

"""Salesforce source: reads records, also deleted ones, by `SystemModstamp`, the time of a record's last change.

A poll of a connector continues after the newest time that it has seen, its cursor. A large first load uses a bulk job,
a query that Salesforce runs in the background. A census lists all ids, to find records whose change was not seen.
Records become rows whose columns are all text; the CSV of a bulk job and the JSON of a query give equal rows. The
pipeline's poll tasks call the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from lakesync.connectors.base import (
    Census,
    ConnectorConfig,
    Cursor,
    Page,
    Probe,
    SourceRow,
    Table,
    Usage,
    describe_clock_skew,
    text_table,
    value_at,
)
from lakesync.connectors.http_api import CursorLostError, decode_json
from lakesync.connectors.query_text import balanced_condition
from lakesync.connectors.salesforce.api import BulkJobLostError, Json, SalesforceClient, soql_literal
from lakesync.model.hlc import iso_time

OVERLAP_MS = 300_000
"""How far before the newest change a poll reads again.

Changes become visible when their transaction commits, but carry the time at which they were made.
"""

BULK_ROWS = 20_000
"""A first load of more records uses a bulk job."""

ROWS_PER_PAGE = 2_000
"""Rows per page of a bulk job's result."""

_IDS_PER_QUERY = 200
"""Ids in the condition of one query."""
_DELETED_LOG_MS = 29 * 86_400_000
"""How far back the log of deletes is read. Salesforce keeps 30 days."""


_FIELD_NAMES = {"sf_id": "Id", "owner_name": "Owner.Name", "account_name": "Account.Name"}
"""Columns whose field's name does not follow from their own."""
_NUMBERS = {"AnnualRevenue", "NumberOfEmployees", "Amount", "Probability"}
"""Fields that are numbers in JSON, and that a bulk job's CSV has in another form."""
_TIMES = {"CreatedDate", "LastModifiedDate"}
"""Fields that are dates with a time, which end with `+0000` in JSON and with `Z` in a bulk job's CSV."""


class _PolledTable(NamedTuple):
    """A table that the connector can poll."""

    name: str
    sf_object: str
    """The Salesforce object whose records are its rows."""
    fields: Mapping[str, str]
    """Column → the object's field, such as `Owner.Name`, which is a field of a related record."""
    paths: Mapping[str, Sequence[str]]
    """Column → path of its value in a record's JSON, such as `Owner`, `Name`."""
    references: Mapping[str, str]
    """Column → the `TABLE.COLUMN` that it refers to."""


def _polled_table(name: str, sf_object: str, columns: str, **references: str) -> _PolledTable:
    """Return a table with these columns, whose names are separated by spaces."""
    fields = {column: _field(column) for column in columns.split()}
    paths = {column: field.split(".") for column, field in fields.items()}
    return _PolledTable(name, sf_object, fields, paths, references)


def _field(column: str) -> str:
    """Return the field of a column: `billing_city` is `BillingCity`."""
    return _FIELD_NAMES.get(column) or "".join(part.capitalize() for part in column.split("_"))


_TABLES = (
    _polled_table(
        "sf_accounts",
        "Account",
        "sf_id name type industry website phone billing_city billing_state billing_country annual_revenue"
        " number_of_employees owner_name created_date last_modified_date",
    ),
    _polled_table(
        "sf_contacts",
        "Contact",
        "sf_id first_name last_name email phone title account_id account_name mailing_city mailing_state"
        " mailing_country owner_name created_date last_modified_date",
        account_id="sf_accounts.sf_id",
    ),
    _polled_table(
        "sf_opportunities",
        "Opportunity",
        "sf_id name stage_name amount close_date probability account_id account_name type lead_source is_closed"
        " is_won owner_name created_date last_modified_date",
        account_id="sf_accounts.sf_id",
    ),
    _polled_table(
        "sf_leads",
        "Lead",
        "sf_id first_name last_name company email phone title status lead_source is_converted converted_account_id"
        " converted_contact_id converted_opportunity_id owner_name created_date last_modified_date",
        converted_account_id="sf_accounts.sf_id",
        converted_contact_id="sf_contacts.sf_id",
        converted_opportunity_id="sf_opportunities.sf_id",
    ),
)
SALESFORCE_TABLES = tuple(text_table(each.name, each.fields, **each.references) for each in _TABLES)
"""The schemas of all tables. The row id is the record's Id."""

SALESFORCE_SWITCHES = {
    "sf_accounts": "includeAccounts",
    "sf_contacts": "includeContacts",
    "sf_opportunities": "includeOpportunities",
    "sf_leads": "includeLeads",
}
"""Table → the setting that turns its polling off."""


_BY_NAME = {each.name: each for each in _TABLES}


class SalesforceSource:
    """Polls an organisation as one user sees it. `connectors.base.Source` documents the methods.

    The cursor has `modified`, the newest time in milliseconds since 1970, and `filter`; another filter starts the poll
    again. While a bulk job is read, it also has the job's id (`job`) and the position in its result (`locator`).
    """

    resumable = True

    def __init__(self, config: ConnectorConfig, *, bulk_rows: int | None = None, **http_options: Any) -> None:
        """Create the source.

        Args:
            config: the connector's configuration.
            bulk_rows: a first load of more records uses a bulk job; None for `BULK_ROWS`.
            http_options: keyword arguments of `connectors.http_api.HttpApi`.
        """
        settings = config.settings
        self._client = SalesforceClient(settings, hosts=config.hosts, **http_options)
        self._filter: str | None = settings.get("soqlFilter")
        self._condition = balanced_condition(self._filter, "soqlFilter") if self._filter else ""
        self._bulk_rows = BULK_ROWS if bulk_rows is None else bulk_rows
        schemas = {schema.table: schema for schema in SALESFORCE_TABLES}
        self.tables = tuple(
            Table(table, schema=partial(schemas.get, table), origin=settings["instanceUrl"].rstrip("/"))
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
        for condition in _conditions(row_ids):
            for page in self._client.query(self._select(table, condition)):
                yield Page(table, [record_row(table, record) for record in page["records"]])

    def find_deleted(self, table: str, rows: Sequence[SourceRow]) -> set[str]:
        """Return the ids of the records that are deleted or no longer match the filter.

        A record that neither queries nor the log of deletes mention is hidden from this user, or was deleted more than
        30 days ago. It is not returned, because deleting rows that only became hidden would lose them.
        """
        ids = {row.row_id for row in rows}
        logged = self._deleted_log(table) & ids
        deleted, existing = self._deleted_and_existing(table, ids - logged)
        if self._filter and existing:
            unmatched = existing - self._matching(table, existing)
            # A record that was hidden between the two queries does not match either, but a third one does not find it.
            for found in self._deleted_and_existing(table, unmatched):
                deleted |= found
        return logged | deleted

    def probes(self) -> Iterator[Probe]:
        """Check that the user can read what the connector polls."""
        yield Probe("credentials", self._check_credentials)
        yield Probe("clock", self._check_clock)
        for table in self.tables:
            yield Probe(table.name, partial(self._check_page, table.name))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _deleted_and_existing(self, table: str, ids: set[str]) -> tuple[set[str], set[str]]:
        """Return which of these records are deleted and which exist; those that the user cannot see are in neither."""
        deleted, existing = set[str](), set[str]()
        for condition in _conditions(sorted(ids)):
            soql = f"SELECT Id, IsDeleted FROM {_BY_NAME[table].sf_object} WHERE {condition}"
            for page in self._client.query(soql, deleted=True):
                for record in page["records"]:
                    (deleted if record["IsDeleted"] else existing).add(record["Id"])
        return deleted, existing

    def _check_credentials(self) -> str:
        self._client.call("GET", "/limits")
        usage = self._client.usage
        return "signed in" + (f", {usage.left} of {usage.limit} calls a day are left" if usage.limit else "")

    def _check_clock(self) -> str:
        return describe_clock_skew(self._now_ms(), "the organisation's")

    def _check_page(self, table: str) -> str:
        records = next(self._client.query(f"{self._select(table)} LIMIT 1"))["records"]
        if records:
            return f"readable, the first is {records[0]['Id']}"
        return f"readable, but empty: check {'soqlFilter, and ' if self._filter else ''}what is shared with the user"

    def _first_load(self, table: str) -> Iterator[Page]:
        """Yield all records."""
        count = next(self._client.query(self._where(f"SELECT COUNT() FROM {_BY_NAME[table].sf_object}")))["totalSize"]
        if count <= self._bulk_rows:
            yield from self._changed_since(table, 0)
            return
        job, created = self._client.start_bulk_job(self._select(table))
        cursor = {**self._cursor(to_milliseconds(created)), "job": job, "locator": None}
        yield Page(table, [], cursor)  # stores the job's id, so that a poll after a crash resumes it
        yield from self._read_job(table, cursor)

    def _resume_load(self, table: str, cursor: Cursor) -> Iterator[Page]:
        """Yield the rest of an earlier poll's job, or start a new job if that one is lost."""
        try:
            yield from self._read_job(table, cursor)
        except BulkJobLostError:
            yield from self._first_load(table)

    def _read_job(self, table: str, cursor: Cursor) -> Iterator[Page]:
        """Yield the records of a cursor's job, then those that changed since the job was created."""
        self._client.wait_for_bulk_job(cursor["job"])
        for result in self._client.bulk_results(cursor["job"], cursor["locator"]):
            finished = self._cursor(cursor["modified"])
            next_cursor = finished if result.locator is None else {**cursor, "locator": result.locator}
            rows = (csv_row(table, line) for line in result.lines)
            page_rows = list(islice(rows, ROWS_PER_PAGE))
            while next_rows := list(islice(rows, ROWS_PER_PAGE)):
                yield Page(table, page_rows)
                page_rows = next_rows
            yield Page(table, page_rows, next_cursor)
        self._client.delete_bulk_job(cursor["job"])
        yield from self._changed_since(table, cursor["modified"])

    def _changed_since(self, table: str, modified_ms: int) -> Iterator[Page]:
        """Yield records modified since a time, oldest first. All times are those of Salesforce's clock.

        If Salesforce discards the rest of a result, queries again from the newest record.
        """
        newest_ms = modified_ms
        while True:
            start_ms = newest_ms
            since = iso_time(max(newest_ms - OVERLAP_MS, 0))
            soql = self._select(table, f"SystemModstamp >= {since}", further_fields=", IsDeleted, SystemModstamp")
            try:
                for page in self._client.query(f"{soql} ORDER BY SystemModstamp ASC, Id ASC", deleted=True):
                    records = page["records"]
                    newest_ms = max([newest_ms, *(to_milliseconds(record["SystemModstamp"]) for record in records)])
                    yield Page(
                        table,
                        [record_row(table, record) for record in records if not record["IsDeleted"]],
                        self._cursor(newest_ms),
                        deleted=[record["Id"] for record in records if record["IsDeleted"]],
                    )
                return
            except CursorLostError:
                if newest_ms == start_ms:
                    raise

    def _ids(self, table: str, *conditions: str) -> Iterator[Sequence[str]]:
        """Yield the ids of all records that match the filter and all conditions."""
        for page in self._client.query(self._where(f"SELECT Id FROM {_BY_NAME[table].sf_object}", *conditions)):
            yield [record["Id"] for record in page["records"]]

    def _matching(self, table: str, ids: set[str]) -> set[str]:
        """Return which of these records match the filter."""
        return {each for condition in _conditions(sorted(ids)) for page in self._ids(table, condition) for each in page}

    def _deleted_log(self, table: str) -> set[str]:
        """Return the ids in an object's log of deletes, by Salesforce's clock."""
        name = _BY_NAME[table].sf_object
        now_ms = self._now_ms()
        # Salesforce ignores the seconds of both: the end is a minute later, to include the current one
        params = {"start": iso_time(now_ms - _DELETED_LOG_MS), "end": iso_time(now_ms + 60_000)}
        body = decode_json(self._client.call("GET", f"/sobjects/{name}/deleted", params=params))
        return {record["id"] for record in body["deletedRecords"]}

    def _now_ms(self) -> int:
        """Return the time of Salesforce's clock."""
        response = self._client.call("GET", "/limits")
        return int(parsedate_to_datetime(response.headers["Date"]).timestamp() * 1000)

    def _select(self, table: str, *conditions: str, further_fields: str = "") -> str:
        """Return the query for a table's fields under the filter and all conditions."""
        polled = _BY_NAME[table]
        fields = ", ".join(polled.fields.values())
        return self._where(f"SELECT {fields}{further_fields} FROM {polled.sf_object}", *conditions)

    def _where(self, select: str, *conditions: str) -> str:
        """Append a WHERE clause with the filter and all conditions."""
        parts = [*([f"({self._condition})"] if self._condition else []), *conditions]
        return f"{select} WHERE {' AND '.join(parts)}" if parts else select

    def _cursor(self, modified_ms: int) -> dict[str, Any]:
        """Return the cursor with which a poll continues at a time."""
        return {"modified": modified_ms, "filter": self._filter}


def record_row(table: str, record: Json) -> SourceRow:
    """Convert a record of a query; the row id is its Id."""
    paths = _BY_NAME[table].paths
    return SourceRow(record["Id"], {column: _text(value_at(record, path)) for column, path in paths.items()})


def csv_row(table: str, line: Mapping[str, str]) -> SourceRow:
    """Convert a line of a bulk job's CSV. An empty field is null, because Salesforce does not store empty text.

    Args:
        table: the output table.
        line: field → value.
    """
    columns = _BY_NAME[table].fields
    return SourceRow(line["Id"], {column: _csv_text(field, line[field]) for column, field in columns.items()})


def to_milliseconds(timestamp: str) -> int:
    """Parse Salesforce's timestamps (`2026-01-02T03:04:05.000+0000`) to milliseconds since 1970."""
    return round(datetime.fromisoformat(timestamp).timestamp() * 1000)


def _conditions(ids: Sequence[str]) -> Iterator[str]:
    """Divide ids among queries; yield the condition of each query on its ids."""
    for start in range(0, len(ids), _IDS_PER_QUERY):
        yield f"Id IN ({', '.join(map(soql_literal, ids[start : start + _IDS_PER_QUERY]))})"


def _csv_text(field: str, text: str) -> str | None:
    """Return a CSV value as `_text` returns the JSON value of the same field."""
    if not text:
        return None
    if field in _NUMBERS:
        return _text(float(text))
    return text.replace("Z", "+0000") if field in _TIMES else text


def _text(value: Any) -> str | None:
    """Return a value as the text of a column of type string; Salesforce sends some of them as numbers or booleans."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)

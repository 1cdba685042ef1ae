"""Queries of an organisation, page by page, and its log of deletes."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from lakesync.testing.servers.http import Answer, Request
from lakesync.testing.servers.salesforce.org import FIELDS, Record, SalesforceOrg, spelled
from lakesync.testing.servers.salesforce.service import SalesforceService
from lakesync.testing.servers.salesforce.soql import SoqlError, parse

_KEPT_MS = 30 * 86_400_000


def query(api: SalesforceService, request: Request) -> Answer:
    """The first page of a query; what is deleted is not in it."""
    return _first(api, request, deleted=False)


def query_all(api: SalesforceService, request: Request) -> Answer:
    """The first page of a query, with what is in the recycle bin."""
    return _first(api, request, deleted=True)


def query_more(api: SalesforceService, _: Request, locator: str) -> Answer:
    """Return the next page of a query's result, which was selected when the query was sent."""
    until, fields, rest = api.results.pop(locator, (0, (), []))
    if until < api.now():
        raise SoqlError("INVALID_QUERY_LOCATOR", "invalid query locator")
    return _page(api, fields, rest, None)


def limits(api: SalesforceService, _: Request) -> Answer:
    """What is left of the day's budget."""
    return Answer(200, {"DailyApiRequests": {"Max": api.daily_limit, "Remaining": max(api.daily_limit - api.used, 0)}})


def deleted(api: SalesforceService, request: Request, kind: str) -> Answer:
    """What was deleted of an object in a span of time, purged records included, for 30 days."""
    start, end = (int(datetime.fromisoformat(request.query[name]).timestamp() * 1000) for name in ("start", "end"))
    earliest = api.now() - _KEPT_MS
    if kind not in FIELDS or kind in api.no_access:
        raise SoqlError("INVALID_TYPE", f"sObject type '{kind}' is not supported.")
    if start < earliest - 60_000 or end <= start:
        raise SoqlError("INVALID_REPLICATION_DATE", "startDate before org replication enabled date")
    found = [
        {"id": record_id, "deletedDate": spelled(at)}
        for at, of, record_id in api.org.log
        if of == kind and start <= at < end
    ]
    body = {"deletedRecords": found, "earliestDateAvailable": spelled(earliest), "latestDateCovered": spelled(end)}
    return Answer(200, body)


def shown(org: SalesforceOrg, record: Record, fields: Sequence[str]) -> dict[str, Any]:
    """Return a record as JSON. Fields of a related record are in a nested object."""
    row: dict[str, Any] = {"attributes": {"type": record.kind, "url": f"/sobjects/{record.kind}/{record.id}"}}
    for name in fields:
        relation, dot, rest = name.partition(".")
        value = org.field_of(record, name)
        if dot:
            row[relation] = None if value is None else {"attributes": {"type": relation}, rest: value}
        else:
            row[name] = value
    return row


def _first(api: SalesforceService, request: Request, *, deleted: bool) -> Answer:
    asked = parse(request.query.get("q", ""), api.org)
    if asked.kind in api.no_access:
        raise SoqlError("INVALID_TYPE", f"sObject type '{asked.kind}' is not supported.")
    found = asked.select(api.org, deleted=deleted)
    if not asked.fields:
        return Answer(200, {"totalSize": len(found), "done": True, "records": []})
    return _page(api, asked.fields, found, len(found))


def _page(api: SalesforceService, fields: tuple[str, ...], found: list[Record], total: int | None) -> Answer:
    page, rest = found[: api.batch], found[api.batch :]
    body: dict[str, Any] = {
        "totalSize": len(found) if total is None else total,
        "done": not rest,
        "records": [shown(api.org, each, fields) for each in page],
    }
    if rest:
        locator = f"0r8{secrets.token_hex(8)}-{api.batch}"
        api.results[locator] = (api.now() + api.locator_ms, fields, rest)
        body["nextRecordsUrl"] = f"/services/data/v62.0/query/{locator}"
    return Answer(200, body)

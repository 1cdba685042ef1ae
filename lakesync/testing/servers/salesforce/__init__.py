"""A fake Salesforce organisation with REST API and Bulk API 2.0, as one connected app sees it.

Tests and `lakesync fake` run it. It follows Salesforce's documentation of the REST API, SOQL, OAuth flows and the Bulk
API 2.0, also in what makes polling hard: query locators expire, only `queryAll` returns deleted records, sessions
expire, and calls per day are limited. `serve` runs `SalesforceApi`, which checks sign-in and daily limit. The functions
are its routes: queries, limits, records, and query jobs of the Bulk API. A job's result is CSV, which the client
fetches in parts; each part's locator names the next. `org` has the data.
"""

from __future__ import annotations

import csv
import io
import re
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs

from lakesync.testing.servers import Request, Response, Routes
from lakesync.testing.servers.salesforce.org import (
    EXTERNAL_IDS,
    FIELDS,
    REQUIRED,
    BulkJob,
    Record,
    RemainingRecords,
    SalesforceOrg,
    SalesforceService,
    error,
    not_found,
    time_text,
)
from lakesync.testing.servers.salesforce.soql import SoqlError, parse

__all__ = ["Record", "SalesforceApi", "SalesforceOrg"]

_DELETES_KEPT_MS = 30 * 86_400_000
"""Milliseconds for which the route `deleted` returns a deleted record's id."""


def query(api: SalesforceService, request: Request) -> Response:
    """Return the first page of a query, without deleted records."""
    return _first_page(api, request, deleted=False)


def query_all(api: SalesforceService, request: Request) -> Response:
    """Return the first page of a query, with records in the recycle bin."""
    return _first_page(api, request, deleted=True)


def query_more(api: SalesforceService, _: Request, locator: str) -> Response:
    """Return the next page of a query's result, which was selected when the query was sent."""
    remaining = api.results.pop(locator, None)
    if remaining is None or remaining.expires_ms < api.now():
        raise SoqlError("INVALID_QUERY_LOCATOR", "invalid query locator")
    return _page(api, remaining.fields, remaining.records, remaining.total)


def limits(api: SalesforceService, _: Request) -> Response:
    """Return the daily limit of requests and how many are left."""
    return Response(
        200, {"DailyApiRequests": {"Max": api.daily_limit, "Remaining": max(api.daily_limit - api.used, 0)}}
    )


def deleted(api: SalesforceService, request: Request, kind: str) -> Response:
    """Return the ids of an object's deleted records in a time range, purged ones included, for 30 days."""
    start, end = (int(datetime.fromisoformat(request.query[name]).timestamp() * 1000) for name in ("start", "end"))
    earliest = api.now() - _DELETES_KEPT_MS
    if kind not in FIELDS or kind in api.no_access:
        raise SoqlError("INVALID_TYPE", f"sObject type '{kind}' is not supported.")
    if start < earliest - 60_000 or end <= start:
        raise SoqlError("INVALID_REPLICATION_DATE", "startDate before org replication enabled date")
    records = [
        {"id": each.id, "deletedDate": time_text(each.ms)}
        for each in api.org.deletions
        if each.kind == kind and start <= each.ms < end
    ]
    body = {
        "deletedRecords": records,
        "earliestDateAvailable": time_text(earliest),
        "latestDateCovered": time_text(end),
    }
    return Response(200, body)


def record_json(org: SalesforceOrg, record: Record, fields: Sequence[str]) -> dict[str, Any]:
    """Return a record as JSON. Fields of a related record are in a nested object."""
    row: dict[str, Any] = {"attributes": {"type": record.kind, "url": f"/sobjects/{record.kind}/{record.id}"}}
    for name in fields:
        relation, dot, related_field = name.partition(".")
        value = org.field_of(record, name)
        if dot:
            row[relation] = None if value is None else {"attributes": {"type": relation}, related_field: value}
        else:
            row[name] = value
    return row


def _first_page(api: SalesforceService, request: Request, *, deleted: bool) -> Response:
    """Run the query in a request, and return its first page, or only the count for `COUNT()`.

    Args:
        api: the service.
        request: has the query as its parameter `q`.
        deleted: whether to include the recycle bin.
    """
    query = parse(request.query.get("q", ""), api.org)
    if query.kind in api.no_access:
        raise SoqlError("INVALID_TYPE", f"sObject type '{query.kind}' is not supported.")
    records = query.select(api.org, deleted=deleted)
    if not query.fields:  # `COUNT()`
        return Response(200, {"totalSize": len(records), "done": True, "records": []})
    return _page(api, query.fields, records, len(records))


def _page(api: SalesforceService, fields: tuple[str, ...], records: list[Record], total: int) -> Response:
    """Return a page of a query's records, and keep the further ones under a locator.

    Args:
        api: the service.
        fields: the fields of the query.
        records: the records that were not returned yet.
        total: number of all records of the query.
    """
    page, remaining = records[: api.batch], records[api.batch :]
    body: dict[str, Any] = {
        "totalSize": total,
        "done": not remaining,
        "records": [record_json(api.org, each, fields) for each in page],
    }
    if remaining:
        locator = f"0r8{secrets.token_hex(8)}-{api.batch}"
        api.results[locator] = RemainingRecords(api.now() + api.locator_ms, fields, remaining, total)
        body["nextRecordsUrl"] = f"/services/data/v62.0/query/{locator}"
    return Response(200, body)


def create(api: SalesforceService, request: Request, kind: str) -> Response:
    """Create a record."""
    fields: dict[str, Any] = request.json
    if (problem := _validation_error(kind, fields, REQUIRED.get(kind, ()))) is not None:
        return problem
    record = api.org.add(kind, **fields)
    return Response(201, {"id": record.id, "success": True, "errors": []})


def update(api: SalesforceService, request: Request, kind: str, name: str) -> Response:
    """Update a record."""
    fields: dict[str, Any] = request.json
    if (problem := _validation_error(kind, fields, ())) is not None:
        return problem
    record = api.org.records.get(name)
    if record is None or record.deleted or record.kind != kind or record.hidden:
        return error(404, "NOT_FOUND", "Provided external ID field does not exist or is not accessible: " + name)
    api.org.edit(record, **fields)
    return Response(204)


def upsert(api: SalesforceService, request: Request, kind: str, field: str, value: str) -> Response:
    """Update the record with an external id, or create it."""
    fields: dict[str, Any] = request.json
    if field not in EXTERNAL_IDS.get(kind, ()):
        return error(404, "NOT_FOUND", f"Provided external ID field does not exist or is not accessible: {field}")
    if (problem := _validation_error(kind, fields, ())) is not None:
        return problem
    matching = [each for each in api.org.visible(kind, deleted=False) if each.fields.get(field) == value]
    if matching:
        api.org.edit(matching[0], **fields)
        return Response(200, {"id": matching[0].id, "success": True, "errors": [], "created": False})
    if (problem := _validation_error(kind, fields, REQUIRED.get(kind, ()))) is not None:
        return problem
    record = api.org.add(kind, **fields, **{field: value})
    return Response(201, {"id": record.id, "success": True, "errors": [], "created": True})


def _validation_error(kind: str, fields: Any, required: tuple[str, ...]) -> Response | None:
    """Return the error of unknown or missing fields; None if the fields are valid."""
    if kind not in FIELDS:
        return not_found()
    undefined = [name for name in fields if name not in FIELDS[kind]]
    if undefined:
        return error(
            400, "INVALID_FIELD", f"No such column '{undefined[0]}' on sobject of type {kind}", fields=undefined
        )
    missing = [name for name in required if not fields.get(name)]
    if missing:
        words = f"Required fields are missing: [{', '.join(missing)}]"
        return error(400, "REQUIRED_FIELD_MISSING", words, fields=missing)
    return None


def create_job(api: SalesforceService, request: Request) -> Response:
    """Create a query job, whose result the client fetches when it is complete. The records are selected now."""
    body = request.json
    if body.get("operation") not in ("query", "queryAll"):
        raise SoqlError("INVALIDJOB", "operation must be query or queryAll")
    query = parse(body.get("query") or "", api.org)
    if query.kind in api.no_access:
        raise SoqlError("INVALID_TYPE", f"sObject type '{query.kind}' is not supported.")
    records = query.select(api.org, deleted=body["operation"] == "queryAll")
    job = BulkJob(
        f"750{secrets.token_hex(6)}AAA",
        body["operation"],
        body["query"],
        api.now(),
        query.fields,
        records,
        _version(request),
        fails=api.failing_jobs > 0,
    )
    api.failing_jobs = max(api.failing_jobs - 1, 0)
    api.jobs[job.id] = job
    return Response(200, _job_json(api, job) | {"state": "UploadComplete"})


def job_state(api: SalesforceService, _: Request, name: str) -> Response:
    """Return the state of a job."""
    job = api.jobs.get(name)
    return not_found() if job is None else Response(200, _job_json(api, job))


def job_results(api: SalesforceService, request: Request, name: str) -> Response:
    """Return a part of a result. The header `Sforce-Locator` names the next part, or is null."""
    job = api.jobs.get(name)
    if job is None:
        return not_found()
    if job.version != _version(request):
        return error(409, "API_ERROR", f"The job was created with API version {job.version}.")
    if _state(api, job) != "JobComplete":
        return error(400, "INVALIDJOBSTATE", f"The job is {_state(api, job)}, it has no results.")
    start = int(request.query.get("locator", 0))
    size = int(request.query.get("maxRecords", 50_000))
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    lines.writerow(job.fields)
    part = job.records[start : start + size]
    for record in part:
        lines.writerow([_text(api.org.field_of(record, field)) for field in job.fields])
    following = start + size
    headers = {
        "Content-Type": "text/csv",
        "Sforce-Locator": str(following) if following < len(job.records) else "null",
        "Sforce-NumberOfRecords": str(len(part)),
    }
    return Response(200, text.getvalue(), headers)


def delete_job(api: SalesforceService, _: Request, name: str) -> Response:
    """Delete a job."""
    return not_found() if api.jobs.pop(name, None) is None else Response(204)


def _state(api: SalesforceService, job: BulkJob) -> str:
    """Return a job's state, as the API names it."""
    if api.now() < job.created + api.job_delay_ms:
        return "InProgress"
    return "Failed" if job.fails else "JobComplete"


def _job_json(api: SalesforceService, job: BulkJob) -> dict[str, Any]:
    """Return a job as JSON."""
    state = _state(api, job)
    result = {"id": job.id, "operation": job.operation, "createdDate": time_text(job.created), "state": state}
    match state:
        case "JobComplete":
            return result | {"numberRecordsProcessed": len(job.records)}
        case "Failed":
            return result | {"errorMessage": "InternalServerError : The query was too complicated."}
    return result


def _version(request: Request) -> str:
    """Return the API version in the request's path, such as `62.0`."""
    version = re.search(r"/v([0-9.]+)/", request.path)
    return version[1] if version else ""


def _text(value: Any) -> str:
    """Return a value as the Bulk API writes it in CSV. Numbers always have a decimal point, and times end with `Z`."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(float(value))
    return _TIME.sub(r"\1Z", str(value))


_TIME = re.compile(r"(\d{4}-\d\d-\d\dT[\d:.]+)\+0000")
"""A time in UTC, as JSON has it."""
_ROUTES = Routes(
    "/services/data/v[0-9.]+/",
    ("GET", "query/?", query),
    ("GET", "queryAll/?", query_all),
    ("GET", "(?:query|queryAll)/([^/]+)", query_more),
    ("GET", "limits/?", limits),
    ("GET", "sobjects/([^/]+)/deleted/?", deleted),
    ("POST", "sobjects/([^/]+)/?", create),
    ("PATCH", "sobjects/([^/]+)/([^/]+)", update),
    ("PATCH", "sobjects/([^/]+)/([^/]+)/([^/]+)", upsert),
    ("POST", "jobs/query/?", create_job),
    ("GET", "jobs/query/([^/]+)", job_state),
    ("GET", "jobs/query/([^/]+)/results", job_results),
    ("DELETE", "jobs/query/([^/]+)", delete_job),
)


class SalesforceApi(SalesforceService):
    """The service of an organisation, for `serve`."""

    def respond(self, request: Request) -> Response:
        """Respond to a request: with a planned failure, an error of session or limit, or a route's response."""
        if self.failures and (failure := self.failures.popleft()).status:  # status 0: this request does not fail
            return failure
        if request.path == "/services/oauth2/token" and request.method == "POST":
            return self._sign_in(request)
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.sessions.get(token, 0) < self.now():
            return error(401, "INVALID_SESSION_ID", "Session expired or invalid")
        if self.used >= self.daily_limit:
            return error(403, "REQUEST_LIMIT_EXCEEDED", "TotalRequests Limit exceeded.")
        self.used += 1
        headers = {"Sforce-Limit-Info": f"api-usage={self.used}/{self.daily_limit}"}
        try:
            return _ROUTES.respond(self, request, headers) or not_found()
        except SoqlError as fault:
            return error(400, fault.code, str(fault))
        except ValueError as fault:
            return error(400, "JSON_PARSER_ERROR", str(fault))

    def _sign_in(self, request: Request) -> Response:
        """Return an access token for the connected app, or for its user with a password."""
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}

        def rejected(code: str, message: str) -> Response:
            return Response(400, {"error": code, "error_description": message})

        if form.get("client_id") != self.client_id:
            return rejected("invalid_client_id", "client identifier invalid")
        if form.get("client_secret") != self.client_secret:
            return rejected("invalid_client", "invalid client credentials")
        match form.get("grant_type"):
            case "client_credentials":
                pass
            case "password":
                if (form.get("username"), form.get("password")) != (self.username, self.password):
                    return rejected("invalid_grant", "authentication failure")
            case _:
                return rejected("unsupported_grant_type", "grant type not supported")
        token = secrets.token_urlsafe(16)
        self.sessions[token] = self.now() + self.session_ms
        url = self.url or f"http://{request.headers['host']}"
        body: dict[str, Any] = {"access_token": token, "instance_url": url, "token_type": "Bearer"}
        return Response(200, {**body, "issued_at": str(self.now())})

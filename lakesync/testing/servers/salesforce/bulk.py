"""Query jobs of the Bulk API 2.0: results as CSV, in pieces that a locator names."""

from __future__ import annotations

import csv
import io
import re
import secrets
from typing import Any

from lakesync.testing.servers.http import Answer, Request
from lakesync.testing.servers.salesforce.org import spelled
from lakesync.testing.servers.salesforce.service import BulkJob, SalesforceService, error, unknown
from lakesync.testing.servers.salesforce.soql import SoqlError, parse


def create(api: SalesforceService, request: Request) -> Answer:
    """Create a job. Its result is selected now."""
    asked = request.json
    if asked.get("operation") not in ("query", "queryAll"):
        raise SoqlError("INVALIDJOB", "operation must be query or queryAll")
    query = parse(asked.get("query") or "", api.org)
    if query.kind in api.no_access:
        raise SoqlError("INVALID_TYPE", f"sObject type '{query.kind}' is not supported.")
    found = query.select(api.org, deleted=asked["operation"] == "queryAll")
    job = BulkJob(
        f"750{secrets.token_hex(6)}AAA",
        asked["operation"],
        asked["query"],
        api.now(),
        query.fields,
        found,
        _version(request),
        fails=api.failing_jobs > 0,
    )
    api.failing_jobs = max(api.failing_jobs - 1, 0)
    api.jobs[job.id] = job
    return Answer(200, _job_json(api, job) | {"state": "UploadComplete"})


def state(api: SalesforceService, _: Request, name: str) -> Answer:
    """Return the state of a job."""
    job = api.jobs.get(name)
    return unknown() if job is None else Answer(200, _job_json(api, job))


def results(api: SalesforceService, request: Request, name: str) -> Answer:
    """Return a part of a result. The header `Sforce-Locator` names the next part, or is null."""
    job = api.jobs.get(name)
    if job is None:
        return unknown()
    if job.version != _version(request):
        return error(409, "API_ERROR", f"The job was created with API version {job.version}.")
    if _state(api, job) != "JobComplete":
        return error(400, "INVALIDJOBSTATE", f"The job is {_state(api, job)}, it has no results.")
    start = int(request.query.get("locator", 0))
    size = int(request.query.get("maxRecords", 50_000))
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\n", quoting=csv.QUOTE_ALL)
    lines.writerow(job.fields)
    piece = job.found[start : start + size]
    for record in piece:
        lines.writerow([_text(api.org.field_of(record, field)) for field in job.fields])
    following = start + size
    headers = {
        "Content-Type": "text/csv",
        "Sforce-Locator": str(following) if following < len(job.found) else "null",
        "Sforce-NumberOfRecords": str(len(piece)),
    }
    return Answer(200, written.getvalue(), headers)


def delete(api: SalesforceService, _: Request, name: str) -> Answer:
    """Delete a job."""
    return unknown() if api.jobs.pop(name, None) is None else Answer(204)


def _state(api: SalesforceService, job: BulkJob) -> str:
    if api.now() < job.created + api.job_delay_ms:
        return "InProgress"
    return "Failed" if job.fails else "JobComplete"


def _job_json(api: SalesforceService, job: BulkJob) -> dict[str, Any]:
    state = _state(api, job)
    shown = {"id": job.id, "operation": job.operation, "createdDate": spelled(job.created), "state": state}
    match state:
        case "JobComplete":
            return shown | {"numberRecordsProcessed": len(job.found)}
        case "Failed":
            return shown | {"errorMessage": "InternalServerError : The query was too complicated."}
    return shown


def _version(request: Request) -> str:
    found = re.search(r"/v([0-9.]+)/", request.path)
    return found[1] if found else ""


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(float(value)) if isinstance(value, int | float) else str(value)

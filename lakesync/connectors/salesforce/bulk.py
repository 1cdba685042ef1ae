"""Large queries through Bulk API 2.0: one job whose result is CSV in pages."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from lakesync.connectors.salesforce.api import BulkJobLostError, SalesforceClient
from lakesync.model.errors import AdapterError

RECORDS_PER_PAGE = 20_000
"""Records per page of a result, held in memory as text."""

_JOB_TIMEOUT_S = 1_800.0


class ResultPage(NamedTuple):
    """One page of a job's records."""

    lines: Iterator[Mapping[str, str]]
    """Fields as text, parsed lazily."""
    locator: str | None
    """Position of the next page; None after the last one."""


def start_job(client: SalesforceClient, soql: str) -> tuple[str, str]:
    """Start a job. Returns its id and the time at which Salesforce created it.

    Args:
        client: the client.
        soql: the query.
    """
    body = {"operation": "query", "query": soql}
    job = client.call("POST", "/jobs/query", json=body, repeatable=False).json()
    return str(job["id"]), str(job["createdDate"])


def wait_for_job(client: SalesforceClient, job: str, *, timeout_s: float = _JOB_TIMEOUT_S) -> None:
    """Wait until a job is complete.

    Args:
        client: the client.
        job: the job's id.
        timeout_s: seconds to wait.

    Raises:
        BulkJobLostError: the job failed, or Salesforce has deleted it (after seven days).
        AdapterError: the job is not complete in time.
    """
    until, pause = time.monotonic() + timeout_s, 0.5
    while True:
        status = client.call("GET", f"/jobs/query/{job}").json()
        match status["state"]:
            case "JobComplete":
                return
            case "Failed" | "Aborted":
                reason = status.get("errorMessage", "no reason given")
                raise BulkJobLostError(
                    f"Salesforce's bulk job {job} is {status['state']} ({reason}): the next poll starts another"
                )
        if time.monotonic() > until:
            raise AdapterError(f"Salesforce's job {job} is still {status['state']} after {timeout_s:.0f} s")
        time.sleep(pause)
        pause = min(pause * 1.5, 15.0)


def read_results(client: SalesforceClient, job: str, locator: str | None = None) -> Iterator[ResultPage]:
    """Yield a complete job's records from a position."""
    while True:
        where = {"maxRecords": str(RECORDS_PER_PAGE)} | ({} if locator is None else {"locator": locator})
        answer = client.call("GET", f"/jobs/query/{job}/results", params=where, headers={"Accept": "text/csv"})
        answer.encoding = "utf-8"
        following = answer.headers.get("Sforce-Locator", "null")
        locator = None if following == "null" else following
        yield ResultPage(csv.DictReader(io.StringIO(answer.text)), locator)
        if locator is None:
            return


def delete_job(client: SalesforceClient, job: str) -> None:
    """Delete a job, unless it is already deleted."""
    with suppress(BulkJobLostError):
        client.call("DELETE", f"/jobs/query/{job}")

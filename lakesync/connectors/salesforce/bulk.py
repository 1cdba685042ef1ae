"""Bulk jobs (Bulk API 2.0): queries that Salesforce runs in the background, and whose result is read as pages of CSV.

Salesforce's source reads a large first load through a bulk job.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from lakesync.connectors.http_api import decode_json
from lakesync.connectors.salesforce.api import BulkJobLostError, SalesforceClient
from lakesync.model.errors import AdapterError

RECORDS_PER_PAGE = 20_000
"""Records per page of a result, which is kept in memory as text."""

_JOB_TIMEOUT_S = 1_800.0
"""Seconds to wait for a job."""
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.5, 15.0
"""Bounds of the pause between two checks of a job."""


class ResultPage(NamedTuple):
    """One page of a job's records."""

    lines: Iterator[Mapping[str, str]]
    """Each record as field → text, parsed lazily."""
    locator: str | None
    """Position of the next page; None after the last one."""


def start_bulk_job(client: SalesforceClient, soql: str) -> tuple[str, str]:
    """Start a job that runs a query; return its id and its creation time by Salesforce's clock.

    Args:
        client: the client.
        soql: the query.

    Raises:
        LakeSyncError: the API's error.
    """
    body = {"operation": "query", "query": soql}
    job = decode_json(client.call("POST", "/jobs/query", json=body, repeatable=False))
    return str(job["id"]), str(job["createdDate"])


def wait_for_bulk_job(client: SalesforceClient, job: str) -> None:
    """Wait until a job is complete.

    Args:
        client: the client.
        job: the job's id.

    Raises:
        BulkJobLostError: the job failed, or Salesforce has deleted it (after seven days).
        AdapterError: the job is not complete in time.
    """
    deadline, pause = time.monotonic() + _JOB_TIMEOUT_S, _FIRST_PAUSE_S
    while True:
        status = decode_json(client.call("GET", f"/jobs/query/{job}"))
        match status["state"]:
            case "JobComplete":
                return
            case "Failed" | "Aborted":
                reason = status.get("errorMessage", "no reason given")
                raise BulkJobLostError(
                    f"Salesforce's bulk job {job} is {status['state']} ({reason}): the next poll starts another"
                )
        if time.monotonic() > deadline:
            raise AdapterError(f"Salesforce's job {job} is still {status['state']} after {_JOB_TIMEOUT_S:.0f} s")
        time.sleep(pause)
        pause = min(pause * 1.5, _MAX_PAUSE_S)


def read_bulk_results(client: SalesforceClient, job: str, locator: str | None = None) -> Iterator[ResultPage]:
    """Yield the pages of a complete job's result.

    Args:
        client: the client.
        job: the job's id.
        locator: where to start, from an earlier page; None for the beginning.

    Raises:
        BulkJobLostError: Salesforce has deleted the job.
    """
    while True:
        params = {"maxRecords": str(RECORDS_PER_PAGE)} | ({} if locator is None else {"locator": locator})
        response = client.call("GET", f"/jobs/query/{job}/results", params=params, headers={"Accept": "text/csv"})
        response.encoding = "utf-8"
        next_locator = response.headers.get("Sforce-Locator", "null")
        locator = None if next_locator == "null" else next_locator
        yield ResultPage(csv.DictReader(io.StringIO(response.text)), locator)
        if locator is None:
            return


def delete_bulk_job(client: SalesforceClient, job: str) -> None:
    """Delete a job, unless it is already deleted."""
    with suppress(BulkJobLostError):
        client.call("DELETE", f"/jobs/query/{job}")

"""A large query by the Bulk API 2.0: one job, its result as CSV in pieces."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from lakesync.connectors.salesforce.api import JobEndedError, SalesforceClient
from lakesync.model.errors import AdapterError

PIECE = 20_000
"""Records a piece: what is held at once, as text."""

_PATIENCE_S = 1_800.0


class Piece(NamedTuple):
    """Some of a job's records."""

    lines: Iterator[Mapping[str, str]]
    """Fields as text; read as they are taken."""
    locator: str | None
    """Of the next piece; None after the last."""


def begin(client: SalesforceClient, soql: str) -> tuple[str, str]:
    """A new job: its id, and the time at which Salesforce made it."""
    body = {"operation": "query", "query": soql}
    told = client.call("POST", "/jobs/query", json=body, repeatable=False).json()
    return str(told["id"]), str(told["createdDate"])


def wait(client: SalesforceClient, job: str, *, patience_s: float = _PATIENCE_S) -> None:
    """Wait until a job is done.

    Raises:
        JobEndedError: it failed, or Salesforce has forgotten it, as it does after seven days.
        AdapterError: it takes too long.
    """
    until, pause = time.monotonic() + patience_s, 0.5
    while True:
        told = client.call("GET", f"/jobs/query/{job}").json()
        match told["state"]:
            case "JobComplete":
                return
            case "Failed" | "Aborted":
                why = told.get("errorMessage", "no reason told")
                raise JobEndedError(
                    f"Salesforce's bulk job {job} is {told['state']} ({why}): the next poll begins another"
                )
        if time.monotonic() > until:
            raise AdapterError(f"Salesforce's job {job} is still {told['state']} after {patience_s:.0f} s")
        time.sleep(pause)
        pause = min(pause * 1.5, 15.0)


def pieces(client: SalesforceClient, job: str, locator: str | None = None) -> Iterator[Piece]:
    """A finished job's records from a place on."""
    while True:
        where = {"maxRecords": str(PIECE)} | ({} if locator is None else {"locator": locator})
        answer = client.call("GET", f"/jobs/query/{job}/results", params=where, headers={"Accept": "text/csv"})
        answer.encoding = "utf-8"
        following = answer.headers.get("Sforce-Locator", "null")
        locator = None if following == "null" else following
        yield Piece(csv.DictReader(io.StringIO(answer.text)), locator)
        if locator is None:
            return


def end(client: SalesforceClient, job: str) -> None:
    """Have Salesforce forget a job, unless it has."""
    with suppress(JobEndedError):
        client.call("DELETE", f"/jobs/query/{job}")

"""The state of a Salesforce organisation's REST API: settings, sessions, results and jobs. Route handlers use it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from lakesync.testing.servers.http import Answer
from lakesync.testing.servers.salesforce.org import Record, SalesforceOrg


@dataclass
class BulkJob:
    """A query job."""

    id: str
    operation: str
    query: str
    created: int
    fields: tuple[str, ...]
    found: list[Record]
    version: str
    """Version of the API that created it. Calls of another version cannot read it."""
    fails: bool


@dataclass
class SalesforceService:
    """Settings and state of the API."""

    org: SalesforceOrg
    client_id: str = "consumer-key"
    client_secret: str = "consumer-secret"  # noqa: S105 a server for tests
    username: str = "sync@example.com"
    password: str = "password-and-token"  # noqa: S105
    daily_limit: int = 15_000
    session_ms: int = 7_200_000
    """Milliseconds for which an access token is valid."""
    locator_ms: int = 172_800_000
    """Milliseconds for which the further pages of a query are kept."""
    batch: int = 2_000
    """Records on a page."""
    job_delay_ms: int = 0
    """Milliseconds that a bulk job takes."""
    failing_jobs: int = 0
    """Number of the next bulk jobs that fail."""
    no_access: set[str] = field(default_factory=set)
    """Objects that the user may not read."""
    failures: deque[Answer] = field(default_factory=deque)
    """Answers for the next requests, one each. An answer of status 0 lets the request be answered normally."""
    url: str = ""
    """Its own URL, which sign-in returns; empty: the URL of the request."""
    used: int = 0
    """Calls so far today."""
    sessions: dict[str, int] = field(default_factory=dict)
    """Access token → when it expires, in milliseconds."""
    results: dict[str, tuple[int, tuple[str, ...], list[Record]]] = field(default_factory=dict)
    """Locator → when it expires, the fields and the remaining records of a query."""
    jobs: dict[str, BulkJob] = field(default_factory=dict)

    def now(self) -> int:
        """Return the organisation's time, in milliseconds."""
        return self.org.clock()


def error(status: int, code: str, message: str, **more: Any) -> Answer:
    """Return an error in the API's form: a list of one."""
    return Answer(status, [{"message": message, "errorCode": code, **more}])


def unknown() -> Answer:
    """Return the error of an unknown resource."""
    return error(404, "NOT_FOUND", "The requested resource does not exist")

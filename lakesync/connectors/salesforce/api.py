"""Salesforce's REST API and Bulk API 2.0, as far as the connector calls them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import requests

from lakesync.connectors.http import HttpApi, PlaceLostError, Words, by_status, retry_after
from lakesync.connectors.salesforce.session import sign_in
from lakesync.connectors.source import Usage
from lakesync.model.errors import (
    AdapterError,
    AuthError,
    ConfigurationError,
    ForbiddenError,
    LakeSyncError,
    NotFoundError,
    RateLimitedError,
)

RESERVE = 0.05
"""The share of the day's calls that a connector leaves to others."""

_USAGE = re.compile(r"api-usage=(\d+)/(\d+)")
_QUERY = {"MALFORMED_QUERY", "INVALID_FIELD", "INVALID_QUERY_FILTER_OPERATOR"}
_BUSY = {"SERVER_UNAVAILABLE", "QUERY_TIMEOUT", "UNABLE_TO_LOCK_ROW", "OPERATION_TOO_LARGE"}

Json = dict[str, Any]


class SessionEndedError(AuthError):
    """The token is good no more: another is asked for, once."""


class JobEndedError(PlaceLostError):
    """A bulk job failed, was aborted or forgotten, or is of another version of the API: it takes a new one."""


class SalesforceClient:
    """One connected app on one organisation; it signs in when it is first used, and again when its session ends."""

    def __init__(self, settings: Mapping[str, Any], **patience: Any) -> None:
        """Args: settings: of the connector; patience: of `HttpApi`."""
        self._settings = settings
        self._patience = patience
        self._version = settings.get("apiVersion") or "v62.0"
        self._api: HttpApi | None = None
        self._calls = 0
        self._used: int | None = None
        self._limit: int | None = None

    @property
    def usage(self) -> Usage:
        """Calls made, and what is left of the day's budget."""
        calls = self._calls + (self._api.calls if self._api is not None else 0)
        left = None if self._used is None or self._limit is None else self._limit - self._used
        return Usage(calls, left, self._limit)

    def query(self, soql: str, *, deleted: bool = False) -> Iterator[Json]:
        """The pages of a query: `{totalSize, records, done}`.

        Args:
            deleted: whether what is in the recycle bin is in it, too.

        Raises:
            PlaceLostError: the pages took so long that Salesforce forgot the rest.
        """
        page = self.call("GET", f"/{'queryAll' if deleted else 'query'}", params={"q": soql}).json()
        while True:
            yield page
            if page["done"]:
                return
            page = self.call("GET", page["nextRecordsUrl"]).json()

    def call(self, method: str, path: str, *, repeatable: bool = True, **more: Any) -> requests.Response:
        """The answer of a call.

        Args:
            path: below `/services/data/VERSION`, or from `/services` on.

        Raises:
            LakeSyncError: by the answer's error code.
        """
        self._spare()
        whole = path if path.startswith("/services/") else f"/services/data/{self._version}{path}"
        try:
            answer = self._session().call(method, whole, repeatable=repeatable, **more)
        except SessionEndedError:
            self.close()
            answer = self._session().call(method, whole, repeatable=repeatable, **more)
        if found := _USAGE.search(answer.headers.get("Sforce-Limit-Info", "")):
            self._used, self._limit = int(found[1]), int(found[2])
        return answer

    def close(self) -> None:
        """Close its connections; the next call signs in again."""
        if self._api is not None:
            self._calls += self._api.calls
            self._api.close()
            self._api = None

    def _session(self) -> HttpApi:
        if self._api is None:
            url, token = sign_in(self._settings, **self._patience)
            self._calls += 1
            self._api = HttpApi(url, _fault, **self._patience)
            self._api.session.headers.update({"Authorization": f"Bearer {token}", "Accept": "application/json"})
        return self._api

    def _spare(self) -> None:
        if self._used is not None and self._limit is not None and self._used > self._limit * (1 - RESERVE):
            raise RateLimitedError(
                f"{self._used} of the {self._limit} calls that Salesforce allows in 24 hours are used, and the rest is "
                "left to others: poll less often, or buy more",
                retry_after=3600.0,
            )


_WORDS: Words = {
    401: (AuthError, "Salesforce does not know this user ({said})"),
    403: (ForbiddenError, "Salesforce forbids {path} ({said}): give the user that permission"),
    404: (NotFoundError, "Salesforce has nothing at {path} ({said}): check apiVersion, and what is named there"),
}


def _fault(answer: requests.Response) -> LakeSyncError | None:
    if answer.status_code < 300:
        return None
    code, words = _said(answer)
    said = f"{code}: {words}"
    if answer.status_code in (404, 409) and "/jobs/query/" in answer.request.path_url:
        return JobEndedError(f"Salesforce keeps the bulk job no more ({said}): the next poll begins another")
    match code:
        case "INVALID_SESSION_ID":
            return SessionEndedError(f"Salesforce has ended the session ({said}), and a new one as well")
        case "REQUEST_LIMIT_EXCEEDED":
            return RateLimitedError(f"Salesforce allows no more calls within 24 hours ({said})", retry_after=3600.0)
        case "INVALID_QUERY_LOCATOR":
            return PlaceLostError(f"Salesforce keeps the rest of the result no more ({said}): the query is asked again")
        case "INVALID_TYPE":
            return ForbiddenError(f"Salesforce shows no such object to this user ({said}): give it read access")
    if code in _QUERY and "query" in answer.request.path_url.partition("?")[0]:
        return ConfigurationError(f"Salesforce refuses the query ({said}): mend the connector's soqlFilter")
    if code in _BUSY:
        return AdapterError(f"Salesforce is busy ({said})", retry_after=retry_after(answer))
    return by_status(answer, "Salesforce", said, _WORDS)


def _said(answer: requests.Response) -> tuple[str, str]:
    try:
        body = answer.json()
        first = body[0] if isinstance(body, list) else body
        return str(first.get("errorCode", "UNKNOWN")), str(first.get("message", ""))[:300]
    except (requests.JSONDecodeError, LookupError, AttributeError):
        return "UNKNOWN", answer.text[:200].strip() or answer.reason

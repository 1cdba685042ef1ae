"""The parts of Salesforce's REST API, and of its query language SOQL, that the connector uses.

Salesforce's source (polls) and its actions call `SalesforceClient`. Failed calls raise the errors of
`lakesync.model.errors`. A *bulk job* (Bulk API 2.0) is a query that Salesforce runs in the background, and whose result
is read as pages of CSV.
"""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, NamedTuple

import requests

from lakesync.connectors.base import Usage
from lakesync.connectors.http_api import (
    CursorLostError,
    HttpApi,
    StatusMessages,
    decode_json,
    error_for_status,
    retry_after,
)
from lakesync.connectors.query_text import escape
from lakesync.model.errors import (
    AdapterError,
    AuthError,
    ConfigurationError,
    ForbiddenError,
    LakeSyncError,
    NotFoundError,
    RateLimitedError,
)
from lakesync.wire.http_sessions import BearerAuth

RECORDS_PER_PAGE = 20_000
"""Records per page of a bulk job's result, which is kept in memory as text."""

_JOB_TIMEOUT_S = 1_800.0
"""Seconds to wait for a bulk job."""
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.5, 15.0
"""Bounds of the pause between two checks of a bulk job."""

_ADVICE = {
    "invalid_client_id": "check clientId: it is the consumer key of a connected app",
    "invalid_client": "check clientSecret",
    "invalid_grant": "check username and password (with its security token behind it), and that the app may sign in so",
    "unsupported_grant_type": "allow the connected app this flow",
}
"""Error code of the login → what to do."""
_LIMIT_RETRY_SECONDS = 3600.0
"""Seconds until a retry after the daily limit of calls, which is that of the last 24 hours."""


def login_url(settings: Mapping[str, Any]) -> str:
    """Return the URL of a connector's login server.

    That is the setting `loginUrl`. Without it, a connector with a username uses Salesforce's server for users, or that
    for sandboxes; another one, which signs in as an app, uses the organisation's own server.
    """
    if login := settings.get("loginUrl"):
        return str(login)
    if settings.get("username"):
        return f"https://{'test' if settings.get('isSandbox') else 'login'}.salesforce.com"
    return str(settings["instanceUrl"])


def _sign_in(settings: Mapping[str, Any], **http_options: Any) -> tuple[str, str]:
    """Return the organisation's URL and an access token.

    With a username the username-password flow is used, otherwise the client credentials flow.

    Args:
        settings: the connector's settings.
        http_options: keyword arguments of `HttpApi`.

    Raises:
        AuthError: Salesforce rejected the credentials; the message says which setting to check.
        AdapterError: Salesforce cannot be reached, or returned no token.
    """
    form = {"client_id": settings["clientId"], "client_secret": settings["clientSecret"]}
    if settings.get("username"):
        form |= {"grant_type": "password", "username": settings["username"], "password": settings["password"]}
    else:
        form["grant_type"] = "client_credentials"
    login = login_url(settings)
    api = HttpApi(login, _map_login_error, **http_options)
    with closing(api):
        response = api.call("POST", "/services/oauth2/token", data=form)
    try:
        body = decode_json(response)
        return str(body["instance_url"]), str(body["access_token"])
    except (AdapterError, KeyError, TypeError) as error:
        raise AdapterError(f"{login} returned no token: is this the address of Salesforce?") from error


def _map_login_error(response: requests.Response) -> LakeSyncError | None:
    """Return LakeSync's error for a failed login; None for a success."""
    if response.status_code < 300:
        return None
    try:
        body = decode_json(response)
        code, description = str(body["error"]), str(body.get("error_description"))
    except (AdapterError, KeyError, TypeError):
        return AdapterError(f"Salesforce's login failed with status {response.status_code}")
    if response.status_code >= 500:
        return AdapterError(f"Salesforce's login failed with status {response.status_code} ({code}: {description})")
    if description == "login rate exceeded":
        return RateLimitedError(f"Salesforce rejects more logins for now ({description})")
    return AuthError(f"Salesforce rejects the login ({code}: {description}): {_ADVICE.get(code, 'check the settings')}")


_RESERVED_SHARE = 0.05
"""Share of the organisation's daily calls that the connector leaves to other clients."""

_USAGE = re.compile(r"api-usage=(\d{1,18})/(\d{1,18})")
"""Calls used and allowed, in a response's header."""
_QUERY_ERRORS = {"MALFORMED_QUERY", "INVALID_FIELD", "INVALID_QUERY_FILTER_OPERATOR"}
"""Error codes of a query that Salesforce does not accept."""
_BUSY_ERRORS = {"SERVER_UNAVAILABLE", "QUERY_TIMEOUT", "UNABLE_TO_LOCK_ROW", "OPERATION_TOO_LARGE"}
"""Error codes after which a retry may succeed."""

Json = dict[str, Any]
"""A JSON object."""

_SPECIAL = re.compile(r"""["'\\\x00-\x1f\x7f-\x9f]""")
"""Quotation marks, backslashes and control characters, which are escaped in a SOQL string."""


class _SessionExpiredError(AuthError):
    """The access token has expired. `SalesforceClient.call` signs in again once."""


class BulkJobLostError(CursorLostError):
    """A bulk job failed, was aborted, has expired, or belongs to another API version. A new job is needed."""


class BulkPage(NamedTuple):
    """One page of a bulk job's records."""

    lines: Iterator[Mapping[str, str]]
    """Each record as field → text, parsed lazily."""
    locator: str | None
    """Position of the next page; None after the last one."""


class SalesforceClient:
    """A client for one connected app. It signs in on the first call, and again when its session expires."""

    def __init__(self, settings: Mapping[str, Any], **http_options: Any) -> None:
        """Create a client; nothing is sent yet.

        Args:
            settings: the connector's settings.
            http_options: keyword arguments of `HttpApi`.
        """
        self._settings = settings
        self._http_options = http_options
        self._version = settings.get("apiVersion") or "v62.0"
        self._api: HttpApi | None = None
        self._calls = 0
        self._used: int | None = None
        self._limit: int | None = None

    @property
    def usage(self) -> Usage:
        """Calls made, and the remainder of the daily limit."""
        calls = self._calls + (self._api.calls if self._api is not None else 0)
        remaining = None if self._used is None or self._limit is None else self._limit - self._used
        return Usage(calls, remaining, self._limit)

    def query(self, soql: str, *, deleted: bool = False) -> Iterator[Json]:
        """Yield the pages of a query: `{totalSize, records, done}`.

        Args:
            soql: the query.
            deleted: whether to include deleted records, which stay in Salesforce's recycle bin for some days.

        Raises:
            CursorLostError: reading took so long that Salesforce discarded the remaining pages.
        """
        page = decode_json(self.call("GET", f"/{'queryAll' if deleted else 'query'}", params={"q": soql}))
        while True:
            yield page
            if page["done"]:
                return
            page = decode_json(self.call("GET", page["nextRecordsUrl"]))

    def call(self, method: str, path: str, *, repeatable: bool = True, **arguments: Any) -> requests.Response:
        """Send a request and return the successful response.

        Args:
            method: the HTTP method.
            path: below `/services/data/VERSION`, or starting with `/services`.
            repeatable: as in `HttpApi.call`.
            arguments: further arguments of `HttpApi.call`.

        Raises:
            RateLimitedError: the organisation's daily calls are used, except for those that are left to others.
            LakeSyncError: the API's error.
        """
        self._check_budget()
        full_path = path if path.startswith("/services/") else f"/services/data/{self._version}{path}"
        try:
            response = self._session().call(method, full_path, repeatable=repeatable, **arguments)
        except _SessionExpiredError:
            self.close()
            response = self._session().call(method, full_path, repeatable=repeatable, **arguments)
        if found := _USAGE.search(response.headers.get("Sforce-Limit-Info", "")):
            self._used, self._limit = int(found[1]), int(found[2])
        return response

    def start_bulk_job(self, soql: str) -> tuple[str, str]:
        """Start a bulk job that runs a query; return its id and its creation time by Salesforce's clock."""
        body = {"operation": "query", "query": soql}
        job = decode_json(self.call("POST", "/jobs/query", json=body, repeatable=False))
        return str(job["id"]), str(job["createdDate"])

    def wait_for_bulk_job(self, job: str) -> None:
        """Wait until a bulk job, given by its id, is complete.

        Raises:
            BulkJobLostError: the job failed, or Salesforce has deleted it (after seven days).
            AdapterError: the job is not complete in time.
        """
        deadline, pause = time.monotonic() + _JOB_TIMEOUT_S, _FIRST_PAUSE_S
        while True:
            status = decode_json(self.call("GET", f"/jobs/query/{job}"))
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

    def bulk_results(self, job: str, locator: str | None) -> Iterator[BulkPage]:
        """Yield the pages of a complete bulk job's result.

        Args:
            job: the job's id.
            locator: where to start, from an earlier page; None for the beginning.

        Raises:
            BulkJobLostError: Salesforce has deleted the job.
        """
        while True:
            params = {"maxRecords": str(RECORDS_PER_PAGE)} | ({} if locator is None else {"locator": locator})
            response = self.call("GET", f"/jobs/query/{job}/results", params=params, headers={"Accept": "text/csv"})
            response.encoding = "utf-8"
            next_locator = response.headers.get("Sforce-Locator", "null")
            locator = None if next_locator == "null" else next_locator
            yield BulkPage(csv.DictReader(io.StringIO(response.text)), locator)
            if locator is None:
                return

    def delete_bulk_job(self, job: str) -> None:
        """Delete a bulk job, unless it is already deleted."""
        with suppress(BulkJobLostError):
            self.call("DELETE", f"/jobs/query/{job}")

    def close(self) -> None:
        """Close the connections; the next call signs in again."""
        if self._api is not None:
            self._calls += self._api.calls
            self._api.close()
            self._api = None

    def _session(self) -> HttpApi:
        """Return the client of the session; sign in first if there is no session."""
        if self._api is None:
            url, token = _sign_in(self._settings, **self._http_options)
            self._calls += 1
            self._api = HttpApi(url, _map_error, **self._http_options)
            self._api.session.auth = BearerAuth(token)
            self._api.session.headers["Accept"] = "application/json"
        return self._api

    def _check_budget(self) -> None:
        """Raise RateLimitedError if only the calls that are left to others remain."""
        if self._used is not None and self._limit is not None and self._used > self._limit * (1 - _RESERVED_SHARE):
            raise RateLimitedError(
                f"{self._used} of the {self._limit} calls that Salesforce allows in 24 hours are used; the rest is "
                "reserved for other clients. Poll less often, or buy more calls.",
                retry_after=_LIMIT_RETRY_SECONDS,
            )


_STATUS_MESSAGES: StatusMessages = {
    401: (AuthError, "Salesforce rejects this user ({reason})"),
    403: (ForbiddenError, "Salesforce forbids {path} ({reason}): give the user that permission"),
    404: (NotFoundError, "Salesforce has nothing at {path} ({reason}): check apiVersion, and what is named there"),
}


def _map_error(response: requests.Response) -> LakeSyncError | None:
    """Return LakeSync's error for a failed request; None for a success."""
    if response.status_code < 300:
        return None
    code, message = _error_code_and_message(response)
    reason = f"{code}: {message}"
    if response.status_code in (404, 409) and "/jobs/query/" in response.request.path_url:
        return BulkJobLostError(f"Salesforce has discarded the bulk job ({reason}): the next poll starts another")
    match code:
        case "INVALID_SESSION_ID":
            return _SessionExpiredError(f"Salesforce has ended the session ({reason}), even after a new login")
        case "REQUEST_LIMIT_EXCEEDED":
            return RateLimitedError(
                f"Salesforce's daily limit of calls is reached ({reason})", retry_after=_LIMIT_RETRY_SECONDS
            )
        case "INVALID_QUERY_LOCATOR":
            return CursorLostError(f"Salesforce has discarded the rest of the result ({reason}): the query is repeated")
        case "INVALID_TYPE":
            return ForbiddenError(f"this user cannot see the object in Salesforce ({reason}): give it read access")
    if code in _QUERY_ERRORS and "query" in response.request.path_url.partition("?")[0]:
        return ConfigurationError(f"Salesforce rejects the query ({reason}): correct the connector's soqlFilter")
    if code in _BUSY_ERRORS:
        return AdapterError(f"Salesforce is busy ({reason})", retry_after=retry_after(response))
    return error_for_status(response, "Salesforce", reason, _STATUS_MESSAGES)


def _error_code_and_message(response: requests.Response) -> tuple[str, str]:
    """Return Salesforce's error code and message; `UNKNOWN` and the start of the body if it has none."""
    try:
        body = decode_json(response)
        first = body[0] if isinstance(body, list) else body
        return str(first.get("errorCode", "UNKNOWN")), str(first.get("message", ""))[:300]
    except (AdapterError, LookupError, AttributeError):
        return "UNKNOWN", response.text[:200].strip() or response.reason


def soql_literal(value: str | float | bool | None) -> str:
    """Format a value as a SOQL literal."""
    if isinstance(value, str):
        return f"'{escape(value, _SPECIAL)}'"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)

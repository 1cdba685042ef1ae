"""The parts of Jira Cloud's REST API v3, and of its query language JQL, that the connector uses.

Jira's source, which reads issues for polls, and its actions, which change them for clients, call `JiraClient`. Failed
calls raise the errors of `lakesync.model.errors`, so that callers need not know Jira's status codes. A *page* is Jira's
response to one call, with a part of a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import requests

from lakesync.connectors.base import Usage
from lakesync.connectors.http_api import (
    CursorLostError,
    HttpApi,
    StatusMessages,
    decode_json,
    error_for_status,
    int_header,
)
from lakesync.connectors.query_text import balanced_condition, escape
from lakesync.model.errors import (
    AdapterError,
    AuthError,
    ConfigurationError,
    ForbiddenError,
    LakeSyncError,
    NotFoundError,
    RateLimitedError,
)

PAGE = 100
"""Issues, comments or projects per call: Jira's maximum when fields are requested."""

KEYS_PAGE = 5_000
"""Issues per call when only keys are requested."""

Json = dict[str, Any]
"""A JSON object."""

_SPECIAL = re.compile(r"""["'\\\x00-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]""")
"""Quotation marks, backslashes, and the control characters and non-characters that JQL rejects in a string."""


class JiraClient:
    """A client for one account on one site."""

    def __init__(self, settings: Mapping[str, Any], **http_options: Any) -> None:
        """Create a client; nothing is sent yet.

        Args:
            settings: the connector's settings, as `built_in.py` describes them.
            http_options: keyword arguments of `HttpApi`.
        """
        base = settings.get("baseUrl") or f"https://{site_name(settings['domain'])}.atlassian.net"
        self.url = str(base).rstrip("/")
        self._api = HttpApi(f"{self.url}/rest/api/3", _map_error, **http_options)
        self._api.session.auth = (settings["email"], settings["apiToken"])
        self._api.session.headers["Accept"] = "application/json"
        self._remaining: int | None = None
        self._limit: int | None = None

    @property
    def usage(self) -> Usage:
        """Calls made, and the remainder of the site's rate limit."""
        return Usage(self._api.calls, self._remaining, self._limit)

    def get(self, path: str, **params: Any) -> Json:
        """GET a path.

        Raises:
            LakeSyncError: the API's error.
        """
        return self._json("GET", path, params=params)

    def post(self, path: str, body: Json, *, repeatable: bool = True) -> Json:
        """POST a body and return the response's body; an empty object for an empty body.

        Args:
            path: below the API's base URL.
            body: the JSON body.
            repeatable: whether the call may be repeated if the response was lost.
        """
        return self._json("POST", path, json=body, repeatable=repeatable)

    def search(
        self,
        jql: str,
        fields: Sequence[str],
        size: int = PAGE,
        *,
        token: str | None = None,
        properties: Sequence[str] = (),
    ) -> Json:
        """Return one page of a search: `{issues, nextPageToken?}`. The last page has no token, or null.

        Args:
            jql: the query.
            fields: the fields to return.
            size: issues per page.
            token: the `nextPageToken` of the previous page; None for the first page.
            properties: the issue properties to return.

        Raises:
            AdapterError: the page names itself as the next one.
        """
        body: Json = {"jql": jql, "fields": list(fields), "maxResults": size}
        if token is not None:
            body["nextPageToken"] = token
        if properties:
            body["properties"] = list(properties)
        page = self.post("/search/jql", body)
        if token is not None and page.get("nextPageToken") == token:
            raise AdapterError(f"Jira's search returned the page token {token!r} twice: the poll is retried")
        return page

    def search_pages(
        self, jql: str, fields: Sequence[str], size: int = PAGE, *, properties: Sequence[str] = ()
    ) -> Iterator[list[Json]]:
        """Yield the issues of a search, page by page.

        Args:
            jql: the query.
            fields: the fields to return.
            size: issues per page.
            properties: the issue properties to return.
        """
        token = None
        while True:
            page = self.search(jql, fields, size, token=token, properties=properties)
            yield page["issues"]
            if (token := page.get("nextPageToken")) is None:
                return

    def fetch(self, keys: Sequence[str], fields: Sequence[str], *, properties: Sequence[str] = ()) -> list[Json]:
        """Return issues by key; those that do not exist, or that the account cannot see, are left out.

        Args:
            keys: at most `PAGE` issue keys.
            fields: the fields to return.
            properties: the issue properties to return.
        """
        body = {"issueIdsOrKeys": list(keys), "fields": list(fields)}
        if properties:
            body["properties"] = list(properties)
        found: list[Json] = self.post("/issue/bulkfetch", body)["issues"]
        return found

    def pages(self, path: str, field: str, **params: Any) -> Iterator[list[Json]]:
        """Yield the pages of a list that is paged by `startAt`.

        Args:
            path: below the API's base URL.
            field: the field of the response with the list's values.
            **params: further parameters of the query.
        """
        start = 0
        while True:
            page = self.get(path, startAt=start, maxResults=PAGE, **params)
            values: list[Json] = page[field]
            yield values
            start += len(values)
            if not values or start >= page["total"]:
                return

    def close(self) -> None:
        """Close the connections."""
        self._api.close()

    def _json(self, method: str, path: str, **arguments: Any) -> Json:
        """Send a request and return the body of the response, which must be a JSON object or empty."""
        response = self._api.call(method, path, **arguments)
        self._limit = int_header(response.headers.get("X-RateLimit-Limit")) or self._limit
        remaining = int_header(response.headers.get("X-RateLimit-Remaining"))
        self._remaining = self._remaining if remaining is None else remaining
        if not response.content:
            return {}
        try:
            body = decode_json(response)
        except AdapterError:
            body = None
        if not isinstance(body, dict):
            raise AdapterError(
                f"{response.url} did not return a JSON object but {response.text[:80]!r}: is this the address of a "
                "Jira site?"
            )
        return body


def site_name(domain: str) -> str:
    """Return the site's name from a domain, which may be a URL."""
    return domain.removeprefix("https://").rstrip("/").removesuffix(".atlassian.net")


_STATUS_MESSAGES: StatusMessages = {
    401: (AuthError, "Jira rejects this account ({reason}): check email and apiToken, or make a new token"),
    403: (ForbiddenError, "Jira forbids {path} ({reason}): give the account's role that permission"),
    404: (NotFoundError, "Jira has nothing at {path} that this account can see ({reason})"),
    410: (ConfigurationError, "Jira has removed {path} ({reason}): this version of LakeSync is too old for the site"),
    429: (RateLimitedError, "Jira's rate limit is reached ({reason})"),
}


def _map_error(response: requests.Response) -> LakeSyncError | None:
    """Return the error for a response of Jira; None if the request succeeded."""
    status = response.status_code
    if status < 300:
        return None
    reason = _error_text(response)
    if status == 400 and "page token" in reason.lower():
        return CursorLostError(f"Jira's search lost its position ({reason}): the poll continues from its last page")
    if status == 400 and "jql" in response.request.path_url:
        return ConfigurationError(f"Jira rejects the query ({reason}): correct the connector's jql")
    return error_for_status(response, "Jira", reason, _STATUS_MESSAGES)


def _error_text(response: requests.Response) -> str:
    """Return Jira's own messages of an error response."""
    try:
        body = decode_json(response)
    except AdapterError:
        return response.text[:200].strip() or response.reason
    if not isinstance(body, dict):
        return str(body)[:200]
    errors = body.get("errors") or ()
    by_field = [f"{field}: {text}" for field, text in errors.items()] if isinstance(errors, dict) else map(str, errors)
    return "; ".join([*(body.get("errorMessages") or ()), *by_field]) or body.get("message") or response.reason


def build_jql(user_filter: str | None, *conditions: str, order: str) -> str:
    """Return a query for issues that match a user's filter and all conditions, in the given order.

    The filter is put in parentheses, so that an OR in it cannot bypass the conditions. Its own ORDER BY is dropped.

    Args:
        user_filter: the user's filter; None for no filter.
        conditions: further conditions in JQL.
        order: what follows ORDER BY.

    Raises:
        ConfigurationError: quotation marks or parentheses in the filter are not balanced.
    """
    own = balanced_condition(user_filter, "jql", stop=("ORDER", "BY")) if user_filter is not None else ""
    parts = [f"({own})"] if own else []
    return f"{' AND '.join([*parts, *conditions])} ORDER BY {order}"


def quote(value: str) -> str:
    """Return a text as a JQL string."""
    return f'"{escape(value, _SPECIAL)}"'

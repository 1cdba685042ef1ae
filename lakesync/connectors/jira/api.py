"""The parts of Jira Cloud's REST API v3 that the connector uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import requests

from lakesync.connectors.http_api import CursorLostError, HttpApi, StatusMessages, error_for_status, int_header
from lakesync.connectors.jira.rows import FIELDS
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

PAGE = 100
"""Issues, comments or projects per call: Jira's maximum when fields are requested."""

KEYS_PAGE = 5_000
"""Issues per call when only keys are requested."""

Json = dict[str, Any]


class JiraClient:
    """A client for one account on one site."""

    def __init__(self, settings: Mapping[str, Any], **http_options: Any) -> None:
        """Create a client; nothing is sent yet.

        Args:
            settings: the connector's settings.
            http_options: keyword arguments of `HttpApi`.
        """
        base = settings.get("baseUrl") or f"https://{site_name(settings['domain'])}.atlassian.net"
        self._api = HttpApi(f"{base.rstrip('/')}/rest/api/3", _map_error, **http_options)
        self._api.session.auth = (settings["email"], settings["apiToken"])
        self._api.session.headers["Accept"] = "application/json"
        self._left: int | None = None
        self._limit: int | None = None

    @property
    def usage(self) -> Usage:
        """Calls made, and the remainder of the site's rate limit."""
        return Usage(self._api.calls, self._left, self._limit)

    def get(self, path: str, **params: Any) -> Json:
        """GET a path.

        Raises:
            LakeSyncError: the API's error.
        """
        return self._json("GET", path, params=params)

    def post(self, path: str, body: Json, *, repeatable: bool = True) -> Json:
        """POST a body; returns an empty object if there is no answer body.

        Args:
            path: below the API's base URL.
            body: the JSON body.
            repeatable: as in `HttpApi.call`.
        """
        return self._json("POST", path, json=body, repeatable=repeatable)

    def search(
        self,
        jql: str,
        fields: Sequence[str] = FIELDS,
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
            token: of the next page.
            properties: the issue properties to return.
        """
        asked: Json = {"jql": jql, "fields": list(fields), "maxResults": size}
        if token is not None:
            asked["nextPageToken"] = token
        if properties:
            asked["properties"] = list(properties)
        return self.post("/search/jql", asked)

    def searched(
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
        """Return those of at most 100 issues that exist and are visible to the account.

        Args:
            keys: issue keys.
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
            field: the field with the values.
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

    def _json(self, method: str, path: str, **more: Any) -> Json:
        answer = self._api.call(method, path, **more)
        self._limit = int_header(answer.headers.get("X-RateLimit-Limit")) or self._limit
        left = int_header(answer.headers.get("X-RateLimit-Remaining"))
        self._left = self._left if left is None else left
        if not answer.content:
            return {}
        try:
            body = answer.json()
        except requests.JSONDecodeError:
            body = None
        if not isinstance(body, dict):
            raise AdapterError(
                f"{answer.url} did not return a JSON object but {answer.text[:80]!r}: is this the address of a Jira "
                "site?"
            )
        return body


def site_name(domain: str) -> str:
    """Return the site's name from a domain, which may be a URL."""
    return domain.removeprefix("https://").rstrip("/").removesuffix(".atlassian.net")


_STATUS_MESSAGES: StatusMessages = {
    401: (AuthError, "Jira rejects this account ({said}): check email and apiToken, or make a new token"),
    403: (ForbiddenError, "Jira forbids {path} ({said}): give the account's role that permission"),
    404: (NotFoundError, "Jira has nothing at {path} that this account can see ({said})"),
    410: (ConfigurationError, "Jira has removed {path} ({said}): this version of LakeSync is too old for the site"),
    429: (RateLimitedError, "Jira's rate limit is reached ({said})"),
}


def _map_error(answer: requests.Response) -> LakeSyncError | None:
    status = answer.status_code
    if status < 300:
        return None
    said = _error_text(answer)
    if status == 400 and "page token" in said.lower():
        return CursorLostError(f"Jira's search lost its position ({said}): the poll continues from its last page")
    if status == 400 and "jql" in answer.request.path_url:
        return ConfigurationError(f"Jira rejects the query ({said}): correct the connector's jql")
    return error_for_status(answer, "Jira", said, _STATUS_MESSAGES)


def _error_text(answer: requests.Response) -> str:
    try:
        body = answer.json()
    except requests.JSONDecodeError:
        return answer.text[:200].strip() or answer.reason
    if not isinstance(body, dict):
        return str(body)[:200]
    messages = [*body.get("errorMessages", ()), *(f"{field}: {text}" for field, text in body.get("errors", {}).items())]
    return "; ".join(messages) or body.get("message") or answer.reason

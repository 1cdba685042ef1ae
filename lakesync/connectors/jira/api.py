"""The parts of Jira Cloud's REST API v3, and of its query language JQL, that the connector uses; and the Jira actions.

Failed calls raise the errors of `lakesync.model.errors`, so that callers need not know Jira's status codes.

The actions create an issue, add a comment, or change an issue's status. The gateway executes an action again if the
first attempt's response was lost. Each issue or comment that an action creates therefore has the action's id as a
property, by which the next attempt finds it instead of creating another one. `built_in.py` registers `jira_actions`,
which the action dispatcher calls for each action.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import requests

from lakesync.connectors.base import ConnectorConfig, Usage
from lakesync.connectors.http_api import (
    ESCAPES,
    ApiActions,
    CursorLostError,
    HttpApi,
    Params,
    StatusMessages,
    balanced_condition,
    error_for_status,
    escape,
    int_header,
)
from lakesync.model.action_handlers import ActionContext, ActionDescriptor
from lakesync.model.errors import (
    AdapterError,
    AuthError,
    ConfigurationError,
    ForbiddenError,
    LakeSyncError,
    NotFoundError,
    RateLimitedError,
    ValidationError,
)
from lakesync.model.hlc import wall_of
from lakesync.model.types import Action

PAGE = 100
"""Issues, comments or projects per call: Jira's maximum when fields are requested."""

KEYS_PAGE = 5_000
"""Issues per call when only keys are requested."""

Json = dict[str, Any]

_SPECIAL = re.compile(r"""["'\\\x00-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]""")
"""Quotation marks, backslashes, and the control characters and non-characters that JQL rejects in a string."""
ACTION_PROPERTY = "lakesync.action"
"""Property of an issue or comment with the id of the action that created it."""

_DAY_MS = 86_400_000
_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
"""JSON Schema of a text that is not empty."""
_KEY = {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_]*-[0-9]+$", "description": "The issue's key."}


class JiraClient:
    """A client for one account on one site."""

    def __init__(self, settings: Mapping[str, Any], **http_options: Any) -> None:
        """Create a client; nothing is sent yet.

        Args:
            settings: the connector's settings, as `built_in.py` describes them.
            http_options: keyword arguments of `HttpApi`.
        """
        base = settings.get("baseUrl") or f"https://{site_name(settings['domain'])}.atlassian.net"
        self._api = HttpApi(f"{base.rstrip('/')}/rest/api/3", _map_error, **http_options)
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
        """
        body: Json = {"jql": jql, "fields": list(fields), "maxResults": size}
        if token is not None:
            body["nextPageToken"] = token
        if properties:
            body["properties"] = list(properties)
        return self.post("/search/jql", body)

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
            body = response.json()
        except requests.JSONDecodeError:
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
        body = response.json()
    except requests.JSONDecodeError:
        return response.text[:200].strip() or response.reason
    if not isinstance(body, dict):
        return str(body)[:200]
    messages = [*body.get("errorMessages", ()), *(f"{field}: {text}" for field, text in body.get("errors", {}).items())]
    return "; ".join(messages) or body.get("message") or response.reason


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
    return f'"{escape(value, _SPECIAL, ESCAPES)}"'


def _params(required: Sequence[str], **properties: Any) -> dict[str, Any]:
    """Return the JSON Schema of an action's parameters."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


CREATE_ISSUE = ActionDescriptor(
    "create_issue",
    "Create an issue",
    _params(
        ("project", "summary"),
        project={**_TEXT, "description": "The project's key."},
        summary={**_TEXT, "maxLength": 255},
        description={"type": "string", "description": "Plain text; paragraphs are divided by empty lines."},
        issueType={**_TEXT, "default": "Task"},
        priority=_TEXT,
        labels={"type": "array", "items": {"type": "string", "pattern": r"^\S+$"}},
    ),
)
ADD_COMMENT = ActionDescriptor(
    "add_comment", "Add a comment to an issue", _params(("issue", "body"), issue=_KEY, body=_TEXT)
)
TRANSITION = ActionDescriptor(
    "transition_issue",
    "Change an issue's status",
    _params(("issue", "status"), issue=_KEY, status={**_TEXT, "description": "The name of the status."}),
)


def _create_issue(client: JiraClient, action: Action, params: Params, context: ActionContext) -> Mapping[str, Any]:
    """Create an issue, unless an earlier attempt at the action has created it."""
    if context.attempt > 1 and (found := _find_created(client, action, params)) is not None:
        return found
    fields: dict[str, Any] = {
        "project": {"key": params["project"]},
        "summary": params["summary"],
        "issuetype": {"name": params.get("issueType", "Task")},
    }
    if "description" in params:
        fields["description"] = to_document(params["description"])
    if "priority" in params:
        fields["priority"] = {"name": params["priority"]}
    if "labels" in params:
        fields["labels"] = list(params["labels"])
    created = client.post("/issue", {"fields": fields, **_action_property(action)}, repeatable=False)
    return {"key": created["key"], "id": created["id"]}


def _find_created(client: JiraClient, action: Action, params: Params) -> Mapping[str, Any] | None:
    """Return the issue that an earlier attempt at the action created; None if none did."""
    issues = chain(
        _newest_issues(client, params["project"]),
        _searchable_issues(client, params["project"], wall_of(action.hlc)),
    )
    for issue in issues:
        if issue.get("properties", {}).get(ACTION_PROPERTY) == action.action_id:
            return {"key": issue["key"], "id": issue["id"]}
    return None


def _newest_issues(client: JiraClient, project: str) -> Iterator[Json]:
    """Yield a project's newest issues, by guessing their keys, which Jira numbers in order.

    The search may not find new issues yet, so it is only used for a number to start from.
    """
    newest = client.search(build_jql(None, f"project = {quote(project)}", order="key DESC"), ("summary",), 1)["issues"]
    number = max((int(issue["key"].rpartition("-")[2]) for issue in newest), default=0)
    first = max(number - PAGE, 0) + 1
    while True:
        found = client.fetch(
            [f"{project}-{first + index}" for index in range(PAGE)], ("summary",), properties=(ACTION_PROPERTY,)
        )
        yield from found
        first += PAGE
        if not found and first > number:
            return


def _searchable_issues(client: JiraClient, project: str, action_ms: int) -> Iterator[Json]:
    """Yield issues created since a day before the action's time, which is that of the client's clock."""
    jql = build_jql(None, f"project = {quote(project)}", f"created >= {action_ms - _DAY_MS}", order="created ASC")
    return chain.from_iterable(client.search_pages(jql, ("summary",), properties=(ACTION_PROPERTY,)))


def _add_comment(client: JiraClient, action: Action, params: Params, context: ActionContext) -> Mapping[str, Any]:
    """Add a comment, unless an earlier attempt at the action has added it."""
    path = f"/issue/{params['issue']}/comment"
    if context.attempt > 1:
        for page in client.pages(path, "comments", expand="properties", orderBy="-created"):
            for comment in page:
                if {"key": ACTION_PROPERTY, "value": action.action_id} in comment.get("properties", ()):
                    return {"id": comment["id"]}
    created = client.post(path, {"body": to_document(params["body"]), **_action_property(action)}, repeatable=False)
    return {"id": created["id"]}


def _transition(client: JiraClient, _: Action, params: Params, __: ActionContext) -> Mapping[str, Any]:
    """Change an issue's status, unless it has that status already."""
    key, status = params["issue"], params["status"]
    current = client.get(f"/issue/{key}", fields="status")["fields"]["status"]["name"]
    if current.casefold() == status.casefold():
        return {"status": current}
    transitions = client.get(f"/issue/{key}/transitions")["transitions"]
    for transition in transitions:
        if transition["to"]["name"].casefold() == status.casefold():
            client.post(f"/issue/{key}/transitions", {"transition": {"id": transition["id"]}}, repeatable=False)
            return {"status": transition["to"]["name"]}
    possible = ", ".join(repr(transition["to"]["name"]) for transition in transitions) or "none"
    raise ValidationError(f"{key} has the status {current!r} and cannot change to {status!r}: possible are {possible}")


def _action_property(action: Action) -> dict[str, Any]:
    """Return the part of a request that stores the action's id with what it creates."""
    return {"properties": [{"key": ACTION_PROPERTY, "value": action.action_id}]}


def to_document(text: str) -> dict[str, Any]:
    """Convert plain text to an Atlassian document."""
    paragraphs = [part for part in text.split("\n\n") if part.strip()]
    return {
        "type": "doc",
        "version": 1,
        "content": [{"type": "paragraph", "content": [{"type": "text", "text": part}]} for part in paragraphs],
    }


_FUNCTIONS = ((CREATE_ISSUE, _create_issue), (ADD_COMMENT, _add_comment), (TRANSITION, _transition))
JIRA_ACTIONS = tuple(descriptor for descriptor, _ in _FUNCTIONS)
"""The actions that a connector of type `jira` supports."""


def jira_actions(config: ConnectorConfig) -> ApiActions[JiraClient]:
    """Return a connector's actions. A repeated attempt first looks for what an earlier one created.

    Results: `{key, id}` of an issue, `{id}` of a comment, `{status}` of a transition.
    """
    return ApiActions(lambda: JiraClient(config.settings, hosts=config.hosts), _FUNCTIONS)

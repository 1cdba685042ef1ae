"""Jira's actions: a client requests one to create an issue, add a comment, or change an issue's status.

An action can be attempted again, for example if the first attempt's response was lost. So each issue or comment that an
action creates has the action's id as a property, by which the next attempt finds it instead of creating another one.
`built_in.py` registers `jira_actions`, which the action dispatcher calls for each action.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from lakesync.connectors.base import ConnectorConfig, object_schema
from lakesync.connectors.http_api import ApiActions, Params
from lakesync.connectors.jira.api import PAGE, JiraClient, Json, build_jql, quote
from lakesync.model.action_handlers import ActionContext, ActionDescriptor
from lakesync.model.errors import ValidationError
from lakesync.model.hlc import wall_of
from lakesync.model.types import Action

_ACTION_PROPERTY = "lakesync.action"
"""Property of an issue or comment with the id of the action that created it."""
_DAY_MS = 86_400_000
_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
"""JSON Schema of a text that is not empty."""
_KEY = {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_]*-[0-9]+$", "description": "The issue's key."}


CREATE_ISSUE = ActionDescriptor(
    "create_issue",
    "Create an issue",
    object_schema(
        {
            "project": {**_TEXT, "description": "The project's key."},
            "summary": {**_TEXT, "maxLength": 255},
            "description": {"type": "string", "description": "Plain text; paragraphs are divided by empty lines."},
            "issueType": {**_TEXT, "default": "Task"},
            "priority": _TEXT,
            "labels": {"type": "array", "items": {"type": "string", "pattern": r"^\S+$"}},
        },
        "project",
        "summary",
    ),
)
ADD_COMMENT = ActionDescriptor(
    "add_comment", "Add a comment to an issue", object_schema({"issue": _KEY, "body": _TEXT}, "issue", "body")
)
TRANSITION = ActionDescriptor(
    "transition_issue",
    "Change an issue's status",
    object_schema({"issue": _KEY, "status": {**_TEXT, "description": "The name of the status."}}, "issue", "status"),
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
        fields["description"] = _document(params["description"])
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
        if issue.get("properties", {}).get(_ACTION_PROPERTY) == action.action_id:
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
            [f"{project}-{first + index}" for index in range(PAGE)], ("summary",), properties=(_ACTION_PROPERTY,)
        )
        yield from found
        first += PAGE
        if not found and first > number:
            return


def _searchable_issues(client: JiraClient, project: str, action_ms: int) -> Iterator[Json]:
    """Yield issues created since a day before the action's time, which is that of the client's clock."""
    jql = build_jql(None, f"project = {quote(project)}", f"created >= {action_ms - _DAY_MS}", order="created ASC")
    return chain.from_iterable(client.search_pages(jql, ("summary",), properties=(_ACTION_PROPERTY,)))


def _add_comment(client: JiraClient, action: Action, params: Params, context: ActionContext) -> Mapping[str, Any]:
    """Add a comment, unless an earlier attempt at the action has added it."""
    path = f"/issue/{params['issue']}/comment"
    if context.attempt > 1:
        for page in client.pages(path, "comments", expand="properties", orderBy="-created"):
            for comment in page:
                if {"key": _ACTION_PROPERTY, "value": action.action_id} in comment.get("properties", ()):
                    return {"id": comment["id"]}
    created = client.post(path, {"body": _document(params["body"]), **_action_property(action)}, repeatable=False)
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
    return {"properties": [{"key": _ACTION_PROPERTY, "value": action.action_id}]}


def _document(text: str) -> dict[str, Any]:
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
    """Return the handler of a connector's actions. A repeated attempt first looks for what an earlier one created.

    Results: `{key, id}` of an issue, `{id}` of a comment, `{status}` of a transition.
    """
    return ApiActions(lambda: JiraClient(config.settings, hosts=config.hosts), _FUNCTIONS)

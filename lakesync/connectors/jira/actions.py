"""What clients can have done in Jira: an issue created, a comment added, an issue brought to another status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakesync.connectors.acting import ApiActions, Params
from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.jira.api import JiraClient
from lakesync.connectors.jira.jql import combined, quoted
from lakesync.connectors.jira.offers import ADD_COMMENT, CREATE_ISSUE, TRANSITION
from lakesync.connectors.jira.rows import milliseconds
from lakesync.exceptions import AdapterError, ValidationError
from lakesync.handlers import ActionContext
from lakesync.types import Action

MARK = "lakesync.action"
"""The property of an issue or comment that names the action that made it."""

SETTLED_MS = 120_000
"""How long Jira's search may not find an issue that was created: before that, not found is not not created."""


def _create_issue(client: JiraClient, action: Action, params: Params, context: ActionContext) -> Mapping[str, Any]:
    if context.attempt > 1 and (found := _made_before(client, action, params)) is not None:
        return found
    fields: dict[str, Any] = {
        "project": {"key": params["project"]},
        "summary": params["summary"],
        "issuetype": {"name": params.get("issueType", "Task")},
    }
    if "description" in params:
        fields["description"] = document(params["description"])
    if "priority" in params:
        fields["priority"] = {"name": params["priority"]}
    if "labels" in params:
        fields["labels"] = list(params["labels"])
    made = client.post("/issue", {"fields": fields, **_marked(action)}, repeatable=False)
    return {"key": made["key"], "id": made["id"]}


def _made_before(client: JiraClient, action: Action, params: Params) -> Mapping[str, Any] | None:
    """The issue that an earlier try created, if it did."""
    asked = action.hlc >> 16
    jql = combined(
        None,
        f"project = {quoted(params['project'])}",
        f"created >= {asked - SETTLED_MS}",
        order="created ASC",
    )
    token = None
    while True:
        page = client.search(jql, ("summary",), token=token, properties=(MARK,))
        for issue in page["issues"]:
            if issue.get("properties", {}).get(MARK) == action.action_id:
                return {"key": issue["key"], "id": issue["id"]}
        token = page.get("nextPageToken")
        if token is None:
            break
    left = asked + SETTLED_MS - milliseconds(client.get("/serverInfo")["serverTime"])
    if left > 0:
        raise AdapterError(
            "an earlier try may have created the issue, and Jira's search would not find it yet",
            retry_after=left / 1000,
        )
    return None


def _add_comment(client: JiraClient, action: Action, params: Params, context: ActionContext) -> Mapping[str, Any]:
    path = f"/issue/{params['issue']}/comment"
    if context.attempt > 1:
        for page in client.pages(path, "comments", expand="properties", orderBy="-created"):
            for comment in page:
                if {"key": MARK, "value": action.action_id} in comment.get("properties", ()):
                    return {"id": comment["id"]}
    made = client.post(path, {"body": document(params["body"]), **_marked(action)}, repeatable=False)
    return {"id": made["id"]}


def _transition(client: JiraClient, _: Action, params: Params, __: ActionContext) -> Mapping[str, Any]:
    key, status = params["issue"], params["status"]
    now = client.get(f"/issue/{key}", fields="status")["fields"]["status"]["name"]
    if now.casefold() == status.casefold():
        return {"status": now}
    ways = client.get(f"/issue/{key}/transitions")["transitions"]
    for way in ways:
        if way["to"]["name"].casefold() == status.casefold():
            client.post(f"/issue/{key}/transitions", {"transition": {"id": way["id"]}}, repeatable=False)
            return {"status": way["to"]["name"]}
    open_ = ", ".join(repr(way["to"]["name"]) for way in ways) or "nowhere"
    raise ValidationError(f"{key} is {now!r} and cannot go to {status!r}: from there it goes to {open_}")


def _marked(action: Action) -> dict[str, Any]:
    return {"properties": [{"key": MARK, "value": action.action_id}]}


def document(text: str) -> dict[str, Any]:
    """Plain text as a document of Atlassian's format."""
    paragraphs = [part for part in text.split("\n\n") if part.strip()]
    return {
        "type": "doc",
        "version": 1,
        "content": [{"type": "paragraph", "content": [{"type": "text", "text": part}]} for part in paragraphs],
    }


def handler(config: ConnectorConfig) -> ApiActions[JiraClient]:
    """What a connector does; a repeat looks for what its first try may have done.

    It tells `{key, id}` of an issue, `{id}` of a comment, `{status}` of a transition.
    """
    does = ((CREATE_ISSUE, _create_issue), (ADD_COMMENT, _add_comment), (TRANSITION, _transition))
    return ApiActions(lambda: JiraClient(config.settings), does)

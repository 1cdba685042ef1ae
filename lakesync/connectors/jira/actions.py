"""What clients can have done in Jira: an issue created, a comment added, an issue brought to another status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from lakesync.connectors.acting import ApiActions, Params
from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.jira.api import PAGE, JiraClient, Json
from lakesync.connectors.jira.jql import combined, quoted
from lakesync.connectors.jira.offers import ADD_COMMENT, CREATE_ISSUE, TRANSITION
from lakesync.model.action_handlers import ActionContext
from lakesync.model.errors import ValidationError
from lakesync.model.types import Action

MARK = "lakesync.action"
"""The property of an issue or comment that names the action that made it."""

DAY_MS = 86_400_000


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
    issues = chain(_young(client, params["project"]), _indexed(client, params["project"], action.hlc >> 16))
    for issue in issues:
        if issue.get("properties", {}).get(MARK) == action.action_id:
            return {"key": issue["key"], "id": issue["id"]}
    return None


def _young(client: JiraClient, project: str) -> Iterator[Json]:
    """A project's newest issues by their keys, which are given in order: the search may not find them yet."""
    newest = client.search(combined(None, f"project = {quoted(project)}", order="key DESC"), ("summary",), 1)["issues"]
    number = max((int(issue["key"].rpartition("-")[2]) for issue in newest), default=0)
    first = max(number - PAGE, 0) + 1
    while True:
        found = client.fetch([f"{project}-{first + place}" for place in range(PAGE)], ("summary",), properties=(MARK,))
        yield from found
        first += PAGE
        if not found and first > number:
            return


def _indexed(client: JiraClient, project: str, asked_ms: int) -> Iterator[Json]:
    """Those that the search finds, from a day before an action was asked for by a clock that may be wrong."""
    jql = combined(None, f"project = {quoted(project)}", f"created >= {asked_ms - DAY_MS}", order="created ASC")
    return chain.from_iterable(client.searched(jql, ("summary",), properties=(MARK,)))


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
    return ApiActions(lambda: JiraClient(config.settings, hosts=config.hosts), does)

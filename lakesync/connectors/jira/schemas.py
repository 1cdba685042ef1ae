"""The tables that polls of Jira fill, the conversion of its objects to rows, and JSON Schemas of actions' parameters.

The Jira source and actions call it; `built_in.py` lists the tables and actions. All columns are text. Objects and
lists, such as formatted descriptions, become JSON text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from lakesync.connectors.base import text_table
from lakesync.connectors.source import SourceRow
from lakesync.model.action_handlers import ActionDescriptor
from lakesync.model.delta import jcs

JIRA = (
    text_table(
        "jira_issues",
        "jira_id key summary description status priority issue_type assignee_name assignee_email reporter_name"
        " reporter_email labels project_key project_name created updated",
        project_key="jira_projects.key",
    ),
    text_table(
        "jira_comments",
        "jira_id issue_key body author_name author_email created updated",
        issue_key="jira_issues.key",
    ),
    text_table("jira_projects", "jira_id key name project_type lead_name"),
)
"""The row id of an issue or project is its key; that of a comment is `KEY:id`."""


JIRA_SWITCHES = {"jira_comments": "includeComments", "jira_projects": "includeProjects"}
"""Table → the setting that turns its polling off. Tables without a setting are always polled."""


_TEXT = {"type": "string", "minLength": 1}
_KEY = {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_]*-[0-9]+$", "description": "The issue's key."}

FIELDS = (
    "summary",
    "description",
    "status",
    "priority",
    "issuetype",
    "assignee",
    "reporter",
    "labels",
    "project",
    "created",
    "updated",
)
"""The fields requested of an issue."""

Json = Mapping[str, Any]
"""A JSON object."""


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


def issue_row(issue: Json) -> SourceRow:
    """Convert an issue of `search/jql` or `issue/bulkfetch` with `FIELDS`; the row id is its key."""
    fields: Json = issue["fields"]
    return SourceRow(
        issue["key"],
        {
            "jira_id": issue["id"],
            "key": issue["key"],
            "summary": fields.get("summary"),
            "description": _json_text(fields.get("description")),
            "status": _field(fields.get("status"), "name"),
            "priority": _field(fields.get("priority"), "name"),
            "issue_type": _field(fields.get("issuetype"), "name"),
            "assignee_name": _field(fields.get("assignee"), "displayName"),
            "assignee_email": _field(fields.get("assignee"), "emailAddress"),
            "reporter_name": _field(fields.get("reporter"), "displayName"),
            "reporter_email": _field(fields.get("reporter"), "emailAddress"),
            "labels": _json_text(fields.get("labels")),
            "project_key": _field(fields.get("project"), "key"),
            "project_name": _field(fields.get("project"), "name"),
            "created": fields.get("created"),
            "updated": fields.get("updated"),
        },
    )


def comment_row(key: str, comment: Json) -> SourceRow:
    """Convert a comment; the row id is `KEY:ID`.

    Args:
        key: the issue's key.
        comment: the comment in Jira's JSON.
    """
    return SourceRow(
        f"{key}:{comment['id']}",
        {
            "jira_id": comment["id"],
            "issue_key": key,
            "body": _json_text(comment.get("body")),
            "author_name": _field(comment.get("author"), "displayName"),
            "author_email": _field(comment.get("author"), "emailAddress"),
            "created": comment.get("created"),
            "updated": comment.get("updated"),
        },
    )


def project_row(project: Json) -> SourceRow:
    """Convert a project; the row id is its key."""
    return SourceRow(
        project["key"],
        {
            "jira_id": project["id"],
            "key": project["key"],
            "name": project.get("name"),
            "project_type": project.get("projectTypeKey"),
            "lead_name": _field(project.get("lead"), "displayName"),
        },
    )


def to_milliseconds(timestamp: str) -> int:
    """Parse Jira's timestamps (`2026-01-02T03:04:05.678+0100`) to milliseconds since 1970."""
    time = datetime.fromisoformat(timestamp)
    return int(time.timestamp()) * 1000 + time.microsecond // 1000


def _field(value: Json | None, name: str) -> Any:
    """Return a field of an object; None if there is no object."""
    return None if value is None else value.get(name)


def _json_text(value: Any) -> str | None:
    return None if value is None else jcs(value)

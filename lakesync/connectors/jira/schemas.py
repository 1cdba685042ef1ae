"""Jira's output tables, and the actions that the connector supports with JSON Schemas of their params."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lakesync.connectors.base import text_table
from lakesync.model.action_handlers import ActionDescriptor

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


def _params(required: Sequence[str], **properties: Any) -> dict[str, Any]:
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

"""What a Jira connector offers to do, and the JSON Schema of the params."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lakesync.model.action_handlers import ActionDescriptor

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
    "Bring an issue to another status",
    _params(("issue", "status"), issue=_KEY, status={**_TEXT, "description": "The name of the status."}),
)

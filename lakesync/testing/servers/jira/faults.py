"""What the API of a Jira site says where it refuses."""

from __future__ import annotations

from typing import Any

ABSENT = "Issue does not exist or you do not have permission to see it."


def fault(*messages: str, **errors: str) -> dict[str, Any]:
    """The body of an error: of the whole request, and by field."""
    return {"errorMessages": list(messages), "errors": errors}

"""The state of a Jira site's REST API: its settings, its account and its limits. The handlers of routes read it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from lakesync.testing.servers.http import Answer
from lakesync.testing.servers.jira.site import JiraSite

ABSENT = "Issue does not exist or you do not have permission to see it."
"""The error of unknown and hidden issues."""


@dataclass
class Limits:
    """Rate limit: `requests` in `window_ms`."""

    requests: int = 10_000
    window_ms: int = 60_000
    near: float = 0.2
    """`X-RateLimit-NearLimit` is sent below this share."""


@dataclass
class JiraService:
    """Settings and counters of the API. Its one account signs in by Basic authentication: address and token."""

    site: JiraSite
    email: str = "sync@example.com"
    token: str = "jira-token"  # noqa: S105 a server for tests
    limits: Limits = field(default_factory=Limits)
    page_limit: int = 100
    """Issues on a page if fields are requested."""
    token_ms: int = 600_000
    """Milliseconds for which the token of a next page is valid."""
    null_token: bool = False
    """Whether the last page has a null token instead of no token. Real sites have answered in both ways."""
    forbidden: set[str] = field(default_factory=set)
    """Patterns of paths that the account may not request."""
    failures: deque[Answer] = field(default_factory=deque)
    """Answers for the next requests, one each. An answer of status 0 lets the request be answered normally."""
    spent: deque[int] = field(default_factory=deque)
    """When each request of the current window arrived, in milliseconds."""

    def now(self) -> int:
        """Return the site's time, in milliseconds."""
        return self.site.clock()


def fault(*messages: str, **errors: str) -> dict[str, Any]:
    """Return the body of an error: messages for the whole request, and by field."""
    return {"errorMessages": list(messages), "errors": errors}

"""The REST API v3 of a Jira site: authentication, rate limit and routes."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import unquote

from lakesync.testing.servers.http import Answer, Request
from lakesync.testing.servers.jira import routes
from lakesync.testing.servers.jira.site import JiraService, fault

Route = Callable[..., Answer]

_ROUTES: tuple[tuple[str, re.Pattern[str], Route], ...] = tuple(
    (method, re.compile(f"/rest/api/3/{pattern}"), route)
    for method, pattern, route in (
        ("GET", "myself", routes.myself),
        ("GET", "serverInfo", routes.server_info),
        ("GET", "mypermissions", routes.my_permissions),
        ("GET", "search/jql", routes.search),
        ("POST", "search/jql", routes.search),
        ("POST", "issue/bulkfetch", routes.bulk_fetch),
        ("GET", "project/search", routes.project_search),
        ("GET", "issue/([^/]+)", routes.issue),
        ("GET", "issue/([^/]+)/comment", routes.comments),
        ("GET", "issue/([^/]+)/transitions", routes.transitions),
        ("POST", "issue", routes.create_issue),
        ("POST", "issue/([^/]+)/comment", routes.add_comment),
        ("POST", "issue/([^/]+)/transitions", routes.transition),
    )
)
_GONE = re.compile(r"/rest/api/[23]/search")


class JiraApi(JiraService):
    """Answers requests to a site."""

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request."""
        headers = self._spend()
        if self.failures and (failure := self.failures.popleft()).status:
            return failure
        if headers.get("Retry-After"):
            return Answer(429, fault("Rate limit exceeded."), headers)
        if not self._signed_in(request):
            message = "Client must be authenticated to access this resource."
            return Answer(401, {"message": message, "status-code": 401}, {"WWW-Authenticate": "OAuth realm=jira"})
        if any(re.fullmatch(path, request.path) for path in self.forbidden):
            return Answer(403, fault("You do not have permission to perform this operation."))
        if _GONE.fullmatch(request.path):
            return Answer(
                410, fault("The requested API has been removed. Please migrate to the /rest/api/3/search/jql API.")
            )
        for method, pattern, route in _ROUTES:
            if method == request.method and (found := pattern.fullmatch(request.path)):
                try:
                    answer = route(self, request, *map(unquote, found.groups()))
                except ValueError:
                    return Answer(400, fault("Invalid request payload. Refer to the REST API documentation."))
                return Answer(answer.status, answer.body, {**headers, **answer.headers})
        return Answer(404, fault("null for uri: " + request.path))

    def _signed_in(self, request: Request) -> bool:
        expected = base64.b64encode(f"{self.email}:{self.token}".encode()).decode()
        return request.headers.get("authorization") == f"Basic {expected}"

    def _spend(self) -> dict[str, str]:
        now, limits = self.now(), self.limits
        while self.spent and self.spent[0] <= now - limits.window_ms:
            self.spent.popleft()
        left = limits.requests - len(self.spent)
        reset = (self.spent[0] if self.spent else now) + limits.window_ms
        headers = {
            "X-RateLimit-Limit": str(limits.requests),
            "X-RateLimit-Remaining": str(max(left - 1, 0)),
            "X-RateLimit-Reset": f"{datetime.fromtimestamp(-(-reset // 1000), UTC):%Y-%m-%dT%H:%MZ}",
        }
        if left - 1 < limits.requests * limits.near:
            headers["X-RateLimit-NearLimit"] = "true"
        if left <= 0:
            return headers | {"Retry-After": str(-(-(reset - now) // 1000)), "RateLimit-Reason": "jira-quota-based"}
        self.spent.append(now)
        return headers

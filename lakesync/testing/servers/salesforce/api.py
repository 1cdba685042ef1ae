"""The REST API of an organisation: sign-in, the daily limit and routes."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, unquote

from lakesync.testing.servers.http import Answer, Request
from lakesync.testing.servers.salesforce import routes
from lakesync.testing.servers.salesforce.org import SalesforceService, error, unknown
from lakesync.testing.servers.salesforce.soql import SoqlError

Route = Callable[..., Answer]

_ROUTES: tuple[tuple[str, re.Pattern[str], Route], ...] = tuple(
    (method, re.compile(f"/services/data/v[0-9.]+/{pattern}"), route)
    for method, pattern, route in (
        ("GET", "query/?", routes.query),
        ("GET", "queryAll/?", routes.query_all),
        ("GET", "(?:query|queryAll)/([^/]+)", routes.query_more),
        ("GET", "limits/?", routes.limits),
        ("GET", "sobjects/([^/]+)/deleted/?", routes.deleted),
        ("POST", "sobjects/([^/]+)/?", routes.create),
        ("PATCH", "sobjects/([^/]+)/([^/]+)", routes.update),
        ("PATCH", "sobjects/([^/]+)/([^/]+)/([^/]+)", routes.upsert),
        ("POST", "jobs/query/?", routes.create_job),
        ("GET", "jobs/query/([^/]+)", routes.job_state),
        ("GET", "jobs/query/([^/]+)/results", routes.job_results),
        ("DELETE", "jobs/query/([^/]+)", routes.delete_job),
    )
)


class SalesforceApi(SalesforceService):
    """Answers requests to an organisation."""

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request."""
        if self.failures and (failure := self.failures.popleft()).status:
            return failure
        if request.path == "/services/oauth2/token" and request.method == "POST":
            return self._sign_in(request)
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.sessions.get(token, 0) < self.now():
            return error(401, "INVALID_SESSION_ID", "Session expired or invalid")
        if self.used >= self.daily_limit:
            return error(403, "REQUEST_LIMIT_EXCEEDED", "TotalRequests Limit exceeded.")
        self.used += 1
        headers = {"Sforce-Limit-Info": f"api-usage={self.used}/{self.daily_limit}"}
        for method, pattern, route in _ROUTES:
            if method == request.method and (found := pattern.fullmatch(request.path)):
                try:
                    answer = route(self, request, *map(unquote, found.groups()))
                except SoqlError as fault:
                    return error(400, fault.code, str(fault))
                except ValueError as fault:
                    return error(400, "JSON_PARSER_ERROR", str(fault))
                return Answer(answer.status, answer.body, {**headers, **answer.headers})
        return unknown()

    def _sign_in(self, request: Request) -> Answer:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}

        def refused(code: str, words: str) -> Answer:
            return Answer(400, {"error": code, "error_description": words})

        if form.get("client_id") != self.client_id:
            return refused("invalid_client_id", "client identifier invalid")
        if form.get("client_secret") != self.client_secret:
            return refused("invalid_client", "invalid client credentials")
        match form.get("grant_type"):
            case "client_credentials":
                pass
            case "password":
                if (form.get("username"), form.get("password")) != (self.username, self.password):
                    return refused("invalid_grant", "authentication failure")
            case _:
                return refused("unsupported_grant_type", "grant type not supported")
        token = secrets.token_urlsafe(16)
        self.sessions[token] = self.now() + self.session_ms
        url = self.url or f"http://{request.headers['host']}"
        body: dict[str, Any] = {"access_token": token, "instance_url": url, "token_type": "Bearer"}
        return Answer(200, {**body, "issued_at": str(self.now())})

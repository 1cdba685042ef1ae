"""A fake Jira Cloud site with the REST API v3, as one account sees it. Tests and `lakesync fake` run it.

It follows Atlassian's documentation of the API (issue search, comments, projects, permissions, rate limits), also in
what makes polling hard: the search index lags behind changes, page tokens expire, and results have no total. `JiraApi`
is the service that `serve` runs, with authentication and rate limit; the functions are its routes. Routes read issues
(search by JQL), comments, projects and permissions. They create issues and comments, and change an issue's status (a
transition). `site` has the data.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from lakesync.testing.servers import Request, Response, Routes
from lakesync.testing.servers.jira.jql import JqlError, parse
from lakesync.testing.servers.jira.site import (
    ABSENT,
    STATUSES,
    Comment,
    Issue,
    JiraService,
    JiraSite,
    Limits,
    Project,
    error_body,
)

__all__ = ["JiraApi", "JiraSite", "Limits"]

_MAX_KEYS = 5_000
"""Issues on a page of a search that requests only ids and keys."""
_MAX_FETCHED = 100
"""Issues in one request of `bulk_fetch`."""


def myself(api: JiraService, _: Request) -> Response:
    """Return the user of the token."""
    return Response(200, {**_person("Sync"), "emailAddress": api.email, "timeZone": "Etc/UTC"})


def server_info(api: JiraService, _: Request) -> Response:
    """Return the site's type and time."""
    return Response(
        200, {"deploymentType": "Cloud", "serverTime": api.site.time_text(api.now()), "serverTitle": "Jira"}
    )


def my_permissions(api: JiraService, request: Request) -> Response:
    """Return which of the requested permissions the account has: all of them if it sees a project, else none."""
    names = [name for name in request.query.get("permissions", "").split(",") if name]
    if not names:
        return Response(400, error_body("The 'permissions' query parameter is required."))
    sees_project = any(not (each.hidden or each.deleted) for each in api.site.projects.values())
    return Response(200, {"permissions": {name: {"key": name, "havePermission": sees_project} for name in names}})


def search(api: JiraService, request: Request) -> Response:
    """Return a page of issues. The last page has no token; no page has a total."""
    parameters = request.json if request.method == "POST" else _query_parameters(request)
    jql = parameters.get("jql") or ""
    try:
        query = parse(jql, api.site.utc_offset_minutes)
    except JqlError as error:
        return Response(400, error_body(str(error)))
    if not query.has_condition:
        return Response(
            400,
            error_body("Unbounded JQL queries are not allowed here. Please add a search restriction to your query."),
        )
    fields = parameters.get("fields") or ["id"]
    only_ids = set(fields) <= {"id", "key"}
    size = min(int(parameters.get("maxResults") or 50), _MAX_KEYS if only_ids else api.page_limit)
    start = 0
    if (token := parameters.get("nextPageToken")) is not None:
        position = _position_of(api, token, jql)
        if position is None:
            return Response(400, error_body("The provided next page token is invalid or expired."))
        # A position, as on the real site: if an issue changes between two pages, the positions of others shift.
        start = position
    visible = query._replace(matches=lambda issue: api.site.sees(issue) and query.matches(issue))
    first_issues = visible.select(api.site.indexed(), start + size + 1)  # one more shows whether this page is the last
    page = first_issues[start : start + size]
    body: dict[str, Any] = {"issues": [_issue(api.site, each, fields, parameters.get("properties")) for each in page]}
    body["isLast"] = len(first_issues) <= start + size
    if not body["isLast"]:
        body["nextPageToken"] = _page_token(jql, start + size, api.now() + api.token_ms)
    elif api.null_token:  # real sites have sent the last page both with a null token and without one
        body["nextPageToken"] = None
    return Response(200, body)


def bulk_fetch(api: JiraService, request: Request) -> Response:
    """Return issues by id or key. Unknown and hidden issues are left out."""
    parameters = request.json
    names = parameters.get("issueIdsOrKeys") or []
    if not 1 <= len(names) <= _MAX_FETCHED:
        return Response(400, error_body(f"issueIdsOrKeys must hold 1 to {_MAX_FETCHED}"))
    issues = [issue for name in names if (issue := find(api.site, name)) is not None]
    fields = parameters.get("fields") or ["id"]
    as_json = [_issue(api.site, each, fields, parameters.get("properties")) for each in issues]
    return Response(200, {"issues": as_json, "issueErrors": []})


def get_issue(api: JiraService, request: Request, name: str) -> Response:
    """Return an issue."""
    issue = _existing(api.site, name)
    fields = request.query.get("fields", "*all").split(",")
    return Response(200, _issue(api.site, issue, fields, request.query.get("properties", "").split(",")))


def comments(api: JiraService, request: Request, name: str) -> Response:
    """Return a page of an issue's comments, oldest first."""
    issue = _existing(api.site, name)
    start, size = int(request.query.get("startAt", 0)), min(int(request.query.get("maxResults", 100)), 100)
    page = [_comment(api.site, each) for each in issue.comments[start : start + size]]
    return Response(200, {"startAt": start, "maxResults": size, "total": len(issue.comments), "comments": page})


def transitions(api: JiraService, _: Request, name: str) -> Response:
    """Return an issue's transitions: to every status except its own."""
    issue = _existing(api.site, name)
    return Response(
        200,
        {
            "transitions": [
                {"id": transition_id, "name": status, "to": {"name": status}}
                for transition_id, status in _TRANSITIONS.items()
                if status != issue.fields["status"]
            ]
        },
    )


def project_search(api: JiraService, request: Request) -> Response:
    """Return a page of projects; deleted projects only if `status` names them. It is repeated for several values."""
    start, size = int(request.query.get("startAt", 0)), min(int(request.query.get("maxResults", 50)), 100)
    states = set(request.values.get("status", ["live"]))
    if unknown := states - {"live", "archived", "deleted"}:
        return Response(400, error_body(f"{min(unknown)!r} is not a status of projects"))
    projects = sorted(
        (
            each
            for each in api.site.projects.values()
            if not each.hidden and ("deleted" if each.deleted else "live") in states
        ),
        key=lambda each: each.key,
    )
    page = projects[start : start + size]
    return Response(
        200,
        {
            "startAt": start,
            "maxResults": size,
            "total": len(projects),
            "isLast": start + size >= len(projects),
            "values": [_project(each) for each in page],
        },
    )


def find(site: JiraSite, name: str) -> Issue | None:
    """Return the visible issue with an id or key; None if no issue has it."""
    issue = site.issues.get(name) or next((each for each in site.issues.values() if each.key == name.upper()), None)
    return issue if issue is not None and site.sees(issue) else None


class _AbsentError(Exception):
    """The issue of a request does not exist, or is hidden."""


def _existing(site: JiraSite, name: str) -> Issue:
    """Return the visible issue with an id or key; raise `_AbsentError` if no issue has it."""
    issue = find(site, name)
    if issue is None:
        raise _AbsentError
    return issue


def _query_parameters(request: Request) -> dict[str, Any]:
    """Return a GET request's parameters in the form of a POST request's body."""
    parameters: dict[str, Any] = dict(request.query)
    for name in ("fields", "properties"):
        if name in parameters:
            parameters[name] = parameters[name].split(",")
    return parameters


def _issue(site: JiraSite, issue: Issue, fields: Sequence[str], properties: Sequence[str] | None) -> dict[str, Any]:
    """Return an issue as JSON, with the requested fields (`*all` for all) and entity properties."""
    result: dict[str, Any] = {"id": issue.id, "key": issue.key, "self": f"/rest/api/3/issue/{issue.id}"}
    wanted = set(fields) - {"id", "key"}
    if wanted:
        project = site.projects[issue.project]
        values = issue.fields
        all_fields = {
            "summary": values["summary"],
            "description": values.get("description"),
            "status": {"name": values["status"]},
            "priority": {"name": values["priority"]} if values.get("priority") else None,
            "issuetype": {"name": values["issuetype"]},
            "assignee": _person(values["assignee"]) if values.get("assignee") else None,
            "reporter": _person(values["reporter"]) if values.get("reporter") else None,
            "labels": values["labels"],
            "project": {"id": project.id, "key": project.key, "name": project.name},
            "created": site.time_text(issue.created),
            "updated": site.time_text(issue.updated),
        }
        result["fields"] = {name: value for name, value in all_fields.items() if name in wanted or "*all" in wanted}
    if properties:
        result["properties"] = {name: issue.properties[name] for name in properties if name in issue.properties}
    return result


def _comment(site: JiraSite, comment: Comment) -> dict[str, Any]:
    """Return a comment as JSON."""
    return {
        "id": comment.id,
        "author": _person(comment.author),
        "body": comment.body,
        "created": site.time_text(comment.created),
        "updated": site.time_text(comment.updated),
        "properties": [{"key": key, "value": value} for key, value in comment.properties.items()],
    }


def _project(project: Project) -> dict[str, Any]:
    """Return a project as JSON."""
    return {
        "id": project.id,
        "key": project.key,
        "name": project.name,
        "projectTypeKey": project.kind,
        "lead": _person(project.lead),
        "deleted": project.deleted,
    }


def _person(name: str) -> dict[str, Any]:
    """Return a user as JSON, with an account id that is derived from the name."""
    account = hashlib.sha256(name.encode()).hexdigest()[:24]
    return {"accountId": account, "displayName": name, "emailAddress": f"{name.lower()}@example.com", "active": True}


def _page_token(jql: str, position: int, expiry_ms: int) -> str:
    """Return the token of a next page. It is valid for the same JQL only."""
    return base64.urlsafe_b64encode(json.dumps([_digest(jql), position, expiry_ms]).encode()).decode()


def _position_of(api: JiraService, token: str, jql: str) -> int | None:
    """Return the position in a page token; None if the token is malformed, expired or of another query."""
    try:
        query_digest, position, expiry_ms = json.loads(base64.urlsafe_b64decode(token))
        return int(position) if query_digest == _digest(jql) and expiry_ms >= api.now() else None
    except (ValueError, TypeError):
        return None


def _digest(jql: str) -> str:
    """Return a digest of a query, by which a page token belongs to it."""
    return hashlib.sha256(jql.encode()).hexdigest()[:16]


_TYPES = ("Task", "Bug", "Story", "Epic")
"""The issue types of every project."""
_TRANSITIONS = {str(11 + 10 * number): status for number, status in enumerate(STATUSES)}
"""Id of a transition → the status that it sets."""


def create_issue(api: JiraService, request: Request) -> Response:
    """Create an issue in a project."""
    parameters = request.json
    fields = parameters.get("fields") or {}
    key = str((fields.get("project") or {}).get("key"))
    errors = {}
    project = api.site.projects.get(key)
    if project is None or project.deleted or project.hidden:
        errors["project"] = "valid project is required"
    if not str(fields.get("summary") or "").strip():
        errors["summary"] = "You must specify a summary of the issue."
    kind = (fields.get("issuetype") or {}).get("name")
    if kind not in _TYPES:
        errors["issuetype"] = "Specify a valid issue type"
    if errors:
        return Response(400, error_body(**errors))
    optional = {name: fields[name] for name in ("description", "labels") if fields.get(name) is not None}
    if fields.get("priority"):
        optional["priority"] = fields["priority"].get("name")
    created = api.site.add_issue(
        key, fields["summary"], issuetype=kind, reporter="Sync", properties=_properties(parameters), **optional
    )
    return Response(201, {"id": created.id, "key": created.key, "self": f"/rest/api/3/issue/{created.id}"})


def add_comment(api: JiraService, request: Request, name: str) -> Response:
    """Add a comment to an issue."""
    parameters, issue = request.json, _existing(api.site, name)
    body = parameters.get("body")
    if not isinstance(body, dict) or body.get("type") != "doc":
        return Response(400, error_body(comment="Comment body is not valid!"))
    comment = api.site.add_comment(issue, body, "Sync", properties=_properties(parameters))
    return Response(201, {"id": comment.id, "body": body, "created": api.site.time_text(comment.created)})


def transition(api: JiraService, request: Request, name: str) -> Response:
    """Change the status of an issue."""
    issue = _existing(api.site, name)
    transition_id = str((request.json.get("transition") or {}).get("id"))
    target = _TRANSITIONS.get(transition_id)
    if target is None or target == issue.fields["status"]:
        return Response(400, error_body(f"Transition id '{transition_id}' is not valid for this issue."))
    api.site.edit(issue, status=target)
    return Response(204)


def _properties(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return key → value of the entity properties in a request's body."""
    return {each["key"]: each["value"] for each in parameters.get("properties") or ()}


_ROUTES = Routes(
    "/rest/api/3/",
    ("GET", "myself", myself),
    ("GET", "serverInfo", server_info),
    ("GET", "mypermissions", my_permissions),
    ("GET", "search/jql", search),
    ("POST", "search/jql", search),
    ("POST", "issue/bulkfetch", bulk_fetch),
    ("GET", "project/search", project_search),
    ("GET", "issue/([^/]+)", get_issue),
    ("GET", "issue/([^/]+)/comment", comments),
    ("GET", "issue/([^/]+)/transitions", transitions),
    ("POST", "issue", create_issue),
    ("POST", "issue/([^/]+)/comment", add_comment),
    ("POST", "issue/([^/]+)/transitions", transition),
)
_REMOVED = re.compile(r"/rest/api/[23]/search")
"""Path of the earlier search, which Atlassian has removed."""


class JiraApi(JiraService):
    """The service of a site, for `serve`."""

    def respond(self, request: Request) -> Response:
        """Respond to a request: with a planned failure, an error of rate limit or access, or a route's response."""
        headers = self._count_request()
        if self.failures and (failure := self.failures.popleft()).status:  # status 0: this request does not fail
            return failure
        if headers.get("Retry-After"):
            return Response(429, error_body("Rate limit exceeded."), headers)
        if not self._is_authenticated(request):
            message = "Client must be authenticated to access this resource."
            return Response(401, {"message": message, "status-code": 401}, {"WWW-Authenticate": "OAuth realm=jira"})
        if any(re.fullmatch(path, request.path) for path in self.forbidden):
            return Response(403, error_body("You do not have permission to perform this operation."))
        if _REMOVED.fullmatch(request.path):
            return Response(
                410, error_body("The requested API has been removed. Please migrate to the /rest/api/3/search/jql API.")
            )
        try:
            response = _ROUTES.respond(self, request, headers)
        except _AbsentError:
            return Response(404, error_body(ABSENT), headers)
        except ValueError:
            return Response(400, error_body("Invalid request payload. Refer to the REST API documentation."))
        return response or Response(404, error_body("null for uri: " + request.path))

    def _is_authenticated(self, request: Request) -> bool:
        expected = base64.b64encode(f"{self.email}:{self.token}".encode()).decode()
        return request.headers.get("authorization") == f"Basic {expected}"

    def _count_request(self) -> dict[str, str]:
        """Count a request in the rate limit, and return the limit's headers; `Retry-After` if it is exceeded."""
        now, limits = self.now(), self.limits
        while self.spent and self.spent[0] <= now - limits.window_ms:
            self.spent.popleft()
        remaining = limits.requests - len(self.spent)
        reset = (self.spent[0] if self.spent else now) + limits.window_ms
        headers = {
            "X-RateLimit-Limit": str(limits.requests),
            "X-RateLimit-Remaining": str(max(remaining - 1, 0)),
            "X-RateLimit-Reset": f"{datetime.fromtimestamp(math.ceil(reset / 1000), UTC):%Y-%m-%dT%H:%MZ}",
        }
        if remaining - 1 < limits.requests * limits.near:
            headers["X-RateLimit-NearLimit"] = "true"
        if remaining <= 0:
            seconds = math.ceil((reset - now) / 1000)
            return headers | {"Retry-After": str(seconds), "RateLimit-Reason": "jira-quota-based"}
        self.spent.append(now)
        return headers

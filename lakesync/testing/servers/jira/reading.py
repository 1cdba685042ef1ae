"""Routes that read a Jira site: issues by JQL, comments, projects, permissions."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from lakesync.testing.servers.http import Answer, Request
from lakesync.testing.servers.jira.faults import ABSENT, fault
from lakesync.testing.servers.jira.jql import JqlError, parse
from lakesync.testing.servers.jira.service import JiraService
from lakesync.testing.servers.jira.site import STATUSES, Comment, Issue, JiraSite, Project

_MOST_KEYS = 5_000
_MOST_FETCHED = 100


def myself(api: JiraService, _: Request) -> Answer:
    """Whose token it is."""
    return Answer(200, {**_person("Sync"), "emailAddress": api.email, "timeZone": "Etc/UTC"})


def server_info(api: JiraService, _: Request) -> Answer:
    """The site and its time."""
    return Answer(200, {"deploymentType": "Cloud", "serverTime": api.site.spelled(api.now()), "serverTitle": "Jira"})


def my_permissions(api: JiraService, request: Request) -> Answer:
    """Whether the account may do what is asked for."""
    names = [name for name in request.query.get("permissions", "").split(",") if name]
    if not names:
        return Answer(400, fault("The 'permissions' query parameter is required."))
    browses = any(not (each.hidden or each.deleted) for each in api.site.projects.values())
    return Answer(200, {"permissions": {name: {"key": name, "havePermission": browses} for name in names}})


def search(api: JiraService, request: Request) -> Answer:
    """One page of issues; the last has no token, and none says how many there are."""
    asked = request.json if request.method == "POST" else _of_query(request)
    jql = asked.get("jql") or ""
    try:
        query = parse(jql, api.site.utc_offset_minutes)
    except JqlError as error:
        return Answer(400, fault(str(error)))
    if not query.bounded:
        return Answer(
            400, fault("Unbounded JQL queries are not allowed here. Please add a search restriction to your query.")
        )
    fields = asked.get("fields") or ["id"]
    narrow = set(fields) <= {"id", "key"}
    size = min(int(asked.get("maxResults") or 50), _MOST_KEYS if narrow else api.page_limit)
    start = 0
    if (token := asked.get("nextPageToken")) is not None:
        passed = _passed(api, token, jql)
        if passed is None:
            return Answer(400, fault("The provided next page token is invalid or expired."))
        # pages are no snapshot: an issue that changes meanwhile moves the positions of the others
        start = passed
    seen = query._replace(matches=lambda issue: api.site.sees(issue) and query.matches(issue))
    found = seen.select(api.site.indexed(), start + size + 1)
    page = found[start : start + size]
    body: dict[str, Any] = {"issues": [_issue(api.site, each, fields, asked.get("properties")) for each in page]}
    body["isLast"] = len(found) <= start + size
    if not body["isLast"]:
        body["nextPageToken"] = _token(jql, start + size, api.now() + api.token_ms)
    elif api.null_token:
        body["nextPageToken"] = None
    return Answer(200, body)


def bulk_fetch(api: JiraService, request: Request) -> Answer:
    """Issues by id or key, as they are now; what is not there or not to be seen is left out."""
    asked = request.json
    names = asked.get("issueIdsOrKeys") or []
    if not 1 <= len(names) <= _MOST_FETCHED:
        return Answer(400, fault(f"issueIdsOrKeys must hold 1 to {_MOST_FETCHED}"))
    found = [issue for name in names if (issue := find(api.site, name)) is not None]
    fields = asked.get("fields") or ["id"]
    shown = [_issue(api.site, each, fields, asked.get("properties")) for each in found]
    return Answer(200, {"issues": shown, "issueErrors": []})


def issue(api: JiraService, request: Request, name: str) -> Answer:
    """Return an issue."""
    found = find(api.site, name)
    if found is None:
        return Answer(404, fault(ABSENT))
    fields = request.query.get("fields", "*all").split(",")
    return Answer(200, _issue(api.site, found, fields, request.query.get("properties", "").split(",")))


def comments(api: JiraService, request: Request, name: str) -> Answer:
    """A page of an issue's comments, oldest first."""
    found = find(api.site, name)
    if found is None:
        return Answer(404, fault(ABSENT))
    start, size = int(request.query.get("startAt", 0)), min(int(request.query.get("maxResults", 100)), 100)
    shown = [_comment(api.site, each) for each in found.comments[start : start + size]]
    return Answer(200, {"startAt": start, "maxResults": size, "total": len(found.comments), "comments": shown})


def transitions(api: JiraService, _: Request, name: str) -> Answer:
    """Where an issue can go: to every status but its own."""
    found = find(api.site, name)
    if found is None:
        return Answer(404, fault(ABSENT))
    return Answer(
        200,
        {
            "transitions": [
                {"id": str(11 + 10 * place), "name": status, "to": {"name": status}}
                for place, status in enumerate(STATUSES)
                if status != found.fields["status"]
            ]
        },
    )


def project_search(api: JiraService, request: Request) -> Answer:
    """A page of projects; those in the trash where `status` asks for them."""
    start, size = int(request.query.get("startAt", 0)), min(int(request.query.get("maxResults", 50)), 100)
    asked = set(request.query.get("status", "live").split(","))
    shown = sorted(
        (
            each
            for each in api.site.projects.values()
            if not each.hidden and ("deleted" if each.deleted else "live") in asked
        ),
        key=lambda each: each.key,
    )
    page = shown[start : start + size]
    return Answer(
        200,
        {
            "startAt": start,
            "maxResults": size,
            "total": len(shown),
            "isLast": start + size >= len(shown),
            "values": [_project(each) for each in page],
        },
    )


def find(site: JiraSite, name: str) -> Issue | None:
    """The issue of an id or key, if it is there and may be seen."""
    found = site.issues.get(name) or next((each for each in site.issues.values() if each.key == name.upper()), None)
    return found if found is not None and site.sees(found) else None


def _of_query(request: Request) -> dict[str, Any]:
    asked: dict[str, Any] = dict(request.query)
    for name in ("fields", "properties"):
        if name in asked:
            asked[name] = asked[name].split(",")
    return asked


def _issue(site: JiraSite, issue: Issue, fields: Sequence[str], properties: Sequence[str] | None) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": issue.id, "key": issue.key, "self": f"/rest/api/3/issue/{issue.id}"}
    wanted = set(fields) - {"id", "key"}
    if wanted:
        project = site.projects[issue.project]
        values = issue.fields
        whole = {
            "summary": values["summary"],
            "description": values.get("description"),
            "status": {"name": values["status"]},
            "priority": {"name": values["priority"]} if values.get("priority") else None,
            "issuetype": {"name": values["issuetype"]},
            "assignee": _person(values["assignee"]) if values.get("assignee") else None,
            "reporter": _person(values["reporter"]) if values.get("reporter") else None,
            "labels": values["labels"],
            "project": {"id": project.id, "key": project.key, "name": project.name},
            "created": site.spelled(issue.created),
            "updated": site.spelled(issue.updated),
        }
        shown["fields"] = whole if "*all" in wanted else {name: whole[name] for name in whole if name in wanted}
    if properties:
        shown["properties"] = {name: issue.properties[name] for name in properties if name in issue.properties}
    return shown


def _comment(site: JiraSite, comment: Comment) -> dict[str, Any]:
    return {
        "id": comment.id,
        "author": _person(comment.author),
        "body": comment.body,
        "created": site.spelled(comment.created),
        "updated": site.spelled(comment.updated),
        "properties": [{"key": key, "value": value} for key, value in comment.properties.items()],
    }


def _project(project: Project) -> dict[str, Any]:
    return {
        "id": project.id,
        "key": project.key,
        "name": project.name,
        "projectTypeKey": project.kind,
        "lead": _person(project.lead),
        "deleted": project.deleted,
    }


def _person(name: str) -> dict[str, Any]:
    account = hashlib.sha256(name.encode()).hexdigest()[:24]
    return {"accountId": account, "displayName": name, "emailAddress": f"{name.lower()}@example.com", "active": True}


def _token(jql: str, place: int, until: int) -> str:
    return base64.urlsafe_b64encode(json.dumps([_digest(jql), place, until]).encode()).decode()


def _passed(api: JiraService, token: str, jql: str) -> int | None:
    try:
        of, place, until = json.loads(base64.urlsafe_b64decode(token))
        return int(place) if of == _digest(jql) and until >= api.now() else None
    except (ValueError, TypeError):
        return None


def _digest(jql: str) -> str:
    return hashlib.sha256(jql.encode()).hexdigest()[:16]

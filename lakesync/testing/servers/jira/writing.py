"""What may be done over the API of a Jira site: create an issue, comment, transition."""

from __future__ import annotations

from typing import Any

from lakesync.testing.servers.http import Answer, Request
from lakesync.testing.servers.jira.faults import ABSENT, fault
from lakesync.testing.servers.jira.reading import find
from lakesync.testing.servers.jira.service import JiraService
from lakesync.testing.servers.jira.site import STATUSES

_TYPES = ("Task", "Bug", "Story", "Epic")


def create_issue(api: JiraService, request: Request) -> Answer:
    """A new issue of a project."""
    asked = request.json
    fields = asked.get("fields") or {}
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
        return Answer(400, fault(**errors))
    more = {name: fields[name] for name in ("description", "labels") if fields.get(name) is not None}
    if fields.get("priority"):
        more["priority"] = fields["priority"].get("name")
    made = api.site.add_issue(
        key, fields["summary"], issuetype=kind, reporter="Sync", properties=_properties(asked), **more
    )
    return Answer(201, {"id": made.id, "key": made.key, "self": f"/rest/api/3/issue/{made.id}"})


def add_comment(api: JiraService, request: Request, name: str) -> Answer:
    """A new comment of an issue."""
    asked, issue = request.json, find(api.site, name)
    if issue is None:
        return Answer(404, fault(ABSENT))
    body = asked.get("body")
    if not isinstance(body, dict) or body.get("type") != "doc":
        return Answer(400, fault(comment="Comment body is not valid!"))
    made = api.site.add_comment(issue, body, "Sync", properties=_properties(asked))
    return Answer(201, {"id": made.id, "body": body, "created": api.site.spelled(made.created)})


def transition(api: JiraService, request: Request, name: str) -> Answer:
    """Bring an issue to another status."""
    issue = find(api.site, name)
    if issue is None:
        return Answer(404, fault(ABSENT))
    asked = str((request.json.get("transition") or {}).get("id"))
    places = {str(11 + 10 * place): status for place, status in enumerate(STATUSES)}
    target = places.get(asked)
    if target is None or target == issue.fields["status"]:
        return Answer(400, fault(f"Transition id '{asked}' is not valid for this issue."))
    api.site.edit(issue, status=target)
    return Answer(204)


def _properties(asked: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: each["value"] for each in asked.get("properties") or ()}

"""The data of the fake Jira site (`JiraSite`), and the settings and counters of its REST API (`JiraService`).

A site has projects, issues, comments, and a search index that lags behind them. The routes in the package read and
change it; tests change it directly, for example to hide an issue.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import count
from typing import Any, Literal, NamedTuple

from lakesync.testing.servers import Response

Status = Literal["To Do", "In Progress", "Done"]
STATUSES: tuple[Status, ...] = ("To Do", "In Progress", "Done")

ABSENT = "Issue does not exist or you do not have permission to see it."
"""The error of unknown and hidden issues."""


@dataclass
class Project:
    """A project. A deleted project is in the trash: only administrators see it, and its issues are not visible."""

    id: str
    key: str
    name: str
    kind: str = "software"
    lead: str = "Ada"
    deleted: bool = False
    hidden: bool = False
    """Whether the account lacks the permission to browse the project."""


@dataclass
class Comment:
    """A comment. `body` is a document in Atlassian's format; times are in milliseconds since 1970."""

    id: str
    author: str
    body: Any
    created: int
    updated: int
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass
class Issue:
    """An issue. Times are in milliseconds since 1970, by the site's clock."""

    id: str
    project: str
    key: str
    created: int
    updated: int
    fields: dict[str, Any]
    comments: list[Comment] = field(default_factory=list)
    properties: dict[str, Any] = field(default_factory=dict)
    hidden: bool = False
    """Whether a security level hides the issue from the account."""


class _IndexChange(NamedTuple):
    """A change that the search index lacks."""

    due_ms: int
    """When the index gets it, in milliseconds since 1970."""
    issue_id: str
    issue: Issue | None
    """A copy of the changed issue; None if the issue was deleted."""


@dataclass
class JiraSite:
    """The state of a site. Tests change it by these methods, requests by the API."""

    clock: Callable[[], int]
    """Returns the site's time in milliseconds since 1970. It may differ from the caller's, to test clock skew."""
    index_lag_ms: int = 0
    """Milliseconds after which the search finds a change. Other routes return the change immediately."""
    utc_offset_minutes: int = 0
    """Time zone of the account, in which the API writes times."""
    projects: dict[str, Project] = field(default_factory=dict)
    issues: dict[str, Issue] = field(default_factory=dict)
    """Id → issue."""
    _ids: Iterator[int] = field(default_factory=lambda: count(10_000))
    """The ids of further projects, issues and comments."""
    _numbers: dict[str, Iterator[int]] = field(default_factory=dict)
    """Project key → the numbers in the keys of its further issues."""
    _index: dict[str, Issue] = field(default_factory=dict)
    """Id → the issue as the search finds it, a copy."""
    _pending: list[_IndexChange] = field(default_factory=list)
    """The changes that the index lacks."""
    _ordered: list[Issue] | None = None
    """The index in the order of `indexed`; None after a change."""

    def add_project(self, key: str, **more: Any) -> Project:
        """Create a project.

        Args:
            key: prefix of its issues' keys, such as `OPS`.
            more: other fields of `Project`.
        """
        project = Project(str(next(self._ids)), key, f"Project {key}", **more)
        self.projects[key] = project
        self._numbers.setdefault(key, count(1))
        return project

    def add_issue(
        self, project: str, summary: str, *, properties: dict[str, Any] | None = None, **fields: Any
    ) -> Issue:
        """Create an issue in a project. Its key is the project's key with the next number.

        Args:
            project: the project's key.
            summary: the issue's title.
            properties: entity properties, by key.
            fields: other fields of the issue, such as `status`.
        """
        now = self.clock()
        issue = Issue(
            str(next(self._ids)),
            project,
            f"{project}-{next(self._numbers[project])}",
            now,
            now,
            {"summary": summary, "status": "To Do", "priority": "Medium", "issuetype": "Task", "labels": [], **fields},
            properties=properties or {},
        )
        self.issues[issue.id] = issue
        self._schedule_indexing(issue)
        return issue

    def edit(self, issue: Issue, **fields: Any) -> None:
        """Change fields of an issue."""
        issue.fields |= fields
        self._touch(issue)

    def add_comment(self, issue: Issue, body: Any, author: str = "Ada", **more: Any) -> Comment:
        """Add a comment to an issue. As every change of comments, it sets the issue's time of update.

        Args:
            issue: the issue.
            body: a document in Atlassian's format.
            author: name of the user.
            more: other fields of `Comment`.
        """
        now = self.clock()
        comment = Comment(str(next(self._ids)), author, body, now, now, **more)
        issue.comments.append(comment)
        self._touch(issue)
        return comment

    def edit_comment(self, issue: Issue, comment: Comment, body: Any) -> None:
        """Replace a comment's body."""
        comment.body, comment.updated = body, self.clock()
        self._touch(issue)

    def delete_comment(self, issue: Issue, comment: Comment) -> None:
        """Delete a comment permanently."""
        issue.comments.remove(comment)
        self._touch(issue)

    def move(self, issue: Issue, project: str) -> None:
        """Move an issue to another project. Its id stays; it gets a key of the other project."""
        issue.project, issue.key = project, f"{project}-{next(self._numbers[project])}"
        self._touch(issue)

    def delete(self, issue: Issue) -> None:
        """Delete an issue and its comments, so that no route returns them."""
        del self.issues[issue.id]
        self._pending.append(_IndexChange(self.clock() + self.index_lag_ms, issue.id, None))

    def delete_project(self, key: str) -> None:
        """Move a project to the trash. No route returns its issues then."""
        self.projects[key].deleted = True

    def index(self, issue: Issue) -> None:
        """Update an issue in the search index now, before older changes of other issues."""
        self._drop_pending(issue)
        self._index[issue.id] = copy.deepcopy(issue)

    def unindex(self, issue: Issue) -> None:
        """Remove an issue from the search index until the issue changes again."""
        self._drop_pending(issue)
        self._index.pop(issue.id, None)

    def sees(self, issue: Issue) -> bool:
        """Return whether the account may browse an issue, in the search or by id.

        Args:
            issue: an issue, or the copy in the search index. Permissions are those of the issue itself, because a
                change of permissions applies immediately, also to the search.
        """
        project = self.projects[issue.project]
        return not (self.issues.get(issue.id, issue).hidden or project.hidden or project.deleted)

    def indexed(self) -> list[Issue]:
        """Return the issues in the search index, hidden ones too, sorted by time of update, then by key."""
        now = self.clock()
        due = [change for change in self._pending if change.due_ms <= now]
        if due:
            self._pending = [change for change in self._pending if change.due_ms > now]
            self._ordered = None
        for change in due:
            if change.issue is None:
                self._index.pop(change.issue_id, None)
            else:
                self._index[change.issue_id] = change.issue
        if self._ordered is None:
            self._ordered = sorted(
                self._index.values(), key=lambda each: (each.updated, *_sort_key(each), int(each.id))
            )
        return self._ordered

    def time_text(self, ms: int) -> str:
        """Return a time as the API writes it: ISO 8601 with milliseconds, in the account's time zone."""
        zone = timezone(timedelta(minutes=self.utc_offset_minutes))
        moment = datetime.fromtimestamp(ms // 1000, zone)
        return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}{moment:%z}"

    def _drop_pending(self, issue: Issue) -> None:
        """Forget an issue's changes that the index lacks."""
        self._pending = [change for change in self._pending if change.issue_id != issue.id]
        self._ordered = None

    def _touch(self, issue: Issue) -> None:
        """Record that an issue changes now."""
        issue.updated = max(self.clock(), issue.updated)
        self._schedule_indexing(issue)

    def _schedule_indexing(self, issue: Issue) -> None:
        """Let the search find an issue's current values when the index lag has passed."""
        self._pending.append(_IndexChange(self.clock() + self.index_lag_ms, issue.id, copy.deepcopy(issue)))


def _sort_key(issue: Issue) -> tuple[str, int]:
    """Return the value by which keys are sorted: `OPS-9` before `OPS-10`."""
    return issue.project, int(issue.key.rpartition("-")[2])


@dataclass
class Limits:
    """Rate limit: at most `requests` in the last `window_ms` milliseconds."""

    requests: int = 10_000
    window_ms: int = 60_000
    near: float = 0.2
    """The header `X-RateLimit-NearLimit` is sent if less than this share of the requests is left."""


@dataclass
class JiraService:
    """Settings and counters of the API; `JiraApi` adds its routes, whose first parameter has this class.

    The API has one account, with Basic authentication by e-mail address and token.
    """

    site: JiraSite
    email: str = "sync@example.com"
    token: str = "jira-token"  # noqa: S105 a server for tests
    limits: Limits = field(default_factory=Limits)
    page_limit: int = 100
    """Maximal number of issues on a page if fields are requested."""
    token_ms: int = 600_000
    """Milliseconds for which the token of a next page is valid."""
    null_token: bool = False
    """Whether the last page has a null token instead of no token. Real sites have answered in both ways."""
    forbidden: set[str] = field(default_factory=set)
    """Patterns of paths that the account may not request."""
    failures: deque[Response] = field(default_factory=deque)
    """Responses to the next requests, one each, in place of a route's. Status 0 lets the route respond."""
    spent: deque[int] = field(default_factory=deque)
    """Times of the requests in the current window, in milliseconds since 1970."""

    def now(self) -> int:
        """Return the site's time in milliseconds since 1970."""
        return self.site.clock()


def error_body(*messages: str, **errors: str) -> dict[str, Any]:
    """Return the body of an error response.

    Args:
        messages: errors of the request as a whole.
        errors: field name → its error.
    """
    return {"errorMessages": list(messages), "errors": errors}

"""The data of a Jira site, and the state of its REST API: settings, account and limits. Route handlers use both.

A site holds projects, issues, comments, and a search index that lags behind them.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import count
from typing import Any, Literal

from lakesync.testing.servers.http import Answer

Status = Literal["To Do", "In Progress", "Done"]
STATUSES: tuple[Status, ...] = ("To Do", "In Progress", "Done")

ABSENT = "Issue does not exist or you do not have permission to see it."
"""The error of unknown and hidden issues."""


@dataclass
class Project:
    """A project; `deleted` is in the trash, which only those who may administer it see."""

    id: str
    key: str
    name: str
    kind: str = "software"
    lead: str = "Ada"
    deleted: bool = False
    hidden: bool = False
    """Whether the account that asks may not browse it."""


@dataclass
class Comment:
    """A comment; `body` is a document of Atlassian's format."""

    id: str
    author: str
    body: Any
    created: int
    updated: int
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass
class Issue:
    """An issue; times in milliseconds since the epoch, by the site's clock."""

    id: str
    project: str
    key: str
    created: int
    updated: int
    fields: dict[str, Any]
    comments: list[Comment] = field(default_factory=list)
    properties: dict[str, Any] = field(default_factory=dict)
    hidden: bool = False
    """Whether a security level keeps it from the account that asks."""


@dataclass
class JiraSite:
    """The state of a site, changed by these methods or over its API.

    Its clock is its own: what skew it has against the caller's is the caller's to choose.
    """

    clock: Callable[[], int]
    """Milliseconds since the epoch."""
    index_lag_ms: int = 0
    """How long after a change the search finds it; the API's other routes show it at once."""
    utc_offset_minutes: int = 0
    """Of the account's time zone, in which times are spelled."""
    projects: dict[str, Project] = field(default_factory=dict)
    issues: dict[str, Issue] = field(default_factory=dict)
    """By id."""
    _ids: Iterator[int] = field(default_factory=lambda: count(10_000))
    _numbers: dict[str, Iterator[int]] = field(default_factory=dict)
    _index: dict[str, Issue] = field(default_factory=dict)
    _waiting: list[tuple[int, str, Issue | None]] = field(default_factory=list)
    _ordered: list[Issue] | None = None

    def add_project(self, key: str, name: str | None = None, **more: Any) -> Project:
        """A new project."""
        made = Project(str(next(self._ids)), key, name or f"Project {key}", **more)
        self.projects[key] = made
        self._numbers.setdefault(key, count(1))
        return made

    def add_issue(
        self, project: str, summary: str, *, properties: dict[str, Any] | None = None, **fields: Any
    ) -> Issue:
        """A new issue of a project, with the next number as its key."""
        now = self.clock()
        made = Issue(
            str(next(self._ids)),
            project,
            f"{project}-{next(self._numbers[project])}",
            now,
            now,
            {"summary": summary, "status": "To Do", "priority": "Medium", "issuetype": "Task", "labels": [], **fields},
            properties=properties or {},
        )
        self.issues[made.id] = made
        self._written(made)
        return made

    def edit(self, issue: Issue, **fields: Any) -> None:
        """Change fields of an issue."""
        issue.fields |= fields
        self._touch(issue)

    def add_comment(self, issue: Issue, body: Any, author: str = "Ada", **more: Any) -> Comment:
        """A new comment; like every change of comments it changes when the issue was updated."""
        now = self.clock()
        made = Comment(str(next(self._ids)), author, body, now, now, **more)
        issue.comments.append(made)
        self._touch(issue)
        return made

    def edit_comment(self, issue: Issue, comment: Comment, body: Any) -> None:
        """Change a comment."""
        comment.body, comment.updated = body, self.clock()
        self._touch(issue)

    def delete_comment(self, issue: Issue, comment: Comment) -> None:
        """Remove a comment for good."""
        issue.comments.remove(comment)
        self._touch(issue)

    def move(self, issue: Issue, project: str) -> None:
        """Give an issue to another project: its id stays, its key does not."""
        issue.project, issue.key = project, f"{project}-{next(self._numbers[project])}"
        self._touch(issue)

    def delete(self, issue: Issue) -> None:
        """Delete an issue and its comments, so that no route returns them."""
        del self.issues[issue.id]
        self._waiting.append((self.clock() + self.index_lag_ms, issue.id, None))

    def delete_project(self, key: str) -> None:
        """Put a project into the trash: its issues are nowhere to be seen."""
        self.projects[key].deleted = True

    def index(self, issue: Issue) -> None:
        """Let the search find an issue's current values before older changes of other issues."""
        self._unwait(issue)
        self._index[issue.id] = copy.deepcopy(issue)

    def unindex(self, issue: Issue) -> None:
        """Let the search find a hidden or deleted issue until it changes again."""
        self._unwait(issue)
        self._index.pop(issue.id, None)

    def sees(self, issue: Issue) -> bool:
        """Return whether the account may browse an issue, in the search or by its id."""
        project = self.projects[issue.project]
        # what may be seen holds at once, also for what the search knows of an issue
        return not (self.issues.get(issue.id, issue).hidden or project.hidden or project.deleted)

    def indexed(self) -> list[Issue]:
        """The issues as the search knows them now, hidden ones too, by when they were updated, then by key."""
        now = self.clock()
        due = [entry for entry in self._waiting if entry[0] <= now]
        if due:
            self._waiting = [entry for entry in self._waiting if entry[0] > now]
            self._ordered = None
        for _, name, issue in due:
            if issue is None:
                self._index.pop(name, None)
            else:
                self._index[name] = issue
        if self._ordered is None:
            self._ordered = sorted(self._index.values(), key=lambda each: (each.updated, *_number(each), int(each.id)))
        return self._ordered

    def spelled(self, ms: int) -> str:
        """A time as the API spells it: ISO 8601 with milliseconds, in the account's time zone."""
        zone = timezone(timedelta(minutes=self.utc_offset_minutes))
        at = datetime.fromtimestamp(ms // 1000, zone)
        return f"{at:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}{at:%z}"

    def _unwait(self, issue: Issue) -> None:
        self._waiting = [entry for entry in self._waiting if entry[1] != issue.id]
        self._ordered = None

    def _touch(self, issue: Issue) -> None:
        issue.updated = max(self.clock(), issue.updated)
        self._written(issue)

    def _written(self, issue: Issue) -> None:
        self._waiting.append((self.clock() + self.index_lag_ms, issue.id, copy.deepcopy(issue)))


def _number(issue: Issue) -> tuple[str, int]:
    """A key in its order."""
    return issue.project, int(issue.key.rpartition("-")[2])


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

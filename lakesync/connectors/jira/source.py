"""Jira source: reads issues and comments by update time, and all projects; finds deleted issues by a census.

A poll of a connector continues after the newest update time that it has seen, its cursor. A *page* has rows, and the
cursor after them; it is stored completely or not at all. A census lists the keys of all issues, so that those that no
longer exist are found. Jira's objects become rows whose columns are all text; objects and lists in them, such as
formatted descriptions, become JSON text. The pipeline's poll tasks call the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from lakesync.connectors.base import (
    Census,
    ConnectorConfig,
    Cursor,
    Page,
    Probe,
    SourceRow,
    Table,
    Usage,
    describe_clock_skew,
    text_table,
    value_at,
)
from lakesync.connectors.jira.api import KEYS_PAGE, PAGE, JiraClient, Json, build_jql, quote
from lakesync.model.delta import jcs
from lakesync.model.errors import ConfigurationError, ForbiddenError, NotFoundError

OVERLAP_MS = 120_000
"""How far before the newest change a poll reads again, because Jira's search finds changes up to a minute late."""

COMMENTS_PAGE = 1_000
"""Comments per page, about: an issue's comments are never split between pages."""

ISSUES, COMMENTS, PROJECTS = "jira_issues", "jira_comments", "jira_projects"
"""The names of the tables."""

_ISSUE_PATHS = {
    "summary": ("summary",),
    "description": ("description",),
    "status": ("status", "name"),
    "priority": ("priority", "name"),
    "issue_type": ("issuetype", "name"),
    "assignee_name": ("assignee", "displayName"),
    "assignee_email": ("assignee", "emailAddress"),
    "reporter_name": ("reporter", "displayName"),
    "reporter_email": ("reporter", "emailAddress"),
    "labels": ("labels",),
    "project_key": ("project", "key"),
    "project_name": ("project", "name"),
    "created": ("created",),
    "updated": ("updated",),
}
"""Column → path of its value in the `fields` of an issue."""
_COMMENT_PATHS = {
    "body": ("body",),
    "author_name": ("author", "displayName"),
    "author_email": ("author", "emailAddress"),
    "created": ("created",),
    "updated": ("updated",),
}
"""Column → path of its value in a comment."""
_PROJECT_PATHS = {
    "name": ("name",),
    "project_type": ("projectTypeKey",),
    "lead_name": ("lead", "displayName"),
}
"""Column → path of its value in a project."""
_JSON_COLUMNS = frozenset({"description", "labels", "body"})
"""Columns whose values are objects or lists, which become JSON text."""

JIRA_TABLES = (
    text_table(ISSUES, ("jira_id", "key", *_ISSUE_PATHS), project_key="jira_projects.key"),
    text_table(COMMENTS, ("jira_id", "issue_key", *_COMMENT_PATHS), issue_key="jira_issues.key"),
    text_table(PROJECTS, ("jira_id", "key", *_PROJECT_PATHS)),
)
"""The schemas of the tables. The row id of an issue or project is its key; that of a comment is `KEY:ID`."""

JIRA_SWITCHES = {COMMENTS: "includeComments", PROJECTS: "includeProjects"}
"""Table → the setting that turns its polling off. Tables without a setting are always polled."""

FIELDS = tuple(dict.fromkeys(path[0] for path in _ISSUE_PATHS.values()))
"""The fields requested of an issue."""


class JiraSource:
    """Polls a site as one account sees it. The cursor contains the filter; with another filter the poll starts again.

    `connectors.base.Source` documents the methods.
    """

    resumable = True
    """A read can continue after any page from that page's cursor."""

    def __init__(self, config: ConnectorConfig, **http_options: Any) -> None:
        """Create the source.

        Args:
            config: the connector's configuration.
            http_options: keyword arguments of `connectors.http_api.HttpApi`.
        """
        settings = config.settings
        self._client = JiraClient(settings, hosts=config.hosts, **http_options)
        self._jql: str | None = settings.get("jql")
        schemas = {schema.table: schema for schema in JIRA_TABLES}
        self.tables = tuple(
            Table(name, identity="jira_id", schema=partial(schemas.get, name), origin=self._client.url)
            for name in (PROJECTS, ISSUES, COMMENTS)
            if settings.get(JIRA_SWITCHES.get(name, ""), True)
        )

    @property
    def usage(self) -> Usage:
        """Calls made, and the remainder of the site's rate limit."""
        return self._client.usage

    def changes(self, table: str, cursor: Cursor | None) -> Iterator[Page]:
        """Yield issues, or comments of issues, that were updated since a cursor; all projects."""
        if table == PROJECTS:
            return self._projects()
        since_ms = cursor["updated"] if cursor is not None and cursor["jql"] == self._jql else 0
        return self._issues(since_ms) if table == ISSUES else self._comments(since_ms)

    def census(self, table: str) -> Census | None:
        """List the keys of all issues, for issues and for comments; None for projects, whose deletes Jira reports."""
        if table == PROJECTS:
            return None
        return Census(column=None if table == ISSUES else "issue_key", values=self._keys())

    def read(self, table: str, row_ids: Sequence[str]) -> Iterator[Page]:
        """Yield issues by key, with their comments. Only the census of issues lists row ids, so `table` is theirs."""
        for start in range(0, len(row_ids), PAGE):
            issues = self._client.fetch(row_ids[start : start + PAGE], FIELDS)
            yield Page(table, [issue_row(issue) for issue in issues])
            if any(each.name == COMMENTS for each in self.tables):
                yield from self._comments_of_issues(issues)

    def find_deleted(self, table: str, rows: Sequence[SourceRow]) -> set[str]:
        """Return the ids of the rows whose issue is deleted or no longer matches the filter.

        Issues of a project that the account can no longer browse are hidden, not deleted. An issue hidden by a security
        level in a visible project looks like a deleted one.
        """
        if table == COMMENTS:
            deleted = self._deleted_issues({row.columns["issue_key"] for row in rows})
            return {row.row_id for row in rows if row.columns["issue_key"] in deleted}
        return self._deleted_issues({row.row_id for row in rows})

    def probes(self) -> Iterator[Probe]:
        """Check that the account can read what the connector polls."""
        yield Probe("credentials", self._check_credentials)
        yield Probe("clock", self._check_clock)
        yield Probe("permissions", self._check_permissions)
        yield Probe(ISSUES, self._check_page)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # Each of the probes returns its result as a sentence, or raises an error of `lakesync.model.errors`.

    def _check_credentials(self) -> str:
        try:
            account = self._client.get("/myself")
        except NotFoundError as error:
            raise ConfigurationError(f"there is no Jira at this address ({error}): check domain, or baseUrl") from error
        return f"signed in as {account.get('emailAddress', 'an account that hides its address')}"

    def _check_clock(self) -> str:
        return describe_clock_skew(to_milliseconds(self._client.get("/serverInfo")["serverTime"]), "the site's")

    def _check_permissions(self) -> str:
        permissions = self._client.get("/mypermissions", permissions="BROWSE_PROJECTS")["permissions"]
        if not permissions["BROWSE_PROJECTS"]["havePermission"]:
            raise ForbiddenError(
                "this account may not browse any project in Jira: give its role the permission 'Browse projects'"
            )
        return "the account can browse projects"

    def _check_page(self) -> str:
        found = self._client.search(build_jql(self._jql, "updated >= 0", order="updated ASC, key ASC"), FIELDS)[
            "issues"
        ]
        if not found:
            return "no issue found: check jql and the account's permissions"
        return f"{len(found)} issues on the first page, the first is {found[0]['key']}"

    def _issues(self, since_ms: int) -> Iterator[Page]:
        """Yield issues updated since a time."""
        for issues, newest_ms in self._updated(since_ms, FIELDS):
            yield Page(ISSUES, [issue_row(issue) for issue in issues], self._cursor(newest_ms))

    def _comments(self, since_ms: int) -> Iterator[Page]:
        """Yield all comments of issues updated since a time: a new or changed comment updates its issue."""
        for issues, newest_ms in self._updated(since_ms, ("updated",)):
            yield from self._comments_of_issues(issues)
            yield Page(COMMENTS, [], self._cursor(newest_ms))

    def _comments_of_issues(self, issues: Sequence[Mapping[str, Any]]) -> Iterator[Page]:
        """Yield all comments of some issues.

        A page names in `complete` the issues of which it has all comments, so that other known ones are deleted.
        """
        rows: list[SourceRow] = []
        complete: list[tuple[str, str]] = []
        for issue in issues:
            found = self._comments_of(issue["key"])
            if found is None:
                continue
            rows += found
            complete.append(("issue_key", issue["key"]))
            if len(rows) >= COMMENTS_PAGE:
                yield Page(COMMENTS, rows, complete=complete)
                rows, complete = [], []
        if complete:
            yield Page(COMMENTS, rows, complete=complete)

    def _comments_of(self, key: str) -> list[SourceRow] | None:
        """Return an issue's comments; None if it was deleted meanwhile."""
        try:
            pages = list(self._client.pages(f"/issue/{key}/comment", "comments", orderBy="created"))
        except NotFoundError:
            return None
        return [comment_row(key, comment) for page in pages for comment in page]

    def _projects(self) -> Iterator[Page]:
        """Yield all projects, then those in Jira's trash as deleted ones."""
        for page in self._client.pages("/project/search", "values", expand="lead", status=("live", "archived")):
            yield Page(PROJECTS, [project_row(project) for project in page], cursor={})  # every poll reads all
        deleted = sorted(self._deleted_projects())
        if deleted:
            yield Page(PROJECTS, [], cursor={}, deleted=deleted)

    def _updated(self, since_ms: int, fields: Sequence[str]) -> Iterator[tuple[list[dict[str, Any]], int]]:
        """Yield pages of issues updated since a time, oldest first, each with the newest update time so far.

        `fields` must include `updated`. Jira returns a token for the next page, but the token is an offset into a
        result that changes while it is read. So each query starts at the last update time of the previous page. The
        token is used only if all issues of a page have one update time. All times are those of Jira's clock.
        """
        start, newest_ms, token = max(since_ms - OVERLAP_MS, 0), since_ms, None
        previous: set[tuple[str, str]] = set()
        while True:
            jql = build_jql(self._jql, f"updated >= {start}", order="updated ASC, key ASC")
            page = self._client.search(jql, fields, token=token)
            issues: list[dict[str, Any]] = page["issues"]
            last = max((to_milliseconds(issue["fields"]["updated"]) for issue in issues), default=start)
            newest_ms = max(newest_ms, last)
            # issues that the previous page had too, because the queries overlap, are left out
            versions = {(issue["id"], issue["fields"]["updated"]) for issue in issues}
            yield [issue for issue in issues if (issue["id"], issue["fields"]["updated"]) not in previous], newest_ms
            if (following := page.get("nextPageToken")) is None:
                return
            token = following if last == start else None
            start, previous = last, versions

    def _keys(self) -> Iterator[Sequence[str]]:
        """Yield the keys of all issues that match the filter."""
        jql = build_jql(self._jql, "updated >= 0", order="key ASC")
        for issues in self._client.search_pages(jql, ("key",), KEYS_PAGE):
            yield [issue["key"] for issue in issues]

    def _deleted_issues(self, keys: set[str]) -> set[str]:
        """Return which issues are deleted or no longer match the filter, except in projects that may be hidden."""
        sorted_keys, existing, visible_before = sorted(keys), set[str](), self._visible_projects()
        for start in range(0, len(sorted_keys), PAGE):
            batch = sorted_keys[start : start + PAGE]
            found = {issue["key"] for issue in self._client.fetch(batch, ("project",))} & set(batch)
            existing |= self._matching(sorted(found)) if found and self._jql else found
        absent = keys - existing
        if not absent:
            return set()
        # if a project became visible or hidden meanwhile, absent issues of it may only have been hidden
        visible = (visible_before & self._visible_projects()) | self._deleted_projects()
        return {key for key in absent if key.rpartition("-")[0] in visible}

    def _visible_projects(self) -> set[str]:
        """Return the keys of the projects that the account can browse."""
        return {project["key"] for page in self._client.pages("/project/search", "values") for project in page}

    def _matching(self, keys: Sequence[str]) -> set[str]:
        """Return which of these existing issues match the filter."""
        jql = build_jql(self._jql, f"key IN ({', '.join(map(quote, keys))})", order="key ASC")
        return {issue["key"] for page in self._client.search_pages(jql, ("key",), KEYS_PAGE) for issue in page}

    def _deleted_projects(self) -> set[str]:
        """Return the keys of deleted projects, if the account may list them."""
        try:
            pages = list(self._client.pages("/project/search", "values", status="deleted"))
        except ForbiddenError:
            return set()
        return {project["key"] for page in pages for project in page}

    def _cursor(self, updated_ms: int) -> Mapping[str, Any]:
        """Return the cursor at an update time. It has the filter too, so that a change of it reads all issues again."""
        return {"updated": updated_ms, "jql": self._jql}


def issue_row(issue: Json) -> SourceRow:
    """Convert an issue of `search/jql` or `issue/bulkfetch` with `FIELDS`; the row id is its key."""
    columns = _columns(_ISSUE_PATHS, issue["fields"])
    return SourceRow(issue["key"], {"jira_id": issue["id"], "key": issue["key"], **columns})


def comment_row(key: str, comment: Json) -> SourceRow:
    """Convert a comment; the row id is `KEY:ID`.

    Args:
        key: the issue's key.
        comment: the comment in Jira's JSON.
    """
    columns = _columns(_COMMENT_PATHS, comment)
    return SourceRow(f"{key}:{comment['id']}", {"jira_id": comment["id"], "issue_key": key, **columns})


def project_row(project: Json) -> SourceRow:
    """Convert a project; the row id is its key."""
    columns = _columns(_PROJECT_PATHS, project)
    return SourceRow(project["key"], {"jira_id": project["id"], "key": project["key"], **columns})


def to_milliseconds(timestamp: str) -> int:
    """Parse Jira's timestamps (`2026-01-02T03:04:05.678+0100`) to milliseconds since 1970."""
    time = datetime.fromisoformat(timestamp)
    return int(time.timestamp()) * 1000 + time.microsecond // 1000


def _columns(paths: Mapping[str, Sequence[str]], values: Json) -> dict[str, Any]:
    """Return the columns of an object of Jira's API; null where a path leads to nothing.

    Args:
        paths: column → path of its value in `values`.
        values: the object.
    """
    columns = {column: value_at(values, path) for column, path in paths.items()}
    for column in _JSON_COLUMNS & columns.keys():
        columns[column] = None if columns[column] is None else jcs(columns[column])
    return columns

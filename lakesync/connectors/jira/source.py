"""Jira as a source: issues and comments by when issues were updated, projects as a whole, deletes by a census."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.jira.api import KEYS_PAGE, PAGE, JiraClient
from lakesync.connectors.jira.jql import combined, quoted
from lakesync.connectors.jira.rows import FIELDS, comment_row, issue_row, milliseconds, project_row
from lakesync.connectors.probing import Probe, clock_told
from lakesync.connectors.source import Census, Cursor, Page, SourceRow, Table, Usage
from lakesync.connectors.tables import JIRA, JIRA_SWITCHES
from lakesync.model.errors import ConfigurationError, ForbiddenError, NotFoundError

OVERLAP_MS = 120_000
"""How far behind the newest change a poll looks again: Jira's search may find a change a minute after it was made."""

COMMENTS_PAGE = 1_000
"""Comments that are held at once; an issue's own are never divided."""

ISSUES, COMMENTS, PROJECTS = "jira_issues", "jira_comments", "jira_projects"


class JiraSource:
    """A site as one account sees it. Its cursors know for which filter they are: with another they begin again."""

    resumable = True

    def __init__(self, config: ConnectorConfig, **patience: Any) -> None:
        settings = config.settings
        self._client = JiraClient(settings, hosts=config.hosts, **patience)
        self._jql: str | None = settings.get("jql")
        schemas = {schema.table: schema for schema in JIRA}
        self.tables = tuple(
            Table(name, "jira_id", partial(schemas.get, name))
            for name in (PROJECTS, ISSUES, COMMENTS)
            if settings.get(JIRA_SWITCHES.get(name, ""), True)
        )

    @property
    def usage(self) -> Usage:
        """Calls made, and what the site allows yet."""
        return self._client.usage

    def changes(self, table: str, cursor: Cursor | None) -> Iterator[Page]:
        """Issues and comments updated since a cursor; projects always whole."""
        if table == PROJECTS:
            return self._projects()
        place = cursor["updated"] if cursor is not None and cursor["jql"] == self._jql else 0
        return self._issues(place) if table == ISSUES else self._comments(place)

    def census(self, table: str) -> Census | None:
        """The keys of all issues; comments are counted by their issues; projects tell of their deletes themselves."""
        if table == PROJECTS:
            return None
        return Census(None if table == ISSUES else "issue_key", self._keys())

    def read(self, table: str, row_ids: Sequence[str]) -> Iterator[Page]:
        """Issues by key, as they are now, with their comments."""
        for start in range(0, len(row_ids), PAGE):
            issues = self._client.fetch(row_ids[start : start + PAGE], FIELDS)
            yield Page(table, [issue_row(issue) for issue in issues])
            if any(each.name == COMMENTS for each in self.tables):
                yield from self._comments_among(issues)

    def gone(self, table: str, rows: Sequence[SourceRow]) -> set[str]:
        """Those whose issue is deleted, or is outside of the filter.

        An issue of a project that the account may not browse any more is hidden, not gone. An issue that a security
        level hides within a project that it may browse cannot be told from a deleted one.
        """
        if table == COMMENTS:
            gone = self._gone({row.columns["issue_key"] for row in rows})
            return {row.row_id for row in rows if row.columns["issue_key"] in gone}
        return self._gone({row.row_id for row in rows})

    def probes(self) -> Iterator[Probe]:
        """Whether the account may read what the connector polls."""
        yield Probe("credentials", self._signed_in)
        yield Probe("clock", self._clock)
        yield Probe("permissions", self._permitted)
        yield Probe(ISSUES, self._one_page)

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def _signed_in(self) -> str:
        try:
            account = self._client.get("/myself")
        except NotFoundError as error:
            raise ConfigurationError(f"no Jira answers there ({error}): check domain, or baseUrl") from error
        return f"signed in as {account.get('emailAddress', 'an account that hides its address')}"

    def _clock(self) -> str:
        return clock_told(milliseconds(self._client.get("/serverInfo")["serverTime"]), "the site's")

    def _permitted(self) -> str:
        told = self._client.get("/mypermissions", permissions="BROWSE_PROJECTS")["permissions"]
        if not told["BROWSE_PROJECTS"]["havePermission"]:
            raise ForbiddenError(
                "Jira lets this account browse no project: give its role the permission 'Browse projects'"
            )
        return "it may browse projects"

    def _one_page(self) -> str:
        found = self._client.search(combined(self._jql, "updated >= 0", order="updated ASC, key ASC"), FIELDS)["issues"]
        if not found:
            return "no issue is found: check jql, and which projects the account may browse"
        return f"{len(found)} issues on the first page, the first is {found[0]['key']}"

    def _issues(self, place: int) -> Iterator[Page]:
        for issues, newest in self._updated(place, FIELDS):
            yield Page(ISSUES, [issue_row(issue) for issue in issues], self._cursor(newest))

    def _comments(self, place: int) -> Iterator[Page]:
        for issues, newest in self._updated(place, ("updated",)):
            yield from self._comments_among(issues)
            yield Page(COMMENTS, [], self._cursor(newest))

    def _comments_among(self, issues: Sequence[Mapping[str, Any]]) -> Iterator[Page]:
        rows: list[SourceRow] = []
        whole: list[tuple[str, str]] = []
        for issue in issues:
            found = self._comments_of(issue["key"])
            if found is None:
                continue
            rows += found
            whole.append(("issue_key", issue["key"]))
            if len(rows) >= COMMENTS_PAGE:
                yield Page(COMMENTS, rows, whole=whole)
                rows, whole = [], []
        if whole:
            yield Page(COMMENTS, rows, whole=whole)

    def _comments_of(self, key: str) -> list[SourceRow] | None:
        """An issue's comments; None where it has gone since it was found."""
        try:
            pages = list(self._client.pages(f"/issue/{key}/comment", "comments", orderBy="created"))
        except NotFoundError:
            return None
        return [comment_row(key, comment) for page in pages for comment in page]

    def _projects(self) -> Iterator[Page]:
        for page in self._client.pages("/project/search", "values", expand="lead", status="live,archived"):
            yield Page(PROJECTS, [project_row(project) for project in page], {})
        trash = sorted(self._trash())
        if trash:
            yield Page(PROJECTS, [], {}, deleted=trash)

    def _updated(self, place: int, fields: Sequence[str]) -> Iterator[tuple[list[dict[str, Any]], int]]:
        """Issues that were updated since a place, oldest first, with the newest time so far; `updated` is a field.

        Each page begins at the last time of the one before, rather than at its token: a token counts places in a
        result that changes while it is read. Only issues of one and the same time are paged by token. No time of this
        machine's clock is in it.
        """
        at, newest, token = max(place - OVERLAP_MS, 0), place, None
        told: set[tuple[str, str]] = set()
        while True:
            jql = combined(self._jql, f"updated >= {at}", order="updated ASC, key ASC")
            page = self._client.search(jql, fields, token=token)
            issues: list[dict[str, Any]] = page["issues"]
            last = max((milliseconds(issue["fields"]["updated"]) for issue in issues), default=at)
            newest = max(newest, last)
            versions = {(issue["id"], issue["fields"]["updated"]) for issue in issues}
            yield [issue for issue in issues if (issue["id"], issue["fields"]["updated"]) not in told], newest
            if (following := page.get("nextPageToken")) is None:
                return
            token = following if last == at else None
            at, told = last, versions

    def _keys(self) -> Iterator[Sequence[str]]:
        jql = combined(self._jql, "updated >= 0", order="key ASC")
        for issues in self._client.searched(jql, ("key",), KEYS_PAGE):
            yield [issue["key"] for issue in issues]

    def _gone(self, keys: set[str]) -> set[str]:
        known, there, before = sorted(keys), set[str](), self._shown()
        for start in range(0, len(known), PAGE):
            piece = known[start : start + PAGE]
            found = {issue["key"] for issue in self._client.fetch(piece, ("project",))} & set(piece)
            there |= self._matching(sorted(found)) if found and self._jql else found
        absent = keys - there
        if not absent:
            return set()
        # a project that was shown or hidden meanwhile says nothing of its issues
        shown = (before & self._shown()) | self._trash()
        return {key for key in absent if key.rpartition("-")[0] in shown}

    def _shown(self) -> set[str]:
        """The keys of the projects that the account may browse now."""
        return {project["key"] for page in self._client.pages("/project/search", "values") for project in page}

    def _matching(self, keys: Sequence[str]) -> set[str]:
        """Which of these issues, which are there, are in the filter."""
        jql = combined(self._jql, f"key IN ({', '.join(map(quoted, keys))})", order="key ASC")
        return {issue["key"] for issue in self._client.search(jql, ("key",), KEYS_PAGE)["issues"]}

    def _trash(self) -> set[str]:
        """The keys of deleted projects, as far as the account may know of them."""
        try:
            pages = list(self._client.pages("/project/search", "values", status="deleted"))
        except ForbiddenError:
            return set()
        return {project["key"] for page in pages for project in page}

    def _cursor(self, updated: int) -> Mapping[str, Any]:
        return {"updated": updated, "jql": self._jql}

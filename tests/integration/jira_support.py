"""A Jira site that listens, and what a poll of it should end in."""

from __future__ import annotations

from contextlib import contextmanager

from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.jira.rows import comment_row
from lakesync.connectors.jira.source import JiraSource
from lakesync.connectors.polling import poll
from lakesync.testing.clock import ManualClock
from lakesync.testing.landing import MemoryLanding
from lakesync.testing.servers import serving
from lakesync.testing.servers.jira import JiraApi, JiraSite


def document(text):
    """A text as Atlassian's document format."""
    return {
        "type": "doc",
        "version": 1,
        "content": [{"type": "paragraph", "content": [{"type": "text", "text": text}]}],
    }


class Desk:
    """A site with a clock by hand, a connector to it, and where its pages land."""

    def __init__(self, **site):
        self.clock = ManualClock()
        self.site = JiraSite(self.clock, **site)
        self.api = JiraApi(self.site)
        self.landing = None
        self.url = ""
        self.served = None

    def config(self, **settings):
        return ConnectorConfig(
            "gw",
            "desk",
            "jira",
            {
                "domain": "acme",
                "baseUrl": self.url,
                "email": self.api.email,
                "apiToken": self.api.token,
                **settings,
            },
        )

    @contextmanager
    def source(self, **settings):
        source = JiraSource(self.config(**settings), attempts=3, patience_s=1.5)
        try:
            yield source
        finally:
            source.close()

    def poll(self, *, census=False, settings=None, **arguments):
        with self.source(**(settings or {})) as source:
            self.landing = self.landing or MemoryLanding(source.tables)
            return poll(source, self.landing, census=census, **arguments)

    def ids(self, table="jira_issues"):
        return set(self.landing.rows[table])

    def expected(self):
        """Row ids and versions of what the account may see."""
        issues = {each.key: each for each in self.site.issues.values() if self.site.sees(each)}
        comments = {
            row.row_id: row.columns["body"]
            for issue in issues.values()
            for each in issue.comments
            for row in [comment_row(issue.key, {"id": each.id, "body": each.body})]
        }
        return {key: each.fields["summary"] for key, each in issues.items()}, comments

    def seen(self):
        """The same of what landed."""
        rows = self.landing.rows
        return (
            {row_id: row["summary"] for row_id, row in rows["jira_issues"].items()},
            {row_id: row["body"] for row_id, row in rows["jira_comments"].items()},
        )


@contextmanager
def desk(**site):
    """A desk that listens."""
    made = Desk(**site)
    with serving(made.api) as served:
        made.served, made.url = served, served.url
        yield made

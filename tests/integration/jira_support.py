"""A Jira site that listens, and what a poll of it should end in."""

from __future__ import annotations

from lakesync.connectors.jira.rows import comment_row
from lakesync.connectors.jira.source import JiraSource
from lakesync.testing.clock import ManualClock
from lakesync.testing.servers.jira import JiraApi, JiraSite
from tests.integration.vendor_support import Vendor


def document(text):
    """A text as Atlassian's document format."""
    return {
        "type": "doc",
        "version": 1,
        "content": [{"type": "paragraph", "content": [{"type": "text", "text": text}]}],
    }


class Desk(Vendor):
    """A site and a connector to it."""

    name, kind, make_source = "desk", "jira", JiraSource

    def __init__(self, **site):
        clock = ManualClock()
        self.site = JiraSite(clock, **site)
        super().__init__(clock, JiraApi(self.site))

    def settings(self):
        return {"domain": "acme", "baseUrl": self.url, "email": self.api.email, "apiToken": self.api.token}

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


def desk(**site):
    """A desk that listens."""
    return Desk(**site).listening()

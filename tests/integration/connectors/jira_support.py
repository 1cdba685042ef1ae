"""A Jira site on a local server, and the expected result of polling it."""

from __future__ import annotations

from lakesync.connectors.jira.source import JiraSource, comment_row
from lakesync.testing import ManualClock
from lakesync.testing.servers import Response
from lakesync.testing.servers.jira import JiraApi, JiraSite
from tests.integration.connectors.vendor_support import Vendor


def document(text):
    """A text in Atlassian's document format."""
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
        """The ids and versions of the rows that the account may see."""
        issues = {each.key: each for each in self.site.issues.values() if self.site.sees(each)}
        comments = {
            row.row_id: row.columns["body"]
            for issue in issues.values()
            for each in issue.comments
            for row in [comment_row(issue.key, {"id": each.id, "body": each.body})]
        }
        return {key: each.fields["summary"] for key, each in issues.items()}, comments

    def seen(self):
        """The ids and versions of the landed rows."""
        rows = self.landing.rows
        return (
            {row_id: row["summary"] for row_id, row in rows["jira_issues"].items()},
            {row_id: row["body"] for row_id, row in rows["jira_comments"].items()},
        )


def desk(**site):
    """A desk on a local server."""
    return Desk(**site).listening()


def shake(desk, chance):
    """Make one random change of the site."""
    site = desk.site
    issues = list(site.issues.values())
    desk.clock.advance(chance.randrange(0, 30_000))
    kind = chance.randrange(9)
    if kind < 3 or not issues:
        site.add_issue(chance.choice(["SUP", "OPS"]), f"v{chance.random()}")
        return
    issue = chance.choice(issues)
    match kind:
        case 3 | 4:
            site.edit(issue, summary=f"v{chance.random()}")
        case 5:
            site.add_comment(issue, document(f"v{chance.random()}"))
        case 6 if issue.comments:
            comment = chance.choice(issue.comments)
            if chance.random() < 0.5:
                site.delete_comment(issue, comment)
            else:
                site.edit_comment(issue, comment, document("edited"))
        case 7:
            site.delete(issue)
        case 8:
            site.move(issue, "OPS" if issue.project == "SUP" else "SUP")


class Moving:
    """The site's API, with changes between calls and occasional failures."""

    def __init__(self, desk, chance, changes):
        """Args: changes: earlier changes, of two projects."""
        self.desk, self.chance, self.answer_of = desk, chance, desk.api.respond
        for project in ("SUP", "OPS"):
            desk.site.add_project(project)
        for _ in range(changes):
            shake(desk, chance)
        desk.api.page_limit, desk.api.respond = 7, self
        self.calls, self.toggled = 0, -20
        self.missed = set()
        """Issues of a hidden project; only their next change reveals changes during that time."""

    def __call__(self, request):
        site = self.desk.site
        self.calls += 1
        for _ in range(self.chance.choice([0, 0, 1, 3])):
            shake(self.desk, self.chance)
            if site.index_lag_ms and site.issues and self.chance.random() < 0.2:
                # the search returns it before older changes of others
                site.index(self.chance.choice(list(site.issues.values())))
        match self.chance.randrange(40):
            case 0:
                return Response(503, "down", {"Retry-After": "0"})
            case 1:
                return Response(429, None, {"Retry-After": "0"})
            case 2 if self.calls >= self.toggled + 20:  # not hidden and shown again between two calls of one search
                self.toggled = self.calls
                self.hide(hidden=not site.projects["OPS"].hidden)
            case 3:
                self.desk.api.token_ms = self.chance.choice([-1, 600_000])
            case 4:
                self.desk.api.null_token = not self.desk.api.null_token
        return self.answer_of(request)

    def hide(self, *, hidden):
        """Hide the project OPS, or show it."""
        site = self.desk.site
        if site.projects["OPS"].hidden != hidden:
            self.missed |= {issue.id for issue in site.issues.values() if issue.project == "OPS"}
        site.projects["OPS"].hidden = hidden

    def rest(self):
        """Stop the random changes; change again each object whose change was missed because it was hidden."""
        site = self.desk.site
        self.desk.api.respond, self.desk.api.token_ms = self.answer_of, 600_000
        self.hide(hidden=False)
        self.desk.clock.advance(site.index_lag_ms + 1)
        for issue in self.missed & site.issues.keys():
            site.edit(site.issues[issue], labels=["last"])
        self.desk.clock.advance(site.index_lag_ms + 1)

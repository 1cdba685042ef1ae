"""Jira polled over HTTP: changed records arrive, deleted ones are deleted, and hidden ones remain."""

from __future__ import annotations

import pytest
import stamina

from lakesync.model.errors import (
    AdapterError,
    AuthError,
    CensusError,
    ConfigurationError,
    ForbiddenError,
    RateLimitedError,
)
from lakesync.testing.servers import Response
from lakesync.testing.servers.jira.site import error_body
from tests.integration.connectors.jira_support import desk, document


@pytest.fixture
def acme():
    with desk() as made:
        made.site.add_project("SUP")
        made.site.add_project("OPS", lead="Grace")
        yield made


def test_the_first_poll_lands_all_records(acme):
    issue = acme.site.add_issue(
        "SUP", "It broke", description=document("badly"), assignee="Grace", reporter="Ada", labels=["a", "b"]
    )
    comment = acme.site.add_comment(issue, document("really?"), "Grace")
    assert acme.poll().error is None
    rows = acme.landing.rows
    assert rows["jira_issues"] == {
        "SUP-1": {
            "jira_id": issue.id,
            "key": "SUP-1",
            "summary": "It broke",
            "description": (
                '{"content":[{"content":[{"text":"badly","type":"text"}],"type":"paragraph"}],"type":"doc","version":1}'
            ),
            "status": "To Do",
            "priority": "Medium",
            "issue_type": "Task",
            "assignee_name": "Grace",
            "assignee_email": "grace@example.com",
            "reporter_name": "Ada",
            "reporter_email": "ada@example.com",
            "labels": '["a","b"]',
            "project_key": "SUP",
            "project_name": "Project SUP",
            "created": "2023-11-14T22:13:20.000+0000",
            "updated": "2023-11-14T22:13:20.000+0000",
        }
    }
    (row,) = rows["jira_comments"].items()
    assert row[0] == f"SUP-1:{comment.id}"
    assert (row[1]["issue_key"], row[1]["author_name"]) == ("SUP-1", "Grace")
    assert rows["jira_projects"]["OPS"]["lead_name"] == "Grace"


def test_a_second_poll_without_changes_changes_nothing(acme):
    for number in range(5):
        acme.site.add_issue("SUP", f"Issue {number}")
    acme.poll()
    before = len(acme.landing.changes)
    report = acme.poll()
    assert report.tables[1].rows == 5, "the overlap is read again"
    assert len(acme.landing.changes) == before


@pytest.mark.parametrize("null_token", [False, True])
def test_a_thousand_issues_with_the_same_update_time_all_arrive(acme, null_token):
    acme.api.null_token = null_token
    for number in range(1_050):
        acme.site.add_issue("SUP", f"Issue {number}")
    assert acme.poll(census=True, settings={"includeComments": False}).error is None
    assert len(acme.ids()) == 1_050


def test_issues_that_change_during_a_search_are_not_missed(acme):
    issues = []
    for number in range(350):
        acme.clock.advance(1_000)
        issues.append(acme.site.add_issue("SUP", f"Issue {number}"))
    acme.clock.advance(10_000)
    with acme.source(includeComments=False) as source:
        keys = set()
        for number, page in enumerate(source.changes("jira_issues", None)):
            keys |= {row.row_id for row in page.rows}
            for issue in issues[number * 100 : number * 100 + 60]:
                # removes rows from the result before the position of a token
                acme.site.edit(issue, summary="again")
    assert keys == {issue.key for issue in issues}


def test_a_change_that_the_search_finds_late_is_not_missed():
    with desk(index_lag_ms=60_000) as late:
        late.site.add_project("SUP")
        first = late.site.add_issue("SUP", "first")
        late.clock.advance(60_000)
        late.poll()
        late.site.edit(first, summary="changed, not yet found")
        late.clock.advance(59_000)
        quick = late.site.add_issue("SUP", "second")
        late.site.index(quick)  # returned before the older change
        late.poll()
        assert late.seen()[0] == {"SUP-1": "first", "SUP-2": "second"}
        late.clock.advance(2_000)
        late.poll()
        assert late.seen()[0]["SUP-1"] == "changed, not yet found"


def test_times_in_the_accounts_time_zone_are_compared_as_instants():
    with desk(utc_offset_minutes=-330) as far:
        far.site.add_project("SUP")
        far.site.add_issue("SUP", "one")
        far.poll()
        far.clock.advance(3_600_000)
        far.site.add_issue("SUP", "two")
        far.poll()
        assert far.poll().tables[1].rows == 1, "the first is outside the overlap"
        assert far.landing.rows["jira_issues"]["SUP-2"]["updated"].endswith("-0530")


def test_comments_follow_their_issue(acme):
    issue = acme.site.add_issue("SUP", "one")
    kept, dropped = (acme.site.add_comment(issue, document(text)) for text in ("stays", "goes"))
    acme.poll()
    acme.clock.advance(1_000)
    acme.site.delete_comment(issue, dropped)
    acme.poll()
    assert acme.ids("jira_comments") == {f"SUP-1:{kept.id}"}
    acme.site.move(issue, "OPS")
    acme.poll()
    assert acme.ids("jira_comments") == {f"OPS-1:{kept.id}"}
    assert acme.ids() == {"OPS-1"}


def test_many_comments_are_paged(acme):
    issue = acme.site.add_issue("SUP", "busy")
    for number in range(230):
        acme.site.add_comment(issue, document(str(number)))
    acme.poll()
    assert len(acme.ids("jira_comments")) == 230


def test_many_projects_are_paged(acme):
    for number in range(130):
        acme.site.add_project(f"P{number}")
    assert acme.poll().error is None
    assert acme.ids("jira_projects") == acme.site.projects.keys()


def test_a_census_finds_deleted_records(acme):
    issues = [acme.site.add_issue("SUP", str(number)) for number in range(30)]
    acme.site.add_comment(issues[0], document("gone with it"))
    acme.poll()
    acme.site.delete(issues[0])
    acme.poll()
    assert "SUP-1" in acme.ids(), "the search does not report a delete"
    report = acme.poll(census=True)
    assert report.error is None
    assert len(acme.ids()) == 29
    assert acme.ids("jira_comments") == set()


def test_issues_hidden_from_the_account_are_not_deleted(acme):
    for number in range(3):
        acme.site.add_issue("SUP", str(number))
        acme.site.add_issue("OPS", str(number))
    acme.poll()
    acme.site.projects["OPS"].hidden = True
    acme.poll(census=True)
    assert len(acme.ids()) == 6
    acme.site.projects["OPS"].hidden = False
    acme.site.delete_project("OPS")
    acme.poll(census=True)
    assert acme.ids() == {"SUP-1", "SUP-2", "SUP-3"}
    assert acme.ids("jira_projects") == {"SUP"}


@pytest.mark.parametrize("hidden", [True, False])
def test_issues_hidden_or_shown_during_a_census_are_not_deleted(acme, hidden):
    acme.site.add_issue("OPS", "one")
    acme.poll(settings={"includeComments": False})
    ops, answer = acme.site.projects["OPS"], acme.api.respond
    ops.hidden = not hidden

    def changing(request):
        if request.path.endswith("/bulkfetch") and hidden:
            ops.hidden = True
        done = answer(request)
        if request.path.endswith("/bulkfetch") and not hidden:
            ops.hidden = False
        return done

    if hidden:
        acme.site.unindex(next(iter(acme.site.issues.values())))
    acme.api.respond = changing
    acme.poll(census=True, settings={"includeComments": False})
    assert acme.ids() == {"OPS-1"}


def test_an_issue_that_leaves_the_filter_is_deleted(acme):
    done = acme.site.add_issue("SUP", "finished")
    acme.site.add_issue("SUP", "open")
    only = {"jql": 'status != "Done" ORDER BY created DESC'}
    acme.poll(settings=only)
    acme.site.edit(done, status="Done")
    acme.poll(settings=only, census=True)
    assert acme.ids() == {"SUP-2"}


def test_a_census_of_a_lagging_index_deletes_nothing():
    with desk(index_lag_ms=60_000) as late:
        late.site.add_project("SUP")
        issue = late.site.add_issue("SUP", "one")
        late.clock.advance(60_000)
        late.poll()
        late.site.unindex(issue)
        late.poll(census=True)
        assert late.ids() == {"SUP-1"}


def test_a_census_finds_changes_without_an_update_time(acme):
    secret = acme.site.add_issue("SUP", "secret")
    acme.site.add_comment(secret, document("psst"))
    secret.hidden = True
    acme.clock.advance(10_000_000)
    acme.site.add_issue("SUP", "open")
    acme.poll(census=True)
    assert acme.ids() == {"SUP-2"}
    secret.hidden = False
    acme.poll()
    assert acme.ids() == {"SUP-2"}, "it did not change"
    acme.poll(census=True)
    assert acme.ids() == {"SUP-1", "SUP-2"}
    assert len(acme.ids("jira_comments")) == 1


def test_a_census_that_would_delete_too_much_is_an_error(acme):
    for number in range(60):
        acme.site.add_issue("SUP", str(number))
    acme.poll(settings={"includeComments": False})
    for issue in list(acme.site.issues.values())[:40]:
        acme.site.delete(issue)
    report = acme.poll(census=True, settings={"includeComments": False})
    assert isinstance(report.error, CensusError)
    assert "40 of 60 rows" in str(report.error)
    assert len(acme.ids()) == 60
    assert acme.poll(census=True, deleted_share=1.0, settings={"includeComments": False}).error is None
    assert len(acme.ids()) == 20


def test_a_changed_filter_restarts_the_polls(acme):
    acme.site.add_issue("SUP", "one")
    acme.clock.advance(10_000_000)
    acme.site.add_issue("OPS", "two")
    acme.poll(settings={"jql": "project = OPS"})
    assert acme.ids() == {"OPS-1"}
    acme.poll(settings={"jql": "project = SUP or project = OPS"})
    assert acme.ids() == {"OPS-1", "SUP-1"}


def test_an_or_in_the_users_filter_does_not_bypass_the_cursor(acme):
    acme.site.add_issue("SUP", "old")
    acme.clock.advance(10_000_000)
    acme.site.add_issue("OPS", "new")
    settings = {"jql": "project = OPS OR project = SUP"}
    acme.poll(settings=settings)
    assert acme.poll(settings=settings).tables[1].rows == 1


@pytest.mark.parametrize("jql", ["project = SUP) OR (project = OPS", "(project = SUP", 'project = "SUP'])
def test_a_filter_that_escapes_its_condition_is_rejected(acme, jql):
    error = acme.poll(settings={"jql": jql}).error
    assert isinstance(error, ConfigurationError)
    assert jql in str(error)


def test_a_filter_that_jira_rejects_is_reported_with_its_message(acme):
    error = acme.poll(settings={"jql": "sprint = 4"}).error
    assert isinstance(error, ConfigurationError)
    assert "Field 'sprint' does not exist" in str(error)


def test_a_wrong_token_is_an_auth_error(acme):
    report = acme.poll(settings={"apiToken": "wrong"})
    assert [type(table.error) for table in report.tables] == [AuthError] * 3
    assert "wrong" not in str(report.error)


def test_a_failing_table_does_not_stop_the_others(acme):
    acme.site.add_issue("SUP", "one")
    acme.api.forbidden.add(r"/rest/api/3/issue/[^/]+/comment")
    report = acme.poll()
    assert {table.table: type(table.error) for table in report.tables} == {
        "jira_projects": type(None),
        "jira_issues": type(None),
        "jira_comments": ForbiddenError,
    }
    assert acme.ids() == {"SUP-1"}


def test_transient_errors_are_retried(acme):
    acme.site.add_issue("SUP", "one")
    acme.api.failures.extend([Response(503, "down"), Response(0), Response(429, None, {"Retry-After": "0"})])
    assert acme.poll().error is None
    assert acme.ids() == {"SUP-1"}
    assert 503 in {status for _, _, status in acme.served.calls}


def test_a_long_rate_limit_is_reported_with_its_delay(acme):
    acme.site.add_issue("SUP", "one")
    acme.api.limits.requests = 1
    report = acme.poll()
    error = report.error
    assert isinstance(error, RateLimitedError)
    assert error.retry_after == 60
    assert report.usage.left == 0
    assert acme.ids("jira_projects") == {"OPS", "SUP"}, "pages that were read before remain"


def test_an_expired_page_token_ends_a_poll_and_the_next_continues(acme):
    for number in range(250):
        acme.site.add_issue("SUP", f"Issue {number}")  # all have one update time, so they are paged by token
    acme.api.token_ms = -1
    report = acme.poll()
    assert isinstance(report.error, AdapterError)
    assert "lost its position" in str(report.error)
    assert len(acme.ids()) == 100, "the page before it remains"
    assert [status for _, _, status in acme.served.calls].count(400) == 2, "once for issues and once for comments"
    acme.api.token_ms = 600_000
    assert acme.poll().error is None
    assert len(acme.ids()) == 250


def test_removed_and_forbidden_routes_are_reported(acme):
    acme.api.failures.append(Response(410, error_body("The requested API has been removed.")))
    error = acme.poll().error
    assert isinstance(error, ConfigurationError)
    assert "too old for the site" in str(error)
    acme.api.failures.append(Response(403, error_body("Forbidden")))
    assert isinstance(acme.poll().error, ForbiddenError)


def test_a_site_that_stays_down_is_reported(acme):
    acme.api.failures.extend([Response(502, "bad gateway")] * 99)
    with stamina.set_testing(True, attempts=3, cap=True):  # without the pauses
        error = acme.poll().error
    assert isinstance(error, AdapterError)
    assert error.retryable


def test_an_address_without_a_jira_site_is_reported(acme):
    acme.api.failures.extend([Response(200, "<html>hello</html>")] * 9)
    assert "is this the address of a Jira site?" in str(acme.poll().error)


def test_pages_are_landed_by_the_budget(acme):
    for number in range(500):
        acme.site.add_issue("SUP", f"Issue {number} {'x' * 1_000}")
    settings = {"includeComments": False}
    report = acme.poll(budget_bytes=200_000, settings=settings)
    assert report.tables[1].landings >= 3
    assert len(acme.ids()) == 500

"""Salesforce polled over HTTP: changed records arrive, deleted ones are deleted, and hidden ones remain."""

from __future__ import annotations

import pytest
import stamina

from lakesync.connectors.salesforce.api import login_url
from lakesync.model.errors import (
    AdapterError,
    AuthError,
    ConfigurationError,
    ForbiddenError,
    RateLimitedError,
)
from lakesync.testing.servers import Response
from tests.integration.connectors.salesforce_support import ACCOUNTS_ALONE, company


@pytest.fixture
def acme():
    with company() as made:
        yield made


def test_the_first_poll_lands_all_records(acme):
    account = acme.org.add("Account", Name="Acme", AnnualRevenue=1_000_000.0, NumberOfEmployees=12, BillingCity="Rome")
    acme.org.add("Contact", LastName="Hopper", FirstName="Grace", AccountId=account.id)
    acme.org.add(
        "Opportunity", Name="Ship", StageName="Open", CloseDate="2026-12-01", Amount=10.5, AccountId=account.id
    )
    acme.org.add("Lead", LastName="Byron", Company="Engines")
    assert acme.poll().error is None
    rows = acme.landing.rows
    assert rows["sf_accounts"][account.id] == {
        "sf_id": account.id,
        "name": "Acme",
        "type": None,
        "industry": None,
        "website": None,
        "phone": None,
        "billing_city": "Rome",
        "billing_state": None,
        "billing_country": None,
        "annual_revenue": "1000000",
        "number_of_employees": "12",
        "owner_name": "Ada",
        "created_date": "2023-11-14T22:13:20.000+0000",
        "last_modified_date": "2023-11-14T22:13:20.000+0000",
    }
    (contact,) = rows["sf_contacts"].values()
    assert (contact["account_id"], contact["account_name"]) == (account.id, "Acme")
    (deal,) = rows["sf_opportunities"].values()
    assert (deal["amount"], deal["is_closed"], deal["close_date"]) == ("10.5", "false", "2026-12-01")
    (lead,) = rows["sf_leads"].values()
    assert (lead["company"], lead["is_converted"]) == ("Engines", "false")


def test_a_second_poll_without_changes_changes_nothing(acme):
    acme.org.add("Account", Name="Acme")
    acme.poll()
    before = len(acme.landing.changes)
    assert acme.poll().tables[0].rows == 1, "the overlap is read again"
    assert len(acme.landing.changes) == before


def test_deletes_and_restores_are_polled_with_the_changes(acme):
    records = [acme.org.add("Account", Name=str(number)) for number in range(4)]
    acme.poll()
    acme.clock.advance(1_000)
    acme.org.delete(records[0])
    acme.org.edit(records[1], Name="again")
    report = acme.poll()
    assert report.tables[0].deleted == 1
    assert acme.seen() == acme.expected()
    acme.org.restore(records[0])
    acme.poll()
    assert acme.seen() == acme.expected()


def test_a_census_finds_permanently_deleted_records_and_keeps_hidden_ones(acme):
    purged, hidden, kept = (acme.org.add("Account", Name=name) for name in ("purged", "hidden", "kept"))
    acme.poll()
    acme.clock.advance(10_000_000)
    acme.org.purge(purged)
    hidden.hidden = True
    acme.poll()
    assert len(acme.ids()) == 3
    assert acme.poll(census=True).error is None
    assert acme.ids() == {hidden.id, kept.id}


def test_a_record_that_leaves_the_filter_is_deleted(acme):
    record = acme.org.add("Account", Name="Acme", Type="Customer")
    settings = {**ACCOUNTS_ALONE, "soqlFilter": "Type = 'Customer' OR Type = 'Partner'"}
    acme.poll(settings=settings)
    acme.clock.advance(10_000_000)
    acme.org.edit(record, Type="Former")
    acme.org.add("Account", Name="New", Type="Partner")
    acme.poll(settings=settings, census=True)
    assert acme.seen().keys() == acme.expected().keys() - {record.id}


def test_a_record_hidden_during_a_filter_query_is_not_deleted(acme):
    record = acme.org.add("Account", Name="Acme", Type="Customer")
    settings = {**ACCOUNTS_ALONE, "soqlFilter": "Type = 'Customer'"}
    acme.poll(settings=settings)
    record.fields["Type"] = "Former"  # no change record names it, and it is back before the second query
    answer = acme.api.respond

    def changing(request):
        if "Id IN" in request.query.get("q", "") and "Type" in request.query["q"]:
            record.hidden, record.fields["Type"] = True, "Customer"
        return answer(request)

    acme.api.respond = changing
    acme.poll(settings=settings, census=True)
    assert acme.ids() == {record.id}


def test_a_census_finds_a_record_without_a_change_event(acme):
    record = acme.org.add("Account", Name="shared late")
    record.hidden = True
    acme.clock.advance(10_000_000)
    acme.org.add("Account", Name="new")
    acme.poll()
    record.hidden = False
    acme.poll(census=True)
    assert record.id in acme.ids()


def test_all_pages_of_a_query_are_read(acme):
    acme.api.batch = 7
    for number in range(40):
        acme.org.add("Account", Name=str(number))
    acme.poll()
    assert acme.seen() == acme.expected()


def test_an_expired_query_result_is_requested_again(acme):
    acme.api.batch = 5
    for number in range(12):
        acme.clock.advance(1_000_000)
        acme.org.add("Account", Name=str(number))
    with acme.source(**ACCOUNTS_ALONE) as source:
        pages = source.changes("sf_accounts", None)
        found = {row.row_id for row in next(pages).rows}
        acme.api.results.clear()
        found |= {row.row_id for page in pages for row in page.rows}
    assert found == acme.expected().keys()


def test_a_large_first_load_is_a_bulk_job_with_the_same_rows(acme, monkeypatch):
    monkeypatch.setattr("lakesync.connectors.salesforce.source.ROWS_PER_PAGE", 4)
    for number in range(30):
        acme.org.add("Account", Name=f'He said "{number}",\nthen left', AnnualRevenue=number * 1.5, Phone="")
    acme.poll()
    by_queries = acme.landing.rows["sf_accounts"]
    acme.landing, acme.bulk_rows = None, 10
    acme.clock.advance(1_000_000)  # else the same poll reads the rows of the job again, as changed recently
    assert acme.poll().error is None
    assert acme.landing.rows["sf_accounts"] == by_queries
    assert any("/jobs/query/" in path and path.endswith("/results") for _, path, _ in acme.served.calls)
    before = len(acme.landing.changes)
    acme.poll()
    assert len(acme.landing.changes) == before


def test_a_killed_poll_continues_its_bulk_job(acme, monkeypatch):
    monkeypatch.setattr("lakesync.connectors.salesforce.api.RECORDS_PER_PAGE", 10)
    acme.bulk_rows = 10
    for number in range(35):
        acme.org.add("Account", Name=str(number))
    with acme.source(**ACCOUNTS_ALONE) as source:
        acme.poll(settings=ACCOUNTS_ALONE | {"soqlFilter": "Name = 'nobody'"})
        for number, page in enumerate(source.changes("sf_accounts", None)):
            acme.landing.land([page])
            if number == 2:
                break
    jobs = len(acme.api.jobs)
    acme.org.add("Account", Name="meanwhile")
    acme.poll(settings=ACCOUNTS_ALONE)
    assert acme.seen() == acme.expected()
    pieces = [path for method, path, _ in acme.served.calls if method == "GET" and path.endswith("/results")]
    assert len(pieces) == 4, "no piece is read twice"
    assert jobs == 1


def test_an_expired_bulk_job_is_reported_and_the_next_poll_creates_another(acme):
    acme.bulk_rows = 10
    for number in range(35):
        acme.org.add("Account", Name=str(number))
    acme.api.failing_jobs = 2
    for _ in range(2):
        error = acme.poll(settings=ACCOUNTS_ALONE).error
        assert isinstance(error, AdapterError)
        assert "is Failed (InternalServerError : The query was too complicated.)" in str(error)
    with acme.source(**ACCOUNTS_ALONE) as source:
        acme.landing.land([next(source.changes("sf_accounts", None))])  # a bulk job was created before a kill
    newer = ACCOUNTS_ALONE | {"apiVersion": "v63.0"}
    assert acme.poll(settings=newer).error is None, (
        "Salesforce returns a job's result only to calls of the job's API version"
    )
    assert acme.seen() == acme.expected()


def test_a_session_that_ends_is_renewed_once(acme):
    acme.org.add("Account", Name="Acme")
    with acme.source() as source:
        assert list(source.changes("sf_accounts", None))
        acme.api.sessions.clear()
        assert list(source.changes("sf_contacts", None))
    assert [path for _, path, _ in acme.served.calls].count("/services/oauth2/token") == 2


def test_the_older_flow_signs_in_with_a_user(acme):
    acme.org.add("Account", Name="Acme")
    user = {"username": acme.api.username, "loginUrl": acme.url}
    assert acme.poll(settings={**user, "password": acme.api.password}).error is None
    refused = acme.poll(settings={**user, "password": "wrong"}).error
    assert isinstance(refused, AuthError)
    assert "invalid_grant" in str(refused)
    assert "wrong" not in str(refused)


@pytest.mark.parametrize(
    ("settings", "login"),
    [
        ({}, "https://acme.my.salesforce.com"),
        ({"username": "ada"}, "https://login.salesforce.com"),
        ({"username": "ada", "isSandbox": True}, "https://test.salesforce.com"),
        ({"username": "ada", "isSandbox": True, "loginUrl": "https://sso.acme.com"}, "https://sso.acme.com"),
    ],
)
def test_users_log_in_at_the_sandbox_and_apps_at_their_organisation(settings, login):
    assert login_url({"instanceUrl": "https://acme.my.salesforce.com", **settings}) == login


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"clientId": "x"}, AuthError, "clientId"),
        ({"clientSecret": "x"}, AuthError, "clientSecret"),
        ({"soqlFilter": "Nonsense = 1"}, ConfigurationError, "INVALID_FIELD"),
        ({"soqlFilter": "Name ~ 1"}, ConfigurationError, "MALFORMED_QUERY"),
        ({"soqlFilter": "Name = 'a') OR (Name = 'b'"}, ConfigurationError, "parenthesis"),
        ({"soqlFilter": "Name = 'a"}, ConfigurationError, "quotation mark"),
    ],
)
def test_errors_that_need_an_operator_say_what_to_do(acme, settings, error, words):
    try:
        found = acme.poll(settings=settings).error
    except ConfigurationError as raised:
        found = raised
    assert isinstance(found, error)
    assert words in str(found)


def test_an_unreadable_object_does_not_stop_the_others(acme):
    acme.org.add("Account", Name="Acme")
    acme.api.no_access.add("Lead")
    report = acme.poll(census=True)
    assert {table.table: type(table.error) for table in report.tables if table.error} == {"sf_leads": ForbiddenError}
    assert len(acme.ids()) == 1


def test_the_daily_limit_is_reported_and_respected(acme):
    acme.api.daily_limit = 100
    acme.org.add("Account", Name="Acme")
    report = acme.poll()
    assert report.usage.limit == 100
    assert report.usage.left == 100 - acme.api.used
    acme.api.used = 96
    report = acme.poll()
    assert isinstance(report.error, RateLimitedError)
    assert acme.api.used == 97, "the other requests are left to other users"
    acme.api.used = 100
    assert "REQUEST_LIMIT_EXCEEDED" in str(acme.poll().error)


def test_transient_errors_are_retried(acme):
    acme.org.add("Account", Name="Acme")
    busy = Response(503, [{"message": "busy", "errorCode": "SERVER_UNAVAILABLE"}])
    acme.api.failures.extend([Response(0), busy, Response(0), busy])
    with stamina.set_testing(True, attempts=3, cap=True):  # without the pauses
        assert acme.poll().error is None
        acme.api.failures.extend([Response(500, "<html>oops</html>")] * 99)
        assert isinstance(acme.poll().error, AdapterError)

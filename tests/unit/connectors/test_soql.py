"""The fake Salesforce organisation evaluates queries like Salesforce, and rejects what Salesforce rejects."""

from __future__ import annotations

import pytest

from lakesync.testing import ManualClock
from lakesync.testing.servers import Request
from lakesync.testing.servers.salesforce import SalesforceApi
from lakesync.testing.servers.salesforce.org import SalesforceOrg
from lakesync.testing.servers.salesforce.soql import SoqlError, parse

FIRST, SECOND = "2024-01-01T00:00:00Z", "2024-01-02T01:00:00+01:00"


@pytest.fixture
def org():
    times = iter((1_704_067_200_000, 1_704_153_600_000))
    made = SalesforceOrg(lambda: next(times))
    made.add("Account", Name="Acme")
    made.add("Account", Name="Bolt", Industry="Steel")
    return made


def names(org, where):
    query = parse(f"SELECT Name FROM Account WHERE {where}", org)
    return [record.fields["Name"] for record in query.select(org, deleted=False)]


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (f"CreatedDate = {FIRST}", ["Acme"]),
        (f"CreatedDate IN ({FIRST})", ["Acme"]),
        (f"CreatedDate IN ({FIRST}, {SECOND})", ["Acme", "Bolt"]),
        (f"CreatedDate NOT IN ({FIRST})", ["Bolt"]),
        ("CreatedDate != null", ["Acme", "Bolt"]),
        ("Name LIKE 'a%'", ["Acme"]),
        ("NOT Name LIKE 'A%'", ["Bolt"]),
        ("Industry = null", ["Acme"]),
    ],
)
def test_conditions_match_the_records_that_salesforce_would_return(org, where, found):
    assert names(org, where) == found


@pytest.mark.parametrize(
    ("where", "code"),
    [
        ("Name NOT LIKE 'A%'", "MALFORMED_QUERY"),
        ("Name = 'Acme' LIMIT x", "MALFORMED_QUERY"),
        ("Name = 'Acme' LIMIT -1", "MALFORMED_QUERY"),
        ("CreatedDate > 2024-01-01", "INVALID_FIELD"),
        (f"CreatedDate = '{FIRST[:10]}'", "INVALID_FIELD"),
        ("LastModifiedDate IN (2024-01-01)", "INVALID_FIELD"),
    ],
)
def test_conditions_that_salesforce_rejects_are_rejected(org, where, code):
    with pytest.raises(SoqlError) as rejected:
        names(org, where)
    assert rejected.value.code == code


def test_each_page_of_a_query_reports_the_number_of_all_its_records():
    clock = ManualClock()
    api = SalesforceApi(SalesforceOrg(clock), sessions={"token": clock() + 1000}, batch=2)
    for number in range(5):
        api.org.add("Account", Name=str(number))
    path, totals = "/services/data/v62.0/query", []
    while path is not None:
        query = {"q": "SELECT Name FROM Account"}
        page = api.respond(Request("GET", path, query, {"authorization": "Bearer token"}, b"")).body
        totals.append(page["totalSize"])
        path = page.get("nextRecordsUrl")
    assert totals == [5, 5, 5]

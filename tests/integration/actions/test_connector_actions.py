"""Actions of connectors at Jira, Salesforce and a webhook are executed once, even if an answer is lost."""

from __future__ import annotations

import hmac
import json
import time

import pytest
from msgspec.structs import replace
from stamina.instrumentation import set_on_retry_hooks

from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.host_policy import HostPolicy
from lakesync.connectors.jira.actions import jira_actions
from lakesync.connectors.salesforce.actions import salesforce_actions
from lakesync.connectors.webhook import WebhookActions
from lakesync.model.action_handlers import ActionContext
from lakesync.model.errors import AdapterError, ForbiddenError, NotFoundError, ValidationError
from lakesync.testing.servers import Response, serve
from tests.integration.actions.action_support import make_action
from tests.integration.connectors.jira_support import desk
from tests.integration.connectors.salesforce_support import company


def ask(handler, kind, *, attempt=1, at_ms=1_700_000_000_000, **params):
    action = make_action(kind=kind, params=params, hlc=at_ms << 16)
    return handler.execute_action(action, ActionContext("gw", {"sub": "c"}, attempt))


@pytest.fixture
def jira():
    with desk() as made:
        made.site.add_project("SUP")
        made.actions = jira_actions(made.config())
        yield made


@pytest.fixture
def crm():
    with company() as made:
        made.actions = salesforce_actions(made.config())
        yield made


def test_an_issue_is_created(jira):
    issue_fields = ask(
        jira.actions,
        "create_issue",
        project="SUP",
        summary="It broke",
        description="One.\n\nTwo.",
        issueType="Bug",
        labels=["urgent"],
    )
    (issue,) = jira.site.issues.values()
    assert issue_fields == {"key": "SUP-1", "id": issue.id}
    assert issue.fields["summary"] == "It broke"
    assert issue.fields["issuetype"] == "Bug"
    assert len(issue.fields["description"]["content"]) == 2


def test_an_issue_whose_answer_was_lost_is_not_created_twice(jira):
    params = {"project": "SUP", "summary": "once"}
    first = ask(jira.actions, "create_issue", **params)
    for number in range(60):
        jira.site.add_issue("SUP", f"other {number}")
    assert ask(jira.actions, "create_issue", attempt=2, **params) == first
    assert len(jira.site.issues) == 61


@pytest.mark.parametrize("late_ms", [0, 3_600_000])
def test_an_issue_that_the_search_does_not_find_yet_is_not_created_twice(jira, late_ms):
    """With any clock of the client, and after any time offline."""
    for number in range(120):
        jira.site.add_issue("SUP", f"other {number}")
    jira.clock.advance(late_ms)
    jira.site.indexed()
    jira.site.index_lag_ms = 60_000
    params = {"project": "SUP", "summary": "once"}
    assert ask(jira.actions, "create_issue", attempt=2, **params)["key"] == "SUP-121"
    for number in range(230):
        jira.site.add_issue("SUP", f"another {number}")
    assert ask(jira.actions, "create_issue", attempt=3, **params)["key"] == "SUP-121"
    jira.clock.advance(61_000)
    assert ask(jira.actions, "create_issue", attempt=4, **params)["key"] == "SUP-121"


def test_an_action_that_jira_rejects_fails_for_good_with_the_reason(jira):
    with pytest.raises(ValidationError, match="project: valid project is required"):
        ask(jira.actions, "create_issue", project="NOPE", summary="x")
    with pytest.raises(NotFoundError, match="SUP-9"):
        ask(jira.actions, "add_comment", issue="SUP-9", body="x")


def test_a_comment_is_added_once(jira):
    issue = jira.site.add_issue("SUP", "one")
    first = ask(jira.actions, "add_comment", issue="SUP-1", body="hello")
    assert ask(jira.actions, "add_comment", attempt=2, issue="SUP-1", body="hello") == first
    assert len(issue.comments) == 1
    assert ask(jira.actions, "add_comment", attempt=2, issue="SUP-1", body="another") != first


def test_transition_issue_changes_the_status_once(jira):
    issue = jira.site.add_issue("SUP", "one")
    for attempt in (1, 2):
        assert ask(jira.actions, "transition_issue", attempt=attempt, issue="SUP-1", status="done") == {
            "status": "Done"
        }
    assert issue.fields["status"] == "Done"
    with pytest.raises(ValidationError, match="possible are 'To Do', 'In Progress'"):
        ask(jira.actions, "transition_issue", issue="SUP-1", status="Lost")


def test_a_record_is_created_once(crm):
    params = {"object": "Account", "fields": {"Name": "O'Neill \\ Sons", "NumberOfEmployees": 3}}
    first = ask(crm.actions, "create_record", **params)
    assert crm.org.records[first["id"]].fields["Name"] == "O'Neill \\ Sons"
    assert ask(crm.actions, "create_record", attempt=2, **params) == first
    assert len(crm.org.records) == 1


def test_a_record_with_an_external_id_is_one_record(crm):
    params = {"object": "Account", "externalIdField": "ExternalKey__c", "externalId": "a/b c"}
    first = ask(crm.actions, "create_record", fields={"Name": "Acme"}, **params)
    assert ask(crm.actions, "create_record", fields={"Name": "Acme Ltd"}, **params) == first
    assert [record.fields["Name"] for record in crm.org.records.values()] == ["Acme Ltd"]


def test_update_record_changes_a_salesforce_record(crm):
    record = crm.org.add("Account", Name="Acme")
    assert ask(crm.actions, "update_record", object="Account", id=record.id, fields={"Phone": "1"}) == {"id": record.id}
    assert record.fields["Phone"] == "1"
    with pytest.raises(ValidationError, match="INVALID_FIELD"):
        ask(crm.actions, "update_record", object="Account", id=record.id, fields={"Nope": "1"})
    with pytest.raises(ValidationError, match="REQUIRED_FIELD_MISSING"):
        ask(crm.actions, "create_record", object="Account", fields={"Phone": "1"})


class Receiver:
    """Records the requests that are posted to it."""

    def __init__(self):
        self.got = []
        self.answers = []

    def now(self):
        return 0

    def respond(self, request):
        self.got.append(request)
        return self.answers.pop(0) if self.answers else Response(200, {"taken": len(self.got)})


def test_a_webhook_request_is_signed_and_has_the_action_id():
    receiver = Receiver()
    with serve(receiver) as served:
        settings = {"url": f"{served.url}/hook", "secret": "shared by both"}
        config = ConnectorConfig("gw", "hook", "webhook", settings, hosts=HostPolicy(("127.0.0.1",)))
        hook = WebhookActions(config, lambda: 1_700_000_000.5)
        receiver.answers = [Response(503, "later")]
        assert ask(hook, "send", event="shipped", payload={"order": 7}) == {"taken": 2}
        first, second = receiver.got
        assert first.headers["x-lakesync-action"] == second.headers["x-lakesync-action"]
        signature = hmac.new(b"shared by both", b"1700000000." + second.body, "sha256").hexdigest()
        assert second.headers["x-lakesync-signature"] == f"sha256={signature}"
        assert json.loads(second.body)["payload"] == {"order": 7}
        receiver.answers = [Response(401, "who?")]
        with pytest.raises(ForbiddenError, match="check its secret"):
            ask(hook, "send", event="x")
        receiver.answers = [Response(422, "bad event")]
        with pytest.raises(ValidationError, match="bad event"):
            ask(hook, "send", event="x")


@pytest.mark.parametrize(
    ("action_id", "header"),
    [("3f2a-01:b_c", "3f2a-01:b_c"), ("✓", "%E2%9C%93"), (" a\r\nX: y", "%20a%0D%0AX:%20y"), ("100%", "100%25")],
)
def test_a_webhook_request_names_actions_with_any_id(action_id, header):
    receiver = Receiver()
    with serve(receiver) as served:
        settings = {"url": f"{served.url}/hook", "secret": "shared by both"}
        config = ConnectorConfig("gw", "hook", "webhook", settings, hosts=HostPolicy(("127.0.0.1",)))
        action = replace(make_action(1 << 16, {"event": "shipped"}, kind="send"), action_id=action_id)
        WebhookActions(config).execute_action(action, ActionContext("gw", {"sub": "c"}, 1))
    (request,) = receiver.got
    assert request.headers["x-lakesync-action"] == header
    assert json.loads(request.body)["actionId"] == action_id


@pytest.mark.parametrize("body", ["taken", "[1]", '{"a": %s}' % ("[" * 100_000), '{"a": %s}' % ("9" * 5000)])
def test_an_accepted_event_has_an_empty_result_if_its_response_cannot_be_used(body):
    receiver = Receiver()
    receiver.answers = [Response(200, body)]
    with serve(receiver) as served:
        settings = {"url": f"{served.url}/hook", "secret": "shared by both"}
        config = ConnectorConfig("gw", "hook", "webhook", settings, hosts=HostPolicy(("127.0.0.1",)))
        assert ask(WebhookActions(config), "send", event="shipped") == {}
        receiver.answers = [Response(200, '{"a": "\\ud800"}')]
        assert ask(WebhookActions(config), "send", event="shipped") == {"a": "\ufffd"}
    assert len(receiver.got) == 2


def test_clients_request_actions_of_a_registered_connector_over_http(served, jira):
    client = served.client()
    body = {"name": "desk", "type": "jira", "jira": dict(jira.config().settings)}
    assert client.admin().call("POST", "/admin/connectors/{gw}", json=body).status_code == 200
    offered = client.call("GET", "/sync/{gw}/actions").json()["connectors"]["desk"]
    assert [each["actionType"] for each in offered] == ["create_issue", "add_comment", "transition_issue"]
    params = {"project": "SUP", "summary": "from a client"}
    action = make_action(int(time.time() * 1000) << 16, params, client=client.client_id, kind="create_issue")
    asked = {
        "actionId": action.action_id,
        "clientId": client.client_id,
        "hlc": str(action.hlc),
        "connector": "desk",
        "actionType": "create_issue",
        "params": params,
    }
    for _ in range(2):
        answer = client.call("POST", "/sync/{gw}/action", json={"clientId": client.client_id, "actions": [asked]})
        assert answer.json()["results"][0]["data"]["key"] == "SUP-1"
    assert len(jira.site.issues) == 1


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/hook-secret?key=hook-secret", "{url}/hook-secret"])
def test_no_error_has_the_path_of_a_webhook(monkeypatch, address):
    """The path may be the address's only secret. Clients get the last error, and stamina logs the others."""
    retries = []
    set_on_retry_hooks([retries.append])
    monkeypatch.setattr("lakesync.connectors.webhook._ATTEMPTS", 2)
    monkeypatch.setattr("lakesync.connectors.webhook.MAX_RESPONSE_BYTES", 10)
    with serve(Receiver()) as served:
        settings = {"url": address.format(url=served.url), "secret": "shared by both"}
        config = ConnectorConfig("gw", "hook", "webhook", settings, hosts=HostPolicy(("127.0.0.1",)))
        try:
            with pytest.raises(AdapterError, match=r"http://127\.0\.0\.1:") as failed:
                ask(WebhookActions(config), "send", event="x")
        finally:
            set_on_retry_hooks(None)
    (logged,) = [repr(each.caused_by) for each in retries]
    assert "hook-secret" not in str(failed.value) + logged

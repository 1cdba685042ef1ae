"""Connectors, registered over HTTP and kept in staging."""

from __future__ import annotations

import msgspec
import pytest
import requests

from lakesync.connectors import Connectors, Secrets
from lakesync.engine import Engine
from lakesync.model.errors import ConfigurationError, DuplicateError
from lakesync.staging import open_store
from lakesync.testing import ManualClock
from tests.integration.actions.action_support import Desk
from tests.integration.gateway_support import DEADLINE

SECRET = "t0p-s3cret"
JIRA = {
    "name": "desk",
    "type": "jira",
    "jira": {"domain": "acme", "email": "a@acme.example", "apiToken": SECRET},
    "ingest": {"intervalMs": 30_000},
}


@pytest.fixture
def admin(served):
    return served.client().admin()


def register(admin, body, prefix=""):
    return admin.call("POST", prefix + "/admin/connectors/{gw}", json=body)


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_a_connector_is_registered_listed_and_unregistered(admin, prefix):
    path = prefix + "/admin/connectors/{gw}"
    assert admin.call("GET", path).json() == []
    answer = register(admin, JIRA, prefix)
    assert (answer.status_code, answer.json()) == (200, {"registered": True, "name": "desk"})
    plain = {"name": "a-bank", "type": "mysql", "mysql": {"connectionString": SECRET}}
    assert register(admin, plain, prefix).status_code == 200
    listed = admin.call("GET", path)
    assert listed.json() == [
        {"name": "a-bank", "type": "mysql", "hasIngest": False},
        {"name": "desk", "type": "jira", "hasIngest": True},
    ]
    taken = register(admin, JIRA | {"jira": JIRA["jira"] | {"domain": "other"}}, prefix)
    assert (taken.status_code, taken.json()["code"]) == (409, "VALIDATION_ERROR")
    assert "'desk'" in taken.json()["error"]
    gone = admin.call("DELETE", path + "/desk")
    assert (gone.status_code, gone.json()) == (200, {"unregistered": True, "name": "desk"})
    missing = admin.call("DELETE", path + "/desk")
    assert (missing.status_code, missing.json()["code"]) == (404, "NOT_FOUND")
    assert [each["name"] for each in admin.call("GET", path).json()] == ["a-bank"]


def test_connector_types_are_public_and_mark_their_secrets(served):
    answer = requests.get(served.url + "/connectors/types", timeout=DEADLINE)
    assert answer.status_code == 200
    described = {each["type"]: each for each in answer.json()}
    assert list(described) == ["bigquery", "jira", "mysql", "postgres", "salesforce", "webhook"]
    assert set(described["jira"]) == {
        "type",
        "displayName",
        "description",
        "category",
        "configSchema",
        "ingestSchema",
        "outputTables",
    }
    assert described["jira"]["configSchema"]["properties"]["apiToken"]["writeOnly"] is True
    assert "writeOnly" not in described["jira"]["configSchema"]["properties"]["domain"]
    assert described["postgres"]["outputTables"] is None
    assert described["salesforce"]["outputTables"][0]["table"] == "sf_accounts"


def test_only_an_admin_of_the_gateway_manages_connectors(admin, served):
    client = served.client("alice", gateway=admin.gateway)
    for method, path in (("GET", ""), ("POST", ""), ("DELETE", "/desk")):
        answer = client.call(method, "/admin/connectors/{gw}" + path, json=JIRA)
        assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN")
    stranger = served.client().admin()
    headers = {"Authorization": f"Bearer {stranger.token}"}
    place = f"{admin.url}/admin/connectors/{admin.gateway}"
    assert requests.post(place, json=JIRA, headers=headers, timeout=DEADLINE).status_code == 403
    assert admin.call("GET", "/admin/connectors/{gw}").json() == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (JIRA | {"type": "fax"}, "type 'fax' is unknown"),
        (JIRA | {"jira": {"apiToken": SECRET}}, "jira lacks 'domain', 'email'"),
        (JIRA | {"jira": JIRA["jira"] | {SECRET: 1}}, "jira has no field"),
        (JIRA | {"jira": JIRA["jira"] | {"apiToken": "env:PATH"}}, "does not allow"),
        (JIRA | {"ingest": {"intervalMs": "often"}}, "ingest.intervalMs must be of type integer"),
        ([], "a connector is a JSON object"),
    ],
)
def test_an_invalid_connector_is_rejected_with_the_fields_name(admin, body, said):
    answer = register(admin, body)
    assert (answer.status_code, answer.json()["code"]) == (400, "VALIDATION_ERROR")
    assert said in answer.json()["error"]


def test_a_connector_cannot_have_the_name_of_a_handler(admin, served):
    served.engine.gateway(admin.gateway).register_action_handler("desk", Desk())
    assert register(admin, JIRA).status_code == 409
    with pytest.raises(DuplicateError, match="'desk' has a handler in this process"):
        served.engine.gateway(admin.gateway).declare_connector(JIRA)
    served.engine.gateway(admin.gateway).unregister_action_handler("desk")
    assert register(admin, JIRA).status_code == 200


@pytest.fixture
def engine(tmp_path):
    """Opens one store with different keys in turn."""
    clock = ManualClock()
    running = []

    def start(*keys, **options):
        for each in running:
            each.close()
        connectors = Connectors(Secrets(keys)) if keys else None
        running[:] = [Engine(open_store(f"sqlite://{tmp_path}", clock), clock, connectors=connectors, **options)]
        running[0].open()
        return running[0]

    yield start
    for each in running:
        each.close()


def secret_of(engine):
    (stored,) = engine.gateway("g").connectors()
    return engine.connectors.open("g", stored).settings["apiToken"]


def test_a_start_with_two_keys_seals_secrets_with_the_new_key(engine):
    old, new = "o" * 32, "n" * 32
    engine(old).gateway("g").register_connector(JIRA)
    before = engine(old).gateway("g").connectors()
    assert secret_of(engine(old)) == SECRET
    assert secret_of(engine(new, old)) == SECRET
    after = engine(new, old).gateway("g").connectors()
    assert after != before
    assert engine(new, old).gateway("g").connectors() == after, "one seal is enough"
    assert secret_of(engine(new)) == SECRET
    with pytest.raises(ConfigurationError, match="apiToken of connector 'desk' was sealed with another key"):
        secret_of(engine(old))
    assert SECRET.encode() not in msgspec.json.encode(after)


def test_declared_gateways_exist_at_start_with_their_write_scope(engine):
    opened = engine(auto_create=False, write_scopes={"bound": "rules", "free": "any"})
    assert opened.gateways() == ["bound", "free"]
    assert opened.gateway("bound").declared_write_scope == "rules"
    assert opened.gateway("free").declared_write_scope == "any"

"""Validation and storage of connector configurations."""

from __future__ import annotations

import copy

import msgspec
import pytest

from lakesync.connectors import ConnectorDescriptor, Connectors, ConnectorType, Secrets
from lakesync.connectors.built_in import BUILT_IN
from lakesync.model.errors import ConfigurationError, ValidationError
from lakesync.model.json_schema import JsonSchema

KEY = "k" * 32
DESCRIPTORS = [each.descriptor for each in BUILT_IN]
JIRA = {
    "name": "desk",
    "type": "jira",
    "jira": {"domain": "acme", "email": "a@acme.example", "apiToken": "t0p-s3cret", "includeComments": False},
    "ingest": {"intervalMs": 30_000},
}
BANK = {
    "name": "bank",
    "type": "postgres",
    "postgres": {"connectionString": "env:CONNECTOR_BANK"},
    "ingest": {
        "tables": [
            {
                "table": "accounts",
                "query": "SELECT * FROM accounts",
                "rowIdColumn": "no",
                "strategy": {"type": "cursor", "cursorColumn": "changed", "lookbackMs": 500},
            },
            {"table": "rates", "query": "SELECT 1", "strategy": {"type": "diff"}},
        ],
        "intervalMs": 1000,
        "chunkSize": 100,
        "memoryBudgetBytes": 1 << 20,
    },
}


@pytest.fixture
def connectors():
    return Connectors(Secrets([KEY], ["env:CONNECTOR_*"]))


def changed(body, **changes):
    """The body with changed values, by dotted path; None removes a field."""
    body = copy.deepcopy(body)
    for path, value in changes.items():
        *way, last = path.split("__")
        at = body
        for step in way:
            at = at[int(step) if step.isdigit() else step]
        if value is None:
            del at[last]
        else:
            at[last] = value
    return body


def test_a_sealed_secret_can_be_opened(connectors):
    stored = connectors.seal("g", JIRA)
    assert (stored.name, stored.type, stored.ingest) == ("desk", "jira", JIRA["ingest"])
    assert "t0p-s3cret" not in repr(stored)
    assert b"t0p-s3cret" not in msgspec.json.encode(stored)
    opened = connectors.open("g", msgspec.json.decode(msgspec.json.encode(stored), type=type(stored)))
    assert opened.settings == JIRA["jira"]
    assert "t0p-s3cret" not in repr(opened)


def test_a_reference_is_stored_unchanged_and_resolved_on_use(connectors, monkeypatch):
    stored = connectors.seal("g", BANK)
    assert stored.settings == BANK["postgres"]
    with pytest.raises(ConfigurationError, match=r"connectionString of connector 'bank'.*CONNECTOR_BANK.*not set"):
        connectors.open("g", stored)
    monkeypatch.setenv("CONNECTOR_BANK", "postgresql://x")
    assert connectors.open("g", stored).settings == {"connectionString": "postgresql://x"}


def test_a_server_file_needs_an_allowed_reference():
    connectors = Connectors(Secrets([KEY], ["file:/run/secrets/{gateway}/*"]))
    body = {"name": "w", "type": "bigquery", "bigquery": {"projectId": "p", "dataset": "d"}}
    assert connectors.open("g", connectors.seal("g", body)).settings == body["bigquery"]
    named = changed(body, bigquery__keyFilename="/run/secrets/g/key.json")
    assert connectors.open("g", connectors.seal("g", named)).settings == named["bigquery"]
    for path in ("/run/secrets/h/key.json", "/run/secrets/g/../h/key.json", "key.json"):
        foreign = connectors.seal("g", changed(body, bigquery__keyFilename=path))
        with pytest.raises(ConfigurationError, match=r"keyFilename of connector 'w'.*does not allow"):
            connectors.open("g", foreign)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": ""}, "name must be"),
        ({"name": "a/b"}, "name must be"),
        ({"name": "a\n"}, "name must be"),
        ({"type": "fax"}, "type 'fax' is unknown: known are bigquery, jira, mysql, postgres, salesforce"),
        ({"more": 1}, "no field 'more': its fields are name, type, ingest, jira"),
        ({"jira": None}, "jira must be of type object"),
        ({"jira": "no"}, "jira must be of type object"),
        ({"jira__domain": None}, "jira lacks 'domain'"),
        ({"jira__email": 5}, "jira.email must be of type string"),
        ({"jira__apiToken": 123456}, "jira.apiToken must be of type string"),
        ({"jira__apiToken": ""}, "jira.apiToken must not be empty"),
        ({"jira__token": "s3cret"}, "jira has no field 'token'; its fields are domain, email"),
        ({"jira__includeProjects": "yes"}, "jira.includeProjects must be of type boolean"),
        ({"ingest__intervalMs": 0}, "ingest.intervalMs must satisfy minimum 1"),
        ({"ingest__tables": []}, "ingest has no field 'tables'"),
        ({"jira__apiToken": "env:LAKESYNC_JWT_SECRET"}, "does not allow: allowed are env:CONNECTOR_"),
        ({"jira__apiToken": "file:/etc/passwd"}, "does not allow"),
    ],
)
def test_invalid_settings_are_named_without_their_value(connectors, change, said):
    with pytest.raises(ValidationError) as refused:
        connectors.seal("g", changed(JIRA, **change))
    assert said in str(refused.value)
    assert "s3cret" not in str(refused.value)
    assert "123456" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ingest__tables": []}, "ingest.tables must satisfy minItems 1"),
        ({"ingest__tables__0__table": "9x"}, "ingest.tables[0].table must satisfy pattern"),
        ({"ingest__tables__0__table": "x\n"}, "ingest.tables[0].table must be an identifier"),
        ({"ingest__tables__1__query": None}, "ingest.tables[1] lacks 'query'"),
        ({"ingest__tables__1__strategy__type": "guess"}, 'strategy.type must be one of ["cursor", "diff"]'),
        ({"ingest__tables__0__strategy__cursorColumn": None}, "ingest.tables[0].strategy lacks 'cursorColumn'"),
        ({"ingest__chunkSize": 10_001}, "ingest.chunkSize must satisfy maximum 10000"),
        ({"ingest__intervalMs": 1.5}, "ingest.intervalMs must be of type integer"),
    ],
)
def test_ingest_settings_of_databases_are_validated(connectors, change, said):
    connectors.seal("g", BANK)
    with pytest.raises(ValidationError) as refused:
        connectors.seal("g", changed(BANK, **change))
    assert said in str(refused.value)


@pytest.mark.parametrize("body", [None, [], "jira", 5, {}])
def test_a_malformed_connector_is_rejected(connectors, body):
    with pytest.raises(ValidationError, match=r"connector|name"):
        connectors.seal("g", body)


def test_built_in_connector_types_are_listed(connectors):
    described = {each.type: each for each in connectors.descriptors()}
    assert list(described) == ["bigquery", "jira", "mysql", "postgres", "salesforce", "webhook"]
    assert {name: sorted(each.secrets) for name, each in described.items()} == {
        "bigquery": [],
        "jira": ["apiToken"],
        "mysql": ["connectionString"],
        "postgres": ["connectionString"],
        "salesforce": ["clientSecret", "password"],
        "webhook": ["secret"],
    }
    tables = {table.table: len(table.columns) for each in DESCRIPTORS for table in each.output_tables or ()}
    assert tables == {
        "jira_issues": 16,
        "jira_comments": 7,
        "jira_projects": 5,
        "sf_accounts": 14,
        "sf_contacts": 14,
        "sf_opportunities": 15,
        "sf_leads": 16,
    }
    known = {
        f"{table.table}.{column.name}"
        for each in DESCRIPTORS
        for table in each.output_tables or ()
        for column in table.columns
    }
    references = {
        column.references for each in DESCRIPTORS for table in each.output_tables or () for column in table.columns
    } - {None}
    assert len(references) == 5
    assert references <= known
    for each in DESCRIPTORS:
        fields = each.config_schema["properties"]
        assert all(field["description"] for field in fields.values())
        assert set(each.config_schema["required"]) <= set(fields)


def a_type(name="desk", **changes):
    schemas = {"config_schema": {"type": "object"}, "ingest_schema": {"type": "object"}} | changes
    return ConnectorType(ConnectorDescriptor(name, "Desk", "", "api", **schemas))


@pytest.mark.parametrize(
    ("types", "match"),
    [
        ([a_type(), a_type()], "two packages define the connector type 'desk'"),
        ([a_type("ingest")], "the name 'ingest' is reserved"),
        ([a_type(config_schema={"type": "objekt"})], "connector type 'desk' is wrong at"),
    ],
)
def test_invalid_connector_types_are_reported(types, match):
    with pytest.raises(ConfigurationError, match=match):
        Connectors(types=types).descriptors()


def test_a_schema_cannot_reference_a_remote_document():
    schema = JsonSchema({"$ref": "http://127.0.0.1:1/schema.json"}, "a test")
    with pytest.raises(Exception, match="Unresolvable"):
        schema.violation({}, "it")

"""A gateway applies the declarations of lakesync.toml when it starts; settings made at run time remain."""

from __future__ import annotations

import json

import pytest

from gateway.bootstrap import Declarations
from lakesync.config import load
from lakesync.config.sections import DeclaredGateway
from lakesync.connectors import Connectors, Secrets
from lakesync.engine import Engine
from lakesync.model.errors import ConfigurationError, SchemaError
from lakesync.model.schema import parse_schema
from lakesync.rules.model import parse_rules
from lakesync.staging import open_store

RULES = {"version": 1, "buckets": [{"name": "all", "tables": [], "filters": []}]}
OTHERS = {"version": 2, "buckets": [{"name": "none", "tables": ["notes"], "filters": []}]}


def schema(**columns):
    return {"table": "todos", "columns": [{"name": name, "type": kind} for name, kind in columns.items()]}


@pytest.fixture
def start(tmp_path):
    """Starts one engine several times, with the current content of the files."""
    engine = Engine(open_store("memory://", lambda: 1 << 40), lambda: 1 << 40)
    engine.open()

    def begin(columns, rules):
        (tmp_path / "todos.json").write_text(json.dumps(schema(**columns)))
        (tmp_path / "rules.json").write_text(json.dumps(rules))
        files = DeclaredGateway(schemas=(str(tmp_path / "todos.json"),), rules=str(tmp_path / "rules.json"))
        Declarations({"shop": files}).apply(engine)
        return engine.gateway("shop")

    yield begin
    engine.close()


def test_a_first_start_registers_every_declaration(start):
    config = start({"title": "string"}, RULES).config()
    assert config.schemas["todos"].schema == parse_schema(schema(title="string"))
    assert (config.rules, config.rules_version) == (parse_rules(RULES), 1)


def test_a_later_start_adds_columns_and_leaves_rules_as_they_are(start):
    start({"title": "string"}, RULES)
    config = start({"title": "string", "done": "boolean"}, OTHERS).config()
    assert config.schemas["todos"].schema.types == {"title": "string", "done": "boolean"}
    assert (config.rules, config.rules_version) == (parse_rules(RULES), 1)


def test_columns_added_at_run_time_are_kept(start):
    gateway = start({"title": "string"}, RULES)
    gateway.register_schema(parse_schema(schema(title="string", team="string")))
    config = start({"title": "string"}, RULES).config()
    assert config.schemas["todos"].schema.types == {"title": "string", "team": "string"}
    assert config.schemas["todos"].version == 2


def test_a_file_that_contradicts_registered_settings_is_rejected(start):
    start({"title": "string"}, RULES)
    with pytest.raises(SchemaError, match="title"):
        start({"title": "number"}, RULES)


JIRA = """
[connectors]
allowed_hosts = ["*"]
[connectors.support]
gateway = "shop"
type = "jira"
jira = {{ domain = "example", email = "sync@example.com", apiToken = "{token}", jql = "{jql}" }}
ingest = {{ intervalMs = 60000 }}
"""
TOKEN = "env:CONNECTOR_shop_TOKEN"


@pytest.fixture
def declare(tmp_path, monkeypatch):
    """Starts one engine several times, with the current lakesync.toml, like a gateway process."""
    connectors = Connectors(Secrets([], ["env:CONNECTOR_{gateway}_*"]))
    engine = Engine(open_store("memory://", lambda: 1 << 40), lambda: 1 << 40, connectors=connectors)
    engine.open()

    def begin(text):
        monkeypatch.delenv("LAKESYNC_CONNECTORS_DECLARED", raising=False)
        monkeypatch.setenv("LAKESYNC_CONFIG", str(tmp_path / "lakesync.toml"))
        (tmp_path / "lakesync.toml").write_text(text)
        variables = load().environment()
        for name in ("LAKESYNC_CONFIG", "LAKESYNC_CONNECTORS_DECLARED"):
            monkeypatch.setenv(name, variables[name])
        Declarations({}, load().connectors.declared).apply(engine)
        return engine.gateway("shop").connectors()

    yield begin
    engine.close()


def test_a_declared_connector_is_registered_at_the_start_and_a_changed_one_replaces_it(declare):
    (first,) = declare(JIRA.format(token=TOKEN, jql="project = SUP"))
    assert (first.name, first.type, first.ingest) == ("support", "jira", {"intervalMs": 60000})
    assert first.settings["apiToken"] == TOKEN
    assert declare(JIRA.format(token=TOKEN, jql="project = SUP")) == [first]
    (changed,) = declare(JIRA.format(token=TOKEN, jql="project = OPS"))
    assert changed.settings["jql"] == "project = OPS"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (JIRA.format(token="plain", jql="x"), "connectors.support.jira.apiToken is a secret"),
        (JIRA.format(token="env:OTHER", jql="x"), "connectors.support cannot be registered: .*CONNECTOR_shop"),
        ('[connectors.support]\ntype = "jira"\n', "connectors.support.gateway is not set"),
        ('[connectors.support]\ngateway = "shop"\ntype = "jora"\n', "type 'jora' is unknown"),
        ("[connectors]\nallowd_hosts = []\n", "connectors.allowd_hosts is not a setting"),
    ],
)
def test_an_unusable_declared_connector_is_rejected_by_name(declare, text, named):
    with pytest.raises(ConfigurationError, match=named):
        declare(text)

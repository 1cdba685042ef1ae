"""What lakesync.toml declares of a gateway is told to it when it starts; what was told at run time stays."""

from __future__ import annotations

import json

import pytest

from gateway.declared import Declarations
from lakesync.config_sections import DeclaredGateway
from lakesync.engine import Engine
from lakesync.exceptions import SchemaError
from lakesync.rules.model import parse_rules
from lakesync.schema import parse_schema
from lakesync.staging import open_store

RULES = {"version": 1, "buckets": [{"name": "all", "tables": [], "filters": []}]}
OTHERS = {"version": 2, "buckets": [{"name": "none", "tables": ["notes"], "filters": []}]}


def schema(**columns):
    return {"table": "todos", "columns": [{"name": name, "type": kind} for name, kind in columns.items()]}


@pytest.fixture
def start(tmp_path):
    """Starts one engine, again and again, with what the files say by then."""
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


def test_a_first_start_tells_all_of_it(start):
    config = start({"title": "string"}, RULES).config()
    assert config.schemas["todos"].schema == parse_schema(schema(title="string"))
    assert (config.rules, config.rules_version) == (parse_rules(RULES), 1)


def test_a_later_start_adds_columns_and_leaves_rules_as_they_are(start):
    start({"title": "string"}, RULES)
    config = start({"title": "string", "done": "boolean"}, OTHERS).config()
    assert config.schemas["todos"].schema.types == {"title": "string", "done": "boolean"}
    assert (config.rules, config.rules_version) == (parse_rules(RULES), 1)


def test_columns_that_were_added_at_run_time_stay(start):
    gateway = start({"title": "string"}, RULES)
    gateway.register_schema(parse_schema(schema(title="string", team="string")))
    config = start({"title": "string"}, RULES).config()
    assert config.schemas["todos"].schema.types == {"title": "string", "team": "string"}
    assert config.schemas["todos"].version == 2


def test_a_file_that_contradicts_what_is_registered_is_refused(start):
    start({"title": "string"}, RULES)
    with pytest.raises(SchemaError, match="title"):
        start({"title": "number"}, RULES)

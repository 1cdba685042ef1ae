"""Namespaces of gateways: their valid names, and the rows of each."""

import re

import pytest

from lakehouse.schema_snapshot import SchemaSnapshot, registered
from lakehouse.table_definitions import LakeNames
from lakesync.config import load
from lakesync.engine import Engine
from lakesync.model.errors import ConfigurationError
from lakesync.model.namespaces import Gateways, Namespaces
from lakesync.model.schema import parse_schema
from lakesync.staging import open_store

WHERE = Namespaces("tables", {"eu": "shop", "us": "shop", "lab": "lab"})


def test_gateways_share_one_namespace_unless_they_declare_another():
    assert [WHERE.of(name) for name in ("eu", "us", "lab", "anyone")] == ["shop", "shop", "lab", "tables"]
    assert WHERE.declared == ["lab", "shop"]
    assert WHERE.gateways_in("shop") == Gateways(frozenset({"eu", "us"}), all_except=False)
    assert WHERE.gateways_in("tables") == Gateways(frozenset({"eu", "us", "lab"}), all_except=True)


def test_a_table_outside_the_shared_namespace_is_qualified():
    assert (WHERE.table_name("tables", "orders"), WHERE.table_name("shop", "orders")) == ("orders", "shop.orders")
    assert LakeNames().qualified_name("orders") == "orders"
    assert LakeNames(tables="shop", is_shared=False).qualified_name("orders") == "shop.orders"
    assert LakeNames(tables="shop", is_shared=False).state("orders") == "`lake`.`shop`.`orders`"


def test_namespaces_are_declared_in_the_file(tmp_path, monkeypatch):
    file = tmp_path / "lakesync.toml"
    file.write_text('[gateways.eu]\nnamespace = "shop"\n[gateways.home]\n')
    monkeypatch.setenv("LAKESYNC_CONFIG", str(file))
    found = load({"data_dir": tmp_path})
    assert found.namespaces == Namespaces("tables", {"eu": "shop"})
    for name, value in found.environment().items():
        monkeypatch.setenv(name, value)
    assert load().namespaces == found.namespaces


@pytest.mark.parametrize(
    ("namespace", "why"),
    [
        ("Shop", "must be lower-case words"),
        ("a__b", "must be lower-case words"),
        ("a" * 65, "64 characters at most"),
        ("shop;", "must be lower-case words"),
        ("shop\n", "must be lower-case words"),
        ("", "must be lower-case words"),
        ("tables", "which is lake.namespace: leave it out"),
        ("lakesync", "which is lake.system_namespace"),
        ("main", "a name with another meaning in SQL engines"),
        ("lake", "a name with another meaning in SQL engines"),
    ],
)
def test_invalid_namespaces_are_rejected_with_the_setting(tmp_path, namespace, why):
    with pytest.raises(ConfigurationError, match=f"gateways.eu.namespace is {re.escape(repr(namespace))}.*{why}"):
        load({"data_dir": tmp_path, "gateways": {"eu": {"namespace": namespace}}})


@pytest.fixture
def engine():
    made = Engine(open_store("memory://", lambda: 1 << 40), lambda: 1 << 40)
    made.open()
    yield made
    made.close()


def test_schemas_are_joined_within_a_namespace(engine):
    def schema(**columns):
        return parse_schema({"table": "t", "columns": [{"name": name, "type": kind} for name, kind in columns.items()]})

    for gateway, columns in {
        "eu": {"a": "string"},
        "us": {"b": "string"},
        "lab": {"a": "number"},
        "one": {"c": "json"},
    }.items():
        engine.gateway(gateway).register_schema(schema(**columns))
    found = registered(engine.store, WHERE.own)
    assert {(where, each.table): each.types for each, where in found.states} == {
        ("", "t"): {"c": "json"},
        ("lab", "t"): {"a": "number"},
        ("shop", "t"): {"a": "string", "b": "string"},
    }
    assert found.state("t", "shop").types == {"a": "string", "b": "string"}
    assert found.state("unknown", "shop").columns == ()
    assert registered(engine.store).states == tuple((each, "") for each in registered(engine.store).tables)
    assert SchemaSnapshot().states == ()

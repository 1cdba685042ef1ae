"""Schemas and rules of every staging store."""

from __future__ import annotations

import msgspec
import pytest

from lakesync.model.errors import NotFoundError, SchemaError
from lakesync.model.schema import Column, TableSchema
from lakesync.rules.model import SyncRules
from tests.conformance.book import contents, make_delta
from tests.conformance.calls import push, read


def schema_of(*names):
    return TableSchema("notes", tuple(Column(name, "string") for name in names))


def test_schemas_evolve_by_addition(place, store, book):
    assert store.submit("g", lambda commit: commit.put_schema(schema_of("a"))).result() == 1
    assert store.submit("g", lambda commit: commit.put_schema(schema_of("a"))).result() == 1
    assert store.submit("g", lambda commit: commit.put_schema(schema_of("a", "b"))).result() == 2
    refused = store.submit("g", lambda commit: commit.put_schema(schema_of("b")))
    with pytest.raises(SchemaError, match="'a'"):
        refused.result()
    store = place.reopen(store, book)
    config = store.gateway_config("g")
    assert config.version == 2
    assert (config.schemas["notes"].version, config.schemas["notes"].schema) == (2, schema_of("a", "b"))


def test_a_retired_schema_is_deleted_and_versions_continue(place, store, book):
    store.submit("g", lambda commit: commit.put_schema(schema_of("a"))).result()
    assert store.submit("g", lambda commit: commit.retire_schema("notes")).result() == 2
    with pytest.raises(NotFoundError, match="'notes' has no schema to retire; tables with one: none"):
        store.submit("g", lambda commit: commit.retire_schema("notes")).result()
    store = place.reopen(store, book)
    config = store.gateway_config("g")
    assert (config.schemas, config.retired, config.version) == ({}, {"notes": 2}, 2)
    assert store.submit("g", lambda commit: commit.put_schema(schema_of("b"))).result() == 3
    store = place.reopen(store, book)
    config = store.gateway_config("g")
    assert (config.schemas["notes"].schema, config.retired) == (schema_of("b"), {})


def test_names_that_differ_only_in_case_are_rejected(store):
    store.submit("g", lambda commit: commit.put_schema(schema_of("a"))).result()
    other = msgspec.structs.replace(schema_of("a"), table="Notes")
    with pytest.raises(SchemaError, match="only in case"):
        store.submit("g", lambda commit: commit.put_schema(other)).result()
    store.submit("g", lambda commit: commit.retire_schema("notes")).result()
    with pytest.raises(SchemaError, match="only in case"):
        store.submit("g", lambda commit: commit.put_schema(other)).result()


def test_rules_take_effect_immediately_with_a_new_version(place, store, book):
    push(store, book, make_delta("c", 1, "r", team="x"))
    before = read(store, lambda view: view.arrival)
    assert store.gateway_config("g").rules is None
    futures = [store.submit("g", book.push([make_delta("c", 2 + i, f"s{i}", team="y")])) for i in range(3)]
    changed = store.submit("g", book.set_rules(SyncRules(9, ())))
    futures += [store.submit("g", book.push([make_delta("c", 9 + i, f"t{i}", team="z")])) for i in range(3)]
    assert changed.result() == 1
    assert [future.result().seq for future in futures] == [2, 3, 4, 5, 6, 7]
    assert store.submit("g", book.set_rules(SyncRules(9, ()))).result() == 2
    config = store.gateway_config("g")
    assert (config.rules, config.rules_version, config.version) == (SyncRules(9, ()), 2, 2)
    old = read(store, lambda view: view.entries_after(['"x"'], before, 10))
    assert [entry.inside for entry in old] == [False]
    expected = read(store, contents)
    store = place.reopen(store, book)
    assert read(store, contents) == expected
    assert store.gateway_config("g") == config


def test_a_failed_change_of_rules_changes_nothing(store, book):
    def failing(commit):
        book.set_rules(SyncRules(1, ()))(commit)
        raise ValueError

    push(store, book, make_delta("c", 1, "r", team="x"))
    expected = read(store, contents)
    assert isinstance(store.submit("g", failing).exception(), ValueError)
    assert read(store, contents) == expected
    assert store.gateway_config("g").rules_version == 0

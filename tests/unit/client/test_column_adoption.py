"""Files that are opened again with the same or a wider schema: no write of the app is overwritten."""

from __future__ import annotations

import queue
import sqlite3

import pytest

from lakesync.client import LocalTransport, UnreachableError
from lakesync.model.errors import ConfigurationError, SchemaError
from lakesync.model.schema import parse_schema

NARROW = {"table": "notes", "columns": [{"name": "text", "type": "string"}]}
WIDE = {**NARROW, "columns": [*NARROW["columns"], {"name": "mark", "type": "number"}]}
SCHEMAS = [NARROW]


def rows(client):
    return {row["row_id"]: (row["text"], row.get("mark")) for row in client["notes"]}


@pytest.mark.parametrize("schema", [NARROW, WIDE])
def test_a_write_over_an_unsent_change_survives_reopening(opened, schema):
    alice, bob = opened(), opened("bob")
    for row_id in ("changed", "deleted", "again"):
        alice["notes"].insert({"text": "one"}, row_id=row_id)
    alice.sync()
    for row_id in ("changed", "deleted", "again"):
        alice["notes"].update(row_id, text="two")
    alice["notes"].insert({"text": "new"}, row_id="new")
    assert len(alice.pending()) == 4
    alice["notes"].update("changed", text="three")
    alice["notes"].delete("deleted")
    alice["notes"].delete("again")
    alice["notes"].insert({"text": "three"}, row_id="again")
    alice["notes"].update("new", text="newer")
    expected = rows(alice)
    assert expected == {"changed": ("three", None), "again": ("three", None), "new": ("newer", None)}
    alice.close()
    alice = opened(schemas=[schema])
    assert rows(alice) == expected
    alice.sync()
    bob.sync()
    assert rows(alice) == rows(bob) == expected


def test_a_table_whose_schema_conflicts_does_not_keep_others_from_new_columns(opened, gateway):
    other = {"table": "others", "columns": [{"name": "a", "type": "string"}]}
    alice = opened(schemas=[WIDE, other])
    gateway.register_schema(parse_schema({**WIDE, "columns": [{"name": "mark", "type": "string"}]}))
    gateway.register_schema(parse_schema({**other, "columns": [*other["columns"], {"name": "b", "type": "string"}]}))
    with pytest.raises(SchemaError, match="mark"):
        alice.sync()
    assert [row[1] for row in alice.conn.execute("PRAGMA table_info(others)")] == ["row_id", "a", "b"]


def test_auto_sync_reports_a_lasting_conflict_of_schemas_without_fetching_them_each_time(opened, gateway):
    fetched, errors = [], queue.SimpleQueue()

    class CountingTransport(LocalTransport):
        def schema(self, table):
            fetched.append(table)
            return super().schema(table)

    gateway.register_schema(parse_schema({**WIDE, "columns": [{"name": "mark", "type": "string"}]}))
    alice = opened(schemas=[WIDE], transport=CountingTransport(gateway), interval=0.01)
    alice.on("onError", errors.put)
    alice.coordinator.start_auto_sync()
    assert [errors.get(timeout=30).code for _ in range(3)] == ["SCHEMA_ERROR"] * 3
    assert fetched == ["notes"]
    alice.coordinator.stop_auto_sync()
    with pytest.raises(SchemaError, match="mark"):  # a synchronisation by the app fetches them at once
        alice.sync()
    assert fetched == ["notes", "notes"]


def test_an_edit_with_an_unknown_column_is_pushed_by_the_first_sync_after_the_gateway_has_it(opened, gateway):
    gateway.register_schema(parse_schema(NARROW))
    alice = opened(schemas=[WIDE])
    alice["notes"].insert({"text": "one", "mark": 1}, row_id="x")
    assert [edit.code for edit in alice.sync().refused] == ["SCHEMA_ERROR"]
    assert alice.sync().pushed == 0
    gateway.register_schema(parse_schema(WIDE))
    assert alice.sync().pushed == 1
    assert alice.pending() == []


def test_an_added_column_is_filled_in_rows_with_unrecorded_writes(opened):
    bob, alice = opened("bob", schemas=[WIDE]), opened()
    for row_id in ("read", "written", "deleted"):
        bob["notes"].insert({"text": "his", "mark": 1}, row_id=row_id)
    bob.sync()
    alice.sync()
    alice["notes"].update("written", text="hers")
    alice["notes"].delete("deleted")
    alice.close()
    alice = opened(schemas=[WIDE])
    assert rows(alice) == {"read": ("his", 1), "written": ("hers", 1)}
    assert {edit.delta.row_id: edit.values for edit in alice.pending()} == {"written": {"text": "hers"}, "deleted": {}}
    bob["notes"].update("written", mark=2)
    bob.sync()
    alice.sync()
    bob.sync()
    assert rows(alice) == rows(bob) == {"read": ("his", 1), "written": ("hers", 2)}


@pytest.mark.parametrize("by_gateway", [False, True])
def test_existing_values_are_pushed_when_their_column_becomes_synchronised(opened, gateway, by_gateway):
    alice, bob = opened(), opened("bob", schemas=[WIDE])
    for row_id in ("marked", "default", "waits", "new", "theirs"):
        alice["notes"].insert({"text": "one"}, row_id=row_id)
    alice.sync()
    bob.sync()
    bob["notes"].update("theirs", mark=7)
    bob.sync()
    alice.sync()
    alice.conn.execute("ALTER TABLE notes ADD COLUMN mark NUMERIC DEFAULT 0")
    alice.conn.execute("UPDATE notes SET mark = 3 WHERE row_id <> 'default'")
    alice.conn.commit()
    alice["notes"].update("waits", text="two")
    assert [edit.values for edit in alice.pending()] == [{"text": "two"}]
    alice["notes"].update("new", text="two")
    if by_gateway:
        gateway.register_schema(parse_schema(WIDE))
        alice.coordinator._session.schema_fetcher._has_newest_schemas = False
        alice.sync()
    else:
        alice.close()
        alice = opened(schemas=[WIDE])
    alice.sync()
    bob["notes"].update("marked", text="bob's")
    bob.sync()
    alice.sync()
    expected = {"marked": ("bob's", 3), "waits": ("two", 3), "new": ("two", 3), "theirs": ("one", 7)}
    assert rows(bob) == {**expected, "default": ("one", None)}, "no client wrote the default"
    assert rows(alice) == {**expected, "default": ("one", 0)}
    assert alice.pending() == []


def test_the_gateways_values_are_adopted_in_a_column_that_must_not_be_null(opened):
    alice, bob = opened(), opened("bob", schemas=[WIDE])
    for row_id in ("read", "written"):
        bob["notes"].insert({"text": "one", "mark": 7}, row_id=row_id)
    bob.sync()
    alice.sync()
    alice.conn.execute("ALTER TABLE notes ADD COLUMN mark NUMERIC NOT NULL DEFAULT 0")
    alice.conn.execute("UPDATE notes SET mark = 3")
    alice.conn.commit()
    alice["notes"].update("written", text="two")
    alice.close()
    alice = opened(schemas=[WIDE])
    assert rows(alice) == {"read": ("one", 7), "written": ("two", 7)}
    assert [edit.values for edit in alice.pending()] == [{"text": "two"}]


def test_an_invalid_value_in_a_column_that_becomes_synchronised_is_named(opened):
    alice = opened()
    alice["notes"].insert({"text": "one"}, row_id="a")
    alice.sync()
    alice.conn.execute("ALTER TABLE notes ADD COLUMN mark")
    alice.conn.execute("UPDATE notes SET mark = 'high'")
    alice.conn.commit()
    alice.close()
    with pytest.raises(ConfigurationError, match="row 'a' of table 'notes' has 'high' in column 'mark'"):
        opened(schemas=[WIDE])
    assert rows(opened()) == {"a": ("one", None)}


@pytest.mark.parametrize("name", ["there", "at", "t"])
def test_an_unsynchronised_column_may_have_any_name(opened, name):
    alice = opened(
        sql=f"CREATE TABLE notes (row_id TEXT PRIMARY KEY NOT NULL, text TEXT, {name} TEXT);"
        "INSERT INTO notes VALUES ('1', 'one', 'kept')"
    )
    alice.sync()
    alice.close()
    wide = {**NARROW, "columns": [*NARROW["columns"], {"name": name, "type": "string"}]}
    alice = opened(schemas=[wide])
    assert [edit.values for edit in alice.pending()] == [{name: "kept"}]


def test_a_write_to_an_added_column_is_not_lost_if_another_client_of_the_file_records_it(opened, gateway):
    gateway.register_schema(parse_schema(NARROW))
    alice, other, bob = opened(), opened(), opened("bob", schemas=[WIDE])
    alice["notes"].insert({"text": "one"}, row_id="r1")
    assert len(other.pending()) == 1
    alice.sync()
    gateway.register_schema(parse_schema(WIDE))
    bob["notes"].insert({"mark": 5}, row_id="r2")
    bob.sync()
    alice.sync()
    alice["notes"].update("r1", mark=7)
    assert [edit.values for edit in other.pending()] == [{"mark": 7}]
    alice["notes"].update("r2", text="hers")
    assert [edit.values for edit in other.pending()] == [{"mark": 7}, {"text": "hers"}]
    other.drop(3)
    alice.sync()
    bob.sync()
    assert rows(alice) == rows(other) == rows(bob) == {"r1": ("one", 7), "r2": (None, 5)}


def test_a_change_refused_for_a_missing_column_is_pushed_once_the_gateway_has_it(opened, gateway):
    gateway.register_schema(parse_schema(NARROW))
    alice, bob = opened(schemas=[WIDE]), opened("bob")
    alice["notes"].insert({"text": "one", "mark": 7}, row_id="r1")
    assert [edit.code for edit in alice.sync().refused] == ["SCHEMA_ERROR"]
    alice.sync()
    assert [edit.status for edit in alice.pending()] == ["refused"]
    gateway.register_schema(parse_schema(WIDE))
    assert alice.sync().pushed + alice.sync().pushed == 1
    bob.sync()
    assert rows(alice) == rows(bob) == {"r1": ("one", 7)}


def test_a_new_column_is_adopted_although_a_later_request_of_the_synchronisation_fails(opened, gateway, monkeypatch):
    gateway.register_schema(parse_schema(NARROW))
    alice, bob = opened(), opened("bob", schemas=[WIDE])
    alice.sync()
    gateway.register_schema(parse_schema(WIDE))
    bob["notes"].insert({"text": "his", "mark": 7}, row_id="r1")
    bob.sync()
    exchange = alice.coordinator._session.exchange
    pulled = exchange.send

    def fail_after(request, result):
        pulled(request, result)
        assert result.found_new_column
        result.error = UnreachableError("the next request got no response")

    with monkeypatch.context() as patched:
        patched.setattr(exchange, "send", fail_after)
        with pytest.raises(UnreachableError):
            alice.sync()
    alice.sync()
    assert rows(alice) == {"r1": ("his", 7)}


def test_a_column_is_read_once_it_is_committed(opened):
    alice = opened()
    alice["notes"].insert({"text": "t"}, row_id="a")
    replica, before = alice.coordinator.replica, alice["notes"].get("a")

    def adopt(_):
        replica.store.put_gateway_schema(parse_schema(WIDE), 1)
        return alice["notes"].get("a"), list(alice.to_pandas("notes")), list(alice)

    assert replica.step(adopt) == (before, list(before), ["notes"])
    assert alice["notes"].get("a") == {**before, "mark": None}


def test_a_column_that_the_app_has_renamed_has_no_invented_values(opened):
    alice = opened()
    alice["notes"].insert({"text": "t"}, row_id="a")
    alice.conn.execute("ALTER TABLE notes RENAME COLUMN text TO body")
    with pytest.raises(sqlite3.OperationalError, match="no such column"):
        alice["notes"].get("a")

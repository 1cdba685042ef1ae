"""Tables of rows beside the deltas: what the destination shows, and what it leaves to its user."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.adapters import DeltaBatch, SqliteAdapter, StoredDelta
from lakesync.exceptions import AdapterError
from lakesync.schema import parse_schema
from tests.conformance.book import make_delta

NOTES = parse_schema(
    {
        "table": "notes",
        "columns": [
            {"name": "title", "type": "string"},
            {"name": "size", "type": "number"},
            {"name": "done", "type": "boolean"},
            {"name": "tags", "type": "json"},
        ],
    }
)


@pytest.fixture
def adapter(tmp_path):
    opened = SqliteAdapter(tmp_path / "d.db")
    yield opened
    opened.close()


def put(adapter, number, *deltas):
    stored = tuple(StoredDelta("g", number * 256, delta) for delta in deltas)
    adapter.insert_deltas(DeltaBatch(f"g.main.1.{number}-{number}", "g", stored))


def rows(adapter, table="notes"):
    with sqlite3.connect(adapter.path) as sql:
        sql.row_factory = sqlite3.Row
        return {row["row_id"]: dict(row) for row in sql.execute(f'SELECT * FROM "{table}"')}


def test_a_row_is_its_merged_state(adapter):
    adapter.ensure_schema(NOTES)
    put(adapter, 1, make_delta("c", 5, "r", title="é", size=1.5, done=True, tags=["a", {"b": 1}]))
    put(adapter, 2, make_delta("d", 6, "r", size=2**70), make_delta("d", 4, "r", title="older"))
    assert adapter.materialise("g", NOTES, ["r", "absent"]) == 1
    row = rows(adapter)["r"]
    assert (row["title"], row["size"], row["done"]) == ("é", float(2**70), 1)
    assert row["tags"] == '["a",{"b":1}]'
    assert row["props"] == "{}"
    assert row["deleted_at"] is None
    assert row["synced_at"].startswith("20")


def test_props_belong_to_the_user(adapter):
    adapter.ensure_schema(NOTES)
    put(adapter, 1, make_delta("c", 1, "r", title="a"))
    adapter.materialise("g", NOTES, ["r"])
    with sqlite3.connect(adapter.path) as sql:
        sql.execute("UPDATE notes SET props = '{\"mine\": 1}'")
    put(adapter, 2, make_delta("c", 2, "r", title="b"))
    adapter.materialise("g", NOTES, ["r"])
    assert (rows(adapter)["r"]["title"], rows(adapter)["r"]["props"]) == ("b", '{"mine": 1}')


def test_a_deleted_row_is_marked_or_removed(adapter):
    hard = parse_schema({"table": "hard", "columns": [{"name": "x", "type": "number"}], "softDelete": False})
    for schema in (NOTES, hard):
        adapter.ensure_schema(schema)
    put(adapter, 1, make_delta("c", 1, "r", title="a"), make_delta("c", 1, "r", table="hard", x=1))
    for schema in (NOTES, hard):
        adapter.materialise("g", schema, ["r"])
    put(adapter, 2, make_delta("c", 2, "r"), make_delta("c", 2, "r", table="hard"))
    for schema in (NOTES, hard):
        adapter.materialise("g", schema, ["r"])
    assert rows(adapter)["r"]["deleted_at"] is not None
    assert rows(adapter, "hard") == {}
    put(adapter, 3, make_delta("c", 3, "r", title="back"))
    adapter.materialise("g", NOTES, ["r"])
    assert (rows(adapter)["r"]["deleted_at"], rows(adapter)["r"]["title"]) == (None, "back")


def test_a_schema_grows(adapter):
    adapter.ensure_schema(NOTES)
    grown = parse_schema(
        {
            "table": "notes",
            "columns": [{"name": "title", "type": "string"}, {"name": "more", "type": "string"}],
            "sourceTable": None,
        }
    )
    adapter.ensure_schema(grown)
    adapter.ensure_schema(grown)
    put(adapter, 1, make_delta("c", 1, "r", more="x"))
    adapter.materialise("g", grown, ["r"])
    assert rows(adapter)["r"]["more"] == "x"


def test_keys_external_ids_and_other_names(adapter):
    schema = parse_schema(
        {
            "table": "lines",
            "columns": [{"name": name, "type": "string"} for name in ("order", "line", "ext", "what")],
            "primaryKey": ["order", "line"],
            "externalIdColumn": "ext",
            "sourceTable": "order_lines",
        }
    )
    adapter.ensure_schema(schema)
    with sqlite3.connect(adapter.path) as sql:
        sql.execute(
            'INSERT INTO order_lines (row_id, "order", line, ext, props, synced_at) VALUES (?, ?, ?, ?, ?, ?)',
            ("by hand", "o", "1", "e1", '{"kept": true}', "then"),
        )
    put(adapter, 1, make_delta("c", 1, "r1", table="lines", order="o", line="1", ext="e1", what="taken over"))
    adapter.materialise("g", schema, ["r1"])
    found = rows(adapter, "order_lines")
    assert found.keys() == {"r1"}
    assert (found["r1"]["what"], found["r1"]["props"]) == ("taken over", '{"kept": true}')
    put(adapter, 2, make_delta("c", 2, "r1", table="lines", line="2"))
    adapter.materialise("g", schema, ["r1"])
    assert rows(adapter, "order_lines")["r1"]["line"] == "2"


def test_a_table_that_is_not_there_is_an_error_of_the_backend(adapter, tmp_path):
    put(adapter, 1, make_delta("c", 1, "r", title="a"))
    with pytest.raises(AdapterError, match="notes"):
        adapter.materialise("g", NOTES, ["r"])
    (tmp_path / "no.db").write_bytes(b"this is no database, whatever its name says" * 50)
    with pytest.raises(AdapterError, match=r"no\.db"):
        SqliteAdapter(tmp_path / "no.db")


edits = st.tuples(st.sampled_from(["r", "s"]), st.integers(1, 30), st.none() | st.integers(0, 3))


@settings(max_examples=40, deadline=None)
@given(history=st.lists(edits, max_size=8, unique_by=lambda edit: edit[1]), order=st.randoms())
def test_any_order_of_work_ends_in_the_same_table(tmp_path_factory, history, order):
    adapter = SqliteAdapter(tmp_path_factory.mktemp("any") / "d.db")
    adapter.ensure_schema(NOTES)
    for number, (row, hlc, size) in enumerate(history, 1):
        put(adapter, number, make_delta("c", hlc, row, **({} if size is None else {"size": size})))
        if order.random() < 0.5:
            adapter.materialise("g", NOTES, [row])
    adapter.materialise("g", NOTES, ["s", "r"])
    adapter.materialise("g", NOTES, ["r"])
    shown = {row: cells["size"] for row, cells in rows(adapter).items() if cells["deleted_at"] is None}
    states = adapter.get_latest_state("g", "notes", ["r", "s"])
    visible = {row: state for row, state in states.items() if state.visible}
    assert shown == {row: int(bytes(state.values()["size"])) for row, state in visible.items()}
    adapter.close()

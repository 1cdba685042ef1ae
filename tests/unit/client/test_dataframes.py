"""Tables and queries of a client's database as pandas, Polars and Arrow tables."""

from __future__ import annotations

import sqlite3
import sys

import polars as pl
import pyarrow as pa
import pytest

from lakesync.model.errors import ConfigurationError, extra
from tests.unit.client.todos import TODOS

SCHEMAS = [TODOS]


def test_a_table_or_a_query_is_read_as_a_dataframe(opened):
    alice = opened()
    alice["todos"].insert({"title": "a", "done": True, "n": 1.5}, row_id="t")
    assert alice.to_pandas("todos").to_dict("records") == [
        {"row_id": "t", "title": "a", "done": True, "n": 1.5, "tags": None}
    ]
    assert alice.to_arrow("SELECT n * 2 AS twice FROM todos").to_pylist() == [{"twice": 3.0}]


def test_a_dataframe_has_the_types_of_its_table_even_if_empty(opened):
    alice = opened()
    names = ["row_id", "title", "done", "n", "tags"]
    assert list(map(str, alice.to_pandas("todos").dtypes)) == ["object", "object", "bool", "float64", "object"]
    arrow = [pa.string(), pa.string(), pa.bool_(), pa.float64(), pa.string()]
    assert alice.to_arrow("todos").schema == pa.schema(zip(names, arrow, strict=True))
    alice["todos"].insert({"title": "a"}, row_id="t")
    assert alice.to_arrow("todos").schema == pa.schema(zip(names, arrow, strict=True))
    assert alice.to_pandas("todos").loc[0, "done"] is None
    for n in (2**53 + 1, 0.5):
        alice["todos"].insert(n=n)
    for frame in (alice.to_arrow("todos"), alice.to_arrow("SELECT n FROM todos")):
        assert sorted(frame["n"].drop_null().to_pylist()) == [0.5, 2.0**53]


def test_a_polars_dataframe_has_the_types_of_its_table(opened):
    alice = opened()
    schema = {"row_id": pl.String, "title": pl.String, "done": pl.Boolean, "n": pl.Float64, "tags": pl.String}
    assert alice.to_polars("todos").schema == schema
    alice["todos"].insert({"title": "a", "done": True, "n": 0.5, "tags": ["x"]}, row_id="t")
    frame = alice.to_polars("todos")
    assert frame.schema == schema
    assert frame.rows() == [("t", "a", True, 0.5, '["x"]')]
    assert alice.to_polars("SELECT 1 AS x UNION ALL SELECT 'text'").rows() == [("1",), ("text",)]


def test_an_arrow_column_with_values_of_several_types_is_text(opened):
    query = "SELECT 1 AS x UNION ALL SELECT 'text' UNION ALL SELECT x'41ff' UNION ALL SELECT NULL"
    assert opened().to_arrow(query)["x"].to_pylist() == ["1", "text", "A\ufffd", None]


@pytest.mark.parametrize("kind", ["arrow", "polars", "pandas"])
def test_columns_with_the_same_name_are_all_returned(opened, kind):
    frame = getattr(opened(), f"to_{kind}")("SELECT 1 AS x, 2 AS x, 3 AS x_1, 4 AS x")
    rows = frame.to_dict("records") if kind == "pandas" else frame.to_pylist() if kind == "arrow" else frame.to_dicts()
    assert rows == [{"x": 1, "x_2": 2, "x_1": 3, "x_3": 4}]
    assert opened().query("SELECT 1 AS x, 2 AS x, 3 AS x_1, 4 AS x") == rows


def test_a_table_without_a_schema_is_read_by_its_name(opened):
    alice = opened()
    alice.conn.execute("CREATE TABLE own (x)")
    alice.conn.commit()
    assert alice.to_arrow("own").num_rows == 0
    with pytest.raises(sqlite3.OperationalError, match=r"no such table: todo$"):
        alice.to_pandas("todo")


@pytest.mark.parametrize(("kind", "needs"), [("pandas", "pandas"), ("polars", "polars"), ("arrow", "pyarrow")])
def test_a_missing_dataframe_package_is_reported_with_its_install_command(opened, monkeypatch, kind, needs):
    monkeypatch.setitem(sys.modules, needs, None)
    with pytest.raises(ConfigurationError, match=rf"to_{kind} needs {needs}: pip install 'lakesync\["):
        getattr(opened(), f"to_{kind}")("todos")


def test_a_package_that_lacks_a_library_is_reported_with_the_cause():
    with pytest.raises(ConfigurationError, match=r"it: pip install 'lakesync\[x\]' \(no libpq\)"), extra("x", "it"):
        raise ImportError("no libpq")

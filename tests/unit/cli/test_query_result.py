"""The output of `lakesync query`."""

from __future__ import annotations

import json

import duckdb
import pytest

from lakesync.cli.local import query
from lakesync.cli.local.query import rows_of


def result(sql):
    return duckdb.sql(sql).to_arrow_table()


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ("1 AS id, 2 AS id", ["id", "id_1"]),
        ("1 AS id, 2 AS id, 3 AS id_1, 4 AS id", ["id", "id_2", "id_1", "id_3"]),
        ("1 AS a, 2 AS b", ["a", "b"]),
    ],
)
def test_columns_with_the_same_name_are_all_returned(columns, names):
    (row,) = rows_of(result(f"SELECT {columns}"))
    assert row == {name: number for number, name in enumerate(names, 1)}


def test_maps_are_dictionaries_at_any_depth():
    (row,) = rows_of(result("SELECT MAP {'a': 1} AS m, [MAP {'b': MAP {'c': 2}}] AS l, NULL::MAP(INT, INT) AS n"))
    assert row == {"m": {"a": 1}, "l": [{"b": {"c": 2}}], "n": None}


def test_every_column_is_printed_under_its_name(run, monkeypatch):
    monkeypatch.setattr("lakesync.analysis.query.query", lambda *_: result("SELECT 'x' AS id, 'y' AS id, 'z' AS last"))
    printed = run("query", "FROM t")
    header, row = (line.split() for line in printed.stdout.splitlines() if "id" in line or "x" in line)
    assert (header, row) == (["id", "id", "last"], ["x", "y", "z"])
    as_json = run("query", "FROM t", "--json")
    assert json.loads(as_json.stdout) == {"id": "x", "id_1": "y", "last": "z"}


def test_a_child_that_ends_before_it_reads_the_query_is_reported(monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    assert query._run_child(b"x" * 1_000_000, {}) == (1, b"")

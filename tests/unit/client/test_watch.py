"""Watches of queries: which changes they report, and how often they check."""

from __future__ import annotations

import sqlite3

import pytest

from lakesync.client.queries import MAX_INTERVAL_SECONDS

SCHEMAS = [{"table": "todos", "columns": [{"name": "title", "type": "string"}]}]


def test_a_watch_yields_only_when_a_table_that_it_reads_changed(opened):
    alice, bob = opened(), opened("bob")
    alice.conn.execute("CREATE TABLE own (x)")
    with alice.watch("SELECT title FROM todos ORDER BY title") as watch, alice.watch("SELECT x FROM own") as own:
        assert watch.tables == {"todos"}
        assert (watch.next(1), own.next(1)) == ([], [])
        alice.conn.execute("INSERT INTO own VALUES (1)")
        alice.conn.commit()
        assert watch.next(0) is None
        assert own.next(1) == [{"x": 1}]
        bob["todos"].insert(title="theirs")
        bob.sync()
        alice.sync()
        assert watch.next(1) == [{"title": "theirs"}]
        assert own.next(0) is None
        alice["todos"].insert(title="mine")
        assert watch.next(1) == [{"title": "mine"}, {"title": "theirs"}]
        assert watch.next(0) is None


def test_a_watch_of_the_schema_reports_new_tables(opened):
    alice = opened()
    alice.conn.execute("CREATE TABLE own (x)")
    alice.conn.execute("INSERT INTO own VALUES (1)")
    alice.conn.commit()
    alice.conn.execute("ANALYZE")  # a connection that loads the schema then reads `sqlite_stat1`
    names = "SELECT name FROM sqlite_schema WHERE name LIKE 'own%'"
    with alice.watch(names) as watch, alice.watch("SELECT title FROM todos") as todos:
        assert todos.tables == {"todos"}
        assert watch.next(1) == [{"name": "own"}]
        assert watch.next(0) is None
        alice.conn.execute("CREATE TABLE own_2 (x)")
        alice.conn.commit()
        assert watch.next(1) == [{"name": "own"}, {"name": "own_2"}]


def test_a_watch_whose_query_failed_runs_it_again(opened):
    alice = opened()
    alice["todos"].insert({"title": "{"}, row_id="t")
    with alice.watch("SELECT json_extract(title, '$.x') AS x FROM todos") as watch:
        for _ in range(2):
            with pytest.raises(sqlite3.OperationalError, match="malformed JSON"):
                watch.next(0)
        alice["todos"].update("t", title='{"x": 1}')
        assert watch.next(1) == [{"x": 1}]


def test_a_watch_checks_less_often_while_nothing_changes(opened):
    alice = opened()
    with alice.watch("SELECT title FROM todos") as watch:
        assert watch.next(1) == []
        often = watch.interval
        for _ in range(100):
            assert watch.next(0) is None
        assert watch.interval == MAX_INTERVAL_SECONDS > often
        alice["todos"].insert(title="mine")
        assert watch.next(1) == [{"title": "mine"}]
        assert watch.interval == often

"""The app's database: its transactions, queries, rows and connections."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from lakesync.client.errors import DbError, TableError
from lakesync.model.errors import ConfigurationError, DuplicateError, NotFoundError, ValidationError
from tests.unit.client.todos import TODOS

SCHEMAS = [TODOS]


def edits(client):
    return [
        (edit.delta.op, edit.delta.row_id, [cell.column for cell in edit.delta.columns]) for edit in client.pending()
    ]


def test_a_failed_transaction_is_rolled_back_completely(opened):
    alice = opened()
    with pytest.raises(DuplicateError), alice.transaction():
        assert alice["todos"].insert({"title": "never"}, row_id="t") == alice["todos"].insert(row_id="t")
    assert alice.pending() == []
    alice.conn.execute("INSERT INTO todos (row_id) VALUES ('open')")
    with pytest.raises(ConfigurationError, match=r"a transaction is open on db\.conn"):
        alice.sync()
    alice.conn.rollback()
    assert len(alice["todos"]) == 0


def test_a_nested_transaction_is_rolled_back_alone(opened):
    alice = opened()
    todos = alice["todos"]
    with alice.transaction() as conn:
        todos.insert({"title": "stays"}, row_id="a")
        with pytest.raises(DuplicateError), alice.transaction(), alice.transaction():
            assert todos.insert({"title": "never"}, row_id="b") == todos.insert(row_id="a")
        with alice.transaction():
            todos.insert({"title": "stays too"}, row_id="c")
            conn.commit()  # the app may end the whole transaction itself
            todos.insert({"title": "and this"}, row_id="d")
    assert [edit[1] for edit in edits(alice)] == ["a", "c", "d"]


def test_a_query_reads_uncommitted_rows_and_cannot_write_or_end_the_transaction(opened):
    alice = opened()
    kept = alice["todos"].insert(title="kept")
    with pytest.raises(ValidationError, match="writes"):
        alice.query("DELETE FROM todos")
    assert not alice.conn.in_transaction
    alice.conn.execute("UPDATE todos SET title = 'changed'")
    assert alice.query("SELECT row_id, title FROM todos") == [{"row_id": kept, "title": "changed"}]
    with pytest.raises(ValidationError, match="writes"):
        alice.query("DELETE FROM todos RETURNING row_id")
    alice.conn.commit()
    assert alice["todos"][kept]["title"] == "changed"


def test_a_file_that_sqlite_cannot_use_raises_an_error_that_names_it(opened, tmp_path):
    with closing(sqlite3.connect(tmp_path / "alice.db")) as db:
        db.execute("CREATE VIEW _lakesync_edits AS SELECT 1 AS tbl, 2 AS row_id")
    with pytest.raises(DbError, match=r"alice\.db cannot be used now: "):
        opened()


def test_rows_are_read_by_id_and_missing_ones_raise_not_found(opened):
    todos = opened()["todos"]
    row_id = todos.insert(title="a", done=False, tags=["x"])
    assert todos[row_id] == {"row_id": row_id, "title": "a", "done": False, "n": None, "tags": ["x"]}
    assert row_id in todos
    with pytest.raises(DuplicateError):
        todos.insert(row_id=row_id)
    with pytest.raises(NotFoundError):
        todos.update("nobody", title="x")
    assert todos.delete(row_id)
    assert not todos.delete(row_id)


def test_a_row_can_be_written_as_it_was_read(opened):
    alice = opened()
    todos = alice["todos"]
    assert todos.insert({"row_id": "t", "title": "a", "n": -(2**63)}) == "t"
    read = todos["t"]
    todos.update("t", {**read, "title": "b"})
    todos.upsert("t", {**read, "done": True})
    todos.insert({**read, "row_id": "copy", "n": 7})
    assert todos["t"] == {"row_id": "t", "title": "a", "done": True, "n": -(2**63), "tags": None}
    (copied,) = [edit for edit in alice.pending() if edit.delta.row_id == "copy"]
    assert repr(copied) == f"<Edit {copied.number} waiting: INSERT todos/copy {{'title': 'a', 'n': 7}}>"


def test_threads_share_a_database(opened):
    alice, bob = opened(), opened("bob")

    def write(name):
        for number in range(10):
            with alice.transaction():
                alice["todos"].insert({"title": name}, row_id=f"{name}{number}")
                assert alice["todos"][f"{name}{number}"]["title"] == name
            if number % 5 == 0:
                alice.sync()
                alice.query("SELECT count(*) FROM todos")

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(write, "abcdef"))
    alice.sync()
    bob.sync()
    assert len(bob["todos"]) == 60
    assert alice.pending() == []


def test_a_writing_thread_does_not_block_a_sync_in_another(opened):
    """At a transaction's start, its thread was not recorded yet, so it was mistaken for one that `conn` began."""
    alice = opened()
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(lambda: [alice["todos"].upsert("t", n=number) for number in range(100)])
        while not writing.done():
            alice.coordinator.replica.check_usable()
        assert len(writing.result()) == 100
    with alice.transaction(), pytest.raises(ConfigurationError, match="a transaction is open"):
        alice.sync()


def test_a_full_disk_raises_and_loses_no_commit(opened):
    alice = opened()
    ((pages,),) = alice.conn.execute("PRAGMA page_count").fetchall()
    alice.conn.execute(f"PRAGMA max_page_count = {pages + 30}")

    def fill():
        for number in range(1000):
            alice["todos"].insert({"title": "x" * 2000}, row_id=str(number))

    with pytest.raises(DbError, match="cannot be used now: database or disk is full"):
        fill()
    assert 0 < len(alice["todos"]) < 100
    assert alice.sync().pushed == len(alice["todos"])


def test_reads_are_independent_of_the_factories_that_an_app_sets(opened):
    alice = opened()
    alice.conn.row_factory = lambda cursor, row: dict(zip([name for name, *_ in cursor.description], row, strict=True))
    alice.conn.text_factory = bytes
    row_id = alice["todos"].insert(title="a", tags=[1])
    row = {"row_id": row_id, "title": "a", "done": None, "n": None, "tags": [1]}
    assert (alice["todos"].get(row_id), alice["todos"].rows(), len(alice["todos"])) == (row, [row], 1)
    assert row_id in alice["todos"]
    assert alice.query("SELECT title, n FROM todos") == [{"title": "a", "n": None}]
    assert alice.conn.execute("SELECT title FROM todos").fetchall() == [{"title": b"a"}]
    alice.db.save()


def test_a_connection_that_distrusts_the_schema_is_rejected_with_the_setting(opened):
    alice = opened()
    alice.conn.execute("PRAGMA trusted_schema = OFF")
    with pytest.raises(TableError, match="leave `PRAGMA trusted_schema` of the connection on"):
        alice["todos"].insert(title="a")
    alice.conn.execute("PRAGMA trusted_schema = ON")
    alice["todos"].insert(title="a")
    assert len(alice.pending()) == 1


@pytest.mark.skipif(not hasattr(sqlite3.Connection, "autocommit"), reason="sqlite3 has it from Python 3.12 on")
def test_writes_are_committed_although_the_app_has_set_autocommit(opened):
    alice = opened()
    alice.conn.autocommit = True
    alice["todos"].insert(title="kept", row_id="a")
    with pytest.raises(ValidationError), alice.transaction():
        alice["todos"].upsert("a", title="rolled back", n="no number")
    with pytest.raises(ValidationError, match="writes to the database"):
        alice.query("DELETE FROM todos RETURNING row_id")
    assert not alice.conn.in_transaction
    alice.close()
    assert [row["title"] for row in opened()["todos"]] == ["kept"]

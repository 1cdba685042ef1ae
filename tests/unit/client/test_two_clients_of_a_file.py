"""Two clients of one file, as of two processes: one synchronises, and the other may do so after it."""

from __future__ import annotations

import gc
import sqlite3
from contextlib import suppress

import pytest

import lakesync
from lakesync.client import DbError, LocalTransport
from lakesync.model.errors import ConfigurationError

TODOS = {"table": "todos", "columns": [{"name": "title", "type": "string"}]}
NOTES = {"table": "notes", "columns": [{"name": "text", "type": "string"}, {"name": "n", "type": "number"}]}
SCHEMAS = [TODOS, NOTES]


def test_a_table_that_the_other_client_adds_is_synchronised(opened):
    """The first client is of an earlier version of the app, which does not have the table."""
    bob = opened("bob")
    earlier = opened(schemas=[TODOS])
    earlier.sync()
    later = opened()
    bob["notes"].insert({"text": "a", "n": 1}, row_id="bob's")
    bob.sync()
    later["notes"].insert({"text": "b"}, row_id="alice's")
    earlier.sync()
    earlier.close()
    bob["notes"].update("bob's", n=2)
    bob.sync()
    later.sync()
    bob.sync()
    later.close()
    again = opened()
    assert list(again["notes"].rows()) == list(bob["notes"].rows())
    assert again["notes"].get("bob's") == {"row_id": "bob's", "text": "a", "n": 2}


def test_only_one_client_synchronises_a_file_that_also_has_a_symbolic_link(opened, tmp_path):
    opened().sync()
    (tmp_path / "link.db").symlink_to(tmp_path / "alice.db")
    with pytest.raises(DbError, match="another client is synchronising"):
        opened("link", client_id="alice").sync()


def test_a_file_with_a_hard_link_is_not_opened(opened, tmp_path):
    opened().close()
    (tmp_path / "link.db").hardlink_to(tmp_path / "alice.db")
    for name in ("alice", "link"):
        with pytest.raises(ConfigurationError, match="2 hard links"):
            opened(name, client_id="alice")
    (tmp_path / "link.db").unlink()
    opened().sync()


def test_a_client_that_cannot_start_auto_sync_closes_its_connections(opened):
    opened().sync()
    gc.collect()
    before = open_connections()
    with pytest.raises(DbError, match="another client is synchronising") as raised:
        opened(auto_sync=True)
    assert open_connections() == before
    assert raised.value.retryable


def open_connections():
    """The number of open SQLite connections of this process."""
    count = 0
    for each in gc.get_objects():
        if isinstance(each, sqlite3.Connection):
            with suppress(sqlite3.ProgrammingError):  # it is closed
                count += each.total_changes >= 0
    return count


def test_the_working_directory_may_change_while_a_file_is_open(gateway, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with lakesync.open("alice.db", client_id="alice", schemas=[TODOS], transport=LocalTransport(gateway)) as alice:
        monkeypatch.chdir(tmp_path / "elsewhere")
        alice["todos"].insert({"title": "x"}, row_id="1")
        alice.sync()
        with alice.watch("SELECT title FROM todos") as watch:
            assert watch.next() == [{"title": "x"}]
    assert not list((tmp_path / "elsewhere").iterdir())

"""Files restored from a backup: the client has an old cursor, an old outbox, and its own id."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from lakesync.client import LocalTransport
from lakesync.model.types import SyncPull

SCHEMAS = [{"table": "notes", "columns": [{"name": "text", "type": "string"}, {"name": "n", "type": "number"}]}]


class RecordingTransport(LocalTransport):
    """Records the pulls."""

    def __init__(self, gateway):
        super().__init__(gateway)
        self.asked = []

    def pull(self, pull: SyncPull):
        self.asked.append(pull)
        return super().pull(pull)


@pytest.fixture
def put_back(opened, tmp_path):
    """Restore alice's file from before some changes that she made and synchronised."""

    def back(do, **options):
        alice = opened()
        with closing(sqlite3.connect(tmp_path / "backup.db")) as backup:
            alice.conn.backup(backup)
        do(alice)
        alice.sync()
        alice.close()
        for path in tmp_path.glob("alice.db*"):
            path.unlink()
        (tmp_path / "backup.db").rename(tmp_path / "alice.db")
        return opened(**options)

    return back


def texts(client):
    return {row["row_id"]: (row["text"], row["n"]) for row in client["notes"]}


@pytest.mark.parametrize("edits", [False, True])
def test_a_restored_file_gets_its_own_later_writes(opened, put_back, edits):
    bob = opened("bob")

    def before():
        alice = opened()
        for row_id in ("kept", "changed", "deleted", "waits"):
            alice["notes"].insert({"text": row_id, "n": 0}, row_id=row_id)
        alice.sync()
        alice["notes"].update("waits", n=1)
        assert len(alice.pending()) == 1
        alice.close()

    def after(alice):
        alice.sync()
        alice["notes"].update("changed", n=2)
        alice["notes"].delete("deleted")
        alice["notes"].delete("waits")
        alice["notes"].insert({"text": "new"}, row_id="new")
        alice["notes"].insert({"text": "hers"}, row_id="shared")
        alice.sync()
        bob.sync()
        bob["notes"].update("shared", n=3)
        bob.sync()

    before()
    alice = put_back(after)
    assert texts(alice)["deleted"] == ("deleted", 0)
    if edits:
        alice["notes"].update("kept", n=4)
        alice["notes"].insert({"text": "newest"}, row_id="newest")
    alice.sync()
    bob.sync()
    expected = {"kept": ("kept", 0), "changed": ("changed", 2), "new": ("new", None), "shared": ("hers", 3)}
    if edits:
        expected.update({"kept": ("kept", 4), "newest": ("newest", None)})
    assert texts(alice) == texts(bob) == expected
    assert alice.pending() == []


def test_a_restored_file_gets_its_own_writes_after_an_interrupted_first_pull(opened, put_back, gateway):
    def after(alice):
        with alice.transaction() as conn:
            conn.executemany(
                "INSERT INTO notes (row_id, text) VALUES (?, 'later')", [(f"n{number:04}",) for number in range(2500)]
            )

    opened().close()

    class InterruptedTransport(RecordingTransport):
        def pull(self, pull):
            if len(self.asked) == 1:
                raise KeyboardInterrupt
            return super().pull(pull)

    opened()["notes"].insert({"text": "first"}, row_id="first")
    alice = put_back(after, transport=InterruptedTransport(gateway))
    alice["notes"].insert({"text": "mine"}, row_id="mine")
    with pytest.raises(KeyboardInterrupt):
        alice.sync()
    assert 1 < len(alice["notes"]) < 2502
    alice.close()
    alice = opened()
    alice.sync()
    assert len(alice["notes"]) == 2502


def test_a_client_with_all_its_writes_is_not_sent_them_again(opened, gateway):
    alice = opened(transport=RecordingTransport(gateway))
    alice["notes"].insert({"text": "one"}, row_id="a")
    alice.sync()
    alice.sync()
    alice["notes"].update("a", n=1)
    assert alice.sync().pulled == 0
    alice.close()
    alice = opened(transport=RecordingTransport(gateway))
    alice["notes"].update("a", n=2)
    alice["notes"].insert({"text": "two"}, row_id="b")
    assert alice.sync().pulled == 0
    alice["notes"].update("b", n=2)
    assert alice.sync().pulled == 0
    first, *others = alice.transport.asked
    assert first.own_hlc is not None
    assert {pull.own_hlc for pull in others} == {None}

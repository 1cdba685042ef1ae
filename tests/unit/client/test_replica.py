"""The replica: durability of commits, and the recording of the app's writes."""

import sqlite3
import threading
from contextlib import closing

import pytest

import lakesync.client.sync.replica as replica_module
from lakesync.client.core import FetchCheckpoint, Wait
from lakesync.client.core.messages import Broadcast
from lakesync.client.errors import DbError
from lakesync.client.sync.replica import Replica, SyncThread
from lakesync.model.errors import NotFoundError
from lakesync.model.types import PushResult, SyncPull
from tests.unit.client.core_support import delta, error_answer, page
from tests.unit.client.test_client_store import SCHEMA

NORMAL, FULL = 1, 2


def test_only_a_page_with_more_after_it_is_committed_without_waiting_for_the_disk(tmp_path):
    with closing(Replica(tmp_path / "app.db", "me", [SCHEMA])) as replica:
        commits: list[tuple[int, int]] = []
        commit = replica.store.commit

        def noted(changes):
            (synchronous,) = replica.read("PRAGMA synchronous")[0]
            commits.append((synchronous, replica.core.cursor))
            commit(changes)

        replica.store.commit = noted
        replica.core.request_pull()
        assert isinstance(replica.next_request(), FetchCheckpoint)
        replica.receive(error_answer("NOT_FOUND"))
        replica.next_request()
        replica.receive(page(1000, delta("INSERT", "r1", -10, x=1), more=True))
        replica.next_request()
        replica.receive(page(2000, delta("INSERT", "r2", -9, x=1)))
        replica.db.execute("UPDATE t SET x = 2 WHERE row_id = 'r1'")
        push = replica.next_request()
        replica.receive(PushResult(3000, len(push.deltas)))
        assert [kind for kind, _ in commits].count(NORMAL) == 1
        assert commits[[kind for kind, _ in commits].index(NORMAL)] == (NORMAL, 0)
        assert len(commits) > 3
        assert replica.db.execute("PRAGMA synchronous").fetchall() == [(FULL,)]


def test_a_failed_page_does_not_relax_the_durability_of_later_commits(tmp_path):
    with closing(Replica(tmp_path / "app.db", "me", [SCHEMA])) as replica:
        replica.core.request_pull()
        replica.next_request()
        replica.receive(error_answer("NOT_FOUND"))
        replica.next_request()
        replica.db.execute("DROP TABLE _lakesync_known_t")
        with pytest.raises(DbError, match="cannot be used"):
            replica.receive(page(1000, delta("INSERT", "r1", -10, x=1), more=True))
        assert replica.db.execute("PRAGMA synchronous").fetchall() == [(FULL,)]


def start(replica):
    """Pull everything that the gateway has, which is one row."""
    replica.core.request_pull()
    replica.next_request()
    replica.receive(error_answer("NOT_FOUND"))
    replica.next_request()
    replica.receive(page(1000, delta("INSERT", "r1", -10, x=1)))


def fail(replica):
    """Run a step that fails, as a thread of the app may while the response to a request is awaited."""
    with pytest.raises(NotFoundError):
        replica.step(lambda core: core.retry([99]))


def test_a_failed_step_keeps_the_request_in_progress(tmp_path):
    with closing(Replica(tmp_path / "app.db", "me", [SCHEMA])) as replica:
        replica.core.request_pull()
        assert isinstance(replica.next_request(), FetchCheckpoint)
        fail(replica)
        replica.receive(error_answer("NOT_FOUND"))
        assert isinstance(replica.next_request(), SyncPull)
        fail(replica)
        replica.receive(page(1000, delta("INSERT", "r1", -10, x=1)))
        replica.db.execute("UPDATE t SET x = 2")
        push = replica.next_request()
        fail(replica)
        replica.receive(PushResult(3000, len(push.deltas)))
        assert replica.edits() == []
        assert replica.read("SELECT * FROM t") == [("r1", 2, None)]


def test_a_failed_step_keeps_the_mode_and_the_named_source(tmp_path):
    with closing(Replica(tmp_path / "app.db", "me", [SCHEMA])) as replica:
        start(replica)
        replica.db.execute("UPDATE t SET x = 2")
        replica.core.mode = "pullOnly"
        replica.core.request_pull("crm")
        fail(replica)
        assert replica.next_request().source == "crm"
        fail(replica)
        replica.receive(page(1000, delta("INSERT", "r2", -10, x=1)))
        request = replica.next_request()  # the stream of pages may have a gap after the failure
        assert isinstance(request, Wait) or request.source is None


def test_a_response_is_discarded_if_a_full_pull_has_started_meanwhile(tmp_path):
    with closing(Replica(tmp_path / "app.db", "me", [SCHEMA])) as replica:
        replica.subscription_opened()
        start(replica)
        replica.db.execute("INSERT INTO t (row_id, x) VALUES ('r3', 1)")
        push = replica.next_request()
        with replica.store.tracking.without_any_trigger():
            replica.db.execute("DELETE FROM t WHERE row_id = 'r1'")
        replica.receive(Broadcast(page(2000, delta("UPDATE", "r1", -9, x=3))))
        assert replica.core.cursor == 0
        replica.receive(PushResult(3000, len(push.deltas)))
        assert [edit.status for edit in replica.edits()] == ["sent"]
        assert replica.next_request().deltas == push.deltas


def test_reading_within_an_app_transaction_does_not_wait_for_a_waiting_step(tmp_path):
    app = sqlite3.connect(tmp_path / "app.db")
    with closing(Replica(tmp_path / "app.db", "me", [SCHEMA])) as replica, closing(app):
        app.execute("INSERT INTO t (row_id, x) VALUES ('r1', 1)")
        begun = threading.Event()
        begins = replica.store.transaction

        def noted():
            begun.set()
            return begins()

        replica.store.transaction = noted
        thread = SyncThread(target=replica.step, args=(lambda _: None,))
        thread.start()
        assert begun.wait(30)
        assert (replica.unrecorded_count(), replica.oldest_unacknowledged_at()) == (0, None)
        assert replica.read("SELECT count(*) FROM t") == [(0,)]
        assert thread.is_alive(), "the step waits for the app's transaction"
        app.commit()
        thread.join()
        assert replica.edits()[0].delta.row_id == "r1"


def test_writes_made_while_a_step_waits_are_recorded_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(replica_module, "RECORDED_TOGETHER", 2)
    with (
        closing(Replica(tmp_path / "app.db", "me", [SCHEMA])) as replica,
        closing(sqlite3.connect(replica.path)) as app,
    ):
        replica.core.request_pull()
        replica.next_request()
        replica.receive(error_answer("NOT_FOUND"))
        replica.next_request()
        names = [f"r{place}" for place in range(6)]
        replica.receive(page(1000, *(delta("INSERT", name, -10, x=1, y="1") for name in names)))
        replica.core.request_pull()
        assert isinstance(replica.next_request(), SyncPull)
        begin = replica.store.transaction

        def late():
            replica.store.transaction = begin
            app.execute("UPDATE t SET x = 2")
            app.commit()
            return begin()

        replica.store.transaction = late
        replica.receive(page(2000, *(delta("UPDATE", name, -5, "other", y="7") for name in names)))
        assert replica.read("SELECT DISTINCT x, y FROM t") == [(2, "7")]
        assert {tuple(edit.values.items()) for edit in replica.edits()} == {(("x", 2),)}


def test_edits_recorded_by_two_clients_of_a_file_are_all_stored(tmp_path):
    path = tmp_path / "app.db"
    with closing(Replica(path, "me", [SCHEMA])) as one, closing(Replica(path, "me", [SCHEMA])) as other:
        for number, replica in enumerate([one, other, other, one]):
            replica.db.execute("INSERT INTO t (row_id, x) VALUES (?, ?)", (f"r{number}", number))
            assert [edit.delta.row_id for edit in replica.edits()] == [f"r{n}" for n in range(number + 1)]
        one.next_request()
        one.receive(error_answer("NOT_FOUND"))
        one.next_request()
        one.receive(page(1000, delta("INSERT", "theirs", -9, x=1)))
        other.db.execute("UPDATE t SET x = 9 WHERE row_id = 'theirs'")
        assert [edit.number for edit in other.edits()] == [1, 2, 3, 4, 5]
        push = one.next_request()
        assert push.last_seen_hlc == 1000
        assert [pushed.row_id for pushed in push.deltas] == ["r0", "r1", "r2", "r3", "theirs"]
    with closing(Replica(path, "me", [SCHEMA])) as replica:
        assert replica.core.cursor == 1000

"""The reference's names and options: databases, coordinators and retries."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import pytest

from lakesync.client import (
    LocalDB,
    LocalTransport,
    MemoryQueue,
    RetryPolicy,
    SyncCoordinator,
    UnreachableError,
    create_client,
)
from lakesync.model.errors import BackpressureError, ConfigurationError
from tests.unit.client.queue_support import NOTES, RecordingTransport, rows_there

SCHEMAS = [NOTES]


def test_a_coordinator_can_be_created_over_a_database_and_a_transport(gateway, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    queue = MemoryQueue()
    db = LocalDB.open("app")
    coordinator = SyncCoordinator(db, LocalTransport(gateway), client_id="alice", schemas=SCHEMAS, queue=queue)
    coordinator.tracker.insert("notes", "a", {"text": "one"})
    coordinator.tracker.update("notes", "a", {"text": "two"})
    assert coordinator.queue_depth() == queue.depth() == 2
    assert coordinator.push_to_gateway().pushed == 2
    coordinator.pull_from_gateway()
    assert coordinator.tracker.query("SELECT text FROM notes") == [{"text": "two"}]
    assert "webhook" in [each.type for each in coordinator.list_connector_types()]
    coordinator.close()
    db.close()
    with closing(LocalDB.open({"name": "app"})) as db:
        again = SyncCoordinator(db, LocalTransport(gateway))
        assert again.client_id == "alice"
        again.tracker.delete("notes", "a")
        again.sync_once()
        again.close()
    assert rows_there(gateway) == set()


def test_local_db_open_uses_reference_names_and_save_removes_the_wal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(LocalDB.open("app.db", "file")) as db:
        assert (db.name, db.backend) == ("app.db", "file")
        db.exec("CREATE TABLE t (x)")
        db.exec("INSERT INTO t VALUES (?)", [1])
        with pytest.raises(ConfigurationError, match=r"a transaction is open on app\.db: commit it"), db.transaction():
            db.save()
        db.save()
        (tmp_path / "copy.db").write_bytes((tmp_path / "app.db").read_bytes())
        with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
            assert copy.execute("SELECT x FROM t").fetchall() == [(1,)]
    with closing(LocalDB.open({"name": "app", "backend": "memory"})) as db:
        db.exec("CREATE TABLE t (x)")
        db.save()
        assert (db.backend, db.query("SELECT count(*) AS n FROM t")) == ("memory", [{"n": 0}])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["app.db", "copy.db"]
    for wrong in ({"name": 7}, {"backend": "file"}, {"name": "a", "version": 1}):
        with pytest.raises(ConfigurationError, match="pass a mapping with name, a string"):
            LocalDB.open(wrong)
    with pytest.raises(ConfigurationError, match="backend is 'idb', it must be file or memory"):
        LocalDB.open({"name": "app", "backend": "idb"})


def test_edits_are_refused_after_too_many_overload_answers(opened, gateway):
    transport = RecordingTransport(gateway)
    transport.error = BackpressureError("too much", retry_after=0)
    alice = opened(transport=transport, retry=RetryPolicy(pushes=3))
    alice["notes"].insert({"text": "a"}, row_id="a")
    for _ in range(2):
        with pytest.raises(BackpressureError):
            alice.sync()
        assert [edit.status for edit in alice.pending()] == ["waiting"]
    assert [edit.code for edit in alice.sync().refused] == [BackpressureError.code]
    transport.error = None
    alice.retry()
    alice.sync()
    assert rows_there(gateway) == {"a"}


def test_delays_follow_the_retry_policy(opened, gateway):
    transport = RecordingTransport(gateway)
    transport.error = UnreachableError("offline")
    alice = opened(transport=transport, retry=RetryPolicy(first_delay=100, longest_delay=150))
    alice["notes"].insert(text="a")
    begun = time.monotonic()
    with pytest.raises(UnreachableError):
        alice.sync()
    wait = alice.coordinator.replica.next_request()
    assert wait.seconds + time.monotonic() - begun >= 50
    assert wait.seconds <= 100
    for _ in range(3):
        with pytest.raises(UnreachableError):
            alice.sync()
    assert alice.coordinator.replica.next_request().seconds <= 150


def test_the_references_options_reach_the_coordinator(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"name": "app", "client_id": "me", "schemas": SCHEMAS, "auto_sync_ms": 0}
    somewhere = {"url": "http://127.0.0.1:9", "gatewayId": "g"}
    config = {
        "syncMode": "pushOnly",
        "realtimeHeartbeatMs": 5000,
        "maxRetries": 7,
        "maxActionRetries": 2,
        "reconnectBaseMs": 500,
        "reconnectMaxMs": 9000,
    }
    queue = MemoryQueue()
    with create_client(**options, gateway=somewhere, queue=queue, coordinator_config=config) as client:
        coordinator = client.coordinator
        assert coordinator.queue is queue
        assert coordinator.status.mode == "pushOnly"
        assert coordinator._auto_sync._heartbeat == 5
        assert coordinator.replica.retry == RetryPolicy(0.5, 9.0, 7, 2)
    with pytest.raises(ConfigurationError, match="coordinator_config has unknown keys hlc: it takes"):
        create_client(**options, gateway=somewhere, coordinator_config={"hlc": 1})


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"heartbeat": 0}, "heartbeat is 0, it must be greater than 0"),
        ({"retry": RetryPolicy(first_delay=0)}, "retry.first_delay is 0"),
        ({"retry": RetryPolicy(pushes=0)}, "retry.pushes is 0"),
    ],
)
def test_options_of_zero_are_rejected(opened, option, why):
    with pytest.raises(ConfigurationError, match=why):
        opened(**option)

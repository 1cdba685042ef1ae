"""Erased values are removed from staging for good, and each client that has them is sent DELETEs."""

from __future__ import annotations

import msgspec
import pytest

from lakesync.feed.reindex import reindex_some
from lakesync.model.errors import NotFoundError
from lakesync.model.merge import RowState
from lakesync.model.types import RowDelta
from lakesync.rules.keys import BucketIndex
from lakesync.rules.model import parse_rules
from lakesync.staging import erasure_tables
from lakesync.staging.erased_rows import ERASER, restore_columns
from lakesync.staging.records import LOST, ActionRecord, Checkpoint, ClientRecord, encode_row
from lakesync.wire.log import decode_body
from tests.conformance.book import id_sum, make_delta
from tests.conformance.erased_world import SECRET, World

RULES = parse_rules(
    {
        "version": 1,
        "buckets": [{"name": "mine", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
    }
)


@pytest.fixture
def world(place, clock):
    made = World(place.url, clock)
    yield made
    made.close()


def test_an_erased_row_is_deleted_for_every_client_and_in_the_log(world):
    world.write("a", "r1", name=SECRET, team="red")
    world.write("b", "r1", phone=SECRET)
    world.write("a", "r2", name="kept", team="red")
    world.pull("a", since=1)
    world.pull("c")
    assert set(world.rows["c"]) == {"r1", "r2"}
    world.seen.clear()
    erasure = world.store.erase_row("g", "notes", "r1")
    assert (erasure.deltas, erasure.row_count) == (2, 1)
    assert erasure.done_ms is not None
    for client in ("a", "b", "c", "d"):
        rows = world.pull(client)
        assert set(rows) == {"r2"}
    assert all(SECRET not in str(delta) for delta in world.seen)
    state = world.store.read("g", lambda view: view.rows([("notes", "r1")])).result()[("notes", "r1")]
    assert SECRET not in str(state)
    assert (state.state.live, state.state.inserted, state.state.touched) == ([], None, {})
    assert all(SECRET not in str(delta.columns) for delta in world.logged())
    assert [delta.client_id for delta in world.logged()][-1] == ERASER
    assert world.store.erasures("g") == [erasure]


def test_a_repeated_push_of_erased_deltas_is_accepted_and_changes_nothing(world):
    first = world.write("a", "r1", name=SECRET)
    offline = make_delta("b", world.clock.now_ms << 16, "r1", name=SECRET)
    world.store.erase_row("g", "notes", "r1")
    assert world.pull("c") == {}
    world.seen.clear()
    for client, delta in (("a", first), ("b", offline), ("b", offline)):
        assert world.push(client, delta).accepted == 1
    assert world.pull("c") == {}
    assert world.seen == [], "no listener is notified"
    assert [delta.columns for delta in world.logged() if delta.client_id == "b"] == [()], "once, without values"
    assert all(SECRET not in str(delta) for delta in world.logged())
    mixed = make_delta("b", (world.clock.now_ms << 16) + 1, "r9", name="kept")
    assert world.push("b", offline, mixed).accepted == 2
    assert set(world.pull("c")) == {"r9"}


def test_rows_written_after_an_erasure_are_new(world):
    world.write("a", "r1", name=SECRET)
    world.store.erase_row("g", "notes", "r1")
    world.clock.advance(1000)
    delta = make_delta("a", world.clock.now_ms << 16, "r1", name="again")
    world.push("a", delta)
    assert world.pull("c") == {"r1": {"name": "again"}}


def test_a_flush_during_an_erasure_agrees_with_the_ledger(world):
    sent = [world.write("a", f"r{n}", name=SECRET if n == 1 else "kept") for n in range(4)]
    batch = world.store.plan("g", "main", 100)
    world.store.erase_row("g", "notes", "r1")
    assert world.store.plan("g", "main", 100) == batch
    world.store.confirm(batch.batch_id, len(sent), id_sum(sent))
    assert world.store.trim("g", "main") == batch.bytes
    (tombstone,) = world.logged()
    assert tombstone.client_id == ERASER
    rest = world.store.plan("g", "main", 100)
    world.store.confirm(rest.batch_id, 1, id_sum([tombstone]))
    assert sum(day.count for day in world.store.ledger("g")) == 5


@pytest.mark.parametrize("most", [1, 3, 4, 100])
def test_a_commit_redacts_few_deltas_of_large_pushes(world, monkeypatch, most):
    """Pushes wait for each of these commits, so the sizes of the log's pushes limit it, not only their number."""
    monkeypatch.setattr(erasure_tables, "_DELTAS_PER_COMMIT", most)
    redact = erasure_tables.ErasureStatements.redact
    decoded: list[list[int]] = []

    def decode_counted(body: bytes):
        deltas = decode_body(body)
        decoded[-1].append(len(deltas))
        return deltas

    monkeypatch.setattr(erasure_tables, "decode_body", decode_counted)

    def redact_counted(self, after, limit, covers):
        decoded.append([])
        return redact(self, after, limit, covers)

    monkeypatch.setattr(erasure_tables.ErasureStatements, "redact", redact_counted)
    for push in range(5):
        world.clock.advance(1)
        stamp = world.clock.now_ms << 16
        world.push("x", *(make_delta("x", stamp + n, f"r{n}", name=f"{SECRET}-{push}") for n in range(3)))
    erasure = world.store.erase_row("g", "notes", "r1")
    assert erasure.deltas == 5
    assert sum(map(sum, decoded)) == 15
    assert max(map(sum, decoded)) < most + 3
    assert [delta for delta in world.logged() if delta.row_id == "r1" and delta.columns] == []


def test_erasing_a_client_keeps_the_values_of_others(world):
    world.gateway.set_rules(RULES)
    world.write("a", "shared", name="theirs", team="red")
    world.write("x", "shared", phone=SECRET)
    world.write("x", "own", name=SECRET, team="red")
    world.write("x", "late", name=SECRET, team="red")
    world.write("a", "late", name="theirs")
    world.write("x", "gone", name=SECRET, team="red")
    world.write("x", "gone")
    world.pull("c")
    assert world.rows["c"]["shared"] == {"name": "theirs", "team": "red", "phone": SECRET}
    assert set(world.rows["c"]) == {"shared", "own", "late"}
    world.pull("x")
    world.seen.clear()
    erasure = world.store.erase_client("g", "x")
    assert erasure.done_ms is not None
    # without the erased column, no rule shows the row to any client
    expected = {"shared": {"name": "theirs", "team": "red"}}
    assert world.pull("c") == expected
    assert world.pull("new") == expected
    assert world.pull("a") == expected
    assert all(SECRET not in str(delta) for delta in world.seen)
    rows = world.store.submit("g", lambda commit: commit.scan_rows(None, 100)).result()
    assert SECRET not in str(rows)
    assert not [row for row in rows for part in row.state.live if part.client_id == "x"]
    assert not [row for row in rows if "x" in row.writers]
    assert all(SECRET not in str(delta.columns) for delta in world.logged())
    record = world.store.read("g", lambda view: view.client("x")).result()
    assert record == ClientRecord("x", LOST, 0, gets_broadcasts=True)
    claims = world.store.read(
        "g", lambda view: view._query("SELECT claims FROM log WHERE gateway = ? AND client_id = ?", "x")
    ).result()
    assert {bytes(each) for (each,) in claims} == {b"{}"}


def test_the_log_of_an_erased_client_merges_to_the_rows_in_staging(world):
    inserted = RowDelta("INSERT", "notes", "empty", "x", (), (world.clock.now_ms << 16) + 3, "an insert")
    deleted = RowDelta("DELETE", "notes", "gone", "x", (), inserted.hlc, "a delete")
    older = inserted.hlc - 1
    world.push("a", make_delta("a", older, "empty", name="theirs"), make_delta("a", older, "gone", name="theirs"))
    world.push("x", inserted, deleted)
    erasure = world.store.erase_client("g", "x")
    assert erasure.deltas == 1
    world.push("b", make_delta("b", older, "empty"))  # it deletes the row, because the INSERT is erased
    merged = {"empty": RowState(), "gone": RowState()}
    for delta in world.logged():
        merged[delta.row_id].merge(delta)
    stored = world.store.read("g", lambda view: view.rows([("notes", row) for row in merged])).result()
    assert {row: state.visible for row, state in merged.items()} == {"empty": False, "gone": False}
    for row, state in merged.items():
        mine = stored["notes", row].state
        assert (mine.tombstone, mine.inserted, mine.live) == (state.tombstone, state.inserted, state.live)


def test_values_that_an_erased_client_had_overwritten_are_restored_from_the_lake(world):
    older = [world.write("a", "r1", name="theirs", phone="1"), world.write("a", "r2", name="gone")]
    world.write("x", "r1", name=SECRET)
    world.write("b", "r2")
    world.pull("c")
    erasure = world.store.erase_client("g", "x")
    assert world.pull("c") == {"r1": {"phone": "1"}}
    cut = Checkpoint("g", world.store.backlog()[0].epoch, world.store.cut_point("g").arrival, 0, (), 0)
    restored = world.store.restore("g", erasure.seq, older)
    assert restored.arrival > cut.arrival >= erasure.arrival
    world.close()
    world.open()
    for client in ("c", "new"):
        assert world.pull(client) == {"r1": {"name": "theirs", "phone": "1"}}
    world.store.confirm_erasure("g", erasure.seq)
    assert world.store.read("g", lambda view: view.predates_erasure(cut)).result()
    before = world.cursors["c"]
    again = world.store.restore("g", erasure.seq, older)
    assert again.arrival > restored.arrival
    world.seen.clear()
    world.pull("c")
    assert (world.seen, world.cursors["c"] > before) == ([], True)
    with pytest.raises(NotFoundError, match="no erasure 9"):
        world.store.restore("g", 9, [])


def test_a_client_gets_its_own_restored_values_back(world):
    own = world.write("a", "r1", name="theirs")
    world.write("b", "r1", phone="1")
    world.write("x", "r1", name=SECRET)
    world.pull("a")
    erasure = world.store.erase_client("g", "x")
    assert world.pull("a") == {"r1": {"phone": "1"}}
    world.store.restore("g", erasure.seq, [own])
    assert world.pull("a") == {"r1": {"name": "theirs", "phone": "1"}}


def test_values_of_a_client_that_was_erased_since_are_not_restored(world):
    older = [world.write("b", "r1", name="theirs", phone="1"), world.write("a", "r1", name=SECRET)]
    world.write("x", "r1", name="x")
    first = world.store.erase_client("g", "x")
    # the first erasure restores values from the lake before the lake has executed this one
    world.store.erase_client("g", "a")
    world.store.restore("g", first.seq, older)
    for client in ("c", "new"):
        assert world.pull(client) == {"r1": {"name": "theirs", "phone": "1"}}


def test_an_erased_client_that_reconnects_can_sync_and_restores_nothing(world):
    world.write("a", "r1", name="theirs")
    old = world.write("x", "r2", name=SECRET)
    world.pull("x", since=1)
    unsent = make_delta("x", (world.clock.now_ms << 16) + 1, "r3", name=SECRET)
    world.clock.advance(5)
    world.store.erase_client("g", "x")
    assert world.push("x", old, unsent).accepted == 2
    assert world.pull("c") == {"r1": {"name": "theirs"}}
    world.rows["x"] = {"r1": {"name": "theirs"}, "r2": {"name": SECRET}}
    assert world.pull("x", since=0) == {"r1": {"name": "theirs"}}
    world.clock.advance(1000)
    world.write("x", "r4", name="new")
    assert world.pull("c") == {"r1": {"name": "theirs"}, "r4": {"name": "new"}}


def test_results_of_actions_are_erased_and_the_actions_are_not_repeated(world):
    world.write("x", "r1", name=SECRET)
    outcome = msgspec.json.encode({"hlc": 5, "data": {"name": SECRET}})
    action = ActionRecord("x", "act-1", "key-1", 1, "holder", 0, world.clock.now_ms, outcome)
    other = msgspec.structs.replace(action, client_id="a")
    running = msgspec.structs.replace(action, action_id="act-2", idempotency_key=None, outcome=None, lease_ms=2**60)
    for record in (action, other, running):
        world.store.submit("g", lambda commit, record=record: commit.put_action(record)).result()
    world.store.erase_client("g", "x")
    kept = world.store.read("g", lambda view: view.action("x", "act-1", "key-1")).result()
    assert SECRET not in str(kept.outcome)
    assert b"ERASED" in bytes(kept.outcome)
    interrupted = world.store.read("g", lambda view: view.action("x", "act-2")).result()
    assert b"ERASED" in bytes(interrupted.outcome)
    assert interrupted.claim != running.claim
    assert bytes(world.store.read("g", lambda view: view.action("a", "act-1")).result().outcome) == outcome


def test_a_client_that_only_requested_actions_is_erased_each_time(world):
    outcome = msgspec.json.encode({"hlc": 5, "data": {"name": SECRET}})
    for number in (1, 2):
        action = ActionRecord("x", f"act-{number}", None, 1, "holder", 0, world.clock.now_ms, outcome)
        world.store.submit("g", lambda commit, action=action: commit.put_action(action)).result()
        erasure = world.store.erase_client("g", "x")
        assert erasure.seq == number
        kept = world.store.read("g", lambda view, action=action: view.action("x", action.action_id)).result()
        assert b"ERASED" in bytes(kept.outcome)
        assert world.store.erase_client("g", "x") == erasure
        world.clock.advance(1000)


def test_erasing_an_unknown_client_or_row_is_an_error(world):
    with pytest.raises(NotFoundError, match="'nobody'"):
        world.store.erase_client("g", "nobody")
    with pytest.raises(NotFoundError, match="'r1'"):
        world.store.erase_row("g", "notes", "r1")
    with pytest.raises(NotFoundError, match="erasure 1"):
        world.store.confirm_erasure("g", 1)
    assert world.store.erasures("g") == []


def test_a_checkpoint_older_than_an_erasure_is_not_served(world):
    world.write("a", "r1", name=SECRET)
    world.write("x", "r1", phone=SECRET)
    epoch, arrival = world.store.read("g", lambda view: (view.epoch, view.arrival)).result()
    assert world.store.publish_checkpoint(Checkpoint("g", epoch, arrival, 0, (), 1))

    def checkpoint(client):
        return world.gateway.submit_checkpoint(client, {"sub": client}).result()

    assert checkpoint("one").arrival == arrival
    row = world.store.erase_row("g", "notes", "r1")
    with pytest.raises(NotFoundError, match="erased"):
        checkpoint("two")
    assert world.store.publish_checkpoint(Checkpoint("g", epoch, row.arrival, 0, (), 1))
    assert checkpoint("three").arrival == row.arrival
    client = world.store.erase_client("g", "x")
    assert world.store.publish_checkpoint(Checkpoint("g", epoch, client.arrival + 256, 0, (), 1))
    with pytest.raises(NotFoundError, match="erased"):
        checkpoint("four")
    for _ in range(2):
        world.store.confirm_erasure("g", client.seq)
    assert world.store.erasures("g")[1].lake_ms is not None
    assert checkpoint("five").arrival == client.arrival + 256


def test_an_erasure_survives_a_restart_and_can_be_repeated(world):
    first = world.write("a", "r1", name=SECRET)
    done = world.store.erase_row("g", "notes", "r1")
    world.close()
    world.open()
    assert world.store.erasures("g") == [done]
    assert world.push("a", first).accepted == 1
    assert world.store.erase_row("g", "notes", "r1") == done
    world.clock.advance(1000)
    world.write("a", "r1", name=SECRET)
    again = world.store.erase_row("g", "notes", "r1")
    assert (again.seq, again.deltas, again.row_count) == (2, 1, 1)
    assert world.pull("c") == {}
    client = world.store.erase_client("g", "a")
    assert (client.seq, client.deltas, client.row_count) == (3, 0, 0)
    assert world.store.erase_client("g", "a") == client
    world.pull("a")
    world.clock.advance(1)
    assert world.store.erase_client("g", "a").seq == 4


def test_a_failed_commit_leaves_stored_rows_unchanged(world):
    def row():
        return world.store.read("g", lambda view: view.rows([("notes", "r1")])).result()[("notes", "r1")]

    def fail(work):
        def failing(commit):
            work(commit)
            raise RuntimeError("the disk is full")

        with pytest.raises(RuntimeError, match="the disk is full"):
            world.store.submit("g", failing).result()

    world.write("a", "r1", name="kept", team="red")
    before = encode_row(row())
    old = make_delta("b", 1, "r1", phone=SECRET)
    fail(lambda commit: restore_columns(commit, world.store._required_replayer(), [old]))
    assert encode_row(row()) == before
    fail(lambda commit: commit.put_rules(RULES) and reindex_some(commit, BucketIndex(RULES), None, 10))
    assert encode_row(row()) == before

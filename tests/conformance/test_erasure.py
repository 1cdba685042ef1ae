"""What is erased is gone from staging for good, and everyone who holds it is told."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import psycopg
import pytest

from lakesync.crash import VARIABLE
from lakesync.engine import Engine
from lakesync.exceptions import NotFoundError, StagingUnavailableError
from lakesync.rules.model import parse_rules
from lakesync.staging import open_store
from lakesync.staging.erasing import ERASER
from lakesync.staging.records import LOST, ActionRecord, ClientRecord, Cut
from lakesync.types import ColumnValue, RowDelta, SyncPull, SyncPush
from lakesync.wire.log import decode_body
from tests.conformance.book import id_sum, make_delta

SECRET = "the-erased-text"
RULES = parse_rules(
    {
        "version": 1,
        "buckets": [{"name": "mine", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
    }
)


class World:
    """An engine over one store, with a few clients' rows as their databases have them."""

    def __init__(self, place, clock) -> None:
        self.url = place.url
        self.clock = clock
        self.rows: dict[str, dict[str, dict[str, object]]] = {}
        self.cursors: dict[str, int] = {}
        self.seen: list[RowDelta] = []
        self.open()

    def open(self) -> None:
        self.engine = Engine(open_store(self.url, self.clock), self.clock)
        self.engine.open()
        self.store = self.engine.store
        self.gateway = self.engine.gateway("g")

    def close(self) -> None:
        self.engine.close()

    def push(self, client, *deltas, team="red"):
        return self.gateway.handle_push(SyncPush(client, tuple(deltas)), {"sub": client, "team": team})

    def write(self, client, row, **values):
        """One delta, stamped now."""
        self.clock.advance(1)
        op = "UPDATE" if values else "DELETE"
        delta = make_delta(client, self.clock.now_ms << 16, row, **values)
        self.push(client, msgspec.structs.replace(delta, op=op))
        return delta

    def pull(self, client, *, team="red", since=None):
        """Follow the cursor to its end, as a database does it: an INSERT of a row that is there is an error."""
        rows = self.rows.setdefault(client, {})
        cursor = self.cursors.get(client, 0) if since is None else since
        more = True
        while more:
            page = self.gateway.handle_pull(SyncPull(client, cursor, 3), {"sub": client, "team": team})
            cursor, more = page.server_hlc, page.has_more
            self.seen += page.deltas
            for delta in page.deltas:
                values = {cell.column: cell.decoded() for cell in delta.columns}
                if delta.op == "DELETE":
                    rows.pop(delta.row_id, None)
                elif delta.op == "INSERT":
                    assert delta.row_id not in rows
                    rows[delta.row_id] = values
                elif delta.row_id in rows:
                    rows[delta.row_id].update(values)
        self.cursors[client] = cursor
        return rows

    def logged(self):
        """Every delta of the log that has a body."""
        query = "SELECT body FROM log WHERE gateway = ? AND body IS NOT NULL ORDER BY seq"
        bodies = self.store.read("g", lambda view: view._ask(query)).result()
        return [delta for (body,) in bodies for delta in decode_body(bytes(body))]


@pytest.fixture
def world(place, clock):
    made = World(place, clock)
    yield made
    made.close()


def test_an_erased_row_is_deleted_for_everyone_and_nothing_of_it_is_left(world):
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
    assert (state.state.live, state.state.inserted, state.touched) == ([], None, {})
    assert all(SECRET not in str(delta.columns) for delta in world.logged())
    assert [delta.client_id for delta in world.logged()][-1] == ERASER
    assert world.store.erasures("g") == [erasure]


def test_a_repeat_of_what_was_erased_is_counted_and_changes_nothing(world):
    first = world.write("a", "r1", name=SECRET)
    offline = make_delta("b", world.clock.now_ms << 16, "r1", name=SECRET)
    world.store.erase_row("g", "notes", "r1")
    before = world.store.read("g", lambda view: view.arrival).result()
    for client, delta in (("a", first), ("b", offline), ("b", offline)):
        assert world.push(client, delta).accepted == 1
    assert world.store.read("g", lambda view: view.arrival).result() == before
    assert world.pull("c") == {}
    assert all(SECRET not in str(delta) for delta in world.logged())
    mixed = make_delta("b", (world.clock.now_ms << 16) + 1, "r9", name="kept")
    assert world.push("b", offline, mixed).accepted == 2
    assert set(world.pull("c")) == {"r9"}


def test_what_is_written_after_an_erasure_is_new(world):
    world.write("a", "r1", name=SECRET)
    world.store.erase_row("g", "notes", "r1")
    world.clock.advance(1000)
    delta = make_delta("a", world.clock.now_ms << 16, "r1", name="again")
    world.push("a", delta)
    assert world.pull("c") == {"r1": {"name": "again"}}


def test_a_flush_that_is_under_way_still_agrees_with_the_ledger(world):
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


def test_an_erased_client_leaves_what_others_wrote(world):
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
    # without the erased column by which the rules let the row be seen, it is nobody's
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
    assert record == ClientRecord("x", LOST, 0)
    claims = world.store.read(
        "g", lambda view: view._ask("SELECT claims FROM log WHERE gateway = ? AND client_id = ?", "x")
    ).result()
    assert {bytes(each) for (each,) in claims} == {b"{}"}


def test_what_an_erased_client_had_hidden_comes_back_from_the_lake(world):
    older = [world.write("a", "r1", name="theirs", phone="1"), world.write("a", "r2", name="gone")]
    world.write("x", "r1", name=SECRET)
    world.write("b", "r2")
    world.pull("c")
    erasure = world.store.erase_client("g", "x")
    assert world.pull("c") == {"r1": {"phone": "1"}}
    cut = Cut("g", world.store.backlog()[0].epoch, world.store.hold("g").arrival, 0, (), 0)
    restored = world.store.restore("g", erasure.seq, older)
    assert restored.arrival > cut.arrival >= erasure.arrival
    world.close()
    world.open()
    for client in ("c", "new"):
        assert world.pull(client) == {"r1": {"name": "theirs", "phone": "1"}}
    world.store.confirm_erasure("g", erasure.seq)
    assert world.store.read("g", lambda view: view.is_barred(cut)).result()
    before = world.cursors["c"]
    again = world.store.restore("g", erasure.seq, older)
    assert again.arrival > restored.arrival
    world.seen.clear()
    world.pull("c")
    assert (world.seen, world.cursors["c"] > before) == ([], True)
    with pytest.raises(NotFoundError, match="no erasure 9"):
        world.store.restore("g", 9, [])


def test_an_erased_client_that_comes_back_is_not_wedged_and_brings_nothing_back(world):
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


def test_what_an_action_brought_is_erased_and_the_action_is_not_done_again(world):
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


def test_what_never_was_is_named(world):
    with pytest.raises(NotFoundError, match="'nobody'"):
        world.store.erase_client("g", "nobody")
    with pytest.raises(NotFoundError, match="'r1'"):
        world.store.erase_row("g", "notes", "r1")
    with pytest.raises(NotFoundError, match="erasure 1"):
        world.store.confirm_erasure("g", 1)
    assert world.store.erasures("g") == []


def test_a_checkpoint_from_before_is_not_handed_out(world):
    world.write("a", "r1", name=SECRET)
    world.write("x", "r1", phone=SECRET)
    epoch, arrival = world.store.read("g", lambda view: (view.epoch, view.arrival)).result()
    assert world.store.publish_cut(Cut("g", epoch, arrival, 0, (), 1))

    def checkpoint(client):
        return world.gateway.submit_checkpoint(client, {"sub": client}).result()

    assert checkpoint("one").arrival == arrival
    row = world.store.erase_row("g", "notes", "r1")
    with pytest.raises(NotFoundError, match="erased"):
        checkpoint("two")
    assert world.store.publish_cut(Cut("g", epoch, row.arrival, 0, (), 1))
    assert checkpoint("three").arrival == row.arrival
    client = world.store.erase_client("g", "x")
    assert world.store.publish_cut(Cut("g", epoch, client.arrival + 256, 0, (), 1))
    with pytest.raises(NotFoundError, match="erased"):
        checkpoint("four")
    for _ in range(2):
        world.store.confirm_erasure("g", client.seq)
    assert world.store.erasures("g")[1].lake_ms is not None
    assert checkpoint("five").arrival == client.arrival + 256


def test_an_erasure_outlives_a_restart_and_can_be_asked_for_again(world):
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


SCRIPT = """
import sys
from lakesync.engine import Engine
from lakesync.staging import open_store
from lakesync.testing.clock import ManualClock

clock = ManualClock(int(sys.argv[2]))
engine = Engine(open_store(sys.argv[1], clock), clock)
engine.open()
kind, *target = sys.argv[3:]
engine.store.erase_row("g", *target) if kind == "row" else engine.store.erase_client("g", *target)
"""
POINTS = ("erasure.requested", "erasure.redacted", "erasure.applied", "erasure.purged", "staging.after_commit:2")


@pytest.mark.parametrize("crash_at", POINTS)
@pytest.mark.parametrize("target", [("row", "notes", "r1"), ("client", "x")], ids=["row", "client"])
def test_an_erasure_that_a_crash_cut_short_is_finished_on_opening(tmp_path, clock, crash_at, target):
    _crash_and_finish(f"sqlite://{tmp_path / 'staging'}", clock, crash_at, target)


@pytest.mark.parametrize("target", [("row", "notes", "r1"), ("client", "x")], ids=["row", "client"])
def test_on_postgres_too(request, clock, target):
    from tests.conformance.places import postgres

    _crash_and_finish(postgres(request), clock, "erasure.redacted", target)


def _crash_and_finish(url, clock, crash_at, target):
    class Here:
        pass

    here = Here()
    here.url = url
    world = World(here, clock)
    world.write("x", "r1", name=SECRET)
    world.write("a", "r2", name="kept")
    world.write("x", "r2", phone=SECRET if target[0] == "client" else "kept")
    world.close()
    script = [sys.executable, "-c", SCRIPT, url, str(clock.now_ms), *target]
    killed = subprocess.run(script, env={**os.environ, VARIABLE: crash_at}, check=False, timeout=120)
    assert killed.returncode == -9
    world.open()
    (erasure,) = world.store.erasures("g")
    assert erasure.done_ms is not None
    assert world.pull("c")["r2"]["name"] == "kept"
    assert set(world.rows["c"]) == {"r2"}
    assert SECRET not in str(world.seen)
    assert SECRET not in str(world.logged())
    world.close()


def test_the_files_hold_nothing_of_it(tmp_path, clock):
    """Neither what was erased, nor what it was before it was changed or trimmed."""

    class Here:
        url = f"sqlite://{tmp_path / 'staging'}"

    world = World(Here(), clock)
    bodies = []
    needles = [f"{SECRET}-{uuid.uuid4().hex}" for _ in range(30)]
    for number, needle in enumerate(needles):
        world.write("x", "r1", name=needle)
        world.write("a", f"kept-{number}", name="kept" * 20)
        bodies += world.store.read(
            "g", lambda view: view._ask("SELECT body FROM log WHERE gateway = ? AND client_id = ?", "x")
        ).result()
        if number == 20:
            batch = world.store.plan("g", "main", 100)
            waiting = [(day.count, day.id_sum) for day in world.store.ledger("g")]
            world.store.confirm(batch.batch_id, waiting[0][0], waiting[0][1])
            world.store.trim("g", "main")
    folder = Path(tmp_path / "staging")

    def held() -> bytes:
        return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))

    compressed = [bytes(body) for (body,) in bodies if body is not None]
    assert any(body in held() for body in compressed)
    assert needles[-1].encode() in held() or world.store.trim("g", "main") == 0
    world.store.erase_row("g", "notes", "r1")
    left = held()
    assert [needle for needle in needles if needle.encode() in left] == []
    assert [body for body in compressed if body in left] == []
    assert b"kept" in left
    assert set(world.pull("c")) == {f"kept-{n}" for n in range(30)}
    world.close()


def test_a_reader_that_holds_the_files_puts_an_erasure_off(tmp_path, clock):
    """Its write-ahead log cannot be cut then: the erasure is not done, and says so."""

    class Here:
        url = f"sqlite://{tmp_path / 'staging'}"

    world = World(Here(), clock)
    world.write("a", "r1", name=SECRET)
    world.store.read("g", lambda view: view._ask("SELECT 1 FROM gateway WHERE id = ?")).result()
    for connection in (world.store._opened.journal.sql, world.store._opened.state.sql):
        connection.execute("PRAGMA busy_timeout=50")
    with closing(sqlite3.connect(tmp_path / "staging" / "log.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM log").fetchone()
        with pytest.raises(StagingUnavailableError, match="erase again"):
            world.store.erase_row("g", "notes", "r1")
        (pending,) = world.store.erasures("g")
        assert pending.done_ms is None
        assert world.pull("c") == {}
    done = world.store.erase_row("g", "notes", "r1")
    assert (done.seq, done.done_ms is not None) == (pending.seq, True)
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in (tmp_path / "staging").iterdir())
    world.close()


def test_an_erasure_holds_in_every_process(request, clock):
    """One process erases while the other still has the client's pushes to come."""
    from tests.conformance.places import postgres

    class Here:
        url = postgres(request)

    one, other = World(Here(), clock), World(Here(), clock)
    late = [make_delta("x", (clock.now_ms << 16) + n, f"late{n}", name=SECRET) for n in range(20)]
    one.write("x", "r1", name=SECRET)
    one.write("a", "r2", name="kept")
    with ThreadPoolExecutor(2) as threads:
        erased = threads.submit(one.store.erase_client, "g", "x")
        pushed = [threads.submit(other.push, "x", delta) for delta in late]
        assert [each.result().accepted for each in pushed] == [1] * 20
        erased.result()
    assert other.pull("c") == {"r2": {"name": "kept"}}
    assert SECRET not in str(other.logged())
    one.close()
    other.close()


def test_on_postgres_no_table_holds_anything_of_it(request, clock):
    from tests.conformance.places import postgres

    class Here:
        url = postgres(request)

    world = World(Here(), clock)
    for number in range(5):
        world.write("x", "r1", name=f"{SECRET}-{number}")
    cells = (ColumnValue.of("name", SECRET),)
    world.push("x", RowDelta("INSERT", "notes", "r1", "x", cells, (clock.now_ms << 16) + 9, "no hash"))
    world.store.erase_client("g", "x")
    with psycopg.connect(Here.url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'lakesync'").fetchall()
        for (table,) in tables:
            rows = connection.execute(f"SELECT t::text FROM lakesync.{table} t").fetchall()
            assert SECRET.encode().hex() not in str(rows)
            assert SECRET not in str(rows)
    assert all(SECRET not in str(delta) for delta in world.logged())
    world.close()

"""The engine's replay of the log restores the same state; tested on files of a running store, as after a power cut."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakesync.engine import Engine, EngineLimits
from lakesync.engine.active_rules import Reindexer
from lakesync.engine.gateway import SyncGateway
from lakesync.model.types import RowDelta, SyncPull, SyncPush
from lakesync.rules.model import parse_rules
from lakesync.staging.sharded import ShardedStore
from lakesync.staging.shards import ShardMap
from lakesync.staging.sqlite import SqliteStore, WriteBehindLimits
from lakesync.testing import ManualClock
from tests.conformance.book import contents, make_delta
from tests.conformance.power_cut import copy_at_once

RULES = {
    "version": 1,
    "buckets": [{"name": "mine", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
}
CLIENTS = {"c1": "a", "c2": "b", "c3": "a"}
ANYWHERE = EngineLimits(write_scope="any")
"""Clients may write rows that they cannot see."""

edits = st.tuples(
    st.sampled_from(["r1", "r2", "r3"]),
    st.integers(0, 20),
    st.none() | st.fixed_dictionaries({}, optional={"team": st.sampled_from(["a", "b"]), "x": st.integers(0, 3)}),
)
steps = st.one_of(
    st.tuples(st.just("push"), st.sampled_from(list(CLIENTS)), st.lists(edits, min_size=1, max_size=4)),
    st.tuples(st.just("again"), st.sampled_from(list(CLIENTS)), st.just([])),
    st.tuples(st.just("pull"), st.sampled_from(list(CLIENTS)), st.just([])),
    st.tuples(st.sampled_from(["rules", "flush"]), st.just("c1"), st.just([])),
)


class Clients:
    """The clients of one gateway: their cursors and their pushes."""

    def __init__(self, gateway, clock) -> None:
        self._gateway = gateway
        self._clock = clock
        self._cursors: dict[str, int] = {}
        self._pushed: dict[str, list[RowDelta]] = {name: [] for name in CLIENTS}

    def play(self, kind, client, edits) -> None:
        """Run one step of a history; `again` repeats all pushes of a client."""
        self._clock.advance(1)
        if kind == "push":
            hlc = self._clock.now_ms << 16
            deltas = [make_delta(client, hlc - ago, row, **(values or {})) for row, ago, values in edits]
            self._pushed[client] += deltas
            self._push(client, deltas)
        elif kind == "again":
            self._push(client, self._pushed[client])
        elif kind == "pull":
            self.pull(client)
        elif kind == "rules":
            self._gateway.set_rules(parse_rules(RULES))

    def pull(self, client, gateway=None) -> list[tuple[str, str]]:
        """Pull from the client's cursor; return the operation and row of each delta."""
        pull = SyncPull(client, self._cursors.get(client, 0))
        page = (gateway or self._gateway).handle_pull(pull, self._claims(client))
        self._cursors[client] = page.server_hlc
        return [(delta.op, delta.row_id) for delta in page.deltas]

    def _push(self, client, deltas) -> None:
        self._gateway.handle_push(SyncPush(client, tuple(deltas)), self._claims(client))

    def _claims(self, client) -> dict[str, str]:
        return {"sub": client, "team": CLIENTS[client]}


def flush_all(store) -> None:
    """Confirm and trim everything unflushed, with the ledger's numbers."""
    batch = store.plan("g", "main", 10**9)
    if batch is not None:
        waiting = [(day.count - day.flushed_count, day.id_sum - day.flushed_id_sum) for day in store.ledger("g")]
        store.confirm(batch.batch_id, sum(count for count, _ in waiting), sum(sums for _, sums in waiting) % 2**64)
        assert store.trim("g", "main") == batch.bytes


@settings(max_examples=60, deadline=None)
@example(steps_of_clients=[("push", "c1", [("r1", 3, {"team": "a"})]), ("rules", "c1", [])], rows=10**9)
@example(steps_of_clients=[("push", "c1", [("r1", 0, {"x": 0}), ("r1", 0, None), ("r1", 0, {"x": 0})])], rows=10**9)
@example(
    steps_of_clients=[("push", "c1", [("r1", 0, {"x": 0})]), ("push", "c2", [("r1", 0, None)]), ("again", "c1", [])],
    rows=10**9,
)
@given(steps_of_clients=st.lists(steps, max_size=14), rows=st.sampled_from([0, 3, 10**9]))
def test_a_power_cut_changes_nothing_visible(steps_of_clients, rows):
    clock = ManualClock()
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(SqliteStore(Path(folder) / "live", clock, WriteBehindLimits(3600, rows)), clock, ANYWHERE)
        engine.open()
        clients = Clients(engine.gateway("g"), clock)
        for kind, client, edits in steps_of_clients:
            clients.play(kind, client, edits)
            if kind == "flush":
                flush_all(engine.store)
        copy_at_once(engine.store, Path(folder) / "cut")
        after = Engine(SqliteStore(Path(folder) / "cut", clock), clock, ANYWHERE)
        after.open()
        try:
            for ask in (contents, lambda view: view.arrival, lambda view: [view.client(name) for name in CLIENTS]):
                assert after.store.read("g", ask).result() == engine.store.read("g", ask).result()
            assert after.store.backlog() == engine.store.backlog()
            assert after.store.ledger("g") == engine.store.ledger("g")
        finally:
            after.close()
            engine.close()


def test_after_a_power_cut_a_repeated_insert_of_a_deleted_row_returns_the_delete(tmp_path):
    clock = ManualClock()
    engine = Engine(SqliteStore(tmp_path / "live", clock, WriteBehindLimits(3600, 10**9)), clock, ANYWHERE)
    engine.open()
    clients = Clients(engine.gateway("g"), clock)
    clients.play("push", "c1", [("r1", 0, {"team": "a"})])
    clients.play("push", "c2", [("r1", 0, None)])
    assert clients.pull("c1") == [("DELETE", "r1")]
    # c1's database is restored from a backup in which the row's INSERT is unpushed
    clients.play("again", "c1", [])
    copy_at_once(engine.store, tmp_path / "cut")
    engine.close()
    after = Engine(SqliteStore(tmp_path / "cut", clock), clock, ANYWHERE)
    after.open()
    try:
        assert clients.pull("c1", after.gateway("g")) == [("DELETE", "r1")]
    finally:
        after.close()


def test_the_replay_of_a_shard_does_not_depend_on_the_reindex_of_another_one(tmp_path, monkeypatch):
    clock, shards = ManualClock(), ShardMap({"notes": "b"}, "a")

    def open_engine(folder: Path) -> tuple[Engine, dict[str, SqliteStore]]:
        limits = WriteBehindLimits(3600, 10**9, 10**12)
        stores = {name: SqliteStore(folder / name, clock, limits, name) for name in shards.names}
        engine = Engine(ShardedStore(shards, stores), clock, EngineLimits(write_scope="any", reindex_rows=1))
        engine.open()
        return engine, stores

    def push(gateway: SyncGateway, row: str, **values: object) -> None:
        clock.advance(1)
        table = "todos" if row == "q" else "notes"  # `todos` is in the default shard
        delta = make_delta("c1", clock.now_ms << 16, row, table, **values)
        gateway.handle_push(SyncPush("c1", (delta,)), {"sub": "c1", "team": "a"})

    monkeypatch.setattr(Reindexer, "start", lambda *_: None)  # it ends when the store is opened again
    engine, stores = open_engine(tmp_path / "live")
    gateway = engine.gateway("g")
    for row in ("r1", "r2", "r3", "r4"):
        push(gateway, row, team="a")
    gateway.set_rules(parse_rules(RULES))
    push(gateway, "q", team="a")
    push(gateway, "r4", x=1)
    page = gateway.handle_pull(SyncPull("c3", 0), {"sub": "c3", "team": "a"})
    sent = {delta.row_id for delta in page.deltas}
    assert "r4" in sent
    for name, store in stores.items():
        copy_at_once(store, tmp_path / "cut" / name)
    engine.close()
    monkeypatch.undo()
    after, stores = open_engine(tmp_path / "cut")
    try:
        while not stores["b"].read("g", lambda view: view.reindexing().done).result():
            after.gateway("g").continue_reindex()
        later = after.gateway("g").handle_pull(SyncPull("c3", page.server_hlc), {"sub": "c3", "team": "a"})
        assert {delta.row_id for delta in later.deltas} == {"q", "r1", "r2", "r3", "r4"} - sent
    finally:
        after.close()


def test_entries_written_before_their_rows_are_replayed_identically(tmp_path):
    clock = ManualClock()
    engine = Engine(SqliteStore(tmp_path / "live", clock, WriteBehindLimits(3600, 10**9)), clock, ANYWHERE)
    engine.open()
    store: Any = engine.store
    opened = store._opened
    step = Clients(engine.gateway("g"), clock).play

    def write_a_bit() -> bool:
        return opened.owner.submit(lambda _: opened.behind.try_write_part(), writes=False).result()

    step("rules", "c1", [])
    step("push", "c1", [("r1", 3, {"team": "a"}), ("r2", 3, {"team": "a"}), ("r3", 3, {"team": "b"})])
    assert not write_a_bit()
    step("push", "c1", [("r1", 2, {"team": "b"}), ("r2", 2, {"team": "b"})])
    step("push", "c2", [("r2", 1, {"team": "a"}), ("r3", 1, None)])
    step("pull", "c2", [])
    while not write_a_bit():
        pass
    copy_at_once(engine.store, tmp_path / "cut")
    after = Engine(SqliteStore(tmp_path / "cut", clock), clock, ANYWHERE)
    with closing(sqlite3.connect(tmp_path / "cut" / "state.db")) as file, file:
        ((applied,),) = file.execute("SELECT applied_seq FROM applied").fetchall()
        newest = file.execute("SELECT max(changed) FROM entry").fetchone()[0]
    assert applied == 1
    assert newest == engine.store.read("g", lambda view: view.arrival).result()
    after.open()
    try:
        assert after.store.read("g", contents).result() == engine.store.read("g", contents).result()
    finally:
        after.close()
        engine.close()


def test_a_read_of_another_gateway_does_not_disturb_the_write_behind(tmp_path):
    clock = ManualClock()
    engine = Engine(SqliteStore(tmp_path / "live", clock, WriteBehindLimits(3600, 10**9)), clock, ANYWHERE)
    engine.open()
    store: Any = engine.store
    opened = store._opened
    Clients(engine.gateway("g"), clock).play("push", "c1", [("r1", 3, {"team": "a"})])
    written = []
    while not all(written[-2:]) or len(written) < 2:
        written.append(opened.owner.submit(lambda _: opened.behind.try_write_part(), writes=False).result())
        engine.gateway("h")
        assert engine.store.read("h", lambda view: view.rows([("todos", "r1")])).result() == {}
    assert False in written, "written immediately: there was no read in between"
    with closing(sqlite3.connect(tmp_path / "live" / "state.db")) as file, file:
        assert file.execute("SELECT count(*) FROM row_state").fetchall() == [(1,)]
        assert file.execute("SELECT count(*) FROM entry").fetchall() == [(1,)]
    engine.close()

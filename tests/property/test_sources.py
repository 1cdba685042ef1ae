"""A client of a source ends with the rows that it may see, after any events, and never gets stuck.

The client is the stock one: a cursor in memory, plain INSERTs, a database that may outlive the cursor. Answers are
lost, sources, rules and claims change, and the gateway's own feed continues meanwhile.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, cast

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakesync.adapters import DeltaBatch, SqliteAdapter, StoredDelta
from lakesync.adapters.redaction import RedactionRequest
from lakesync.engine import Engine, EngineLimits
from lakesync.model.delta import delta_id
from lakesync.model.types import RowDelta, SyncPull, SyncResponse
from lakesync.rules.model import SyncRules, matches, parse_rules
from lakesync.staging import open_store
from lakesync.staging.erased_rows import ERASER
from lakesync.testing import ManualClock
from tests.integration.embedded.embedded_support import Author
from tests.property.held_store import HeldStore

TEAM = parse_rules(
    {
        "version": 1,
        "buckets": [{"name": "team", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
    }
)
ALL = SyncRules(1, ())
ROWS = ["r1", "r2", "r3"]
SHARED = "x"
"""A row that both the source and the gateway's own feed have."""


class Stock:
    """The part of the reference's client that applies pages."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], dict[str, object]] = {}
        self.cursor = 0

    def take(self, answer) -> None:
        """Apply a page; fail on an INSERT of an existing row."""
        for delta in answer.deltas:
            cells = {cell.column: cell.decoded() for cell in delta.columns}
            if delta.op == "INSERT":
                assert delta.key not in self.rows, f"INSERT of {delta.key}, which the client has"
                self.rows[delta.key] = cells
            elif delta.op == "UPDATE" and delta.key in self.rows:
                self.rows[delta.key] |= cells
            elif delta.op == "DELETE":
                self.rows.pop(delta.key, None)
        if answer.deltas:
            self.cursor = answer.server_hlc


class World:
    """A gateway, its source, one client, and the rows that the client should see."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.engine = Engine(open_store("memory://", self.clock), self.clock, EngineLimits(write_scope="any"))
        self.engine.open()
        self.gateway = self.engine.gateway("g")
        self.source = SqliteAdapter(folder / "source.db")
        self.gateway.register_source("s", self.source)
        self.etl, self.other = Author("etl", self.clock), Author("other", self.clock)
        self.client, self.team, self.rules = Stock(), "a", ALL
        self.batches = self.losses = 0
        self.ever: set[tuple[str, str]] = set()

    @property
    def claims(self):
        return {"sub": "c", "team": self.team}

    def step(self, kind: str, row: str, value: str | int | bool | None) -> None:
        """Run one random step."""
        self.clock.advance(7)
        if kind == "source":
            after = None if value is None else {"team": value, "n": self.batches + 1}
            self.store(self.etl.delta(row, after, table="reports"))
        elif kind == "empty":  # an UPDATE without columns, which no erasure has emptied
            key = {"client_id": "etl", "hlc": self.clock.now_ms << 16, "table": "reports", "row_id": row}
            self.store(RowDelta("UPDATE", columns=(), delta_id=delta_id(columns=(), **key), **key))
        elif kind == "erase":
            self.erase(row)
        elif kind == "own":
            self.other.push(self.gateway, self.other.delta(SHARED, {"team": "a", "n": 0}, table="reports"))
            self.other.push(self.gateway, self.other.delta(row, {"team": value or "b"}, table="own"))
        elif kind == "pull":
            self.pull(None, lost=bool(value), limit=2)
        elif kind == "pull from source":
            self.pull("s", lost=bool(value), limit=int(row[1:]) if row != SHARED else 3)
        elif kind == "reload":
            self.client.cursor = 0
            if value:
                self.client.rows.clear()
        elif kind == "claims":
            self.team = "b" if value else "a"
        elif kind == "claims in turn":
            for number in range(int(value or 0)):
                self.team = f"team {number}"
                self.note()
                self.ask("s")  # whose answer is lost
        elif kind == "rules":
            self.rules = TEAM if value else ALL
            self.gateway.set_rules(self.rules)
        self.note()

    def store(self, delta: RowDelta) -> None:
        """Store a delta in the source, at the clock's time."""
        self.batches += 1
        stored = StoredDelta("w", self.clock.now_ms << 16, delta)
        self.source.insert_deltas(DeltaBatch(f"w.main.1.{self.batches}-{self.batches}", "w", (stored,)))

    def erase(self, row: str) -> None:
        """Empty a row's deltas in the source, which then gets the DELETE of the erasure."""
        if not self.source.get_latest_state("w", "reports", [row]):
            return
        hlc = self.clock.now_ms << 16
        self.source.redact([RedactionRequest("w", hlc, table="reports", row_id=row)])
        self.store(RowDelta("DELETE", "reports", row, ERASER, (), hlc, f"erasure {self.batches}"))
        self.ever.add(("reports", row))  # the source no longer shows whether it was visible

    def pull(self, source: str | None, *, lost: bool = False, limit: int = 50) -> bool:
        """Pull a page, whose answer may be lost, but not every time; return whether there are more."""
        answer = self.ask(source, limit)
        self.losses = self.losses + 1 if lost and self.losses < 9 else 0
        if not self.losses:
            self.client.take(answer)
        return answer.has_more

    def ask(self, source: str | None, limit: int = 50) -> SyncResponse:
        """Return the answer to a pull."""
        since = self.client.cursor
        answer = self.gateway.handle_pull(SyncPull("c", since, limit, source), self.claims)
        if source is not None:
            assert answer.server_hlc <= since
            assert {delta.key for delta in answer.deltas} <= self.ever, "R5"
        return answer

    def note(self) -> None:
        """Record the rows of the source that were ever visible to the client."""
        self.ever |= self.visible().keys()

    def visible(self) -> dict[tuple[str, str], dict[str, object]]:
        """The source's rows that the client may see."""
        states = self.source.get_latest_state(None, "reports", [*ROWS, SHARED])
        rows = {
            row: {column: msgspec.json.decode(raw) for column, raw in state.values().items()}
            for row, state in states.items()
            if state.visible
        }
        seen = {row: cells for row, cells in rows.items() if matches(self.rules, "reports", cells, self.claims)}
        return {("reports", row): cells for row, cells in seen.items()}

    def settle(self) -> None:
        """Pull from the feed and the source until nothing is left."""
        for _ in range(3):
            for source in (None, *["s"] * 8):
                while self.pull(source):
                    pass

    def close(self) -> None:
        self.engine.close()
        self.source.close()


SENT_BY_RULES = [("rules", "r1", True), ("source", "r1", "a"), ("own", "r1", "a"), ("pull from source", "r1", False)]
"""The client is sent a row of the source that only its first claims show."""
MANY = 120
"""A number of access periods that a record cannot keep."""
rows = st.sampled_from([*ROWS, SHARED])
teams = st.sampled_from(["a", "b", None])
steps = st.one_of(
    st.tuples(st.just("source"), rows, teams),
    st.tuples(st.just("own"), st.sampled_from(ROWS), teams),
    st.tuples(st.sampled_from(["erase", "empty"]), rows, st.just(None)),
    st.tuples(st.sampled_from(["pull", "pull from source", "pull from source"]), rows, st.booleans()),
    st.tuples(st.sampled_from(["reload", "claims", "rules"]), st.just("r1"), st.booleans()),
    st.tuples(st.just("claims in turn"), st.just("r1"), st.sampled_from([3, 9])),
)


@settings(deadline=None)
@example(story=[("source", "r1", "a"), ("own", "r1", "a"), ("pull", "r1", False), ("pull from source", "r1", True)])
@example(story=[("own", "r1", "a"), ("pull", "r1", False), ("source", "x", "a"), ("pull from source", "r1", False)])
@example(story=[*SENT_BY_RULES, ("claims in turn", "r1", 9)])
@example(story=[*SENT_BY_RULES, ("erase", "r1", None)])
@example(story=[*SENT_BY_RULES, ("claims in turn", "r1", MANY), ("reload", "r1", False)])
@example(story=[("rules", "r1", True), ("own", "r1", "a"), ("pull", "r1", False), ("empty", "r1", None)])
@given(story=st.lists(steps, max_size=25))
def test_a_client_of_a_source_ends_with_its_rows(story):
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        try:
            for step in story:
                world.step(*step)
            world.settle()
            wanted = {key: cells for key, cells in world.visible().items() if key[1] != SHARED}
            found = {key: cells for key, cells in world.client.rows.items() if key[0] == "reports" and key[1] != SHARED}
            assert found == wanted
        finally:
            world.close()


def test_a_source_page_during_a_pull_gets_a_delete_before_the_pulls_inserts(tmp_path):
    clock = ManualClock()
    store = HeldStore(clock)
    engine = Engine(cast("Any", store), clock, EngineLimits(write_scope="any"))
    engine.open()
    source, etl, other = SqliteAdapter(tmp_path / "source.db"), Author("etl", clock), Author("other", clock)
    try:
        gateway = engine.gateway("g")
        gateway.register_source("s", source)
        stored = StoredDelta("w", clock.now_ms << 16, etl.delta("r", {"n": 1}, table="reports"))
        source.insert_deltas(DeltaBatch("w.main.1.1-1", "w", (stored,)))
        other.push(gateway, other.delta("q", {"n": 1}, table="own"))
        since = gateway.handle_pull(SyncPull("c", 0, 10)).server_hlc
        other.push(gateway, other.delta("r", {"n": 2}, table="reports"))
        store.held = True
        pulled = gateway.submit_pull(SyncPull("c", since, 10), {"sub": "c"})
        happen(store, "run page", "tell page")
        store.held = False
        assert gateway.handle_pull(SyncPull("c", since, 10, "s")).deltas
        happen(store, "run record_page", "tell record_page")
        assert [delta.op for delta in pulled.result().deltas] == ["DELETE", "INSERT"]
    finally:
        engine.close()
        source.close()


def happen(store: HeldStore, *names: str) -> None:
    """Run these events of a store."""
    for name in names:
        next(event for event in store.events() if event.name == name).happen()

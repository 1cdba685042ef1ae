"""L1, L3 to L5, L7, L8, R1 to R6: whatever happens, in which order, every client ends with its rows.

`scripts/soak` looks much longer. What it found is kept here as examples.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import example, given, settings

from lakesync.client.core import Lost
from lakesync.engine import Engine, SyncGateway
from lakesync.engine.limits import EngineLimits
from lakesync.exceptions import NotFoundError
from lakesync.feed import render
from lakesync.rules.model import SyncRules, parse_rules
from lakesync.staging.records import Cut, StoredRow
from lakesync.staging.sharded import ShardedStore
from lakesync.staging.sqlite import SqliteStore
from lakesync.staging.store import StagingStore
from lakesync.types import Claims, PushResult, SyncPush, SyncResponse
from tests.property.core_client import CoreClient
from tests.property.feed_model import StockClient, World

START = 1_700_000_000_000
ROWS = ["r1", "r2", "r3"]
PEOPLE = ["c1", "c2", "c3"]
GROUPS = [["a"], ["b"], ["a", "b"]]
FOLDER = Path("/dev") / "shm"
"""In memory, where there is such a place."""


def _rules(*buckets: tuple[str, list[tuple[str, str, str]]]) -> SyncRules:
    spelled = [
        {
            "name": name,
            "tables": [],
            "filters": [dict(zip(("column", "op", "value"), one, strict=True)) for one in some],
        }
        for name, some in buckets
    ]
    return parse_rules({"version": 1, "buckets": spelled})


RULES = [
    _rules(),
    _rules(("mine", [("group", "eq", "jwt:group")])),
    _rules(("own", [("group", "eq", "jwt:group")])),
    _rules(("mine", [("group", "eq", "jwt:group"), ("x", "eq", "1")])),
    _rules(("mine", [("group", "eq", "jwt:group")]), ("ones", [("x", "eq", "1")])),
    _rules(("mine", [("group", "eq", "jwt:group"), ("x", "gt", "jwt:level")])),
]

people = st.integers(0, 2)
ways = st.sampled_from(["whole", "whole", "answer lost", "request lost"])
limits = st.integers(1, 3)
values = st.fixed_dictionaries(
    {}, optional={"group": st.sampled_from(["a", "b"]), "x": st.integers(0, 3), "y": st.integers(0, 3)}
)
edit = st.tuples(
    st.just("edit"), people, st.sampled_from(["INSERT", "UPDATE", "UPDATE", "DELETE"]), st.sampled_from(ROWS), values
)

core = st.one_of(
    st.tuples(
        st.just("core edit"), people, st.sampled_from(["UPDATE", "UPDATE", "DELETE"]), st.sampled_from(ROWS), values
    ),
    st.tuples(st.just("core"), st.sampled_from([1, 2, 4]), ways),
    st.tuples(st.just("core"), st.sampled_from([1, 2, 4]), ways),
    st.tuples(st.just("core claims"), people, st.integers(0, len(GROUPS) - 1)),
    st.tuples(st.just("core restart"), people, limits),
)
cycle = st.tuples(st.just("cycle"), people, limits, ways, ways)
pull = st.tuples(st.just("pull"), people, limits, ways)
push = st.tuples(st.just("push"), people, ways)
live = st.tuples(st.sampled_from(["broadcast", "broadcast", "deliver", "push connected", "push cut"]), people, limits)
rules = st.one_of(
    st.tuples(st.sampled_from(["rules", "rules begin"]), people, st.integers(0, len(RULES) - 1)),
    st.tuples(st.just("reindex"), people, limits),
    st.tuples(st.just("claims"), people, st.integers(0, len(GROUPS) - 1)),
)
trouble = st.one_of(
    st.tuples(st.sampled_from(["connect", "disconnect", "reload", "wipe", "old pull", "old push"]), people, limits),
    st.tuples(st.sampled_from(["restart", "idle", "idle", "flush", "cut", "checkpoint"]), people, limits),
    st.tuples(st.just("clock"), people, st.sampled_from([-40, 40])),
)


def _lists(steps: st.SearchStrategy[tuple[Any, ...]]) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    return st.integers(0, 30).flatmap(lambda size: st.lists(steps, min_size=size, max_size=size))


histories = st.one_of(
    _lists(st.one_of(edit, edit, cycle, cycle, pull, push, live, rules, trouble)),
    _lists(st.one_of(edit, cycle, pull, rules)),
    _lists(st.one_of(edit, cycle, push, core, core, rules, trouble)),
    _lists(st.one_of(edit, cycle, pull, push, live, trouble)),
)
skews = st.tuples(*[st.sampled_from([-30, -3, 0, 3])] * 3)


class _PatientEngine(Engine):
    """Brings no rows in line with new rules by itself, so that a history says when."""

    def _make(self, gateway_id: str) -> SyncGateway:
        gateway = super()._make(gateway_id)
        gateway.continue_reindex = lambda: None  # type: ignore[method-assign]
        gateway._reindexer.start = lambda _last=None: None  # type: ignore[method-assign]
        return gateway


class History:
    """One history, played against a fresh gateway and compared with the model in the end."""

    def __init__(self, folder: Path, skews: Sequence[int] = (0, 0, 0), rules: int = 0) -> None:
        self.folder = folder
        self.now = START
        self.ahead = 0
        """Milliseconds that the gateway's clock is ahead."""
        self.clients = [StockClient(*each) for each in zip(PEOPLE, [["a"], ["b"], ["a"]], skews, strict=True)]
        self.core = CoreClient("c4", "a", 0)
        self.core.claims = {"sub": "c4", "group": ["a"], "level": "1"}
        self.world = World(self._open(), [*self.clients, self.core])
        self.cuts: dict[int, tuple[dict[str, dict[str, Any]], list[StoredRow]]] = {}
        """What the model and the gateway held at a cut."""
        if rules:
            self._set_rules(RULES[rules])

    def play(self, steps: Sequence[tuple[Any, ...]]) -> None:
        """Do every step, then let everybody push and pull until nothing is left."""
        for kind, place, *detail in steps:
            self.now += 1
            if kind.startswith("core"):
                self._do_core(kind, place, *detail)
            else:
                self._do(kind, self.clients[place], *detail)
        for client in self.clients:
            if not client.pulled:
                self._pull(client, 10, "whole")
            self._push(client, "whole")
        self._finish_core()
        self._reindex(1000)
        self._finish_core()
        assert self.core.rows == self.world.visible_to(self.core.claims), "c4"
        self._check_leaks(self.core)
        for client in self.clients:
            client.disconnect()
            client.catch_up(self.world.gateway, 2)
            assert client.rows == self.world.visible_to(client.claims), client.name
            self._check_leaks(client)

    def _check_leaks(self, client: StockClient | CoreClient) -> None:
        leaked = client.told - client.named - self.world.ever_visible[client.name]
        assert not leaked, f"{client.name} was told of {leaked}"

    def close(self) -> None:
        """Release the store."""
        self.world.engine.close()

    def _open(self) -> Engine:
        engine = _PatientEngine(self._store(), lambda: self.now + 60, EngineLimits(reindex_rows=1))
        engine.open()
        engine.gateway("g")
        return engine

    def _store(self) -> StagingStore:
        return SqliteStore(self.folder, lambda: self.now + self.ahead)

    def _reindex(self, rows: int) -> None:
        """Bring so many rows in line with the rules."""
        done = None
        while rows and not (done is not None and done.done):
            done = self.world.gateway._reindexer.submit(done).result()
            rows -= 1

    def _set_rules(self, rules: SyncRules, *, whole: bool = True) -> None:
        store = self.world.engine.store
        store.submit("g", lambda commit: commit.put_rules(rules)).result()
        if whole:
            self._reindex(1000)
        self.world.rules = rules
        self.world.look()

    def _push(self, client: StockClient, way: str) -> None:
        if way != "request lost" and client.pulled:
            self.world.pushed(client.push(self.world.gateway, answered=way == "whole"))

    def _pull(self, client: StockClient, limit: int, way: str) -> None:
        if way != "request lost":
            page = client.ask(self.world.gateway, limit)
            if way == "whole":
                client.take(page)

    def _do(self, kind: str, client: StockClient, *detail: Any) -> None:
        world = self.world
        match kind:
            case "edit":
                op, row_id, values = detail
                client.edit(op, row_id, values, self.now)
            case "cycle":
                limit, pulled, pushed = detail
                self._pull(client, limit, pulled)
                self._push(client, pushed)
            case "pull":
                self._pull(client, *detail)
            case "push":
                self._push(client, *detail)
            case "connect":
                page = client.ask(world.gateway, *detail)
                client.take(page)
                client.connect(page)
            case "broadcast":
                client.broadcast(world.gateway, *detail)
            case "deliver":
                client.deliver()
            case "push connected" | "push cut":
                world.pushed(client.push_connected(world.gateway, answered=kind == "push connected"))
            case "disconnect":
                client.disconnect()
            case "reload" | "wipe":
                client.reload(wiped=kind == "wipe")
            case "old pull":
                for request in client.asked[-detail[0] :][:1]:
                    world.gateway.submit_pull(request, client.claims).result()
            case "old push":
                for request in client.pushed[-detail[0] :][:1]:
                    world.gateway.submit_push(request, client.claims).result()
                    world.pushed(request.deltas)
            case "claims":
                client.disconnect()
                client.claims = {**client.claims, "group": GROUPS[detail[0]]}
                world.look()
            case "rules" | "rules begin":
                self._set_rules(RULES[detail[0]], whole=kind == "rules")
            case "reindex":
                self._reindex(detail[0])
            case "clock":
                self.ahead += detail[0]
            case "restart":
                self.close()
                world.engine = self._open()
            case "idle":
                self._write_behind(self.world.engine.store)
            case "flush":
                self._flush()
            case "cut":
                self._cut()
            case "checkpoint":
                self._first_sync(client, lost=detail[0] == 1)

    def _write_behind(self, store: StagingStore) -> None:
        """As a store does that has nothing to do: rows are then read as they are stored."""
        for each in store.stores.values() if isinstance(store, ShardedStore) else [store]:
            assert isinstance(each, SqliteStore)
            each._read(each._open.behind.write)

    def _flush(self) -> None:
        store = self.world.engine.store
        batch = store.plan("g", "main", 10**9)
        if batch is not None:
            waiting = [(day.count - day.flushed_count, day.id_sum - day.flushed_id_sum) for day in store.ledger("g")]
            store.confirm(batch.batch_id, sum(one for one, _ in waiting), sum(two for _, two in waiting) % 2**64)
            store.trim("g", "main")

    def _cut(self) -> None:
        """A cut of what the gateway holds now."""
        gateway, store = self.world.gateway, self.world.engine.store
        epoch, arrival = store.read("g", lambda view: (view.epoch, view.arrival)).result()
        if arrival and store.publish_cut(Cut("g", epoch, arrival, gateway.config().rules_version, (), self.now)):
            rows = store.submit("g", lambda commit: commit.scan_rows(None, 100)).result()
            self.cuts[arrival] = self.world.rows(), rows

    def _first_sync(self, client: StockClient, *, lost: bool) -> None:
        """A checkpoint, where the client would ask for one and there is one."""
        if client.cursor or client.outbox:
            return
        client.pulled = True
        try:
            cut = self.world.gateway.submit_checkpoint(client.name, client.claims).result()
        except NotFoundError:
            return
        if not lost:
            shown = self.world.visible_to(client.claims, self.cuts[cut.arrival][0])
            assert not client.rows.keys() & shown.keys()
            client.rows |= {row_id: dict(row) for row_id, row in shown.items()}
            client.cursor = cut.arrival

    # -- the client over our own core ----------------------------------------------------------------------------

    def _do_core(self, kind: str, place: int, *detail: Any) -> None:
        match kind:
            case "core edit":
                op, row_id, values = detail
                self.core.edit(op, row_id, values, self.now)
            case "core":
                self.core.core.sync()
                for _ in range(place):
                    self._ask_as_core(*detail)
            case "core claims":
                self.core.claims = {**self.core.claims, "group": GROUPS[detail[0]]}
                self.world.look()
            case "core restart":
                self.core.restart()

    def _ask_as_core(self, way: str) -> bool:
        """The core's next request; whether there was one."""
        asked = self.core.start()
        if asked is None:
            return False
        answers: list[Any] = []
        if way != "request lost":
            answers = list(self.core.execute(self.world.gateway, asked, self._frames))
            if isinstance(asked, SyncPush) and isinstance(answers[0], PushResult):
                self.world.pushed(asked.deltas)
        self.core.finish(answers if way == "whole" else [Lost(way)])
        return True

    def _finish_core(self) -> None:
        for _ in range(4):
            self.core.core.sync()
            for _ in range(1000):
                if not self._ask_as_core("whole"):
                    break
            else:
                raise AssertionError("the core does not come to rest")
        assert not self.core.outbox

    def _frames(self, arrival: int, claims: Claims) -> list[SyncResponse]:
        shown = self.world.visible_to(claims, self.cuts[arrival][0])
        rows = [row for row in self.cuts[arrival][1] if row.row_id in shown]
        return [SyncResponse(tuple(render.insert(row)), arrival) for row in rows]


def play(
    history: Sequence[tuple[Any, ...]], skews: Sequence[int] = (0, 0, 0), rules: int = 0, kind: type[History] = History
) -> None:
    """One history against a gateway of its own."""
    folder = Path(tempfile.mkdtemp(prefix="feed-", dir=FOLDER if FOLDER.is_dir() else None))
    played = kind(folder, skews, rules)
    try:
        played.play(history)
    finally:
        played.close()
        shutil.rmtree(folder)


@settings(deadline=None, max_examples=150)
@given(history=histories, skews=skews, rules=st.integers(0, len(RULES) - 1))
@example(
    history=[
        ("edit", 0, "INSERT", "r1", {}),
        ("cycle", 0, 1, "whole", "whole"),
        ("edit", 0, "UPDATE", "r2", {"group": "a"}),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # blind to its own row, which the rules then show
    history=[
        ("edit", 0, "UPDATE", "r3", {"y": 3, "group": "a", "x": 0}),
        ("edit", 0, "INSERT", "r3", {"y": 3}),
        ("push", 0, "whole"),
        ("rules", 2, 2),
    ],
    skews=(0, 0, 0),
    rules=3,
)
@example(  # what a client wrote before it was given anything, hidden by new rules
    history=[("edit", 0, "INSERT", "r1", {}), ("push", 0, "whole"), ("rules", 0, 1)],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # a page is lost, and the push behind it is answered
    history=[
        ("edit", 2, "UPDATE", "r3", {"x": 0, "group": "a", "y": 1}),
        ("edit", 1, "INSERT", "r2", {}),
        ("push", 1, "whole"),
        ("cycle", 2, 2, "answer lost", "whole"),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # claims that grow after rules that changed in the middle of pages
    history=[
        ("edit", 0, "INSERT", "r2", {"x": 0, "y": 3, "group": "a"}),
        ("edit", 1, "INSERT", "r3", {}),
        ("rules", 1, 4),
        ("cycle", 0, 1, "whole", "whole"),
        ("cycle", 1, 1, "whole", "answer lost"),
        ("claims", 1, 2),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # what a client wrote before it was given anything is met on every page
    history=[
        ("edit", 1, "INSERT", "r1", {}),
        ("edit", 1, "INSERT", "r2", {}),
        ("cycle", 1, 1, "whole", "whole"),
        ("edit", 0, "INSERT", "r1", {"group": "b", "y": 0}),
        ("rules begin", 0, 1),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # an INSERT of a row that was there already, out of sight, brings it into sight
    history=[
        ("edit", 0, "UPDATE", "r3", {"group": "b", "y": 3, "x": 3}),
        ("rules", 1, 2),
        ("core restart", 1, 1),
        ("core edit", 0, "UPDATE", "r3", {"group": "a", "y": 1}),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # a bucket gets another name, and a client pulls in the middle of it
    history=[
        ("edit", 0, "INSERT", "r1", {"group": "a"}),
        ("edit", 0, "INSERT", "r2", {"group": "a", "x": 2}),
        ("cycle", 0, 3, "whole", "whole"),
        ("pull", 2, 3, "whole"),
        ("rules begin", 0, 5),
        ("reindex", 0, 1),
        ("pull", 2, 3, "whole"),
        ("rules begin", 0, 2),
        ("pull", 2, 3, "answer lost"),
        ("edit", 0, "UPDATE", "r1", {"y": 1}),
        ("cycle", 0, 3, "whole", "whole"),
        ("pull", 2, 3, "whole"),
        ("reindex", 0, 1),
        ("restart", 0, 1),
        ("pull", 2, 1, "whole"),
        ("checkpoint", 1, 2),
    ],
    skews=(0, 0, 0),
    rules=1,
)
@example(  # a connection breaks before the answer to a push, and takes what was told on it along
    history=[
        ("edit", 0, "INSERT", "r1", {}),
        ("push", 0, "whole"),
        ("connect", 1, 3),
        ("edit", 0, "INSERT", "r3", {}),
        ("push", 0, "whole"),
        ("broadcast", 1, 3),
        ("edit", 1, "INSERT", "r2", {}),
        ("push cut", 1, 1),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # a row is changed before it is inserted by one who does not know that it is there
    history=[
        ("edit", 2, "UPDATE", "r1", {"y": 1, "group": "b", "x": 1}),
        ("edit", 0, "INSERT", "r1", {}),
        ("edit", 2, "INSERT", "r1", {}),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # the same in two pushes
    history=[
        ("edit", 0, "INSERT", "r1", {}),
        ("push", 0, "whole"),
        ("edit", 2, "UPDATE", "r1", {"y": 1}),
        ("push", 2, "whole"),
        ("edit", 2, "INSERT", "r1", {}),
        ("push", 2, "whole"),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # what others made is changed again before a client that pushes has heard of it
    history=[
        ("edit", 2, "DELETE", "r1", {}),
        ("cycle", 2, 3, "request lost", "answer lost"),
        ("edit", 0, "UPDATE", "r2", {"y": 0}),
        ("pull", 2, 2, "whole"),
        ("push", 0, "whole"),
        ("edit", 0, "INSERT", "r2", {}),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # a row that the old rules hide from its writer is told by new ones before it is in line with them
    history=[
        ("edit", 0, "UPDATE", "r1", {"x": 1, "group": "a", "y": 3}),
        ("cycle", 0, 3, "whole", "whole"),
        ("rules begin", 1, 0),
        ("pull", 0, 2, "whole"),
    ],
    skews=(0, 0, 0),
    rules=5,
)
def test_every_client_ends_with_its_rows(history: list[tuple[Any, ...]], skews: tuple[int, ...], rules: int) -> None:
    play(history, skews, rules)


def test_a_bucket_that_gets_another_name_costs_its_clients_nothing(tmp_path: Path) -> None:
    history = History(tmp_path, rules=1)
    try:
        gateway, (writer, _, reader) = history.world.gateway, history.clients
        for row_id in ROWS:
            writer.edit("INSERT", row_id, {"group": "a"}, START)
        writer.push(gateway)
        reader.catch_up(gateway, 10)
        history._set_rules(RULES[2], whole=False)
        assert not reader.ask(gateway, 10).deltas
        history._reindex(2)
        assert not reader.ask(gateway, 10).deltas
        history._reindex(10)
        assert not reader.ask(gateway, 10).deltas
        assert reader.rows.keys() == set(ROWS)
    finally:
        history.close()


def test_rows_that_new_rules_forbid_are_taken_away_at_once_and_the_others_are_left(tmp_path: Path) -> None:
    history = History(tmp_path, rules=1)
    try:
        gateway, (writer, _, reader) = history.world.gateway, history.clients
        for place, row_id in enumerate(ROWS):
            writer.edit("INSERT", row_id, {"group": "a", "x": place}, START)
        writer.push(gateway)
        reader.catch_up(gateway, 10)
        history._set_rules(RULES[3], whole=False)
        page = reader.ask(gateway, 10)
        assert {(delta.op, delta.row_id) for delta in page.deltas} == {("DELETE", "r1"), ("DELETE", "r3")}
        again = reader.ask(gateway, 10)
        assert again.deltas == page.deltas
    finally:
        history.close()


def test_claims_that_grow_bring_move_ins_in_pages_and_nothing_else(tmp_path: Path) -> None:
    history = History(tmp_path, rules=1)
    try:
        gateway, (writer, other, reader) = history.world.gateway, history.clients
        writer.edit("INSERT", "r1", {"group": "a"}, START)
        writer.push(gateway)
        for row_id in ["r2", "r3"]:
            other.edit("INSERT", row_id, {"group": "b"}, START)
        other.push(gateway)
        reader.catch_up(gateway, 10)
        reader.claims = {**reader.claims, "group": ["a", "b"]}
        told = []
        for _ in range(2):
            page = reader.ask(gateway, 1)
            told += [(delta.op, delta.row_id) for delta in page.deltas]
            reader.take(page)
        assert sorted(told) == [("INSERT", "r2"), ("INSERT", "r3")]
        assert not reader.ask(gateway, 1).deltas
    finally:
        history.close()


def test_a_client_that_went_astray_is_updated_once_it_was_made_good(tmp_path: Path) -> None:
    history = History(tmp_path)
    try:
        gateway, (astray, other, _) = history.world.gateway, history.clients
        other.edit("INSERT", "r1", {"x": 1}, START)
        other.push(gateway)
        astray.edit("UPDATE", "r1", {"y": 1}, START)
        astray.push(gateway)
        astray.catch_up(gateway, 10)
        for turn in range(2):
            astray.edit("UPDATE", "r1", {"y": 2 + turn}, START + 1 + turn)
            astray.push(gateway)
            other.edit("UPDATE", "r1", {"x": 2 + turn}, START + 1 + turn)
            other.push(gateway)
            page = astray.ask(gateway, 10)
            astray.take(page)
            assert [(delta.op, [part.column for part in delta.columns]) for delta in page.deltas] == [("UPDATE", ["x"])]
        assert astray.rows == {"r1": {"x": 3, "y": 3}}
    finally:
        history.close()


def test_a_client_that_pushes_all_the_time_is_told_what_is_new(tmp_path: Path) -> None:
    history = History(tmp_path)
    try:
        gateway, (busy, other, _) = history.world.gateway, history.clients
        busy.take(busy.ask(gateway, 10))
        for row_id in ["r1", "r2", "r3", "r4", "r5"]:
            other.edit("INSERT", row_id, {"x": 1}, START)
        other.push(gateway)
        for turn in range(6):
            busy.take(busy.ask(gateway, 1))
            busy.edit("INSERT", f"own{turn}", {}, START + 1 + turn)
            busy.push(gateway)
        assert {"r1", "r2", "r3", "r4", "r5"} <= busy.rows.keys()
        busy.catch_up(gateway, 1)
        assert busy.rows.keys() == {"r1", "r2", "r3", "r4", "r5", *(f"own{turn}" for turn in range(6))}
    finally:
        history.close()


def test_a_client_that_found_nothing_is_still_new(tmp_path: Path) -> None:
    history = History(tmp_path)
    try:
        early, writer, _ = history.clients
        early.take(early.ask(history.world.gateway, 10))
        writer.edit("INSERT", "r1", {"x": 1}, START)
        writer.push(history.world.gateway)
        assert [delta.op for delta in early.ask(history.world.gateway, 10).deltas] == ["INSERT"]
    finally:
        history.close()

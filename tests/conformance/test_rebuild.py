"""A lost staging store is rebuilt from the lake, and its clients return."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from lakesync.engine import Engine, EngineLimits
from lakesync.engine.inspection.client_position import TrackedCursor
from lakesync.engine.inspection.explain import explain
from lakesync.engine.rebuild import LakePush, rebuild
from lakesync.engine.subscribers import Newcomer, SubscriberGroup, SubscriptionState
from lakesync.model.crash_points import VARIABLE
from lakesync.model.errors import ConfigurationError, NotFoundError, ResyncRequiredError, StagingUnavailableError
from lakesync.model.schema import parse_schema
from lakesync.model.types import ColumnValue, RowDelta, SyncPull, SyncPush
from lakesync.rules.model import parse_rules
from lakesync.staging import open_store
from lakesync.testing import ManualClock
from lakesync.wire.log import decode_body
from tests.conformance.book import id_sum, make_delta
from tests.forked import run_code

RULES = parse_rules(
    {
        "version": 1,
        "buckets": [{"name": "mine", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
    }
)
SCHEMA = parse_schema(
    {
        "table": "notes",
        "columns": [{"name": name, "type": kind} for name, kind in (("team", "string"), ("x", "number"))],
    }
)


class Lake:
    """The content of the lake, kept in memory."""

    def __init__(self) -> None:
        self.entries = {}
        self.configs = {}
        self.registered = {}

    def carry(self, engine: Engine, entries) -> None:
        """Flush: take the pushes over."""
        for entry in entries:
            push = LakePush(entry.arrival, entry.client_id, decode_body(entry.body))
            self.entries.setdefault(entry.gateway, []).append(push)
        self.configs = {gateway: engine.store.gateway_config(gateway) for gateway in self.entries}

    def gateways(self):
        return sorted(self.entries)

    def config(self, gateway):
        return self.configs.get(gateway)

    def connectors(self, gateway):
        return self.registered.get(gateway, [])

    def pushes(self, gateway):
        return iter(self.entries[gateway])


class Client:
    """A client that applies pages as a database does: an INSERT of an existing row is an error."""

    def __init__(self, name: str, team: str) -> None:
        self.claims = {"sub": name, "team": team}
        self.name = name
        self.rows: dict[str, dict[str, object]] = {}
        self.cursor = 0

    def pull(self, engine: Engine, *, ours: bool = False, limit: int = 3) -> None:
        """Pull until nothing is left."""
        more = True
        while more:
            pull = SyncPull(self.name, self.cursor, limit)
            try:
                page = engine.gateway("g").submit_pull(pull, self.claims, knows_resync=ours).result()
            except ResyncRequiredError:
                self.rows, self.cursor = {}, 0
                continue
            for delta in page.deltas:
                self._apply(delta)
            if page.deltas:
                self.cursor = page.server_hlc
            more = page.has_more

    def _apply(self, delta: RowDelta) -> None:
        values = {cell.column: cell.decoded() for cell in delta.columns}
        if delta.op == "DELETE":
            self.rows.pop(delta.row_id, None)
        elif delta.op == "INSERT":
            assert delta.row_id not in self.rows, f"INSERT of {delta.row_id}, which {self.name} has"
            self.rows[delta.row_id] = values
        elif delta.row_id in self.rows:
            self.rows[delta.row_id].update(values)

    def push(self, engine: Engine, *deltas: RowDelta):
        return engine.gateway("g").handle_push(SyncPush(self.name, deltas), self.claims)


def opened(url, clock):
    engine = Engine(open_store(url, clock), clock, EngineLimits(write_scope="any"))
    engine.open()
    return engine


def everything(engine, team):
    reader = Client(f"reader-{uuid.uuid4().hex}", team)
    reader.pull(engine, limit=100)
    return reader.rows


def entries_of(engine):
    """The log rows, as a flush reads them."""
    return engine.store.submit("g", lambda commit: commit._query(_ENTRIES)).result()


_ENTRIES = "SELECT arrival, client_id, body FROM log WHERE gateway = ? ORDER BY seq"


def carry(lake, engine):
    """Flush everything to the lake."""
    lake.entries["g"] = [
        LakePush(arrival, client, decode_body(body)) for arrival, client, body in entries_of(engine) if body
    ]
    lake.configs["g"] = engine.store.gateway_config("g")
    lake.registered["g"] = engine.store.connectors("g")


def rebuilt(engine, url, clock):
    """Rebuild the store from everything in it, and open the engine again."""
    lake = Lake()
    carry(lake, engine)
    engine.close()
    rebuild(url, clock, lake, replace=True)
    return opened(url, clock)


def random_history(engine, clock):
    """Rows of two teams: changed, moved and deleted."""
    a, b = Client("a", "red"), Client("b", "blue")
    hlc = clock.now_ms << 16
    a.push(engine, *(make_delta("a", hlc + n, f"r{n}", team="red", x=n) for n in range(10)))
    b.push(engine, *(make_delta("b", hlc + n, f"b{n}", team="blue", x=n) for n in range(5)))
    clock.advance(5)
    hlc = clock.now_ms << 16
    b.push(engine, make_delta("b", hlc, "r1", team="blue", x=100), make_delta("b", hlc + 1, "r2"))
    return a, b


@pytest.mark.parametrize("ours", [True, False], ids=["our client", "a stock client"])
def test_clients_with_old_cursors_converge(url, clock, ours):
    engine = opened(url, clock)
    engine.gateway("g").register_schema(SCHEMA)
    engine.gateway("g").set_rules(RULES)
    settings = {"projectId": "p", "dataset": "d"}
    registered = engine.gateway("g").register_connector({"name": "bq", "type": "bigquery", "bigquery": settings})
    a, b = random_history(engine, clock)
    a.rows = {f"r{n}": {"team": "red", "x": n} for n in range(10)}  # its own deltas
    a.pull(engine)
    b.pull(engine)
    lake = Lake()
    carry(lake, engine)
    config = engine.store.gateway_config("g")
    red, blue = everything(engine, "red"), everything(engine, "blue")
    epoch, newest = engine.store.read("g", lambda view: (view.epoch, view.arrival)).result()
    lost = make_delta("a", (clock.now_ms << 16) + 5, "lost", team="red", x=7)
    a.push(engine, lost)
    a.pull(engine)
    known = engine.store.read("g", lambda view: view.arrival).result()
    engine.close()

    clock.advance(1000)
    (done,) = rebuild(url, clock, lake, replace=True)
    assert (done.pushes, done.deltas, done.newest) == (3, 17, newest)
    assert (done.schemas, done.rules, done.connectors) == (1, True, 1)
    assert done.arrival > known
    assert done.epoch != epoch
    engine = opened(url, clock)
    assert engine.store.gateway_config("g") == config
    assert engine.store.connectors("g") == [registered]
    assert everything(engine, "red") == red
    assert everything(engine, "blue") == blue
    for client, expected in ((a, red), (b, blue)):
        client.pull(engine, ours=ours)
        assert {row: values for row, values in client.rows.items() if row != "lost"} == expected
    back = a.push(engine, lost)
    assert back.accepted == 1
    assert everything(engine, "red") == {**red, "lost": {"team": "red", "x": 7}}
    assert back.server_hlc <= engine.store.read("g", lambda view: view.arrival).result()
    engine.close()


def test_a_reference_client_that_lost_its_cursor_keeps_its_rows(url, clock):
    engine = opened(url, clock)
    random_history(engine, clock)
    reader = Client("reader", "red")
    reader.pull(engine)
    assert len(reader.rows) == 14
    engine = rebuilt(engine, url, clock)
    expected, reader.cursor = dict(reader.rows), 0
    reader.pull(engine)
    assert reader.rows == expected
    with pytest.raises(NotFoundError):
        engine.gateway("g").submit_checkpoint("stranger", {"sub": "stranger"}).result()
    engine.close()


@pytest.mark.parametrize("limit", [1, 100], ids=["between pages", "at the end"])
def test_a_peek_cursor_from_before_a_rebuild_is_rejected(url, clock, limit):
    engine = opened(url, clock)
    a, _ = random_history(engine, clock)
    lake = Lake()
    carry(lake, engine)
    a.push(engine, make_delta("a", (clock.now_ms << 16) + 5, "lost", x=7))
    seen = engine.gateway("g").submit_peek({"sub": "reader"}, None, limit).result(60)
    engine.close()
    rebuild(url, clock, lake, replace=True)
    engine = opened(url, clock)
    for cursor in (seen.cursor, seen.cursor.partition(".")[2]):  # the second is one of an earlier version
        with pytest.raises(ResyncRequiredError, match="the store changed"):
            engine.gateway("g").submit_peek({"sub": "reader"}, cursor, limit).result(60)
    engine.close()


@pytest.mark.parametrize("ours", [True, False], ids=["our client", "a stock client"])
def test_explain_predicts_the_next_pull_after_a_rebuild(url, clock, ours):
    engine = opened(url, clock)
    a, _ = random_history(engine, clock)
    reader = Client("reader", "red")
    reader.pull(engine, limit=100)
    engine = rebuilt(engine, url, clock)
    gateway = engine.gateway("g")

    def explained(row: str):
        where = TrackedCursor(reader.cursor, reader.cursor, knows_resync=ours)
        return engine.store.read(
            "g", lambda view: explain(view, "reader", "notes", row, None, gateway.rules, where)
        ).result()

    explanation = explained("r3")
    assert any("the client's record is gone" in reason for reason in explanation.reasons)
    assert explanation.next_pull == ("DELETE", "INSERT")
    reader.pull(engine, ours=ours, limit=100)
    a.push(engine, make_delta("a", (clock.now_ms << 16) + 8, "new", team="red", x=1))
    explanation = explained("new")
    assert explanation.next_pull == (("INSERT",) if ours else ("DELETE", "INSERT"))
    pull = SyncPull("reader", reader.cursor)
    page = gateway.submit_pull(pull, {"sub": "reader"}, knows_resync=ours).result()
    assert tuple(delta.op for delta in page.deltas) == explanation.next_pull
    engine.close()


@pytest.mark.parametrize("cursor", ["kept", "lost"])
def test_a_deletion_known_only_to_the_lake_reaches_clients_with_the_row(url, clock, cursor):
    engine = opened(url, clock)
    engine.gateway("g").set_rules(RULES)
    a, _ = random_history(engine, clock)
    reader = Client("reader", "red")
    reader.pull(engine)
    a.push(engine, make_delta("a", (clock.now_ms << 16) + 7, "r5"))
    assert "r5" in reader.rows
    engine = rebuilt(engine, url, clock)
    if cursor == "lost":
        reader.cursor = 0
    reader.pull(engine)
    assert "r5" not in reader.rows
    assert reader.rows == everything(engine, "red")
    engine.close()


def test_a_rebuild_restores_ids_and_ledger_without_unflushed_deltas(url, clock):
    engine = opened(url, clock)
    a, b = random_history(engine, clock)
    lake = Lake()
    carry(lake, engine)
    sent = [delta for push in lake.entries["g"] for delta in push.deltas]
    ledger = engine.store.ledger("g")
    engine.close()
    rebuild(url, clock, lake, replace=True)
    engine = opened(url, clock)
    (day,) = engine.store.ledger("g")
    assert (day.count, day.id_sum) == (ledger[0].count, ledger[0].id_sum) == (len(sent), id_sum(sent))
    assert (day.flushed_count, day.flushed_id_sum) == (day.count, day.id_sum)
    (waiting,) = engine.store.backlog()
    assert (waiting.deltas, waiting.bytes, waiting.last_seq, waiting.flushed_seq) == (0, 0, 3, 3)
    assert engine.store.plan("g", "main", 10) is None
    assert engine.store.trim("g", "main") == 0
    for push in lake.entries["g"]:
        client = a if push.client_id == "a" else b
        assert client.push(engine, *push.deltas).accepted == len(push.deltas)
    assert engine.store.plan("g", "main", 10) is None
    cells = (ColumnValue.of("x", 5),)
    a.push(engine, RowDelta("UPDATE", "notes", "r5", "a", cells, (clock.now_ms << 16) + 9, "new"))
    assert engine.store.plan("g", "main", 10).batch_id.endswith(".4-4")
    engine.close()


@pytest.mark.parametrize("ours", [True, False], ids=["our client", "a stock client"])
def test_l4_a_subscriber_that_may_have_lost_rows_is_broadcast_no_plain_insert(url, clock, ours):
    engine = opened(url, clock)
    a, _ = random_history(engine, clock)
    engine = rebuilt(engine, url, clock)
    gateway, claims = engine.gateway("g"), {"sub": "bob"}
    page = gateway.submit_pull(SyncPull("bob", 0, 100), claims, knows_resync=ours, live=True).result()
    state = SubscriptionState(page.server_hlc, 100, knows_resync=ours)
    (state,) = gateway.submit_subscribe([Newcomer("bob", claims, state)]).result()
    clock.advance(5)
    a.push(engine, make_delta("a", clock.now_ms << 16, "new", team="red"))
    for clients in ({"bob"}, {"bob", "carol"}):  # alone, and with another client that shares the page
        group = SubscriberGroup(state, frozenset(clients), frozenset(), frozenset())
        (found,) = gateway.submit_scan([group]).result()
        assert [(delta.op, delta.row_id) for delta in found.page_of("bob").deltas] == [
            *([] if ours else [("DELETE", "new")]),
            ("INSERT", "new"),
        ]
    engine.close()


def test_arrivals_are_not_reused_after_the_clock_was_set_back(url, clock):
    clock.advance(3_600_000)
    engine = opened(url, clock)
    a, _ = random_history(engine, clock)
    lake = Lake()
    carry(lake, engine)
    clock.advance(30_000)
    a.push(engine, make_delta("a", clock.now_ms << 16, "never carried", team="red"))
    known = engine.store.read("g", lambda view: view.arrival).result()
    engine.close()
    clock.advance(-3_600_000)
    (done,) = rebuild(url, clock, lake, replace=True)
    assert done.arrival > known


def test_an_existing_store_is_replaced_only_on_request(url, clock):
    engine = opened(url, clock)
    random_history(engine, clock)
    with pytest.raises(ConfigurationError, match="--replace"):
        rebuild(url, clock, Lake())
    with pytest.raises(StagingUnavailableError):
        rebuild(url, clock, Lake(), replace=True)
    engine.close()
    assert rebuild(url, clock, Lake(), replace=True) == []
    engine = opened(url, clock)
    assert engine.gateways() == []
    engine.close()


def test_the_old_store_stays_if_the_new_one_cannot_be_renamed(tmp_path, clock, monkeypatch):
    folder = tmp_path / "store"
    engine = opened(f"sqlite://{folder}", clock)
    random_history(engine, clock)
    gateways = engine.gateways()
    engine.close()
    rename = Path.rename

    def fail_for_the_new_store(path, target):
        if path.name == "store.rebuilding":
            raise OSError("no permission")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_for_the_new_store)
    with pytest.raises(StagingUnavailableError, match="cannot be replaced: no permission"):
        rebuild(f"sqlite://{folder}", clock, Lake(), replace=True)
    engine = opened(f"sqlite://{folder}", clock)
    assert engine.gateways() == gateways
    engine.close()


def test_other_files_in_the_folder_of_a_store_are_not_deleted(tmp_path, clock):
    """A mistyped URL was enough to delete a user's folder."""
    (tmp_path / "documents" / "letters").mkdir(parents=True)
    (letter := tmp_path / "documents" / "letters" / "letter.txt").write_text("Dear Alice")
    mode = letter.parent.parent.stat().st_mode
    with pytest.raises(ConfigurationError, match=r"documents is not empty: add --replace, which sets it aside"):
        rebuild(f"sqlite://{tmp_path}/documents", clock, Lake())
    assert (letter.read_text(), letter.parent.parent.stat().st_mode) == ("Dear Alice", mode)
    rebuild(f"sqlite://{tmp_path}/documents", clock, Lake(), replace=True)
    (aside,) = tmp_path.glob("documents.replaced-*")
    assert (aside / "letters" / "letter.txt").read_text() == "Dear Alice"


def test_a_failed_rebuild_leaves_the_store_unchanged(url, clock):
    engine = opened(url, clock)
    random_history(engine, clock)
    lake = Lake()
    carry(lake, engine)
    expected = everything(engine, "red")
    engine.close()

    class Breaks(Lake):
        def pushes(self, gateway):
            yield from lake.entries[gateway][:1]
            raise ConnectionError("the lake is gone")

    broken = Breaks()
    broken.entries, broken.configs = lake.entries, lake.configs
    with pytest.raises(ConnectionError):
        rebuild(url, clock, broken, replace=True)
    engine = opened(url, clock)
    assert everything(engine, "red") == expected
    engine.close()


SCRIPT = """
import sys
from tests.conformance.test_rebuild import Lake, LakePush, ManualClock, make_delta, rebuild

lake = Lake()
lake.entries["g"] = [LakePush(1_700_000_000_000 << 16, "a", [make_delta("a", 1, "r", x=1)])]
rebuild(sys.argv[1], ManualClock(1_700_000_000_500), lake, replace=True)
"""


@pytest.mark.parametrize("crash_at", ["rebuild.filled", "rebuild.set_aside"])
def test_a_killed_rebuild_does_not_look_like_an_empty_store(tmp_path, clock, crash_at):
    url = f"sqlite://{tmp_path / 'staging'}"
    engine = opened(url, clock)
    random_history(engine, clock)
    engine.close()
    assert run_code(SCRIPT, url, **{VARIABLE: crash_at}) == -9
    with pytest.raises(StagingUnavailableError, match="rebuild"):
        opened(url, clock)
    assert run_code(SCRIPT, url) == 0
    engine = opened(url, clock)
    assert everything(engine, "red") == {"r": {"x": 1}}
    engine.close()


def test_a_missing_store_is_created_from_the_lake(url):
    clock = ManualClock(1_700_000_000_000)
    lake = Lake()
    lake.entries["g"] = [LakePush(clock.now_ms << 16, "a", [make_delta("a", 1, "r", x=1)])]
    (done,) = rebuild(url, clock, lake)
    assert (done.deltas, done.schemas, done.rules) == (1, 0, False)
    engine = opened(url, clock)
    assert everything(engine, "red") == {"r": {"x": 1}}
    engine.close()

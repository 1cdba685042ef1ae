"""`lakesync.open_gateway`: a gateway in an application's own process, with a thread that flushes."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress

import msgspec
import pytest

import lakesync
from lakesync import ActionPush, FlushSettings, make_action
from lakesync.adapters import LocalDisk, ObjectDeltas, SqliteAdapter
from lakesync.engine import Engine, housekeeping
from lakesync.engine.gateway import SyncGateway
from lakesync.engine.housekeeping import Housekeeping
from lakesync.flush import MemoryFlushQueue, Outlet
from lakesync.model.action_handlers import ActionDescriptor
from lakesync.model.errors import (
    AdapterError,
    BackpressureError,
    ConfigurationError,
    FlushError,
    NotFoundError,
    StagingUnavailableError,
    ValidationError,
)
from lakesync.model.schema import parse_schema
from lakesync.model.types import SyncPull, SyncPush
from lakesync.rules.model import all_rows_rules, parse_rules, user_scoped
from lakesync.staging import open_store
from tests.integration.embedded.embedded_support import KINDS, Author, Failing, ids, kept, objects

NOTES = parse_schema({"table": "notes", "columns": [{"name": "x", "type": "number"}, {"name": "u", "type": "string"}]})
SOON = FlushSettings(max_buffer_age_ms=1)


def test_an_embedded_gateway_flushes_periodically_and_on_close(clock, tmp_path):
    author, first = Author("a", clock), Future()
    with lakesync.open_gateway(
        "shop", adapter=f"file://{tmp_path / 'objects'}", flush=SOON, on_flushed=first.set_result, wall=clock
    ) as gateway:
        sent = author.push(gateway, author.delta("r1", {"x": 1}))
        clock.advance(10)
        assert first.result(120).deltas == 1
        assert gateway.buffer_stats().log_size == 0
        assert len(objects(tmp_path)) == 1
    with ExitStack() as application:
        application.enter_context(suppress(ZeroDivisionError))
        gateway = application.enter_context(
            lakesync.open_gateway("shop", adapter=LocalDisk(tmp_path / "objects"), wall=clock)
        )
        sent += author.push(gateway, author.delta("r2", {"x": 2}))
        application.callback(lambda: 1 // 0)
    assert ids(kept(ObjectDeltas(LocalDisk(tmp_path / "objects")))) == ids(sent)
    assert not [thread for thread in threading.enumerate() if thread.name in ("flush", "materialise")]


def test_tables_at_the_adapter_follow_the_flush(clock, tmp_path):
    author = Author("a", clock)
    with lakesync.open_gateway("shop", adapter=f"sqlite://{tmp_path}/d.db", schemas=[NOTES], wall=clock) as gateway:
        author.push(gateway, author.delta("r1", {"x": 1}))
    with closing(sqlite3.connect(tmp_path / "d.db")) as sql, sql:
        assert sql.execute("SELECT row_id, x FROM notes").fetchall() == [("r1", 1)]


def test_durable_staging_keeps_deltas_after_a_failed_flush(clock, tmp_path):
    author, failing = Author("a", clock), Failing(KINDS["parquet"](tmp_path))
    failing.before = 10**9
    with (
        pytest.raises(FlushError, match="does not answer"),
        lakesync.open_gateway(
            "shop", adapter=failing, staging=tmp_path / "staging", background=False, wall=clock
        ) as gateway,
    ):
        sent = author.push(gateway, author.delta("r1", {"x": 1}))
    with lakesync.open_gateway("shop", adapter=failing.inner, staging=tmp_path / "staging", wall=clock) as gateway:
        assert gateway.buffer_stats().log_size == 1
        assert len(gateway.handle_pull(SyncPull("b", 0)).deltas) == 1
    assert ids(kept(failing.inner)) == ids(sent)


def test_defaults_are_those_of_the_reference(clock, tmp_path):
    author = Author("a", clock)
    settings = FlushSettings(max_buffer_bytes=300)
    with lakesync.open_gateway(
        "shop", adapter=KINDS["sqlite"](tmp_path), flush=settings, background=False, wall=clock
    ) as gateway:
        while gateway.buffer_stats().byte_size <= 600:
            author.push(gateway, author.delta("r", {"x": 1}))
        with pytest.raises(BackpressureError, match="more than 600"):
            author.push(gateway, author.delta("r", {"x": 1}))
        gateway.flush()
    with lakesync.open_gateway("shop", flush=settings, wall=clock) as gateway:
        for _ in range(20):
            author.push(gateway, author.delta("r", {"x": 1}))
        assert gateway.buffer_stats().log_size == 20


def test_schemas_rules_and_sources_are_registered_on_opening(clock, tmp_path):
    author, source = Author("a", clock), KINDS["sqlite"](tmp_path)
    for _ in range(2):
        with lakesync.open_gateway(
            "shop",
            staging=tmp_path / "staging",
            schemas=[NOTES],
            rules=user_scoped("u"),
            sources={"reports": source},
            wall=clock,
        ) as gateway:
            assert gateway.config().schemas["notes"].version == 1
            assert gateway.config().rules_version == 1
            assert gateway.list_sources() == ["reports"]
            clock.advance(1)
            author.push(gateway, author.delta("mine", {"u": "b"}), author.delta("other", {"u": "c"}))
            assert {delta.row_id for delta in gateway.handle_pull(SyncPull("b", 0)).deltas} == {"mine"}


class Desk:
    supported_actions = (ActionDescriptor("create_ticket", "Open a ticket"),)

    def execute_action(self, action, context):
        return {"title": msgspec.json.decode(action.params)["title"], "for": context.claims["sub"]}


def test_an_application_makes_actions_and_reads_their_outcome():
    clock = lakesync.HLC()
    with lakesync.open_gateway("app") as gateway:
        gateway.register_action_handler("desk", Desk())
        asked = make_action("desk", "create_ticket", {"title": "lamp"}, client_id="alice", hlc=clock.now())
        (done,) = gateway.handle_action(ActionPush("alice", (asked,))).results
        assert (done.action_id, done.decoded()) == (asked.action_id, {"title": "lamp", "for": "alice"})
    with pytest.raises(ValidationError, match="JSON object"):
        make_action("desk", "create_ticket", ["lamp"], client_id="alice", hlc=clock.now())


def test_opening_fails_with_the_setting_that_cannot_be_used(tmp_path):
    with pytest.raises(ConfigurationError, match="gopher"), lakesync.open_gateway("shop", adapter="gopher://hole"):
        pass
    with pytest.raises(ConfigurationError, match="redis"), lakesync.open_gateway("shop", staging="redis://there"):
        pass


def test_a_gateway_can_be_opened_again_after_a_failed_opening(tmp_path, monkeypatch):
    def no_room(_):
        raise StagingUnavailableError("the disk is full")

    with lakesync.open_gateway("shop", staging=tmp_path / "staging"):
        pass
    with monkeypatch.context() as patched:
        patched.setattr(SyncGateway, "continue_reindex", no_room)
        with (
            pytest.raises(StagingUnavailableError, match="full"),
            lakesync.open_gateway("shop", staging=tmp_path / "staging"),
        ):
            pass
    with lakesync.open_gateway("shop", staging=tmp_path / "staging") as gateway:
        assert gateway.stats().log_size == 0


def test_rehydrating_from_the_adapter_restores_everything_and_writes_nothing(clock, tmp_path):
    author, other = Author("a", clock), Author("b", clock)
    adapter = KINDS["parquet"](tmp_path)
    with lakesync.open_gateway("shop", adapter=adapter, background=False, wall=clock) as gateway:
        author.push(gateway, author.delta("r1", {"x": 1}), author.delta("r2", {"x": 2}))
        clock.advance(5)
        other.push(gateway, other.delta("r1", {"x": 5}), other.delta("r2", None))
        before = gateway.handle_pull(SyncPull("new", 0)).deltas
    files, deltas = objects(tmp_path), kept(adapter)
    clock.advance(86_400_000)
    with lakesync.open_gateway("shop", adapter=adapter, background=False, wall=clock) as gateway:
        assert gateway.handle_pull(SyncPull("new", 0)).deltas == ()
        assert gateway.rehydrate() == 4
        assert gateway.buffer_stats().log_size == 0
        again = gateway.handle_pull(SyncPull("new", 0)).deltas
        assert again[0].op == "DELETE", "the record of a client that only pulled was lost, so it may have the row"
        assert tuple(delta for delta in again if delta.op != "DELETE") == before
        assert gateway.rehydrate() == 4
        first = gateway.handle_pull(SyncPull("a", 0)).deltas
        assert first[0].op == "DELETE", "a client that wrote before counts as known"
        repeat = [stored.delta for stored in deltas if stored.delta.client_id == "a"]
        gateway.handle_push(SyncPush("a", tuple(repeat)))
        assert gateway.buffer_stats().log_size == 0, "its repeat is recognised"
    assert (objects(tmp_path), kept(adapter)) == (files, deltas)


def test_rehydrating_from_deltas_checks_nothing_and_flushes_later(clock, tmp_path):
    author, adapter = Author("a", clock), KINDS["sqlite"](tmp_path)
    clock.advance(86_400_000)
    ahead = author.delta("r1", {"x": 1})
    clock.advance(-86_400_000)
    schemas = [parse_schema({"table": ahead.table, "columns": [{"name": "y", "type": "string"}]})]
    with lakesync.open_gateway(
        "shop", adapter=adapter, background=False, wall=clock, schemas=schemas, max_backpressure_bytes=0
    ) as gateway:
        gateway.set_write_scope("rules")
        gateway.set_rules(user_scoped("owner"))
        assert gateway.rehydrate([ahead]) == 1
        assert gateway.rehydrate([ahead]) == 1
        gateway.set_rules(all_rows_rules())
        assert gateway.buffer_stats().log_size == 1
        assert [delta.op for delta in gateway.handle_pull(SyncPull("b", 0)).deltas] == ["DELETE", "INSERT"]
    assert ids(kept(adapter)) == ids([ahead])
    with lakesync.open_gateway("shop") as gateway, pytest.raises(FlushError, match="no adapter"):
        gateway.rehydrate()


def test_a_push_with_a_body_that_could_not_be_read_again_is_rejected(clock, tmp_path, monkeypatch):
    monkeypatch.setattr("lakesync.wire.log.MAX_BODY_BYTES", 1000)
    monkeypatch.setattr("lakesync.engine.adapter_gateway._BYTES_PER_COMMIT", 250)
    author, adapter = Author("a", clock), KINDS["sqlite"](tmp_path)
    with lakesync.open_gateway("shop", adapter=adapter, background=False, wall=clock) as gateway:
        with pytest.raises(ValidationError, match="send it in parts"):
            author.push(gateway, author.delta("large", {"u": "a" * 1000}))
        sent = [each for n in range(5) for each in author.push(gateway, author.delta(f"r{n}", {"u": "a" * 200}))]
    assert ids(kept(adapter)) == ids(sent)
    with lakesync.open_gateway("shop", adapter=adapter, background=False, wall=clock) as gateway:
        assert gateway.rehydrate() == len(sent)
        pulled = gateway.handle_pull(SyncPull("b", 0)).deltas
        assert sum(delta.op == "INSERT" for delta in pulled) == len(sent)


@pytest.mark.parametrize("since", ["0", "1", "the last cursor"])
def test_l7_after_rehydrating_a_client_that_only_pulled_drops_rows_that_it_may_not_see(clock, tmp_path, since):
    author, adapter = Author("a", clock), KINDS["sqlite"](tmp_path)
    rules, claims = user_scoped("owner"), {"sub": "b"}
    with lakesync.open_gateway("shop", adapter=adapter, background=False, wall=clock, rules=rules) as gateway:
        author.push(gateway, *(author.delta(row, {"owner": "b"}) for row in ("kept", "moved", "deleted")))
        page = gateway.submit_pull(SyncPull("b", 0), claims).result(60).decoded()
        assert len(page.deltas) == 3
        clock.advance(5)
        author.push(
            gateway, author.delta("moved", {"owner": "c"}, before={"owner": "b"}), author.delta("deleted", None)
        )
    with lakesync.open_gateway("shop", adapter=adapter, background=False, wall=clock, rules=rules) as gateway:
        assert gateway.rehydrate() == 5
        cursor = {"0": 0, "1": 1}.get(since, page.server_hlc)
        page = gateway.submit_pull(SyncPull("b", cursor), claims).result(60).decoded()
    assert sorted((delta.row_id, delta.op) for delta in page.deltas) == [
        ("deleted", "DELETE"),
        ("kept", "DELETE"),
        ("kept", "INSERT"),
        ("moved", "DELETE"),
    ]


@pytest.mark.parametrize("since", ["0", "1", "the last cursor"])
def test_l7_after_rehydrating_a_client_with_further_claims_that_pushed_drops_a_deleted_row(clock, tmp_path, since):
    author, other, adapter = Author("a", clock), Author("b", clock), KINDS["sqlite"](tmp_path)
    by_team = {"name": "team", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}
    rules, claims = parse_rules({"version": 1, "buckets": [by_team]}), {"sub": "b", "team": "red"}
    with lakesync.open_gateway("shop", adapter=adapter, background=False, wall=clock, rules=rules) as gateway:
        author.push(gateway, author.delta("deleted", {"team": "red"}))
        other.push(gateway, other.delta("own", {"team": "red"}))
        page = gateway.submit_pull(SyncPull("b", 0), claims).result(60).decoded()
        clock.advance(5)
        author.push(gateway, author.delta("deleted", None))
    with lakesync.open_gateway("shop", adapter=adapter, background=False, wall=clock, rules=rules) as gateway:
        gateway.rehydrate()
        cursor = {"0": 0, "1": 1}.get(since, page.server_hlc)
        page = gateway.submit_pull(SyncPull("b", cursor), claims).result(60).decoded()
    assert ("deleted", "DELETE") in [(delta.row_id, delta.op) for delta in page.deltas]
    assert [delta.op for delta in page.deltas if delta.row_id == "own"] == ["DELETE", "INSERT"]


def test_rehydrating_from_an_empty_adapter_counts_every_client_as_seen_before(clock, tmp_path):
    """The store may have been lost before its first flush. Then a client may have rows that are pushed again."""
    author, adapter = Author("a", clock), KINDS["sqlite"](tmp_path)
    with lakesync.open_gateway("shop", adapter=adapter, background=False, wall=clock) as gateway:
        assert gateway.rehydrate() == 0
        author.push(gateway, author.delta("r1", {"x": 1}))
        assert [delta.op for delta in gateway.handle_pull(SyncPull("b", 0)).deltas] == ["DELETE", "INSERT"]


def test_rehydrating_a_store_with_pushes_leaves_new_clients_new(clock, tmp_path):
    author, adapter = Author("a", clock), KINDS["sqlite"](tmp_path)
    with lakesync.open_gateway("shop", adapter=adapter, background=False, wall=clock) as gateway:
        author.push(gateway, author.delta("r1", {"x": 1}))
        gateway.flush()
        gateway.rehydrate()
        assert [delta.op for delta in gateway.handle_pull(SyncPull("b", 0)).deltas] == ["INSERT"]


def test_rehydrating_during_pushes_loses_no_push(clock, tmp_path):
    author, other, adapter = Author("a", clock), Author("b", clock), KINDS["sqlite"](tmp_path)
    with lakesync.open_gateway("shop", adapter=adapter, background=False, wall=clock) as gateway:
        sent = author.push(gateway, *(author.delta(f"r{n}", {"x": n}) for n in range(30)))
    with lakesync.open_gateway("shop", adapter=adapter, background=False, wall=clock) as gateway:
        sent += other.push(gateway, other.delta("new", {"x": 1}))
        gateway.rehydrate()
        assert gateway.buffer_stats().log_size == 0
    assert ids(kept(adapter)) == ids(sent)


@pytest.mark.parametrize("error", [AdapterError("the backend does not answer"), OverflowError("too large")])
def test_a_gateway_that_cannot_flush_does_not_delay_the_others(clock, tmp_path, error):
    class Choosy(Failing):
        def insert_deltas(self, batch):
            if batch.gateway == "bad":
                raise error
            return super().insert_deltas(batch)

    adapter, flushed, failed = Choosy(KINDS["sqlite"](tmp_path)), [], []
    outlet = Outlet(adapter, SOON)
    engine = Engine(open_store("memory://", clock), clock, outlet=outlet)
    engine.open()
    house = Housekeeping(engine, outlet, on_flushed=flushed.append, on_failed=lambda *what: failed.append(what))
    author = Author("a", clock)
    for name in ("bad", "good"):
        author.push(engine.gateway(name), author.delta(name, {"x": 1}))
    clock.advance(10)
    house.flush_due()
    assert [report.gateway_id for report in flushed] == ["good"]
    assert [name for name, _ in failed] == ["bad"]
    engine.close()


def test_a_gateway_that_waits_for_its_retry_does_not_delay_the_others(clock, tmp_path, monkeypatch):
    monkeypatch.setattr(housekeeping, "doubled_wait", lambda *_: 3600.0)
    flushed, failed = threading.Event(), threading.Event()
    adapter = Failing(KINDS["sqlite"](tmp_path))
    adapter.before = 1
    outlet = Outlet(adapter, SOON)
    engine = Engine(open_store("memory://", clock), clock, outlet=outlet)
    engine.open()
    house = Housekeeping(engine, outlet, on_flushed=lambda _: flushed.set(), on_failed=lambda *_: failed.set())
    author = Author("a", clock)
    author.push(engine.gateway("bad"), author.delta("bad", {"x": 1}))
    clock.advance(10)
    house.start()
    assert failed.wait(60)
    author.push(engine.gateway("good"), author.delta("good", {"x": 1}))
    clock.advance(10)
    assert flushed.wait(60)
    house.stop()
    assert [shard.gateway for shard in engine.store.backlog() if shard.deltas] == ["bad"]
    engine.close()


def test_a_callback_that_raises_does_not_stop_the_flushes_of_other_gateways(clock, tmp_path):
    def raises(gateway_id, error):
        raise RuntimeError(f"no one to notify about {gateway_id}")

    adapter, flushed = Failing(KINDS["sqlite"](tmp_path)), []
    adapter.before = 1
    outlet = Outlet(adapter, SOON)
    engine = Engine(open_store("memory://", clock), clock, outlet=outlet)
    engine.open()
    house = Housekeeping(engine, outlet, on_flushed=flushed.append, on_failed=raises)
    author = Author("a", clock)
    for name in ("bad", "good"):
        author.push(engine.gateway(name), author.delta(name, {"x": 1}))
    clock.advance(10)
    house.flush_due()
    assert [report.gateway_id for report in flushed] == ["good"]
    engine.close()


def test_a_requested_flush_is_due(clock, tmp_path):
    outlet = Outlet(KINDS["sqlite"](tmp_path), queue=MemoryFlushQueue())
    engine = Engine(open_store("memory://", clock), clock, outlet=outlet)
    engine.open()
    author, house = Author("a", clock), Housekeeping(engine, outlet)
    gateway = engine.gateway("shop")
    author.push(gateway, author.delta("r1", {"x": 1}))
    house.flush_due()
    assert gateway.buffer_stats().log_size == 1
    gateway.request_flush()
    house.flush_due()
    assert gateway.buffer_stats().log_size == 0
    engine.close()


def test_an_application_needs_no_framework(tmp_path):
    heavy = "fastapi starlette uvicorn dagster pyspark psycopg duckdb"
    script = (
        "import sys, lakesync\n"
        f"with lakesync.open_gateway('shop', adapter='file://{tmp_path}/objects') as gateway:\n"
        "    made = lakesync.extract_delta(None, {'x': 1}, table='t', row_id='r', client_id='c',"
        " hlc=lakesync.HLC().now())\n"
        "    gateway.handle_push(lakesync.SyncPush('c', (made,)))\n"
        f"print([name for name in {heavy.split()!r} if name in sys.modules])\n"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert process.stdout == "[]\n"
    assert len(objects(tmp_path)) == 1


def test_an_unregistered_source_is_unknown_to_every_client(clock, tmp_path):
    with lakesync.open_gateway("shop", wall=clock) as gateway:
        gateway.register_source("s", SqliteAdapter(tmp_path / "s.db"))
        gateway.unregister_source("s")
        with pytest.raises(NotFoundError):
            gateway.handle_pull(SyncPull("a", 0, 10, "s"))


def test_an_application_without_structlog_gets_the_log_on_stderr():
    script = (
        "import lakesync\n"
        "action = lakesync.make_action('desk', 'open', {}, client_id='c', hlc=lakesync.HLC().now())\n"
        "with lakesync.open_gateway('shop') as gateway:\n"
        "    gateway.handle_action(lakesync.ActionPush('c', (action,)))\n"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert process.stdout == ""
    assert "action rejected" in process.stderr

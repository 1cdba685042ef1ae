"""The flush of a gateway without a pipeline writes every acknowledged delta once, also after failures."""

from __future__ import annotations

import json
import threading

import pytest

import lakesync
from lakesync.adapters import LocalDisk, ObjectDeltas
from lakesync.engine import Engine, EngineLimits
from lakesync.flush import BufferStats, Flusher, FlushSettings, Outlet
from lakesync.model.errors import BackpressureError, FlushError, IntegrityError
from lakesync.model.types import SyncPull
from lakesync.staging import open_store
from tests.integration.embedded.embedded_support import KINDS, Author, Failing, gateway_over, ids, kept, objects


@pytest.fixture(params=list(KINDS))
def adapter(request, tmp_path):
    """Each kind of destination in turn."""
    opened = KINDS[request.param](tmp_path)
    yield opened
    opened.close()


def test_a_flush_writes_every_unflushed_delta_and_pulls_are_unchanged(clock, adapter):
    author = Author("a", clock)
    with gateway_over(clock, adapter) as gateway:
        sent = author.push(gateway, author.delta("r1", {"x": 1}), author.delta("r2", {"x": 2}))
        clock.advance(5)
        sent += author.push(gateway, author.delta("r1", {"x": 3}, before={"x": 1}), author.delta("r2", None))
        before = gateway.handle_pull(SyncPull("b", 0))
        assert gateway.buffer_stats().log_size == 4
        report = gateway.flush()
        assert (report.batches, report.deltas) == (1, 4)
        assert ids(kept(adapter)) == ids(sent)
        assert gateway.buffer_stats() == BufferStats(0, 0, 0)
        assert gateway.handle_pull(SyncPull("c", 0)).deltas == before.deltas
        assert gateway.flush().batches == 0
        assert author.push(gateway, *sent) == sent
        assert gateway.buffer_stats().log_size == 0


def test_flushed_deltas_equal_the_pushed_ones(clock, adapter):
    author = Author("a", clock)
    with gateway_over(clock, adapter) as gateway:
        (sent,) = author.push(
            gateway, author.delta("é/%", {"text": "é\n\U00010000", "n": 1.5, "j": {"b": [None, True]}})
        )
        gateway.flush()
        (found,) = kept(adapter)
        assert found.delta == sent
        assert found.arrival == gateway.stats().last_arrival


def test_batches_are_bounded_and_contiguous(clock, adapter):
    author = Author("a", clock)
    with gateway_over(clock, adapter, settings=FlushSettings(batch_deltas=5)) as gateway:
        sent = []
        for number in range(7):
            clock.advance(1)
            sent += author.push(gateway, *(author.delta(f"r{number}-{n}", {"x": n}) for n in range(3)))
        assert (gateway.flush().batches, gateway.flush().batches) == (7, 0)
        assert ids(kept(adapter)) == ids(sent)
        assert [stored.arrival for stored in kept(adapter)] == sorted(stored.arrival for stored in kept(adapter))


def test_failed_work_waits_for_the_next_flush(clock, adapter):
    author, failing = Author("a", clock), Failing(adapter)
    with gateway_over(clock, failing) as gateway:
        sent = author.push(gateway, author.delta("r1", {"x": 1}))
        failing.before = 2
        for _ in range(2):
            with pytest.raises(FlushError, match=r"does not answer.*Nothing is lost"):
                gateway.flush()
            assert kept(adapter) == []
            assert gateway.buffer_stats().log_size == 1
        clock.advance(1)
        sent += author.push(gateway, author.delta("r2", {"x": 2}))
        failing.after = 1
        with pytest.raises(FlushError, match="answer was lost"):
            gateway.flush()
        assert gateway.flush().deltas == 2
        assert ids(kept(adapter)) == ids(sent)
        assert len(set(failing.batches[:4])) == 1, "the planned batch is not changed"


def test_deltas_that_the_adapter_lacks_are_not_confirmed(clock, adapter):
    author, failing = Author("a", clock), Failing(adapter)
    with gateway_over(clock, failing) as gateway:
        author.push(gateway, author.delta("r1", {"x": 1}))
        failing.less = 1
        with pytest.raises(IntegrityError, match="nothing is confirmed"):
            gateway.flush()
        assert gateway.buffer_stats().log_size == 1
        assert gateway.flush().deltas == 1


def test_the_final_flush_waits_for_one_of_the_application(clock, tmp_path, monkeypatch):
    entered, go_on = threading.Event(), threading.Event()

    class Slow(Failing):
        def insert_deltas(self, batch):
            entered.set()
            assert go_on.wait(120)
            return super().insert_deltas(batch)

    run = Flusher._run

    def go_on_and_run(flusher, *args, **options):
        if entered.is_set():  # the final flush
            go_on.set()
        return run(flusher, *args, **options)

    monkeypatch.setattr(Flusher, "_run", go_on_and_run)
    author, adapter = Author("a", clock), Slow(KINDS["sqlite"](tmp_path))
    with lakesync.open_gateway("shop", adapter=adapter, background=False, wall=clock) as gateway:
        sent = author.push(gateway, author.delta("r1", {"x": 1}))
        flushing = threading.Thread(target=gateway.flush)
        flushing.start()
        assert entered.wait(120)
        sent += author.push(gateway, author.delta("r2", {"x": 2}))
    flushing.join()
    assert ids(kept(adapter)) == ids(sent)


def test_concurrent_flushes_run_one_at_a_time(clock, tmp_path):
    author = Author("a", clock)
    entered, go_on = threading.Event(), threading.Event()

    class Slow(Failing):
        def insert_deltas(self, batch):
            entered.set()
            assert go_on.wait(120)
            return super().insert_deltas(batch)

    with gateway_over(clock, Slow(KINDS["sqlite"](tmp_path))) as gateway:
        author.push(gateway, author.delta("r1", {"x": 1}))
        reports = []
        flushing = threading.Thread(target=lambda: reports.append(gateway.flush()))
        flushing.start()
        assert entered.wait(120)
        assert gateway.flusher.flushing
        with pytest.raises(FlushError, match="is running"):
            gateway.flush()
        author.push(gateway, author.delta("r2", {"x": 2}))  # pushes continue meanwhile
        go_on.set()
        flushing.join()
        assert reports[0].deltas == 1
        assert gateway.buffer_stats().log_size == 1


def test_two_processes_of_one_store_flush_concurrently(clock, tmp_path, postgres_uri):
    """Each process has an engine over one Postgres; the store plans batches, so no batch is written twice."""
    import psycopg

    with psycopg.connect(postgres_uri, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS side_by_side")
        connection.execute("CREATE DATABASE side_by_side")
    url = postgres_uri.rpartition("/")[0] + "/side_by_side"
    author, adapter = Author("a", clock), KINDS["parquet"](tmp_path)
    with (
        gateway_over(clock, adapter, staging=url, settings=FlushSettings(batch_deltas=2)) as one,
        gateway_over(clock, adapter, staging=url, settings=FlushSettings(batch_deltas=3)) as two,
    ):
        sent = []
        for number in range(20):
            clock.advance(1)
            sent += author.push(one, author.delta(f"r{number}", {"x": number}))
        failures: list[BaseException] = []

        def flush(gateway):
            try:
                gateway.flush()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=flush, args=(gateway,)) for gateway in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        one.flush()
        assert ids(kept(adapter)) == ids(sent)
        assert one.buffer_stats().log_size == two.buffer_stats().log_size == 0


def test_a_flush_without_an_adapter_is_an_error(clock):
    with gateway_over(clock) as gateway, pytest.raises(FlushError, match="has no adapter"):
        gateway.flush()


def test_flushing_a_table_flushes_earlier_pushes_of_others(clock, tmp_path):
    author, adapter = Author("a", clock), KINDS["parquet"](tmp_path)
    with gateway_over(clock, adapter) as gateway:
        for table in ("notes", "other", "notes", "other", "other"):
            clock.advance(1)
            author.push(gateway, author.delta("r", {"x": clock.now_ms}, table=table))
        assert gateway.flush_table("absent").deltas == 0
        assert gateway.flush_table("notes").deltas == 3
        assert [stored.delta.table for stored in kept(adapter)] == ["notes", "other", "notes"]
        assert [stats.table for stats in gateway.table_stats()] == ["other"]
        assert gateway.flush_table("notes").deltas == 0
        assert gateway.flush_table("other").deltas == 2


def test_objects_are_named_by_batch_in_the_documented_format(clock, tmp_path):
    author = Author("a", clock)
    with gateway_over(clock, KINDS["json"](tmp_path)) as gateway:
        sent = author.push(gateway, author.delta("r1", {"x": 1}))
        gateway.flush()
        (key,) = objects(tmp_path)
        assert key.startswith("deltas/shop/2023-11-14/")
        assert key.endswith(".main.1700000000000.1-1.json")
        envelope = json.loads(LocalDisk(tmp_path / "objects").get_object(key))
        assert envelope["gatewayId"] == "shop"
        assert envelope["hlcRange"] == {"min": str(sent[0].hlc), "max": str(sent[0].hlc)}
        assert envelope["deltas"][0]["deltaId"] == sent[0].delta_id


def test_pushes_are_rejected_until_a_flush_if_too_much_is_unflushed(clock, tmp_path):
    author, adapter = Author("a", clock), KINDS["sqlite"](tmp_path)
    with gateway_over(clock, adapter, limits=EngineLimits(max_backpressure_bytes=500)) as gateway:
        while gateway.buffer_stats().byte_size <= 500:
            author.push(gateway, author.delta("r", {"x": 1}))
        with pytest.raises(BackpressureError):
            author.push(gateway, author.delta("r", {"x": 2}))
        gateway.flush()
        author.push(gateway, author.delta("again", {"x": 1}))
        assert gateway.buffer_stats().log_size == 1


def test_gateways_with_a_shared_adapter_are_separate(clock, tmp_path):
    adapter = ObjectDeltas(LocalDisk(tmp_path / "objects"))
    engine = Engine(open_store("memory://", clock), clock, outlet=Outlet(adapter))
    engine.open()
    author = Author("a", clock)
    for name in ("one", "two"):
        author.push(engine.gateway(name), author.delta(name, {"x": 1}))
        engine.gateway(name).flush()
    for name in ("one", "two"):
        assert [stored.delta.row_id for stored in kept(adapter, name)] == [name]
    engine.close()

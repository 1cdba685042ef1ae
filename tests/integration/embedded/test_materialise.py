"""Tables at the destination follow the flushes; their failures never fail a flush."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
import stamina

from lakesync.adapters import LocalDisk, SqliteAdapter
from lakesync.flush import FlushSettings, Materialiser, MemoryFlushQueue, ObjectFlushQueue, StagingFlushQueue
from lakesync.model.errors import AdapterError, FlushError, ValidationError
from lakesync.model.schema import parse_schema
from tests.integration.embedded.embedded_support import Author, gateway_over

NOTES = parse_schema({"table": "notes", "columns": [{"name": "x", "type": "number"}]})


@pytest.fixture
def database(tmp_path):
    opened = SqliteAdapter(tmp_path / "d.db")
    yield opened
    opened.close()


def table(database):
    """The destination's table."""
    with closing(sqlite3.connect(database.path)) as sql, sql:
        return dict(sql.execute("SELECT row_id, x FROM notes WHERE deleted_at IS NULL ORDER BY row_id").fetchall())


class Flaky:
    """A destination that fails this number of times."""

    def __init__(self, inner, times, error=AdapterError):
        self.inner, self.times, self.error, self.tried = inner, times, error, 0

    def ensure_schema(self, schema):
        self.inner.ensure_schema(schema)

    def materialise(self, gateway, schema, row_ids):
        self.tried += 1
        if self.times > 0:
            self.times -= 1
            raise self.error(f"try {self.tried}")
        return self.inner.materialise(gateway, schema, row_ids)


@pytest.fixture
def flushed(clock, database):
    """Flush three rows of `notes`, and one row of a table without a schema."""
    queue, author = MemoryFlushQueue(), Author("a", clock)
    with gateway_over(clock, database, queue=queue) as gateway:
        gateway.register_schema(NOTES)
        author.push(gateway, *(author.delta(f"r{n}", {"x": n}) for n in range(3)))
        author.push(gateway, author.delta("r0", {"x": 9}), author.delta("free", {"x": 1}, table="unknown"))
        gateway.flush()
    return queue


def test_rows_follow_the_flush(flushed, database):
    (job,) = flushed.pending("shop")
    assert (job.flushed.table, job.flushed.delta_count, set(job.flushed.row_ids)) == ("notes", 4, {"r0", "r1", "r2"})
    assert Materialiser("shop", flushed, database).run_once() == 1
    assert table(database) == {"r0": 9, "r1": 1, "r2": 2}
    assert flushed.pending("shop") == []


def test_rows_that_were_flushed_before_their_table_had_a_schema_are_written_at_its_next_flush(clock, database):
    queue, author = MemoryFlushQueue(), Author("a", clock)

    def push(gateway, row, size):
        author.push(gateway, author.delta(row, {"x": size}))
        gateway.flush()
        return [set(job.flushed.row_ids) for job in queue.pending("shop")]

    with gateway_over(clock, database, queue=queue) as gateway:
        assert push(gateway, "early", 1) == []
        gateway.register_schema(NOTES)
        assert push(gateway, "r", 2) == [{"early", "r"}]
        assert push(gateway, "later", 3) == [{"early", "r"}, {"later"}]
    assert Materialiser("shop", queue, database).run_once() == 2
    assert table(database) == {"early": 1, "later": 3, "r": 2}


def test_a_flush_that_cannot_read_the_rows_from_before_the_schema_is_repeated(clock, database, monkeypatch):
    def unreachable(query):
        raise AdapterError("the disk does not answer")

    queue, author = MemoryFlushQueue(), Author("a", clock)
    with gateway_over(clock, database, queue=queue) as gateway:
        author.push(gateway, author.delta("early", {"x": 1}))
        gateway.flush()
        gateway.register_schema(NOTES)
        author.push(gateway, author.delta("r", {"x": 2}))
        with monkeypatch.context() as failing:
            failing.setattr(database, "query_arrow", unreachable)
            with pytest.raises(FlushError, match="table 'notes'"):
                gateway.flush()
        assert queue.pending("shop") == []
        gateway.flush()
    (job,) = queue.pending("shop")
    assert set(job.flushed.row_ids) == {"early", "r"}


def test_work_that_fails_for_a_while_is_retried(flushed, database):
    failures = []
    flaky = Flaky(database, 3)
    worker = Materialiser("shop", flushed, flaky, lambda *failure: failures.append(failure), first_wait_seconds=0.001)
    assert worker.run_once() == 1
    assert (flaky.tried, failures) == (4, [])
    assert len(table(database)) == 3


def test_work_that_keeps_failing_becomes_a_dead_letter(flushed, database):
    failures = []
    flaky = Flaky(database, 100)
    worker = Materialiser(
        "shop", flushed, flaky, lambda *failure: failures.append(failure), attempts=3, first_wait_seconds=0.001
    )
    assert worker.run_once() == 0
    assert flaky.tried == 3
    assert [(name, count, str(error)) for name, count, error in failures] == [("notes", 4, "try 3")]
    (job,) = flushed.failed("shop")
    assert job.failure == "AdapterError: try 3"
    flaky.times = 0
    flushed.retry(job)
    assert worker.run_once() == 1
    assert len(table(database)) == 3


def test_work_that_cannot_succeed_is_tried_once(flushed, database):
    flaky = Flaky(database, 100, ValidationError)
    assert Materialiser("shop", flushed, flaky).run_once() == 0
    assert (flaky.tried, len(flushed.failed("shop"))) == (1, 1)


def test_a_job_whose_workers_die_becomes_a_dead_letter(flushed, database):
    """The attempts were counted before they started."""
    job = flushed.pending("shop")[0]
    for _ in range(5):
        job = flushed.begin(job)
    flaky = Flaky(database, 0)
    assert Materialiser("shop", flushed, flaky).run_once() == 0
    assert flaky.tried == 0
    assert "its worker died in each of 5 attempts" in flushed.failed("shop")[0].failure


def test_a_failing_table_does_not_delay_the_others(clock, database):
    queue, author = MemoryFlushQueue(), Author("a", clock)
    other = parse_schema({"table": "other", "columns": [{"name": "x", "type": "number"}]})
    with gateway_over(clock, database, queue=queue) as gateway:
        for schema in (NOTES, other):
            gateway.register_schema(schema)
        author.push(gateway, author.delta("r", {"x": 1}), author.delta("r", {"x": 1}, table="other"))
        gateway.flush()
    with closing(sqlite3.connect(database.path)) as sql, sql:
        sql.execute("CREATE VIEW other AS SELECT 1 AS x")
    with stamina.set_testing(True, attempts=2):
        assert Materialiser("shop", queue, database).run_once() == 1
    assert table(database) == {"r": 1}
    assert [job.flushed.table for job in queue.failed("shop")] == ["other"]


class Broken(ObjectFlushQueue):
    """A queue that rejects writes for a while."""

    times = 1

    def publish(self, work, context):
        if self.times:
            self.times -= 1
            raise AdapterError("the queue does not answer")
        super().publish(work, context)


def test_a_failing_queue_does_not_fail_the_flush_and_receives_its_jobs_later(clock, database, tmp_path):
    queue, author = Broken(LocalDisk(tmp_path / "queue")), Author("a", clock)
    with gateway_over(clock, database, queue=queue) as gateway:
        gateway.register_schema(NOTES)
        author.push(gateway, author.delta("r1", {"x": 1}))
        assert gateway.flush().deltas == 1
        assert queue.pending("shop") == []
        clock.advance(1)
        author.push(gateway, author.delta("r2", {"x": 2}))
        gateway.flush()
    assert Materialiser("shop", queue, database).run_once() == 2
    assert table(database) == {"r1": 1, "r2": 2}


@pytest.mark.parametrize("jobs", [1, 101])
def test_jobs_of_a_failing_queue_outlive_the_process(clock, database, tmp_path, jobs):
    staging, author = f"sqlite://{tmp_path / 'staging'}", Author("a", clock)
    folder = LocalDisk(tmp_path / "queue")
    broken = Broken(folder)
    broken.times = jobs
    settings = FlushSettings(batch_deltas=1)
    with gateway_over(clock, database, staging=staging, settings=settings, queue=broken) as gateway:
        gateway.register_schema(NOTES)
        for number in range(jobs):
            author.push(gateway, author.delta(f"r{number}", {"x": number}))
        assert gateway.flush().deltas == jobs
    queue = ObjectFlushQueue(folder)
    assert queue.pending("shop") == []
    clock.advance(1)
    with gateway_over(clock, database, staging=staging, queue=queue) as gateway:
        gateway.flush()
        assert Materialiser("shop", queue, database).run_once() == jobs
        gateway.flush()
    assert queue.pending("shop") == [], "each job was moved, and not copied"
    assert table(database) == {f"r{number}": number for number in range(jobs)}


def test_jobs_that_cannot_be_moved_to_the_queue_yet_fail_no_flush(clock, database, tmp_path):
    queue, author = Broken(LocalDisk(tmp_path / "queue")), Author("a", clock)
    queue.times = 3
    with gateway_over(clock, database, queue=queue) as gateway:
        gateway.register_schema(NOTES)
        for number in range(3):
            clock.advance(1)
            author.push(gateway, author.delta(f"r{number}", {"x": number}))
            assert gateway.flush().deltas == 1
    assert Materialiser("shop", queue, database).run_once() == 3
    assert table(database) == {"r0": 0, "r1": 1, "r2": 2}


def test_jobs_in_staging_remain_there_until_they_are_done(clock, database):
    """Here staging is the queue, so a flush moves nothing."""
    author = Author("a", clock)
    with gateway_over(clock, database) as gateway:
        gateway.register_schema(NOTES)
        author.push(gateway, author.delta("r", {"x": 1}))
        gateway.flush()
        gateway.flush()
        queue = StagingFlushQueue(gateway._store)
        assert [job.flushed.table for job in queue.pending("shop")] == ["notes"]

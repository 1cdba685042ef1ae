"""The conformance suite of queues for table work."""

from __future__ import annotations

import pytest

from lakesync.adapters import LocalDisk
from lakesync.flush import FlushContext, FlushedTable, MemoryFlushQueue, ObjectFlushQueue, StagingFlushQueue
from lakesync.model.errors import NotFoundError
from lakesync.model.schema import parse_schema
from lakesync.staging import open_store
from lakesync.testing import ManualClock
from tests.conformance.book import Book

QUEUES = {
    "memory": lambda _: MemoryFlushQueue(),
    "objects": lambda folder: ObjectFlushQueue(LocalDisk(folder)),
    "staging": lambda folder: f"sqlite://{folder}",
    "staging in postgres": None,
}


@pytest.fixture(params=list(QUEUES))
def queue(request, tmp_path):
    """Each kind in turn."""
    make = QUEUES[request.param]
    made = request.getfixturevalue("own_database") if make is None else make(tmp_path)
    if not isinstance(made, str):
        yield made
        return
    store = open_store(made, ManualClock())
    store.open(Book())
    for gateway in ("g", "other"):
        store.ensure_gateway(gateway)
    yield StagingFlushQueue(store)
    store.close()


def work(table: str, *rows: str) -> FlushedTable:
    """Work for one table."""
    schema = parse_schema({"table": table, "columns": [{"name": "x", "type": "number"}]})
    return FlushedTable(schema, rows or ("r",), 3)


def context(number: int, gateway: str = "g") -> FlushContext:
    """A flush."""
    return FlushContext(gateway, f"{gateway}.main.1.{number}-{number}", number << 16)


def test_jobs_are_one_per_table_and_ordered_by_flush(queue):
    queue.publish([work("b", "é", "r2"), work("a")], context(10))
    queue.publish([work("a")], context(9))
    queue.publish([work("a")], context(1, "other"))
    jobs = queue.pending("g")
    assert [(job.context.arrival >> 16, job.flushed.table) for job in jobs] == [(9, "a"), (10, "a"), (10, "b")]
    assert jobs[2].flushed == work("b", "é", "r2")
    assert jobs[2].context == context(10)
    assert [job.job_id for job in queue.pending("g", limit=2)] == [job.job_id for job in jobs[:2]]
    assert len(queue.pending("other")) == 1


def test_work_published_twice_is_one_job(queue):
    queue.publish([work("a")], context(1))
    begun = queue.begin(queue.pending("g")[0])
    queue.publish([work("a")], context(1))
    assert queue.pending("g") == [begun]


def test_a_job_stays_pending_until_it_is_done(queue):
    queue.publish([work("a"), work("b")], context(1))
    first = queue.begin(queue.begin(queue.pending("g")[0]))
    assert [job.attempts for job in queue.pending("g")] == [2, 0]
    queue.done(first)
    queue.done(first)
    assert [job.flushed.table for job in queue.pending("g")] == ["b"]


def test_a_job_set_aside_is_listed_and_can_be_retried(queue):
    queue.publish([work("a"), work("b")], context(1))
    job = queue.begin(queue.pending("g")[0])
    queue.set_aside(job, "it does not fit")
    assert [job.flushed.table for job in queue.pending("g")] == ["b"]
    (failed,) = queue.failed("g")
    assert (failed.failure, failed.attempts, failed.flushed) == ("it does not fit", 1, job.flushed)
    assert queue.failed("other") == []
    queue.retry(failed)
    assert queue.failed("g") == []
    assert [(job.flushed.table, job.attempts, job.failure) for job in queue.pending("g")] == [
        ("a", 0, None),
        ("b", 0, None),
    ]
    with pytest.raises(NotFoundError, match="set aside"):
        queue.retry(failed)


def test_a_job_set_aside_can_be_dropped(queue):
    queue.publish([work("a"), work("b")], context(1))
    job = queue.pending("g")[0]
    queue.set_aside(job, "it does not fit")
    queue.drop(job)
    assert queue.failed("g") == []
    assert [job.flushed.table for job in queue.pending("g")] == ["b"]
    with pytest.raises(NotFoundError, match="set aside"):
        queue.drop(job)


def test_object_queue_uses_the_references_keys(tmp_path):
    disk = LocalDisk(tmp_path)
    queue = ObjectFlushQueue(disk)
    queue.publish([work("a")], context(1))
    (info,) = disk.list_objects().objects
    assert info.key.startswith("materialise-jobs/g/")
    assert ObjectFlushQueue(LocalDisk(tmp_path)).pending("g") == queue.pending("g")
    disk.put_object("materialise-jobs/g/0-broken.json", b"no job")
    assert [job.flushed.table for job in queue.pending("g")] == ["a"], "an invalid object does not block the others"
    assert disk.get_object("materialise-unreadable/materialise-jobs/g/0-broken.json") == b"no job"

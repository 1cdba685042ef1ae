"""`FlushJobView` and `FlushJobCommit` of every staging store; `test_flush_queue.py` runs the queue over them."""

from __future__ import annotations

from tests.conformance.calls import read


def add(store, job_id, body, *, set_aside=False):
    store.submit("g", lambda commit: commit.add_flush_job(job_id, body, set_aside=set_aside)).result()


def jobs(store, *, set_aside=False, limit=10):
    return read(store, lambda view: view.flush_jobs(set_aside=set_aside, limit=limit))


def test_jobs_are_ordered_by_id_and_kept_over_a_restart(place, store, book):
    add(store, "2", b"second")
    add(store, "1", b"first")
    add(store, "3", b"failed", set_aside=True)
    store = place.reopen(store, book)
    assert (jobs(store), jobs(store, limit=1)) == ([b"first", b"second"], [b"first"])
    assert jobs(store, set_aside=True) == [b"failed"]


def test_a_job_that_exists_is_not_replaced(store):
    add(store, "1", b"first")
    add(store, "1", b"other")
    assert jobs(store) == [b"first"]


def test_a_job_is_claimed_once_and_requeued_if_the_work_fails(store):
    add(store, "1", b"first")

    def failing(commit):
        assert commit.take_flush_job("1", set_aside=False) == b"first"
        raise ValueError("on purpose")

    assert isinstance(store.submit("g", failing).exception(), ValueError)
    taken = store.submit("g", lambda commit: [commit.take_flush_job("1", set_aside=False) for _ in range(2)]).result()
    assert taken == [b"first", None]
    assert jobs(store) == []

"""P2 and P8: durability before a commit's answer, and the number of pushes that share a commit."""

from __future__ import annotations

import os
import threading
from concurrent.futures import wait
from typing import Any

import pytest

from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.postgres.connection import POOL_SIZE
from lakesync.staging.sqlite import SqliteStore
from tests.conformance.book import make_delta
from tests.conformance.places import postgres

PUSHES = 40


@pytest.fixture
def held(store):
    """Block the gateway's commits until the event is set, so that pushes queue up."""
    go_on = threading.Event()
    store.submit("g", lambda _: go_on.wait(60))
    yield go_on
    go_on.set()


def test_queued_pushes_share_a_commit(store, book, held, monkeypatch):
    # so that no group starts in between on a busy machine
    monkeypatch.setattr("lakesync.staging.sqlite.group._GROUP_SECONDS", 60)
    commits: list[str] = []
    if isinstance(store, SqliteStore):
        journal = store._opened.journal.sql
        journal.set_trace_callback(lambda statement: commits.append(statement) if statement == "COMMIT" else None)

    def work(commit, number):
        entry = book.push([make_delta("c", number, f"r{number}", x=number)])(commit)
        if not isinstance(store, SqliteStore):
            (transaction,) = commit._connection.execute("SELECT pg_current_xact_id()::text").fetchone()
            commits.append(transaction)
        return entry.seq

    futures = [store.submit("g", lambda commit, n=n: work(commit, n)) for n in range(1, PUSHES + 1)]
    held.set()
    assert [future.result() for future in futures] == list(range(1, PUSHES + 1))
    assert 1 <= len(commits if isinstance(store, SqliteStore) else set(commits)) < PUSHES / 4


@pytest.mark.parametrize("ask", ["submit", "read"])
def test_a_gateway_with_many_jobs_does_not_delay_another(store, ask):
    if ask == "submit" and not isinstance(store, SqliteStore):
        pytest.skip("gateways write in threads of their own, in no order")
    store.ensure_gateway("h")
    order: list[str] = []
    threads = 1 if isinstance(store, SqliteStore) else POOL_SIZE
    begun, release = threading.Event(), threading.Semaphore(0)

    def block(_):
        begun.set()
        release.acquire(timeout=60)

    blocking = [store.read("g", block) for _ in range(threads)]
    assert begun.wait(60), "new requests wait for a later round"
    flood = [getattr(store, ask)("g", lambda _: order.append("g")) for _ in range(PUSHES)]
    other = getattr(store, ask)("h", lambda _: order.append("h"))
    release.release()  # with one thread, jobs run in the order in which they are taken
    wait([other], 60)
    release.release(threads)
    wait([*blocking, *flood], 60)
    assert order.index("h") <= 2 * POOL_SIZE
    assert order.count("g") == PUSHES


def test_a_group_whose_transaction_sqlite_aborted_stores_nothing(tmp_path, clock, book, monkeypatch):
    """A full disk aborts a group's transaction; later writes of the group must not be stored alone."""
    # so that all join one group on a busy machine too
    monkeypatch.setattr("lakesync.staging.sqlite.group._GROUP_SECONDS", 60)
    store = SqliteStore(tmp_path, clock)
    store.open(book)
    store.ensure_gateway("g")
    journal = store._opened.journal.sql
    go_on = threading.Event()
    delta = make_delta("c", 5, "r1", x=os.urandom(20_000).hex())

    def no_room(_):
        (pages,) = journal.execute("PRAGMA page_count").fetchone()
        journal.execute(f"PRAGMA max_page_count = {pages}").fetchall()

    held = store.submit("g", lambda _: go_on.wait(60))
    group = [
        store.submit("g", work)
        for work in (
            book.push([delta]),
            no_room,
            lambda commit: commit.put_write_scope("rules"),  # which writes the push before it
            lambda _: journal.execute("PRAGMA max_page_count = 1000000").fetchall(),
        )
    ]
    go_on.set()
    wait([held, *group])
    with pytest.raises(StagingUnavailableError, match="ended by SQLite"):
        group[0].result()
    assert store.submit("g", book.push([delta])).result().seq == 1, "the push was not stored, so its repeat is stored"
    assert (store.backlog()[0].last_seq, sum(day.count for day in store.ledger("g"))) == (1, 1)
    store.close()


def test_the_journal_is_synced_to_disk_at_every_commit(tmp_path, clock, book):
    store = SqliteStore(tmp_path, clock)
    store.open(book)
    full, wal = 2, "wal"
    journal = store._opened.journal.sql
    settings = [journal.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")]
    assert settings == [full, wal]
    store.close()


def test_postgres_commits_are_durable_before_the_answer(request, clock, book):
    from lakesync.staging import open_store

    store = open_store(postgres(request), clock)
    store.open(book)
    store.ensure_gateway("g")

    def shown(commit: Any) -> Any:
        return commit._connection.execute("SHOW synchronous_commit").fetchone()

    asked = store.submit("g", shown).result()
    assert asked == ("on",)
    store.close()

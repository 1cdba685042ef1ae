"""P2 and P8: what a commit waits for, and how many pushes share one."""

from __future__ import annotations

import threading

import pytest

from lakesync.staging.sqlite import SqliteStore
from tests.conformance.book import make_delta
from tests.conformance.places import postgres

PUSHES = 40


@pytest.fixture
def held(store):
    """Keeps the gateway's commits waiting until it is set, so that pushes gather behind it."""
    go_on = threading.Event()
    store.submit("g", lambda _: go_on.wait(60))
    yield go_on
    go_on.set()


def test_pushes_that_wait_together_share_a_commit(store, book, held):
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


def test_the_journal_is_on_the_disk_at_every_commit(tmp_path, clock, book):
    store = SqliteStore(tmp_path, clock)
    store.open(book)
    full, wal = 2, "wal"
    journal = store._opened.journal.sql
    settings = [journal.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")]
    assert settings == [full, wal]
    store.close()


def test_postgres_answers_once_its_log_is_on_the_disk(request, clock, book):
    from lakesync.staging import open_store

    store = open_store(postgres(request), clock)
    store.open(book)
    store.ensure_gateway("g")
    asked = store.submit("g", lambda commit: commit._connection.execute("SHOW synchronous_commit").fetchone()).result()
    assert asked == ("on",)
    store.close()

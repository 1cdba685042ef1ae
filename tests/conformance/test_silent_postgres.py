"""Calls to a Postgres that is silent while its connections stay open fail in a bounded time, and work again later.

TCP does not notice it here, because a proxy still acknowledges every byte. Each test sets a short limit only while the
server is silent, so that a slow machine fails no statement that is answered.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy.exc import SQLAlchemyError

from lakesync.adapters.backends.postgres import PostgresAdapter
from lakesync.analysis.catalogue import open_iceberg
from lakesync.connectors.host_policy import HostPolicy
from lakesync.connectors.sql.postgres import PostgresReader
from lakesync.model.errors import AdapterError, LakeSyncError, StagingUnavailableError
from lakesync.staging import open_store
from lakesync.staging.log_reader import LogRange, read_log
from lakesync.wire import postgres
from tests.conformance.book import Book, make_delta
from tests.postgres_proxy import Proxy

DEADLINE = 120
SILENT = "the server sent nothing for 1 s, so the connection was closed"


@pytest.fixture
def proxy(own_database):
    """A proxy before a separate database."""
    made = Proxy(own_database)
    yield made
    made.flowing.set()
    made.close()


@pytest.fixture
def hush(proxy, monkeypatch):
    """Make the server silent, with limits of a second for the next statements."""

    def silence():
        monkeypatch.setattr(postgres, "RESPONSE_SECONDS", 1.0)
        monkeypatch.setattr(postgres, "CHECK_SECONDS", 1.0)
        proxy.flowing.clear()

    return silence


@pytest.fixture
def resume(proxy, monkeypatch):
    """Let the server respond again, with the usual limits."""

    def flow():
        monkeypatch.undo()
        proxy.flowing.set()

    return flow


def eventually(call):
    """Retry a call until it succeeds; return its result."""
    end = time.monotonic() + DEADLINE
    while True:
        try:
            return call()
        except (LakeSyncError, SQLAlchemyError):
            if time.monotonic() > end:
                raise


def test_a_store_times_out_on_a_silent_server_and_recovers(proxy, hush, resume, clock):
    with ExitStack() as closing:
        store = open_store(f"{proxy.url}?connect_timeout=2", clock)
        store.open(Book())
        closing.callback(store.close)
        store.ensure_gateway("g")

        def interrupted(commit):
            hush()
            return commit.highest_hlc("c")

        with pytest.raises(StagingUnavailableError, match=SILENT):
            store.submit("g", interrupted).result(DEADLINE)
        delta = make_delta("c", 1, "r1", x=1)
        with pytest.raises(StagingUnavailableError):  # no connection of the pool works, and none can be opened
            store.submit("g", Book().push([delta])).result(DEADLINE)
        with pytest.raises(StagingUnavailableError, match="cannot be read"):
            list(read_log(store.log_source(), LogRange("g", "main", 1, 0, 9)))
        resume()
        assert eventually(lambda: store.submit("g", Book().push([delta])).result(DEADLINE)) is not None


def test_a_commit_without_an_answer_is_reported_as_unknown(proxy, hush, resume, clock):
    store = open_store(proxy.url, clock)
    store.open(Book())
    store.ensure_gateway("g")
    delta = make_delta("c", 1, "r1", x=1)

    def silent_at_the_end(commit):
        pushed = Book().push([delta])(commit)
        hush()
        return pushed

    with pytest.raises(StagingUnavailableError, match=SILENT):
        store.submit("g", silent_at_the_end).result(DEADLINE)
    resume()
    eventually(lambda: store.submit("g", Book().push([delta])).result(DEADLINE))
    assert [each.deltas for each in store.backlog()] == [1]
    store.close()


def test_an_adapter_times_out_on_a_silent_server_and_recovers(proxy, hush, resume):
    adapter: Any = PostgresAdapter(f"{proxy.url}?connect_timeout=2")
    assert adapter.get_latest_state("g", "notes", ["r"]) is not None

    def interrupted():
        with adapter._executor.connect() as connection:
            hush()
            connection._sql.response_seconds = 1.0
            connection.query("SELECT 1")

    with pytest.raises(AdapterError, match=SILENT):
        interrupted()
    with pytest.raises(AdapterError, match="timeout"):  # no new connection can be opened
        adapter.get_latest_state("g", "notes", ["r"])
    resume()
    assert eventually(lambda: adapter.get_latest_state("g", "notes", ["r"])) is not None
    adapter.close()


@pytest.mark.parametrize(("given", "seconds"), [("", 310), ("?options=-c%20statement_timeout%3D20000", 30)])
def test_an_adapter_waits_longer_than_the_servers_own_limit(own_database, given, seconds):
    adapter: Any = PostgresAdapter(own_database + given)
    with adapter._executor.connect() as connection:
        assert connection._sql.response_seconds == seconds
        with connection.limited(100):
            assert (connection.query("SHOW statement_timeout"), connection._sql.response_seconds) == (
                [("100s",)],
                110,
            )
        assert connection._sql.response_seconds == seconds
    adapter.close()


def test_the_catalogues_connections_detect_a_dead_server(own_database):
    uri = own_database.replace("postgresql://", "postgresql+psycopg://") + "?connect_timeout=3"
    catalogue: Any = open_iceberg("lake", uri, {"warehouse": "file:///nowhere"})
    with catalogue.engine.connect() as connection:
        given = connection.connection.driver_connection.info.get_parameters()
    assert (given["connect_timeout"], given["tcp_user_timeout"]) == ("3", "25000")
    catalogue.close()


def test_a_catalogue_times_out_on_a_silent_server_and_recovers(proxy, hush, resume):
    uri = proxy.url.replace("postgresql://", "postgresql+psycopg://")
    catalogue: Any = open_iceberg("lake", uri, {"warehouse": "file:///nowhere"})
    catalogue.create_tables()
    assert catalogue.list_namespaces() == []
    hush()
    with pytest.raises(SQLAlchemyError, match=SILENT):
        catalogue.list_namespaces()
    resume()
    assert eventually(catalogue.list_namespaces) == []
    catalogue.close()


def test_a_connector_times_out_on_a_silent_server_and_recovers(proxy, hush, resume):
    reader = PostgresReader(proxy.url, HostPolicy(("127.0.0.1",)))

    def interrupted():
        with reader.snapshot() as snapshot:
            hush()
            connection: Any = snapshot._connection
            connection.response_seconds = 1.0
            snapshot.columns("SELECT 1 AS one")

    with pytest.raises(AdapterError, match=SILENT):
        interrupted()
    resume()
    with reader.snapshot() as snapshot:
        assert [each.name for each in snapshot.columns("SELECT 1 AS one")] == ["one"]

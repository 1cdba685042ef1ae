"""Guarantees for several processes on one Postgres, tested as several stores over one database."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from lakesync.model.errors import StagingUnavailableError, StagingVersionError
from lakesync.model.schema import Column, TableSchema
from lakesync.rules.model import SyncRules
from lakesync.staging import open_store
from lakesync.staging.log_reader import LogRange, read_log
from lakesync.staging.postgres import commit
from lakesync.staging.postgres.administration import replacement_schema
from lakesync.staging.postgres.connection import _MIGRATION_LOCK, _SETTINGS, APPLICATION, Database
from lakesync.staging.records import ARRIVAL_STEP, LogSource
from lakesync.testing import ManualClock
from tests.conformance.book import EVERYONE, Book, contents, id_sum, make_delta
from tests.conformance.places import postgres
from tests.integration.gateway_support import until


@pytest.fixture
def url(request):
    """An empty database."""
    return postgres(request)


@pytest.fixture
def stores(url, clock):
    """Two stores, like those of two gateway processes; the second one's clock is an hour behind."""
    pair = [open_store(url, clock), open_store(url, ManualClock(clock.now_ms - 3_600_000))]
    for store in pair:
        store.open(Book())
    pair[0].ensure_gateway("g")
    yield pair
    for store in pair:
        store.close()


def test_stores_share_one_arrival_order_and_no_reader_passes_an_invisible_arrival(stores):
    book = Book()
    stop = threading.Event()

    def follow(store) -> list[tuple[str, int]]:
        """Read entries from the newest arrival that was read before, as a pull with a cursor does."""
        entries_read, cursor, last = [], 0, False
        while not last:
            last = stop.is_set()

            def page(view, since=cursor):
                return view.entries_after([EVERYONE], since, 10_000), view.arrival

            entries, arrival = store.read("g", page).result()
            assert all(cursor < entry.changed <= arrival for entry in entries)
            entries_read += [(entry.row_id, entry.changed) for entry in entries]
            cursor = arrival
        return entries_read

    def write(store, client) -> list[tuple[str, int]]:
        futures = []
        for number in range(1, 41):
            deltas = [make_delta(client, number * 10 + i, f"{client}-{number}-{i}", x=1) for i in range(3)]
            futures.append((deltas, store.submit("g", book.push(deltas))))
        return [
            (delta.row_id, future.result().arrival - ARRIVAL_STEP * (2 - place))
            for deltas, future in futures
            for place, delta in enumerate(deltas)
        ]

    with ThreadPoolExecutor(6) as threads:
        readers = [threads.submit(follow, store) for store in stores]
        writers = [threads.submit(write, store, f"c{i}") for i, store in enumerate((*stores, *stores))]
        written = [written for writer in writers for written in writer.result()]
        stop.set()
        expected = sorted(written, key=lambda pair: pair[1])
        assert len({arrival for _, arrival in written}) == len(written) == 4 * 40 * 3
        for reader in readers:
            assert reader.result() == expected
    (waiting,) = stores[0].backlog()
    assert (waiting.last_seq, waiting.deltas) == (160, 480)
    assert waiting.last_arrival == expected[-1][1]


def test_commits_wait_for_each_other_if_the_database_isolates_transactions_more_strictly(url, clock):
    strict = f"{url}?options=-c%20default_transaction_isolation%3Dserializable"
    pair = [open_store(strict, clock) for _ in range(2)]
    for store in pair:
        store.open(Book())
    pair[0].ensure_gateway("g")

    def write(store) -> list[int]:
        return [store.submit("g", lambda commit: commit.next_arrivals(1)[-1]).result() for _ in range(50)]

    with ThreadPoolExecutor(2) as writers:
        arrivals = [arrival for written in writers.map(write, pair) for arrival in written]
    assert len(set(arrivals)) == 100
    for store in pair:
        store.close()


def test_a_read_sees_one_snapshot(stores):
    first, second = stores
    book = Book()
    inside, written = threading.Event(), threading.Event()

    def reading(view):
        before = view.entries_after([EVERYONE], 0, 10), view.arrival
        inside.set()
        assert written.wait(120)
        return before, (view.entries_after([EVERYONE], 0, 10), view.arrival)

    first.submit("g", book.push([make_delta("c", 1, "r", x=1)])).result()
    future = first.read("g", reading)
    assert inside.wait(120)
    second.submit("g", book.push([make_delta("c", 2, "s", x=1)])).result()
    written.set()
    before, after = future.result()
    assert before == after
    assert len(before[0]) == 1


def test_a_change_of_configuration_is_seen_by_the_others(stores):
    first, second = stores
    book = Book()
    schema = TableSchema("notes", (Column("x", "number"),))
    for _ in range(2):
        assert second.read("g", lambda view: view.config.version).result() == 0
    assert first.submit("g", lambda commit: commit.put_schema(schema)).result() == 1
    assert second.read("g", lambda view: view.config.schemas["notes"].schema).result() == schema
    assert second.submit("g", book.set_rules(SyncRules(3, ()))).result() == 1
    assert first.gateway_config("g").rules == SyncRules(3, ())
    assert first.submit("g", lambda commit: commit.config.rules_version).result() == 1


def test_concurrent_processes_create_a_gateway_once(stores):
    with ThreadPoolExecutor(2) as threads:
        for future in [threads.submit(store.ensure_gateway, "both") for store in stores]:
            future.result()
    epochs = {store.read("both", lambda view: view.epoch).result() for store in stores}
    assert len(epochs) == 1


def test_concurrent_processes_get_the_same_plan(stores):
    book = Book()
    for number in range(1, 6):
        stores[number % 2].submit("g", book.push([make_delta("c", number, f"r{number}", x=1)])).result()
    with ThreadPoolExecutor(8) as threads:
        plans = [threads.submit(stores[i % 2].plan, "g", "main", 1 + i) for i in range(8)]
        assert len({plan.result().batch_id for plan in plans}) == 1


def test_concurrent_pipelines_flush_every_batch_once(stores):
    book = Book()
    sent = {}
    for number in range(1, 41):
        deltas = [make_delta("c", number * 10 + i, f"r{number}-{i}", x=1) for i in range(3)]
        entry = stores[number % 2].submit("g", book.push(deltas)).result()
        sent[entry.seq] = deltas
    carried: dict[str, list[int]] = {}

    def pipeline(store) -> None:
        while (batch := store.plan("g", "main", 10)) is not None:
            seqs = list(range(batch.from_seq, batch.to_seq + 1))
            assert carried.setdefault(batch.batch_id, seqs) == seqs
            store.confirm(batch.batch_id, batch.deltas, id_sum([delta for seq in seqs for delta in sent[seq]]))
            store.trim("g", "main")

    with ThreadPoolExecutor(4) as threads:
        for future in [threads.submit(pipeline, stores[i % 2]) for i in range(4)]:
            future.result()
    assert sorted(seq for seqs in carried.values() for seq in seqs) == list(range(1, 41))
    (waiting,) = stores[0].backlog()
    assert (waiting.deltas, waiting.bytes, waiting.flushed_seq) == (0, 0, 40)
    (day,) = stores[1].ledger("g")
    assert (day.flushed_count, day.flushed_id_sum) == (day.count, day.id_sum)


def test_a_connection_lost_before_the_commit_stores_nothing_and_the_store_continues(stores, url):
    first, _ = stores
    book = Book()

    def cut_off(commit):
        book.push([make_delta("c", 1, "r", x=1)])(commit)
        with psycopg.connect(url, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE state = 'idle in transaction' AND pid <> pg_backend_pid() AND datname = current_database()"
            )

    with pytest.raises(StagingUnavailableError):
        first.submit("g", cut_off).result()
    assert first.read("g", contents).result() == ([], [])
    assert first.submit("g", book.push([make_delta("c", 1, "r", x=1)])).result().seq == 1


def test_a_connection_lost_in_a_commit_reports_that_a_repeat_is_safe(stores, url):
    """A deferred trigger runs within COMMIT and terminates its own connection."""
    first, second = stores
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(
            "CREATE FUNCTION lakesync.hang_up() RETURNS trigger LANGUAGE plpgsql AS"
            " $$BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(5); RETURN NULL; END$$"
        )
        other.execute(
            "CREATE CONSTRAINT TRIGGER hang_up AFTER INSERT ON lakesync.log DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION lakesync.hang_up()"
        )
        book = Book()
        deltas = [make_delta("c", 1, "r", x=1)]
        try:
            with pytest.raises(StagingUnavailableError, match="a repeat is safe"):
                first.submit("g", book.push(deltas)).result()
        finally:
            other.execute("DROP TRIGGER hang_up ON lakesync.log")
            other.execute("DROP FUNCTION lakesync.hang_up")
    assert second.submit("g", book.push(deltas)).result().seq == 1
    assert first.submit("g", book.push(deltas)).result() is None


def test_a_newer_schema_is_rejected(own_database, clock):
    url = own_database
    store = open_store(url, clock)
    store.open(Book())
    store.close()
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO lakesync.migration VALUES (99, 'from the future')")
    with pytest.raises(StagingVersionError, match="99"):
        open_store(url, clock).open(Book())


def test_an_unreachable_server_is_an_error_with_its_address(clock):
    store = open_store("postgresql://nobody@127.0.0.1:1/none", clock)
    with pytest.raises(StagingUnavailableError, match=r"127\.0\.0\.1"):
        store.open(Book())
    store.close()


def test_a_silent_server_times_out_within_half_a_minute(stores):
    def patience(commit):
        with socket.socket(fileno=os.dup(commit._connection.fileno())) as connection:
            return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

    assert 0 < stores[0].submit("g", patience).result() <= 30_000


def test_spark_can_read_the_log_source(stores, url):
    source = stores[0].log_source()
    assert source.url.startswith("jdbc:postgresql://127.0.0.1:")
    assert source.properties == {"user": "postgres", "password": "postgres"}
    stores[0].submit("g", Book().push([make_delta("c", 1, "r", x=1)])).result()
    with psycopg.connect(url) as connection:
        rows = connection.execute(f"SELECT gateway, shard, epoch, seq, arrival, client_id, body FROM {source.table}")
        assert len(rows.fetchall()) == 1


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p%40ss@db:5433/shop?sslmode=verify-full&sslrootcert=/etc/ca.pem&connect_timeout=3",
        "postgresql://u@one:1,two:2/shop?target_session_attrs=read-write",
        "postgresql://[::1]/a%2Fb%3F",
        "postgresql:///shop?host=/var/run/postgresql&options=-c%20geqo%3Doff",
        "postgres://db",
    ],
)
def test_the_log_source_has_every_parameter_of_the_url(url):
    address, properties = Database(url).jdbc()
    assert address.startswith("jdbc:postgresql://")
    found = conninfo_to_dict(address.removeprefix("jdbc:"), **properties)
    assert found == conninfo_to_dict(url)


def test_an_unreadable_log_is_reported_without_its_password():
    source = LogSource("jdbc:postgresql://someone:hush@127.0.0.1:1/none", "lakesync.log")
    with pytest.raises(StagingUnavailableError, match=r"someone:…@127\.0\.0\.1") as raised:
        list(read_log(source, LogRange("g", "main", 1, 1, 1)))
    assert "hush" not in str(raised.value)


def test_a_store_that_waits_for_a_migration_counts_as_a_user(own_database, clock):
    """A rebuild with `--replace` finds sessions by their name."""
    store = open_store(own_database, clock)
    with psycopg.connect(own_database, autocommit=True) as other, ThreadPoolExecutor(1) as threads:
        other.execute("SELECT pg_advisory_lock(%s)", (_MIGRATION_LOCK,))
        opening = threads.submit(store.open, Book())
        waiting = "SELECT application_name FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        names = until(lambda: other.execute(waiting).fetchall(), "the store to wait")
        other.execute("SELECT pg_advisory_unlock(%s)", (_MIGRATION_LOCK,))
        opening.result()
    store.close()
    assert names == [("lakesync staging",)]


def test_a_rebuild_finds_a_store_that_started_while_it_waited_for_the_lock(own_database, clock):
    store = open_store(own_database, clock)
    store.open(Book())
    store.close()

    def replace_store():
        with replacement_schema("main", own_database, clock, replace=True):
            pass

    with psycopg.connect(own_database, autocommit=True) as other, ThreadPoolExecutor(1) as threads:
        other.execute("SELECT pg_advisory_lock(%s)", (_MIGRATION_LOCK,))
        replacing = threads.submit(replace_store)
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        until(lambda: other.execute(waiting).fetchall(), "the rebuild to wait")
        with psycopg.connect(own_database, application_name=APPLICATION):
            other.execute("SELECT pg_advisory_unlock(%s)", (_MIGRATION_LOCK,))
            with pytest.raises(StagingUnavailableError, match="1 connections of gateways"):
                replacing.result()


def test_the_feed_is_read_by_index(stores, url):
    """L10: on a table of a thousand entries, a page of one entry is found without a scan."""
    first, _ = stores
    book = Book()
    first.submit("g", book.push([make_delta("c", n, f"r{n}", x=1) for n in range(1, 1001)])).result()
    with psycopg.connect(url) as connection:
        for setting in _SETTINGS:
            connection.execute(setting)
        connection.execute("ANALYZE")  # otherwise the planner uses default estimates for tables without statistics
        explain = f"EXPLAIN (ANALYZE, FORMAT TEXT, TIMING OFF) {commit._ENTRIES_AFTER}"
        steps = [step for (step,) in connection.execute(explain, (0, 2**62, 1, "g", ["*"], 1)).fetchall()]
        assert not [step for step in steps if "Seq Scan" in step]
        (scan,) = [step for step in steps if "entry_by_change" in step]
        assert float(scan.rpartition("rows=")[2].split()[0]) <= 2
        explain = f"EXPLAIN {commit._ROWS}"
        steps = [step for (step,) in connection.execute(explain, (["notes"], ["r1"], "g")).fetchall()]
        assert not [step for step in steps if "Seq Scan" in step]

"""A listener of a store is notified of every new visible arrival, whichever process committed it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from lakesync.rules.model import SyncRules
from lakesync.staging import open_store
from lakesync.staging.notices import Notice, Presence
from lakesync.staging.records import ClientRecord
from tests.conformance.book import EVERYONE, Book, contents, make_delta
from tests.conformance.calls import push, read
from tests.conformance.places import postgres

DEADLINE = 30


class RecordingListener:
    """Records the notices of a store, so that a test can wait for them."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self._news = threading.Condition()

    def __call__(self, notice: Notice) -> None:
        with self._news:
            self.notices.append(notice)
            self._news.notify_all()

    def wait(self, wanted: Callable[[Notice], bool]) -> None:
        """Wait until a notice meets a condition; forget the notices up to it."""
        with self._news:
            assert self._news.wait_for(lambda: any(map(wanted, self.notices)), DEADLINE), self.notices
            while not wanted(self.notices.pop(0)):
                pass

    def wait_for(self, gateway: str, bucket: str) -> None:
        """Wait until a notice names a bucket."""
        self.wait(lambda notice: notice.gateway == gateway and (notice.buckets is None or bucket in notice.buckets))


def test_a_commit_notifies_with_the_changed_buckets(store, book):
    listener = RecordingListener()
    store.watch(listener)
    push(store, book, make_delta("c", 1, "r", x=1), make_delta("c", 2, "s", team="red"))
    listener.wait(lambda notice: notice.buckets is not None and {EVERYONE, '"red"'} <= notice.buckets)


def test_a_notified_arrival_is_visible(store, book):
    def names_it(notice):  # not the notice of a new listening connection, which may come at any time
        return notice.buckets is not None and EVERYONE in notice.buckets

    readings = []
    listener = RecordingListener()
    store.watch(lambda notice: readings.append((notice, store.read("g", lambda view: view.arrival))))
    store.watch(listener)
    entry = push(store, book, make_delta("c", 1, "r", x=1))
    listener.wait(names_it)
    assert {reading.result() for notice, reading in readings if names_it(notice)} == {entry.arrival}


def test_a_notice_names_its_gateway(store, book):
    store.ensure_gateway("h")
    listener = RecordingListener()
    store.watch(listener)
    push(store, book, make_delta("c", 1, "r", x=1), gateway="h")
    listener.wait_for("h", EVERYONE)


def test_a_change_of_rules_notifies_every_bucket(store, book):
    push(store, book, make_delta("c", 1, "r", x=1))
    listener = RecordingListener()
    store.watch(listener)
    store.submit("g", book.set_rules(SyncRules(version=1, buckets=()))).result()
    listener.wait(lambda notice: notice == Notice("g", None))


def test_a_commit_without_moved_rows_sends_no_notice(store, book):
    listener = RecordingListener()
    store.watch(listener)
    push(store, book, make_delta("c", 1, "r", x=1))
    listener.wait_for("g", EVERYONE)
    store.submit("g", lambda commit: commit.put_client(ClientRecord("c", commit.epoch, 1))).result()
    push(store, book, make_delta("c", 2, "s", team="red"))
    listener.wait_for("g", '"red"')
    assert {bucket for notice in listener.notices for bucket in notice.buckets or ()} <= {'"red"'}


def test_a_client_whose_notice_may_be_late_is_returned(store):
    def work(commit):
        commit.put_client(record := ClientRecord("c", commit.epoch, 1))
        return record

    record = store.submit("g", work).result()
    found = store.read("g", lambda view: view.unnotified_clients(["b", "c"])).result()
    assert found == ([record] if store.is_shared else [])


def test_connected_clients_are_announced_in_order_and_without_bucket_keys(store):
    clients = [Presence(f"client-{number}", "connection") for number in range(300)]
    notices: list[Notice] = []
    listener = RecordingListener()
    store.watch(notices.append)
    store.watch(listener)
    store.submit("g", lambda commit: commit.announce_presence(clients)).result()
    listener.wait(lambda notice: clients[-1] in notice.presence)
    announced = [notice for notice in notices if notice.presence]
    assert [each for notice in announced for each in notice.presence] == clients
    assert {notice.buckets for notice in announced} == {frozenset()}
    assert len(announced) > 1


def test_a_failed_transaction_does_not_suppress_the_notice_of_its_group(store, book):
    def failing(commit):
        raise ValueError("on purpose")

    listener = RecordingListener()
    store.watch(listener)
    futures = [store.submit("g", work) for work in (failing, book.push([make_delta("c", 1, "r", x=1)]), failing)]
    futures[1].result()
    listener.wait_for("g", EVERYONE)


def test_a_failing_listener_does_not_affect_the_others_or_the_store(store, book):
    def failing(notice):
        raise ValueError("on purpose")

    listener = RecordingListener()
    store.watch(failing)
    store.watch(listener)
    for n in range(3):
        push(store, book, make_delta("c", 1 + n, f"r{n}", x=1))
        listener.wait_for("g", EVERYONE)


def test_an_ended_watch_receives_no_notice(store, book):
    ended, listener = RecordingListener(), RecordingListener()
    end = store.watch(ended)
    store.watch(listener)
    end()
    before = len(ended.notices)
    push(store, book, make_delta("c", 1, "r", team="red"))
    listener.wait_for("g", '"red"')
    assert not [notice for notice in ended.notices[before:] if notice.buckets is not None]


class TestOnPostgres:
    """Two stores on one database, as two processes have them."""

    @pytest.fixture
    def url(self, request):
        return postgres(request)

    @pytest.fixture
    def pair(self, url, clock):
        stores = [open_store(url, clock) for _ in range(2)]
        for store in stores:
            store.open(Book())
        stores[0].ensure_gateway("g")
        yield stores
        for store in stores:
            store.close()

    @pytest.fixture
    def listening(self, pair):
        """Listeners of both stores, each known to receive the other's notices."""
        book, listeners = Book(), (RecordingListener(), RecordingListener())
        for store, listener in zip(pair, listeners, strict=True):
            store.watch(listener)
        for number, (writer, reader) in enumerate(((0, 1), (1, 0))):
            push(pair[writer], book, make_delta("first", number + 1, f"f{number}", team=f"first {number}"))
            listeners[reader].wait_for("g", f'"first {number}"')
        return listeners

    def test_each_process_is_notified_of_commits_of_the_other(self, pair, listening):
        book = Book()
        for n in range(10):
            writer = n % 2
            entry = push(pair[writer], book, make_delta(f"c{writer}", 10 + n, f"r{n}", team=f"t{n}"))
            for place in (0, 1):
                listening[place].wait_for("g", f'"t{n}"')
                assert read(pair[place], lambda view: view.arrival) >= entry.arrival

    def test_a_failed_job_sends_no_notice(self, pair, listening):
        def failing(commit):
            Book().push([make_delta("c", 10, "r1", team="failed")])(commit)
            raise ValueError("on purpose")

        notices: list[Notice] = []
        for store in pair:
            store.watch(notices.append)
        with pytest.raises(ValueError, match="on purpose"):
            pair[0].submit("g", failing).result()
        push(pair[0], Book(), make_delta("c", 11, "r2", team="kept"))
        for listener in listening:
            listener.wait(lambda notice: '"kept"' in (notice.buckets or ()))
        assert '"failed"' not in {bucket for notice in notices for bucket in notice.buckets or ()}

    def test_too_many_buckets_for_a_notice_count_as_every_bucket(self, pair, listening):
        deltas = [make_delta("c", 10 + n, f"r{n}", team="x" * 100 + str(n)) for n in range(100)]
        push(pair[0], Book(), *deltas)
        listening[1].wait(lambda notice: notice == Notice("g", None))

    def test_connected_clients_are_announced_to_the_other_process(self, pair, listening):
        clients = [Presence(f"client-{number}", "connection") for number in range(300)]
        pair[0].submit("g", lambda commit: commit.announce_presence(clients)).result()
        listening[1].wait(lambda notice: clients[0] in notice.presence)
        listening[1].wait(lambda notice: clients[-1] in notice.presence)

    def test_a_killed_listening_connection_is_reopened_and_misses_nothing(self, url, pair, listening):
        book = Book()
        for n in range(5):
            kill_listeners(url)
            push(pair[0], book, make_delta("c", 10 + n, f"r{n}", team=f"t{n}"))
            listening[1].wait_for("g", f'"t{n}"')
            rows, _ = read(pair[1], contents)
            assert f"r{n}" in {row.row_id for row in rows}

    def test_an_unknown_notice_counts_as_a_change_of_every_bucket(self, url, pair, listening):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("NOTIFY lakesync_arrival, 'nonsense'")
        listening[1].wait(lambda notice: notice == Notice("g", None, after_loss=True))
        push(pair[0], Book(), make_delta("c", 10, "r", x=1))
        listening[1].wait(lambda notice: notice.buckets is not None and EVERYONE in notice.buckets)

    def test_a_closed_store_has_no_connection_left(self, url, clock):
        store = open_store(url, clock)
        store.open(Book())
        store.ensure_gateway("g")
        listener = RecordingListener()
        store.watch(listener)
        listener.wait(lambda notice: notice == Notice("g", None, after_loss=True))
        assert listeners(url) == 1
        store.close()
        assert listeners(url) == 0


LISTENERS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"


def listeners(url) -> int:
    with psycopg.connect(url) as connection:
        return len(connection.execute(LISTENERS, ("lakesync notices",)).fetchall())


def kill_listeners(url) -> None:
    with psycopg.connect(url) as connection:
        for (pid,) in connection.execute(LISTENERS, ("lakesync notices",)).fetchall():
            connection.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))

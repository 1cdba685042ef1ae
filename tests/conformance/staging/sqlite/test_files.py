"""Behaviour of a SQLite store's folder."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from lakesync.model.errors import IntegrityError, StagingUnavailableError, StagingVersionError
from lakesync.rules.model import SyncRules
from lakesync.staging import migrations, open_store
from lakesync.staging.encoded_feed import Reader
from lakesync.staging.records import encode_row
from lakesync.staging.sqlite import SqliteStore, WriteBehindLimits, recovery
from tests.conformance.book import Book, contents, id_sum, make_delta
from tests.small_disk import mounted

LAZY = WriteBehindLimits(seconds=3600, rows=10**9, bytes=10**12)


@pytest.fixture
def folder(tmp_path):
    """The folder of the store's files."""
    return tmp_path / "staging"


@pytest.fixture
def store(folder, clock, book):
    """An open store that writes behind only if it must."""
    opened = SqliteStore(folder, clock, LAZY)
    opened.open(book)
    opened.ensure_gateway("g")
    yield opened
    opened.close()


def push(store, book, *deltas):
    """Push, and wait for the result."""
    return store.submit("g", book.push(deltas)).result()


def numbered(count, start=1):
    """Deltas of one row each."""
    return [make_delta("c", n, f"r{n}", x=n) for n in range(start, start + count)]


def seen(store):
    """Everything that a read returns."""
    return store.read("g", contents).result()


def test_a_second_owner_is_rejected_with_the_process_of_the_first(store, folder, clock):
    second = SqliteStore(folder, clock)
    with pytest.raises(StagingUnavailableError, match=f"process {os.getpid()}"):
        second.open(Book())
    assert seen(store) == ([], [])


@pytest.mark.parametrize("name", ["log.db", "state.db"])
def test_a_command_that_reads_a_file_leaves_the_write_ahead_log_to_its_owner(store, folder, book, name):
    """SQLite deletes the log when the last process closes the file, so the store must have kept its lock on it."""
    push(store, book, *numbered(1))
    read = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM sqlite_master').fetchall()"
    subprocess.run([sys.executable, "-c", read, str(folder / name)], check=True)
    assert (folder / f"{name}-wal").exists()


def test_a_url_may_have_either_number_of_slashes(folder, clock):
    for url in (f"sqlite://{folder}", f"sqlite:///{folder}"):
        opened = open_store(url, clock)
        opened.open(Book())
        opened.close()
        assert (folder / "log.db").exists()


@pytest.mark.parametrize("name", ["log.db", "state.db"])
def test_a_newer_schema_is_rejected(store, folder, clock, name):
    store.close()
    with closing(sqlite3.connect(folder / name)) as connection, connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StagingVersionError, match="99"):
        SqliteStore(folder, clock).open(Book())


def test_a_closed_store_raises_an_error(store):
    store.close()
    with pytest.raises(StagingUnavailableError, match="closed"):
        store.read("g", contents).result()
    store.close()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_state_of_an_older_version_is_upgraded_in_place(store, folder, clock, book, version):
    sent = [*numbered(3), make_delta("c", 4, "r4", team="a"), make_delta("c", 5, "r5", team="b")]
    push(store, book, *sent)
    gone = [make_delta("c", 6, "r5")]
    push(store, book, *gone)
    for deltas in (sent, gone):
        batch = store.plan("g", "main", 1)
        store.confirm(batch.batch_id, len(deltas), id_sum(deltas))
    store.trim("g", "main")  # so that it cannot be rebuilt from the log
    expected = seen(store)
    text = store.read("g", read_range).result().text
    store.close()
    _age(folder / "state.db", version, expected[0])
    again, replayer = SqliteStore(folder, clock), Book()
    again.open(replayer)
    assert (seen(again), replayer.replayed) == (expected, [])
    if version == 1:
        assert again.read("g", read_range).result() is None  # no row is encoded for clients yet
    else:
        assert again.read("g", read_range).result().text == text
    push(again, replayer, *numbered(1, start=9), make_delta("c", 10, "r1", y=1))
    again._read(again._open.behind.write)
    spelled = dict(again._open.state.sql.execute("SELECT row_id, deltas FROM row_state").fetchall())
    assert spelled.items() >= {"r1": 2, "r2": int(version > 1), "r3": int(version > 1), "r9": 1}.items()
    assert len(seen(again)[1]) == len(expected[1]) + 1
    again.close()


def read_range(view):
    """The rows of everyone's bucket, joined."""
    return view.read_range(["*"], 0, view.arrival, 10, Reader(-1, b'"newcomer"', 0, "@newcomer"))


def _age(file, version, rows):
    """Convert a state to that of an older version, which stored rows separately from their encoded form."""
    newer = file.rename(file.with_name("newer.db"))
    with closing(sqlite3.connect(file)) as connection, connection:
        for step in migrations.migrations("sqlite/state")[:version]:
            connection.executescript(step.sql)
        connection.executescript(f"PRAGMA user_version = {version}; ATTACH '{newer}' AS newer")
        for table in ("store", "applied", "bucket"):
            connection.execute(f"INSERT INTO {table} SELECT * FROM newer.{table}")
        bodies = [(encode_row(row), *row.key) for row in rows]
        if version == 3:
            _age_numbered(connection, bodies)
        else:
            _age_keyed(connection, bodies, ", spelled, deltas, writers, writers_floor" if version > 1 else "")
    connection.close()
    newer.unlink()


def _age_numbered(connection, bodies):
    columns = "number, gateway, table_name, row_id, deltas, writers_floor, writers, spelled"
    connection.execute(f"INSERT INTO row_state SELECT {columns} FROM newer.row_state")
    connection.execute("INSERT INTO entry SELECT * FROM newer.entry")
    query = "INSERT INTO row_body SELECT number, ? FROM row_state WHERE table_name = ? AND row_id = ?"
    connection.executemany(query, bodies)


def _age_keyed(connection, bodies, sent):
    query = f"INSERT INTO row_state SELECT gateway, table_name, row_id, ?{sent} FROM newer.row_state"
    connection.executemany(f"{query} WHERE table_name = ? AND row_id = ?", bodies)
    connection.execute(
        "INSERT INTO entry SELECT bucket, table_name, row_id, first, since, left_at, changed, inside"
        " FROM newer.entry JOIN newer.row_state USING (number)"
    )


def test_a_missing_state_is_rebuilt_from_the_log(store, folder, clock, book):
    for delta in numbered(10):
        push(store, book, delta)
    expected = seen(store)
    store.close()
    for file in folder.glob("state.db*"):
        file.unlink()
    again, replayer = SqliteStore(folder, clock), Book()
    again.open(replayer)
    assert seen(again) == expected
    assert [seq for _, seq in replayer.replayed] == list(range(1, 11))
    again.close()


def test_an_interrupted_replay_continues(store, folder, clock, book, monkeypatch):
    class StopsShort(Book):
        def replay(self, commit, entry):
            if (entry.gateway, entry.seq) == ("h", 5):
                raise NotImplementedError
            super().replay(commit, entry)

    store.ensure_gateway("h")
    for delta in numbered(10):
        push(store, book, delta)
        store.submit("h", book.push([delta])).result()
    expected = {gateway: store.read(gateway, contents).result() for gateway in "gh"}
    store.close()
    for file in folder.glob("state.db*"):
        file.unlink()
    monkeypatch.setattr(recovery, "_MAX_ROWS_IN_MEMORY", 3)
    with pytest.raises(NotImplementedError):
        SqliteStore(folder, clock).open(StopsShort())
    again, replayer = SqliteStore(folder, clock), Book()
    again.open(replayer)
    assert {gateway: again.read(gateway, contents).result() for gateway in "gh"} == expected
    assert 5 < len(replayer.replayed) < 20
    again.close()


def test_a_missing_state_with_trimmed_bodies_is_reported(store, folder, clock, book):
    sent = numbered(3)
    push(store, book, *sent)
    batch = store.plan("g", "main", 10)
    store.confirm(batch.batch_id, 3, id_sum(sent))
    assert store.trim("g", "main") == batch.bytes
    store.close()
    for file in folder.glob("state.db*"):
        file.unlink()
    with pytest.raises(IntegrityError, match="rebuild staging from the lake"):
        SqliteStore(folder, clock).open(Book())


@pytest.mark.parametrize("left", [None, b""], ids=["gone", "empty"])
def test_a_missing_journal_is_reported_and_its_rows_are_kept(store, folder, clock, book, left):
    push(store, book, *numbered(3))
    expected = seen(store)
    store.close()
    kept = (folder / "log.db").read_bytes()
    (folder / "log.db").unlink()
    if left is not None:
        (folder / "log.db").write_bytes(left)
    with pytest.raises(IntegrityError, match="put it back"):
        SqliteStore(folder, clock).open(Book())
    (folder / "log.db").write_bytes(kept)
    again = SqliteStore(folder, clock)
    again.open(Book())
    assert seen(again) == expected
    again.close()


def test_a_state_of_another_store_is_not_used(store, folder, tmp_path, clock, book):
    push(store, book, *numbered(3))
    expected = seen(store)
    store.close()
    other, newcomer = SqliteStore(tmp_path / "other", clock), Book()
    other.open(newcomer)
    other.ensure_gateway("g")
    push(other, newcomer, *numbered(2, start=50))
    other.close()
    (folder / "state.db").write_bytes((tmp_path / "other" / "state.db").read_bytes())
    again = SqliteStore(folder, clock)
    again.open(Book())
    assert seen(again) == expected
    again.close()


def reopened(folder, clock):
    """Open the store again; it writes to `state.db` only if it must."""
    again = SqliteStore(folder, clock, LAZY)
    again.open(Book())
    return again


def test_a_state_is_kept_if_an_older_log_cannot_replace_it(store, folder, clock, book):
    sent = numbered(3)
    push(store, book, *sent)
    batch = store.plan("g", "main", 10)
    store.confirm(batch.batch_id, 3, id_sum(sent))
    store.trim("g", "main")
    store.close()
    older = (folder / "log.db").read_bytes()
    newer = reopened(folder, clock)
    push(newer, Book(), *numbered(2, start=4))
    expected = seen(newer)
    newer.close()
    kept = (folder / "log.db").read_bytes()
    (folder / "log.db").write_bytes(older)
    with pytest.raises(IntegrityError, match=r"written from another log\.db"):
        SqliteStore(folder, clock).open(Book())
    (folder / "log.db").write_bytes(kept)
    again = reopened(folder, clock)
    assert seen(again) == expected
    again.close()


def test_rows_of_a_gateway_that_an_older_log_lacks_are_deleted(store, folder, clock, book):
    push(store, book, *numbered(3))
    expected = seen(store)
    store.close()
    older = (folder / "log.db").read_bytes()
    newer = reopened(folder, clock)
    newer.ensure_gateway("h")
    newer.submit("h", Book().push(numbered(2))).result()
    newer.close()
    (folder / "log.db").write_bytes(older)
    again = reopened(folder, clock)
    again.ensure_gateway("h")
    assert again.read("h", lambda view: view.rows([("notes", "r1")])).result() == {}
    assert seen(again) == expected
    again.close()


def test_emptying_the_state_is_atomic(store, folder, clock, book):
    push(store, book, *numbered(1))
    expected = seen(store)
    store.close()
    older = (folder / "log.db").read_bytes()
    newer = reopened(folder, clock)
    push(newer, Book(), *numbered(2, start=4))
    newer.close()
    (folder / "log.db").write_bytes(older)
    with closing(sqlite3.connect(folder / "state.db")) as connection:
        connection.execute("CREATE TRIGGER stop BEFORE DELETE ON row_state BEGIN SELECT RAISE(FAIL, 'stopped'); END")
    with pytest.raises(StagingUnavailableError, match="stopped"):
        SqliteStore(folder, clock).open(Book())
    with closing(sqlite3.connect(folder / "state.db")) as connection:
        connection.execute("DROP TRIGGER stop")
    again = reopened(folder, clock)
    assert seen(again) == expected
    assert again.read("g", lambda view: view.rows([("notes", "r4")])).result() == {}
    again.close()


def test_bodies_are_trimmed_only_after_the_state_is_durable(store, folder, book):
    sent = numbered(5)
    push(store, book, *sent)
    batch = store.plan("g", "main", 10)
    store.confirm(batch.batch_id, 5, id_sum(sent))

    def durable() -> list:
        with closing(sqlite3.connect(folder / "state.db")) as connection, connection:
            held = connection.execute("SELECT applied_seq FROM applied").fetchall()
        connection.close()
        return held

    assert durable() == []
    store.trim("g", "main")
    assert durable() == [(1,)]


def test_a_change_of_rules_is_written_to_the_state_immediately(store, folder, clock, book):
    push(store, book, make_delta("c", 1, "r", team="a"))
    store.submit("g", book.set_rules(SyncRules(1, ()))).result()
    push(store, book, make_delta("c", 2, "s", team="a"))
    with closing(sqlite3.connect(folder / "state.db")) as connection, connection:
        assert connection.execute("SELECT applied_seq, rules_version FROM applied").fetchall() == [(1, 1)]
    connection.close()
    assert [entry.bucket for entry in seen(store)[1]] == ['"a"', 'v1:"a"', 'v1:"a"']


@pytest.mark.parametrize(
    "behind",
    [WriteBehindLimits(0.01, 10**9, 10**9), WriteBehindLimits(3600, 2, 10**9), WriteBehindLimits(3600, 10**9, 100)],
    ids=["time", "rows", "bytes"],
)
def test_write_behind_is_triggered_by_time_rows_and_bytes(folder, clock, book, behind):
    eager = SqliteStore(folder, clock, behind)
    eager.open(book)
    eager.ensure_gateway("g")
    push(eager, book, *numbered(3))
    deadline = 1000
    connection = sqlite3.connect(folder / "state.db", timeout=10)
    while not connection.execute("SELECT 1 FROM row_state").fetchone():
        deadline -= 1
        assert deadline, "the state was not written"
        eager.read("g", lambda view: view.arrival).result()
    connection.close()
    eager.close()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB."""
    with mounted(tmp_path / "disk", 2) as folder:
        yield folder


@pytest.mark.parametrize("behind", [LAZY, WriteBehindLimits(seconds=3600, rows=50)], ids=["lazy", "eager"])
def test_a_full_disk_rejects_pushes_until_there_is_space(small_disk, clock, book, behind):
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 1_000_000)
    store = SqliteStore(small_disk / "staging", clock, behind)
    store.open(book)
    store.ensure_gateway("g")
    accepted, refused, number = [], [], 0
    while len(refused) < 5:
        number += 1
        deltas = [make_delta("c", number * 100 + j, f"r{number}-{j}", x=os.urandom(40).hex()) for j in range(20)]
        try:
            push(store, book, *deltas)
            accepted.append(deltas)
        except StagingUnavailableError:
            refused.append(deltas)
    assert accepted
    rows, _ = seen(store)
    assert {row.row_id for row in rows} == {delta.row_id for deltas in accepted for delta in deltas}
    with pytest.raises(StagingUnavailableError, match="free space"):
        push(store, book, *refused[-1])
    filler.unlink()
    for deltas in refused:
        assert push(store, book, *deltas) is not None
    for deltas in accepted + refused:
        assert push(store, book, *deltas) is None
    rows, entries = seen(store)
    sent = {delta.row_id for deltas in accepted + refused for delta in deltas}
    assert {row.row_id for row in rows} == {entry.row_id for entry in entries} == sent
    assert sum(day.count for day in store.ledger("g")) == len(sent)
    assert store.backlog()[0].last_seq == len(accepted) + len(refused)
    store.close()
    again = SqliteStore(small_disk / "staging", clock)
    again.open(Book())
    assert seen(again) == (rows, entries)
    again.close()


def test_no_statement_of_a_push_or_a_pull_scans_a_table(store, book):
    """P9 and L10: every statement searches an index, in its order, so its cost depends on the size of its result."""
    journal, state = store._opened.journal.sql, store._opened.state.sql
    statements: dict[sqlite3.Connection, set[str]] = {journal: set(), state: set()}

    def trace(on: bool) -> None:
        for connection, seen_ in statements.items():
            connection.set_trace_callback(seen_.add if on else None)

    def plans(connection: sqlite3.Connection) -> list[str]:
        explained = [s for s in statements[connection] if s.startswith(("SELECT", "INSERT", "UPDATE", "DELETE"))]
        assert explained
        return [
            f"{step} in {statement}"
            for statement in explained
            for *_, step in connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
        ]

    def pull(view):
        entries = view.entries_after(["*", "a"], 0, 10)
        for keys in (["*"], ["*", "a"]):
            view.read_range(keys, 0, view.arrival, 10, Reader(-1, b'"c"', 0, "@c"))
        view.entries_of({entry.key for entry in entries}, ["*"])
        view.rows({entry.key for entry in entries})
        view.changed_after(["*"], 0)
        view.buckets("a")
        view.client("c")

    store.read("g", lambda _: trace(True)).result()
    push(store, book, *numbered(5))
    push(store, book, *numbered(5))
    store.submit("g", lambda commit: commit.scan_rows(("notes", "r1"), 2)).result()
    store.read("g", pull).result()
    sent = numbered(5)
    batch = store.plan("g", "main", 100)
    store.confirm(batch.batch_id, 5, id_sum(sent))
    store.trim("g", "main")
    store.backlog()
    store.read("g", lambda _: trace(False)).result()
    for connection in statements:
        searched = store.read("g", lambda _, c=connection: plans(c)).result()
        through = [step for step in searched if re.match(r"SCAN (?!\d+[ -](CONSTANT ROW|ROW VALUES CLAUSE))", step)]
        assert not [*through, *(step for step in searched if "TEMP B-TREE" in step)]

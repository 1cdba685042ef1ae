"""Write-behind during a commit of the journal: a failure of either one does not affect the other."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.sqlite import SqliteStore, WriteBehindLimits
from lakesync.staging.sqlite import write_behind as behind
from lakesync.testing import ManualClock
from tests.conformance.book import EVERYONE, contents, make_delta
from tests.conformance.calls import push, read
from tests.conformance.staging.sqlite.test_pending_inserts import Feed, write_behind

SOON = WriteBehindLimits(seconds=3600, rows=600, bytes=10**12)
"""Write-behind is never triggered by time, and writes 600 rows in five parts."""
LAZY = WriteBehindLimits(seconds=3600, rows=10**9, bytes=10**12)
"""Write-behind is not triggered within a test."""


def opened(folder, limits=SOON):
    """Open a store with the gateway `g`."""
    store = SqliteStore(folder, ManualClock(1_700_000_000_000), limits)
    store.open(Feed())
    store.ensure_gateway("g")
    return store


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store that is about to write the first part of 700 rows, and waits until the test calls `go_on`."""
    here, turn = opened(tmp_path / "staging"), threading.Event()
    state, journal = here._open.state, here._open.journal.sql
    write_part = state.write_part

    def in_turn():
        if not journal.in_transaction:
            assert turn.wait(60)
        return write_part()

    monkeypatch.setattr(state, "write_part", in_turn)
    monkeypatch.setattr(behind, "_SECONDS_AT_A_TIME", 0.0)
    monkeypatch.setattr(behind, "_SPEED_FACTOR", 10.0**9)  # the plan demands the next part immediately
    here.go_on = turn.set
    for number in range(7):
        push(here, Feed(), *rows(number))
    yield here
    turn.set()
    here.close()


def push_beside(store, number):
    """Push while the store's only other work is to write the rest of the 700 rows."""
    pushed = store.submit("g", Feed().push(rows(number)))
    store.go_on()
    pushed.result(120)


def rows(number):
    """The hundred new rows of one push; every tenth has an update of another push's row beside it."""
    return [
        make_delta("c", number * 1000 + place, f"r{number}-{place}" if place % 10 else f"r{number // 2}-1", x=place)
        for place in range(1, 101)
    ]


_COMMIT = (sqlite3.SQLITE_TRANSACTION, "COMMIT")
_ROLLBACK = (sqlite3.SQLITE_TRANSACTION, "ROLLBACK")


def refuse(connection, *what, unless=lambda: False):
    """Make SQLite reject these actions over an idle connection; an empty argument permits all actions again."""

    def asked(action, first, *_):
        return sqlite3.SQLITE_DENY if (action, first) in what and not unless() else sqlite3.SQLITE_OK

    connection.set_authorizer(asked if what else None)


def check_whole(store, tmp_path, expected):
    """Check that the store, its file, and a store that is opened after a kill have the same content."""
    assert read(store, contents) == expected
    shutil.copytree(tmp_path / "staging", tmp_path / "killed")
    again = opened(tmp_path / "killed")
    assert read(again, contents) == expected
    again.close()
    write_behind(store)
    assert read(store, contents) == expected


def written(pushes, tmp_path):
    """The content of a store that took only these pushes."""
    other = opened(tmp_path / "other")
    for number in pushes:
        push(other, Feed(), *rows(number))
    found = read(other, contents)
    other.close()
    return found


def test_rows_are_written_behind_while_the_journal_waits_for_the_disk(store, tmp_path):
    begun, state, journal = threading.Event(), store._open.state.sql, store._open.journal.sql

    def executed(statement):
        if "INTO row_state" in statement and journal.in_transaction:
            begun.set()

    state.set_trace_callback(executed)
    refuse(journal, _COMMIT, unless=lambda: begun.wait(60))
    push_beside(store, 7)
    store._read(lambda: (state.set_trace_callback(None), refuse(journal)))
    check_whole(store, tmp_path, written(range(8), tmp_path))


def test_a_failed_commit_rolls_back_only_its_own_group(store, tmp_path):
    journal = store._open.journal.sql
    refuse(journal, _COMMIT)
    with pytest.raises(StagingUnavailableError, match="nothing was committed"):
        push_beside(store, 7)
    store._read(lambda: refuse(journal))
    push(store, Feed(), *rows(8))
    check_whole(store, tmp_path, written([*range(7), 8], tmp_path))


@pytest.mark.parametrize("file", ["journal", "state"])
def test_the_store_recovers_from_a_rollback_that_failed(tmp_path, file):
    here = opened(tmp_path / "staging")
    push(here, Feed(), *rows(0))
    journal, state = here._open.journal.sql, here._open.state.sql
    refuse(journal, _COMMIT, _ROLLBACK) if file == "journal" else refuse(journal, _COMMIT)
    here._read(here._open.state.write_all)  # the rows are in an open transaction of the file
    refuse(state, _ROLLBACK, (sqlite3.SQLITE_SAVEPOINT, "ROLLBACK"))
    failing = [here.submit("g", Feed().push(rows(number))) for number in (1, 2)]
    for each in failing:
        with pytest.raises(StagingUnavailableError, match="nothing was committed"):
            each.result(60)
    if file == "journal":
        with pytest.raises(StagingUnavailableError, match="not authorized"):
            read(here, contents)
    journal.set_authorizer(None)
    state.set_authorizer(None)
    push(here, Feed(), *rows(3))
    check_whole(here, tmp_path, written([0, 3], tmp_path))
    here.close()


def test_a_failed_commit_keeps_the_rows_of_earlier_groups_that_a_scan_has_written(tmp_path):
    here = opened(tmp_path / "staging")
    push(here, Feed(), *rows(0))
    journal, both_wait = here._open.journal.sql, threading.Event()

    def push_and_read(commit):
        assert both_wait.wait(60)
        Feed().push(rows(1))(commit)
        assert commit.entries_of([("notes", "r1-2")], [EVERYONE])  # writes the group's entries to the file

    group = [here.submit("g", push_and_read), here.submit("g", lambda commit: commit.scan_rows(None, 10))]
    refuse(journal, _COMMIT)
    both_wait.set()
    for each in group:
        with pytest.raises(StagingUnavailableError, match="nothing was committed"):
            each.result(60)
    here._read(lambda: refuse(journal))
    check_whole(here, tmp_path, written([0], tmp_path))
    here.close()


def test_a_failed_write_behind_does_not_affect_the_push(store, tmp_path):
    state = store._open.state.sql
    refuse(state, (sqlite3.SQLITE_INSERT, "entry"))
    with capture_logs() as logged:
        push_beside(store, 7)
        store._read(lambda: refuse(state))
    assert "rows not written to state.db: the write is repeated" in [each["event"] for each in logged]
    push(store, Feed(), *rows(8))
    check_whole(store, tmp_path, written(range(9), tmp_path))


@pytest.fixture
def busy_store(tmp_path, monkeypatch):
    """A store with 810 rows in memory; a test sets the limits, and calls `push_one` and `write_part`."""
    monkeypatch.setattr(behind, "_SECONDS_AT_A_TIME", 60.0)
    here = opened(tmp_path / "staging", LAZY)
    opened_store, number = here._open, iter(range(100))

    def write_part():
        """Return whether all of the frozen layer is written, and the number of rows in the file."""
        complete = here._read(lambda: opened_store.behind.try_write_part(busy=True))
        count = "SELECT count(*) FROM row_state"
        return complete, here._read(lambda: opened_store.state.sql.execute(count).fetchone()[0])

    here.behind, here.journal, here.write_part = opened_store.behind, opened_store.journal, write_part
    here.push_one = lambda: push(here, Feed(), *rows(next(number)))
    here.push_one()
    here.bytes_of_one = here.journal.unpacked_bytes
    for _ in range(8):
        here.push_one()
    yield here
    here.close()


def test_a_busy_store_writes_rows_evenly_until_new_changes_reach_their_limit(busy_store):
    busy_store.behind._limits = WriteBehindLimits(3600, 10**9, 10 * busy_store.bytes_of_one)
    written_rows = []
    for _ in range(5):  # later changes have reached 0, 2, 4, 6 and 8 tenths of the limit
        complete, count = busy_store.write_part()
        written_rows.append(count)
        for _ in range(2):
            busy_store.push_one()
    total = written_rows[-1]
    assert complete
    assert total > 800
    for tenths, so_far in zip((0, 2, 4, 6), written_rows, strict=False):
        assert tenths / 8 * total - 1 <= so_far <= tenths / 8 * total + 200


def test_rows_that_come_faster_than_before_do_not_make_the_whole_layer_due_at_once(busy_store):
    busy_store.behind._limits = WriteBehindLimits(3600, 910, 10**12)
    assert not busy_store.write_part()[0]
    written_rows = []
    for count in (7, 1, 1, 1):  # there are about 70, 80, 90 and 99 % of the allowed rows
        for _ in range(count):
            busy_store.push_one()
        complete, written = busy_store.write_part()
        written_rows.append(written)
    assert complete
    first, second, third, total = written_rows
    assert first <= 128, "the same rows may be overwritten again and again"
    assert 0.2 < second / total < 0.4
    assert 0.7 < third / total < 0.9


@pytest.mark.parametrize("read_after", [1, 100])
def test_moves_of_many_rows_are_written_in_parts(tmp_path, read_after):
    here = opened(tmp_path / "staging", LAZY)
    push(here, Feed(), *[make_delta("c", 5000 + number, f"r{number}", x=number) for number in range(3000)])
    push(here, Feed(), *[make_delta("late", 1 + number, f"r{number}", x=-1) for number in range(3000)])
    expected, state = read(opened_copy(tmp_path), contents), here._open.state
    moves = "SELECT count(*) FROM entry JOIN bucket ON bucket.id = entry.bucket WHERE bucket.name = '@late'"

    def written_moves():
        return here._read(lambda: state.sql.execute(moves).fetchone()[0])

    here._read(state.freeze)
    sizes = [0]
    while not here._read(state.write_part):
        sizes.append(written_moves())
        if len([size for size in sizes if size]) == read_after:
            assert read(here, contents) == expected
    sizes.append(written_moves())
    assert sizes[-1] == 3000
    assert 0 < max(later - size for size, later in pairwise(sizes)) < 3000
    assert read(here, contents) == expected
    here.close()


def opened_copy(tmp_path):
    """Open a store over the files that a killed process would leave."""
    shutil.copytree(tmp_path / "staging", tmp_path / "killed")
    return opened(tmp_path / "killed")

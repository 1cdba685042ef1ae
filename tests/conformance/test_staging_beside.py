"""Writing behind while the journal's commit waits for the disk: what fails in one of them costs the other nothing."""

from __future__ import annotations

import shutil
import sqlite3
import threading

import pytest
from structlog.testing import capture_logs

from lakesync.exceptions import StagingUnavailableError
from lakesync.staging.sqlite import SqliteStore, WriteBehind
from lakesync.testing.clock import ManualClock
from tests.conformance.book import contents, make_delta
from tests.conformance.calls import push, read
from tests.conformance.test_staging_births import Feed, write_behind

SOON = WriteBehind(seconds=3600, rows=600, bytes=10**12)
"""Nothing is written behind by time, and 600 rows are written in five bits."""


def opened(folder):
    """A store with the gateway `g`."""
    store = SqliteStore(folder, ManualClock(1_700_000_000_000), SOON)
    store.open(Feed())
    store.ensure_gateway("g")
    return store


@pytest.fixture
def store(tmp_path):
    """A store of whose first 700 rows some are written, and in which a bit is written with each commit."""
    here = opened(tmp_path / "staging")
    for number in range(7):
        push(here, Feed(), *rows(number))
    assert here._read(lambda: here._open.behind.may_go_on)
    yield here
    here.close()


def rows(number):
    """The hundred new rows of one push, every tenth of them with an update of another push's row beside it."""
    return [
        make_delta("c", number * 1000 + place, f"r{number}-{place}" if place % 10 else f"r{number // 2}-1", x=place)
        for place in range(1, 101)
    ]


_COMMIT = (sqlite3.SQLITE_TRANSACTION, "COMMIT")


def refuse(store, database, what, unless=lambda: False):
    """Have SQLite refuse to do something with the `journal` or the `state`; None allows everything again."""

    def asked(action, first, *_):
        return sqlite3.SQLITE_DENY if (action, first) == what and not unless() else sqlite3.SQLITE_OK

    store._read(lambda: getattr(store._open, database).sql.set_authorizer(asked if what else None))


def check_whole(store, tmp_path, expected):
    """The store, one that is opened over what a killed process would have left, and the file have the same."""
    assert read(store, contents) == expected
    shutil.copytree(tmp_path / "staging", tmp_path / "killed")
    again = opened(tmp_path / "killed")
    assert read(again, contents) == expected
    again.close()
    write_behind(store)
    assert read(store, contents) == expected


def written(pushes, tmp_path):
    """What a store has to which these were pushed, and nothing else."""
    other = opened(tmp_path / "other")
    for number in pushes:
        push(other, Feed(), *rows(number))
    found = read(other, contents)
    other.close()
    return found


def test_rows_are_written_while_the_journal_waits_for_the_disk(store, tmp_path):
    begun = threading.Event()
    journal = store._open.journal.sql

    def executed(statement):
        if "INTO row_state" in statement and journal.in_transaction:
            begun.set()

    store._read(lambda: store._open.state.sql.set_trace_callback(executed))
    refuse(store, "journal", _COMMIT, unless=lambda: begun.wait(10))
    push(store, Feed(), *rows(7))
    store._read(lambda: store._open.state.sql.set_trace_callback(None))
    refuse(store, "journal", None)
    check_whole(store, tmp_path, written(range(8), tmp_path))


def test_a_commit_that_fails_takes_back_its_own_group_alone(store, tmp_path):
    refuse(store, "journal", _COMMIT)
    with pytest.raises(StagingUnavailableError, match="nothing was committed"):
        push(store, Feed(), *rows(7))
    refuse(store, "journal", None)
    push(store, Feed(), *rows(8))
    check_whole(store, tmp_path, written([*range(7), 8], tmp_path))


def test_a_bit_that_cannot_be_written_does_not_touch_the_push(store, tmp_path):
    refuse(store, "state", (sqlite3.SQLITE_INSERT, "entry"))
    with capture_logs() as told:
        push(store, Feed(), *rows(7))
        refuse(store, "state", None)
    assert "state not written behind" in [each["event"] for each in told]
    push(store, Feed(), *rows(8))
    check_whole(store, tmp_path, written(range(9), tmp_path))

"""Pushes to a store, for a process that is killed meanwhile."""

from __future__ import annotations

from pathlib import Path

from lakesync.model.types import RowDelta
from lakesync.staging import open_store
from lakesync.staging.sqlite import SqliteStore, WriteBehindLimits
from lakesync.staging.store import StagingStore
from lakesync.testing import ManualClock
from tests.conformance.book import Book, make_delta

TEAMS = ("red", "blue")


def deltas_of(number: int) -> list[RowDelta]:
    """The deltas of the push with this number: rows that are created, changed, moved and deleted."""
    hlc = number * 1000
    return [
        make_delta("c", hlc + 1, f"r{number % 7}", x=number, team=TEAMS[number % 2]),
        make_delta("c", hlc + 2, f"s{number}", x=number),
        make_delta("c", hlc + 3, f"s{number - 3}") if number % 5 == 0 else make_delta("c", hlc + 3, "t", y=number),
    ]


def make_store(url: str) -> StagingStore:
    """Open a store with a fixed clock; on SQLite, one that writes behind every few pushes."""
    clock = ManualClock(1_700_000_000_000)
    if url.startswith("sqlite:"):
        return SqliteStore(Path(url.removeprefix("sqlite://")), clock, WriteBehindLimits(seconds=60, rows=20))
    return open_store(url, clock)


def main(url: str, count: int) -> None:
    """Push, a few pushes at a time; print each push's number once it is acknowledged."""
    store = make_store(url)
    book = Book()
    store.open(book)
    store.ensure_gateway("g")
    for first in range(1, count, 3):
        futures = [store.submit("g", book.push(deltas_of(number))) for number in range(first, first + 3)]
        for number, future in enumerate(futures, first):
            future.result()
            print(number, flush=True)
    store.close()

"""Removes deleted values from a store's files: free pages, old row versions, the write-ahead log. Erasures call it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.sqlite.behind import Behind
from lakesync.staging.sqlite.journal import Journal
from lakesync.staging.sqlite.state import State


def purge(journal: Journal, state: State, behind: Behind) -> None:
    """Rewrite both files, in the owner thread; a few gigabytes take a minute, in which no other job runs.

    Args:
        journal: of the store.
        state: of the store.
        behind: writes the state first.

    Raises:
        StagingUnavailableError: another process reads a file, so its write-ahead log cannot be truncated.
    """
    behind.write()
    _purge(journal.sql, journal.path)
    with state.without_checkpoints():
        _purge(state.sql, state.path)


def _purge(connection: sqlite3.Connection, path: Path) -> None:
    _rewrite(connection)
    (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        raise StagingUnavailableError(
            f"{path} is being read, so what was erased is still in its write-ahead log: erase again, which goes on"
        )


def _rewrite(connection: sqlite3.Connection) -> None:
    """Run VACUUM with its copy of the file on disk instead of in memory."""
    connection.execute("PRAGMA temp_store=FILE")
    try:
        connection.execute("VACUUM")
    finally:
        connection.execute("PRAGMA temp_store=MEMORY")

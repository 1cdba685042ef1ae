"""The files of a folder without what is in no table any more: free pages, old versions of rows, the write-ahead log."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.sqlite.behind import Behind
from lakesync.staging.sqlite.journal import Journal
from lakesync.staging.sqlite.state import State


def purge(journal: Journal, state: State, behind: Behind) -> None:
    """Write both files anew; a minute for a few gigabytes, in which nothing else is done. In the owner thread.

    Raises:
        StagingUnavailableError: somebody reads a file just now, so that its write-ahead log must stay.
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
    """VACUUM, whose copy of the file is no longer in memory then."""
    connection.execute("PRAGMA temp_store=FILE")
    try:
        connection.execute("VACUUM")
    finally:
        connection.execute("PRAGMA temp_store=MEMORY")

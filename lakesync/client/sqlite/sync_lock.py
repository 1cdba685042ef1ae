"""The lock that lets one client synchronise a database, and the file into which that client loads its first sync."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from lakesync.client.errors import DbError


def first_sync_path(path: Path) -> Path:
    """Return the path of the file, next to the app's, into which a client's first sync is loaded.

    Only the client that holds the `SyncLock` uses it.
    """
    return path.with_name(path.name + "-lakesync-first")


def remove_database(path: Path) -> None:
    """Delete a database file and its rollback journal, if they exist."""
    for name in (path.name, f"{path.name}-journal"):
        path.with_name(name).unlink(missing_ok=True)


class SyncLock:
    """The lock of the one client that synchronises a database: a second SQLite file that is locked exclusively.

    The operating system releases it when the process ends, however it ends.
    """

    def __init__(self, path: Path) -> None:
        """Prepare the lock of the app's database at this path; `acquire` locks it."""
        self._database = path
        self._path = path.with_name(path.name + "-lakesync")
        self._holder: sqlite3.Connection | None = None
        """The connection that holds the lock."""

    def acquire(self) -> None:
        """Acquire the lock, unless this object holds it already.

        Raises:
            DbError: another client holds the lock, or the lock's file cannot be written.
        """
        if self._holder is not None:
            return
        holder = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            holder.execute("PRAGMA locking_mode = EXCLUSIVE")
            holder.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            holder.close()
            if error.sqlite_errorcode not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise DbError(f"the lock file {self._path} cannot be written now: {error}") from error
            raise DbError(
                f"another client is synchronising {self._path.name.removesuffix('-lakesync')!r}: it will also send "
                "what you write here"
            ) from error
        self._holder = holder
        remove_database(first_sync_path(self._database))  # a killed process may have left this file

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._holder is not None:
            self._holder.close()
            self._holder = None

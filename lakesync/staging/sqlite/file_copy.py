"""The copy of a SQLite store's file that an erasure makes, and how it replaces the file.

`file_rewrite` makes the copy while the store is in use, and says why. This module has what it does with files: it
creates the copy, copies changed rows again, and gives the copy the name of the file. The *WAL* is SQLite's write-ahead
log, the file `-wal` beside a database.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lakesync.model.crash_points import crash_point
from lakesync.model.errors import StagingUnavailableError
from lakesync.model.secrets import make_private_file
from lakesync.staging.sqlite.files import connect, size_of, sync_to_disk

_COPY = ".rewriting"
"""Suffix of a copy's name, after that of the file."""

_CUT_OFF_SIZE = 2
"""Size in bytes to which a replaced file is cut, so that a handle on it finds no database. SQLite takes a file of 0
bytes, or of 1, for an empty database, and deletes the write-ahead log of its name: that of the new file."""


class FileInUseError(Exception):
    """Another connection reads a file that is to be replaced."""


class FileCopy:
    """The copy of a file. One thread at a time calls its methods; `interrupt` may be called by any other."""

    def __init__(self, path: Path) -> None:
        """Describe a copy; `create` makes it.

        Args:
            path: the file that is copied.
        """
        self._source = path
        self.path = path.with_name(path.name + _COPY)
        self._sql: sqlite3.Connection | None = None
        self._interrupted = False

    def create(self) -> None:
        """Copy what the file contains.

        Raises:
            StagingUnavailableError: the disk has not enough free space.
            sqlite3.Error, OSError: the file cannot be read, or the copy cannot be written.
        """
        delete_copy(self._source)
        needed = size_of(self._source) + size_of(Path(f"{self._source}-wal"))
        free = shutil.disk_usage(self._source.parent).free
        if free < needed:
            raise StagingUnavailableError(
                f"rewriting {self._source} needs {needed >> 20} MiB of free disk, and {free >> 20} MiB are free, so"
                " what was erased is still in unused parts of the file: free some, then erase again to complete it"
            )
        make_private_file(self.path)
        if os.geteuid() == 0:  # as SQLite does for its WAL: root may erase in the store of another user
            owner = self._source.stat()
            os.chown(self.path, owner.st_uid, owner.st_gid)
        self._open()
        self._execute("VACUUM INTO ?", (str(self.path),))
        sync_to_disk(self.path)
        self.attach()

    def attach(self) -> None:
        """Open the copy, to update it."""
        if self._sql is None:
            self._open()
        self._execute("ATTACH ? AS copy", (str(self.path),))
        # A crash discards the copy. In WAL mode from now on, it gets its final name in that mode.
        self._execute("PRAGMA copy.synchronous=OFF")
        self._execute("PRAGMA copy.journal_mode=WAL")

    def update(self, changed: Mapping[str, Sequence[tuple[Any, ...]]], keys: Mapping[str, tuple[str, ...]]) -> None:
        """Copy changed rows again, as they are in the file now.

        A row may conflict with another one by a unique index only if that one was changed too. `REPLACE` deletes it
        from the copy, and its own key, perhaps of a later round, brings it back.

        Args:
            changed: by table, the keys of the changed rows.
            keys: by table, the columns of its key.
        """
        assert self._sql is not None
        self._execute("BEGIN")
        for table, rows in changed.items():
            found = " AND ".join(f"{column} = ?" for column in keys[table])
            self._sql.executemany(f"DELETE FROM copy.{table} WHERE {found}", rows)
            self._sql.executemany(f"INSERT OR REPLACE INTO copy.{table} SELECT * FROM main.{table} WHERE {found}", rows)
        self._execute("COMMIT")

    def checkpoint_source(self) -> None:
        """Copy the WAL of the file into the file, as far as possible, so that replacing it takes less time."""
        self._execute("PRAGMA main.wal_checkpoint(PASSIVE)")
        self._execute("PRAGMA copy.wal_checkpoint(PASSIVE)")
        sync_to_disk(self.path)

    def finish(self) -> None:
        """Close the copy, which is then complete and durable in one file.

        Raises:
            sqlite3.OperationalError: it is not, because its WAL could not be copied into it.
        """
        self.close()
        if size_of(Path(f"{self.path}-wal")):
            raise sqlite3.OperationalError(f"the write-ahead log of {self.path} is left")
        sync_to_disk(self.path)

    def close(self) -> None:
        """Close the connection; do nothing if it is closed."""
        if self._sql is not None:
            self._sql.close()
            self._sql = None

    def interrupt(self) -> None:
        """Make the running statement, or the next one, raise an error."""
        self._interrupted = True
        sql = self._sql
        if sql is not None:
            with suppress(sqlite3.ProgrammingError):  # closed meanwhile
                sql.interrupt()

    def _open(self) -> None:
        self._sql = connect(self._source)
        self._execute("PRAGMA wal_autocheckpoint=0")

    def _execute(self, statement: str, values: tuple[Any, ...] = ()) -> None:
        assert self._sql is not None
        if self._interrupted:
            raise sqlite3.OperationalError("interrupted")
        self._sql.execute(statement, values).fetchall()


def replace_file(sql: sqlite3.Connection, copy: Path, path: Path) -> None:
    """Give a copy the name of an open database, and close the database. The caller opens the new one.

    SQLite must never combine one of the files with the WAL of the other:

    - Leaving WAL mode copies the WAL into the old file and deletes it. It fails while another connection reads.
    - The exclusive lock then keeps others from the old file until it is cut off. A process that has opened it, and
      has not read yet, gets an error: the file is no database, or a malformed one.

    Args:
        sql: the only open connection of this thread to the database, without a transaction.
        copy: the copy, complete and durable in one file, in WAL mode.
        path: the database's file.

    Raises:
        FileInUseError: another connection reads the database, which is unchanged and open.
        sqlite3.Error, OSError: the database was closed. `path` is complete: the old file or the copy.
    """
    try:
        sql.execute("PRAGMA busy_timeout=0")
        sql.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()  # keeps the lock that leaving WAL mode takes
        sql.execute("PRAGMA journal_mode=DELETE").fetchall()
    except sqlite3.OperationalError as exc:
        if exc.sqlite_errorname.startswith("SQLITE_BUSY"):
            sql.execute("PRAGMA locking_mode=NORMAL").fetchall()
            sql.execute("PRAGMA busy_timeout=10000")
            raise FileInUseError from exc
        sql.close()
        raise
    old = None
    try:
        old = os.open(path, os.O_RDWR)
        sync_to_disk(path.parent)  # first, so that a power cut cannot bring the WAL back beside the copy
        crash_point("erasure.unlogged")
        copy.rename(path)
        crash_point("erasure.renamed")
        sync_to_disk(path.parent)
        os.ftruncate(old, _CUT_OFF_SIZE)
    finally:
        sql.close()
        if old is not None:
            os.close(old)  # last, because it ends all locks of this process on the old file
        path.with_name(f"{path.name}-journal").unlink(missing_ok=True)  # empty: the last change was committed


def delete_copy(path: Path) -> None:
    """Delete what a rewrite that was interrupted left beside a file."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(f"{path.name}{_COPY}{suffix}").unlink(missing_ok=True)

"""Rewrites a file of a SQLite store while the store is in use, so that no deleted value is left in its pages.

`SqliteStore` calls `rewrite` as the last step of an erasure, in the thread that erases. SQLite does not overwrite
deleted values, so the file is replaced by a *copy* without them:

1. Temporary triggers note the key of each row that the store changes from now on (`ChangedKeys`).
2. `VACUUM INTO` copies the file, in this thread. Commits go on.
3. Noted rows are copied again, in rounds that become shorter (`FileCopy.update`).
4. In the owner thread, between two groups: the last noted rows are copied, and the copy gets the name of the file.

The *owner thread* is the thread that owns the store. Other processes read `log.db`: Spark, the flush, commands. SQLite
finds a write-ahead log (WAL) by its file's name. A reader with the old file must never read it with the copy's WAL; see
`file_copy.replace_file`. A crash leaves the old file or the complete copy. The store deletes an incomplete copy when it
opens.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, TypeVar

from lakesync.model.crash_points import crash_point
from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.sqlite.file_copy import FileCopy, FileInUseError, delete_copy

T = TypeVar("T")

_FEW_KEYS = 1000
"""The owner thread copies up to so many noted rows itself, while all requests wait."""
_MAX_ROUNDS = 20
"""The most rounds before the owner thread copies the rest, if the store changes rows as fast as they are copied."""
READER_SECONDS = 60.0
"""For how long a rewrite waits for other readers of the file, without delaying the store."""
_POLL_SECONDS = 0.2
"""Pause between two attempts to replace a file that is being read."""


class RewritableFile(Protocol):
    """A file that can be rewritten: the journal or the file of rows. Only the owner thread calls its methods."""

    path: Path
    sql: sqlite3.Connection

    def replace(self, copy: Path) -> None:
        """Give `copy` the name of the file by `replace_file`, and open it.

        Raises:
            FileInUseError: another connection reads the file; nothing was changed.
        """


class ChangedKeys:
    """Notes on a connection the keys of rows that it changes. Only the owner thread calls its methods.

    The notes belong to the connection's transaction: if it is rolled back, so are they. Until `stop`, no commit makes a
    checkpoint of the WAL: the first one after the copying would have to wait for a large one.
    """

    def __init__(self, sql: sqlite3.Connection) -> None:
        """Start to note.

        Args:
            sql: the connection, without an open transaction: a rollback would remove the triggers.
        """
        self._sql = sql
        self.tables = {table: _key_of(sql, table) for table in _tables(sql)}
        assert not sql.in_transaction
        sql.execute("BEGIN")
        with sql:
            for table, key in self.tables.items():
                sql.execute(f"CREATE TEMP TABLE noted_{table} ({_list(key)}, PRIMARY KEY ({_list(key)})) WITHOUT ROWID")
                for event, rows in (("INSERT", ["NEW"]), ("UPDATE", ["OLD", "NEW"]), ("DELETE", ["OLD"])):
                    notes = " ".join(_note(table, key, row) for row in rows)
                    sql.execute(
                        f"CREATE TEMP TRIGGER note_{table}_{event} AFTER {event} ON main.{table} BEGIN {notes} END"
                    )
        sql.execute("PRAGMA recursive_triggers=ON")  # else the rows that INSERT OR REPLACE deletes would not be noted
        (self._pages_per_checkpoint,) = sql.execute("PRAGMA wal_autocheckpoint").fetchone()
        sql.execute("PRAGMA wal_autocheckpoint=0")

    def take(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return the noted keys by table, and remove the notes. All changes are committed."""
        assert not self._sql.in_transaction
        taken = {table: self._sql.execute(f"SELECT * FROM noted_{table}").fetchall() for table in self.tables}
        for table in self.tables:
            self._sql.execute(f"DELETE FROM noted_{table}")
        return taken

    def stop(self) -> None:
        """Stop to note; do nothing if the connection was closed, because its file was replaced."""
        with suppress(sqlite3.ProgrammingError):
            self._sql.execute(f"PRAGMA wal_autocheckpoint={self._pages_per_checkpoint}")
            for table in self.tables:
                for event in ("INSERT", "UPDATE", "DELETE"):
                    self._sql.execute(f"DROP TRIGGER IF EXISTS temp.note_{table}_{event}")
                self._sql.execute(f"DROP TABLE IF EXISTS temp.noted_{table}")
            self._sql.execute("PRAGMA recursive_triggers=OFF")


class Rewriter:
    """Rewrites the files of an open store; `rewrite` is called by the thread that erases."""

    def __init__(self, run: Callable[[Callable[[], Any]], Any], write_rows: Callable[[], None]) -> None:
        """Create it.

        Args:
            run: runs a function in the owner thread, outside of a transaction of `log.db`, and waits for it.
            write_rows: writes all rows to `state.db` and commits; called in the owner thread.
        """
        self._run = run
        self._write_rows = write_rows
        self._lock = threading.Lock()
        """The thread that rewrites holds this lock."""
        self._copy: FileCopy | None = None
        self._stopped = False

    def stop(self) -> None:
        """Interrupt a running rewrite, and wait until it has ended; later ones fail."""
        self._stopped = True
        copy = self._copy
        if copy is not None:
            copy.interrupt()
        with self._lock:
            pass

    def rewrite(self, file: RewritableFile) -> None:
        """Replace a file by a copy without deleted values, while the store goes on.

        Raises:
            StagingUnavailableError: the disk is full, the store was closed, or another process reads the file. The
                file is as before; a repeat is safe.
        """
        with self._lock:
            self._copy = copy = FileCopy(file.path)
            try:
                if self._stopped:
                    copy.interrupt()
                self._rewrite(file, copy)
            except (sqlite3.Error, OSError, StagingUnavailableError) as exc:
                in_owner_thread = isinstance(exc.__cause__, sqlite3.Error | OSError)
                if isinstance(exc, StagingUnavailableError) and not in_owner_thread:
                    raise
                raise StagingUnavailableError(
                    f"{file.path} was not rewritten, so what was erased is still in unused parts of it: look at the"
                    " disk and its free space, then erase again to complete it",
                    details=str(exc),
                ) from exc
            finally:
                self._copy = None
                copy.close()
                with suppress(OSError):  # the next rewrite deletes it, or the next start
                    delete_copy(file.path)

    def _rewrite(self, file: RewritableFile, copy: FileCopy) -> None:
        """Rewrite a file; what the copy leaves on the disk after an error is deleted by the caller."""

        def start() -> ChangedKeys:
            self._write_rows()
            return ChangedKeys(file.sql)

        changed: ChangedKeys | None = None
        try:
            changed = self._run(start)
            copy.create()
            self._update(copy, changed)
            crash_point("erasure.copied")
            deadline = monotonic() + READER_SECONDS
            while not self._run(lambda: self._try_replace(file, copy, changed)):
                if monotonic() > deadline:
                    raise StagingUnavailableError(
                        f"{file.path} is open in another process, so it was not rewritten, and what was erased is still"
                        " in unused parts of it: end that process, then erase again to complete it"
                    )
                threading.Event().wait(_POLL_SECONDS)
                self._update(copy, changed)
        except BaseException:
            if changed is not None:
                with suppress(StagingUnavailableError):  # the store is closed
                    self._run(changed.stop)
            raise

    def _update(self, copy: FileCopy, changed: ChangedKeys) -> None:
        """Copy noted rows again, in rounds, until few are left."""

        def take() -> dict[str, list[tuple[Any, ...]]]:
            self._write_rows()
            return changed.take()

        for _ in range(_MAX_ROUNDS):
            noted = self._run(take)
            copy.update(noted, changed.tables)
            copy.checkpoint_source()
            if sum(map(len, noted.values())) < _FEW_KEYS:
                return

    def _try_replace(self, file: RewritableFile, copy: FileCopy, changed: ChangedKeys) -> bool:
        """Copy the last noted rows, and replace the file; return False if another process reads it."""
        self._write_rows()
        copy.update(changed.take(), changed.tables)
        copy.finish()
        try:
            file.replace(copy.path)
        except FileInUseError:
            copy.attach()
            return False
        return True


def _tables(sql: sqlite3.Connection) -> list[str]:
    """Return the names of the database's tables, without SQLite's own."""
    rows = sql.execute(
        r"SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\'"
    )
    return [name for (name,) in rows]


def _key_of(sql: sqlite3.Connection, table: str) -> tuple[str, ...]:
    """Return the columns that identify a row of a table: its primary key, or else its unique index."""
    key = sql.execute("SELECT name FROM pragma_table_info(?) WHERE pk ORDER BY pk", (table,)).fetchall()
    if not key:
        key = sql.execute(
            "SELECT i.name FROM pragma_index_list(?) l JOIN pragma_index_info(l.name) i"
            " WHERE l.origin = 'u' ORDER BY l.seq, i.seqno",
            (table,),
        ).fetchall()
    assert key, f"table {table} has no key"
    return tuple(name for (name,) in key)


def _list(columns: Iterable[str]) -> str:
    return ", ".join(columns)


def _note(table: str, key: tuple[str, ...], row: str) -> str:
    """Return the statement of a trigger that notes a row's key, unless it is noted."""
    values = [f"{row}.{column}" for column in key]
    same = " AND ".join(f"{column} = {value}" for column, value in zip(key, values, strict=True))
    return (
        f"INSERT INTO noted_{table} SELECT {_list(values)} WHERE NOT EXISTS (SELECT 1 FROM noted_{table} WHERE {same});"
    )

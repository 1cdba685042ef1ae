"""The folder of a SQLite store: its lock, connections to its databases, their migrations, and its replacement's folder.

The other modules of this package open and check the folder with these functions. The *owner* is the one process that
may have the store open. The *replacement* is the new store that a rebuild from the lake fills in a folder beside it.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from lakesync.model.errors import IntegrityError, StagingUnavailableError
from lakesync.model.secrets import make_private_file
from lakesync.staging.migrations import pending

LOG_FILE = "log.db"
"""The journal: a log row for each push, client records, configuration, actions. A push is durable when it is here."""
STATE_FILE = "state.db"
"""Merged rows, and feed entries, which say when a row joined and left a bucket of the sync rules. Both can be rebuilt
from the log."""
LOCK_FILE = "owner.lock"
"""The file that the owner process locks; it contains the process id."""

_STATEMENTS_CACHED = 256
"""Number of prepared statements that each connection caches."""
_CACHE_MIB = 16
"""Default memory of a connection's page cache, in MiB."""


class OwnerLock:
    """The lock of the only process that may write to the folder; the system releases it when the process ends."""

    def __init__(self, folder: Path) -> None:
        """Take the lock, and write this process's id into the lock file, for the message of a process that fails.

        Args:
            folder: the store's folder, which exists.

        Raises:
            StagingUnavailableError: another process has the lock; the message has its process id.
            OSError: the lock file cannot be created or written, for example because the disk is full.
        """
        make_private_file(folder / LOCK_FILE)
        self._file = os.open(folder / LOCK_FILE, os.O_RDWR)
        try:
            self._take(folder)
        except BaseException:
            os.close(self._file)
            raise

    def release(self) -> None:
        """Release the lock."""
        os.close(self._file)

    def _take(self, folder: Path) -> None:
        """Lock the file, and write this process's id into it.

        Raises:
            StagingUnavailableError: another process has the lock.
        """
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            owner = os.pread(self._file, 32, 0).decode() or "unknown"
            raise StagingUnavailableError(
                f"the staging folder {folder} is owned by process {owner}: stop it, or give this one another folder"
            ) from exc
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, str(os.getpid()).encode(), 0)


def check_journal(folder: Path) -> None:
    """Check that `log.db` is not missing from a store with rows.

    Opened without it, the store would create an empty log, and delete the rows because they do not belong to that log.

    Raises:
        IntegrityError: `state.db` has rows, and `log.db` is missing or empty.
    """
    journal, state = folder / LOG_FILE, folder / STATE_FILE
    if size_of(journal) or not size_of(state):
        return
    with closing(sqlite3.connect(state)) as connection:
        # `applied`: the table with the position in the log up to which each gateway's rows are written
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'applied'").fetchone() is None:
            return
        gateways = [name for (name,) in connection.execute("SELECT DISTINCT gateway FROM applied ORDER BY gateway")]
    if gateways:
        raise IntegrityError(
            f"{state} holds rows of {', '.join(gateways[:3])}{' and others' if gateways[3:] else ''}, but {journal} is "
            f"gone: put it back, run `lakesync staging rebuild --from-lake`, or remove {state} to start without rows"
        )


def size_of(path: Path) -> int:
    """Return a file's size in bytes; 0 if it is missing. SQLite removes a `-wal` file when its database is closed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def sync_to_disk(path: Path) -> None:
    """Make the content of a file, or the names in a folder, survive a power cut.

    Args:
        path: not an open database that others use: closing any descriptor of it ends this process's locks on it.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def connect(path: Path, cache_mib: int = _CACHE_MIB) -> sqlite3.Connection:
    """Open a database in WAL mode, durable at every commit, and without Python's own transactions.

    Args:
        path: the database's file, created if it is missing.
        cache_mib: the most memory of the connection's page cache, in MiB.

    Raises:
        sqlite3.Error, OSError: the file cannot be created or opened.
    """
    make_private_file(path)
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, cached_statements=_STATEMENTS_CACHED
    )
    try:
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "busy_timeout=10000",
            "temp_store=MEMORY",
            f"cache_size=-{cache_mib * 1024}",
            "journal_size_limit=67108864",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def migrate(connection: sqlite3.Connection, database: str, where: Path) -> None:
    """Migrate a database to the newest schema; a failing step changes nothing.

    Args:
        connection: an open connection to the database, without a transaction.
        database: `sqlite/log` or `sqlite/state`.
        where: the database's path, for messages.

    Raises:
        StagingVersionError: a newer LakeSync wrote the database.
        sqlite3.Error: the database is locked by another connection, or cannot be written.
    """
    connection.execute("BEGIN EXCLUSIVE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for step in pending(database, version, str(where)):
            for statement in _statements(step.sql):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {step.number}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def replacement_folder_of(folder: Path) -> Path:
    """Return the folder in which a rebuild fills a store's replacement: `FOLDER.rebuilding` beside the store's."""
    return folder.with_name(f"{folder.name}.rebuilding")


def check_no_rebuild(folder: Path) -> None:
    """Check that no rebuild of the folder is running or was interrupted.

    A rebuild ends with two renames, between which the store is missing: a process must not create an empty one then.

    Raises:
        StagingUnavailableError: a rebuild is running, or was interrupted.
    """
    replacement = replacement_folder_of(folder)
    if replacement.exists():
        raise StagingUnavailableError(
            f"a rebuild of {folder} is running or was interrupted: run `lakesync staging rebuild --from-lake` again, "
            f"with --replace if a store exists, or remove {replacement} to continue with the contents of {folder}"
        )


def _statements(script: str) -> list[str]:
    """Return a script's statements. `sqlite3.executescript` would commit the current transaction first."""
    statements, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return statements

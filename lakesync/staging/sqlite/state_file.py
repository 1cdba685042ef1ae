"""The file `state.db`: merged rows and feed entries, which can be rebuilt from the log in `log.db`.

`StateFile` has the file's connection, its transaction and SQLite's checkpoints of its write-ahead log. It records up to
which position of each gateway's log the file is written. It is the base class of `LayeredFile`, which keeps new rows
and entries in memory, in *layers*, and writes them between `_begin` and `commit`.

The *journal* is the file `log.db`; its *log* has one row for each push. A *gateway* is one app's stream of changes; its
*head* is its counters. A *bucket* of the sync rules, such as "rows of team A", is visible to some clients; a row's
*bucket keys* name its buckets. A *feed entry* says when a row joined and left a bucket.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import structlog

from lakesync.staging.head import Head
from lakesync.staging.sqlite.entry_file import BucketNumbers, EntryFile
from lakesync.staging.sqlite.file_copy import FileInUseError, replace_file
from lakesync.staging.sqlite.files import STATE_FILE, connect, migrate, sync_to_disk
from lakesync.staging.sqlite.row_file import RowFile

_CHECKPOINT_CACHE_MIB = 1
"""Memory of the page cache of the connection that runs checkpoints, in MiB."""
_CACHE_MIB = 64
"""Memory of the page cache of the connection that reads and writes rows, in MiB."""
_log = structlog.get_logger(__name__)


class Checkpointer:
    """Runs SQLite's checkpoints of the file in a thread with its own connection.

    A checkpoint copies SQLite's write-ahead log to the file. That is slow, so no commit should wait for it.
    """

    def __init__(self, path: Path) -> None:
        """Start the thread.

        Args:
            path: the file.
        """
        self._sql = connect(path, _CHECKPOINT_CACHE_MIB)
        self._wanted = threading.Event()
        self.running = threading.Lock()
        """The thread holds this lock while it makes a checkpoint."""
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"checkpoints of {path.name}", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Request a checkpoint, after a commit."""
        self._wanted.set()

    def stop(self) -> None:
        """Finish the current checkpoint, and end the thread."""
        self._stopped = True
        self._wanted.set()
        self._thread.join()
        self._sql.close()

    def _run(self) -> None:
        """Run a checkpoint after each request, until `stop`; errors are logged."""
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._stopped:
                return
            try:
                with self.running:
                    self._sql.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            except sqlite3.Error:
                _log.warning("the checkpoint failed; the next one copies everything", exc_info=True)


class Applied(NamedTuple):
    """The position up to which `state.db` is written, in a gateway's log in one shard (a store for some tables)."""

    epoch: int
    """The epoch of that log; a rebuilt store starts a new one."""
    seq: int
    """The number of the last log row that is applied."""


class StateFile:
    """The connection to `state.db`. Only the thread that owns the store calls its methods."""

    def __init__(self, folder: Path, store_id: str) -> None:
        """Open or create `state.db`; if it was written from another journal, delete its contents.

        Args:
            folder: the store's folder.
            store_id: the journal's unique id.

        Raises:
            StagingVersionError: a newer LakeSync wrote it.
        """
        self.path = folder / STATE_FILE
        self._open()
        migrate(self.sql, "sqlite/state", self.path)
        self._reset()
        self._bind_to_journal(store_id)
        self._checkpointer = Checkpointer(self.path)

    def _open(self) -> None:
        self.sql = connect(self.path, _CACHE_MIB)
        self.sql.execute("PRAGMA synchronous=NORMAL")  # a commit that a power cut undoes is rebuilt from the log
        self.sql.execute("PRAGMA wal_autocheckpoint=0").fetchall()  # `Checkpointer` makes the checkpoints
        self._buckets = BucketNumbers(self.sql)
        self._rows = RowFile(self.sql)
        self._entries = EntryFile(self.sql, self._buckets, self._rows)
        self._is_open = True

    def close(self) -> None:
        """Close the file. Uncommitted rows are rebuilt from the log when the store is opened again."""
        self._checkpointer.stop()
        self.sql.close()

    # -- replacement by a rewritten copy; see `file_rewrite` -----------------------------------------------------

    def replace(self, copy: Path) -> None:
        """Replace the file by a copy with the same contents; see `RewritableFile.replace`.

        All rows are written and committed. `intact` is false afterwards: `restart` makes the copy usable.
        """
        self._checkpointer.stop()  # it closes its connection
        self._is_open = False
        try:
            replace_file(self.sql, copy, self.path)
        except FileInUseError:
            self._is_open = True
            self._checkpointer = Checkpointer(self.path)
            raise
        finally:
            if not self._is_open:
                self._reset()
        self._reopen()

    def _reopen(self) -> None:
        """Open the file if an error has prevented `replace` from doing so."""
        if not self._is_open:
            self.sql.close()
            self._open()
            self._checkpointer = Checkpointer(self.path)

    def _bind_to_journal(self, store_id: str) -> None:
        """Delete the contents if they were written from another journal, and note the id of this one."""
        stored = self.sql.execute("SELECT store_id FROM store").fetchone()
        if stored is None or stored[0] != store_id:
            self.empty()
            self.sql.execute("INSERT OR REPLACE INTO store VALUES (1, ?)", (store_id,))

    def empty(self) -> None:
        """Delete everything in a transaction of its own, so that it is rebuilt from the log."""
        self.sql.execute("BEGIN IMMEDIATE")
        with self.sql:  # all or nothing: without `applied`, a recovery would not notice rows of another log
            for table in ("applied", "row_state", "row_body", "bucket", "entry"):
                self.sql.execute(f"DELETE FROM {table}")
        self._reset()

    def _reset(self) -> None:
        """Record that no transaction is open and that `restart` was not called, and clear caches."""
        self._is_valid = False
        """Whether `restart` was called, and no write of a layer or of entries failed halfway since."""
        self._begun = False
        self._clear_caches()

    def _clear_caches(self) -> None:
        """Clear caches of the file's contents, which may have been rolled back."""
        self._buckets.clear_cache()
        self._rows.clear_cache()

    @property
    def is_intact(self) -> bool:
        """Whether the rows in memory and in the open transaction can be used.

        They cannot before `restart`, after a write that failed halfway, or if SQLite has ended the transaction by
        itself, as it does on a full disk. `restart` and a replay of the log make them usable again.
        """
        return self._is_valid and (self.sql.in_transaction or not self._begun)

    def _begin(self) -> None:
        """Begin the transaction, unless it is open."""
        if not self._begun:
            self.sql.execute("BEGIN IMMEDIATE")
            self._begun = True

    def commit(self, heads: Iterable[tuple[Head, int]]) -> None:
        """Commit the transaction with the log position of each changed head.

        The caller has written everything up to these positions. The commit survives a crash of the process. After a
        power cut the file may be at an earlier commit.

        Args:
            heads: the head of each changed gateway, with the number of the last log row that is applied.

        Raises:
            sqlite3.Error: the file cannot be written.
        """
        self._begin()
        self.sql.executemany(
            "INSERT OR REPLACE INTO applied VALUES (?, ?, ?, ?, ?)",
            [(head.gateway, head.shard, head.epoch, seq, head.config.rules_version) for head, seq in heads],
        )
        self.sql.execute("COMMIT")
        self._begun = False
        self._checkpointer.request()

    @contextmanager
    def without_checkpoints(self) -> Iterator[None]:
        """Wait for a running checkpoint, and let none start in the `with` block, which can then truncate the WAL."""
        with self._checkpointer.running:
            yield

    def sync_wal(self) -> None:
        """Make all commits survive a power cut."""
        sync_to_disk(Path(f"{self.path}-wal"))

    def rollback(self) -> None:
        """Roll back everything since the last commit; `intact` is false afterwards, also if the file raises."""
        self._reopen()
        try:
            if self.sql.in_transaction:
                self.sql.execute("ROLLBACK")
        finally:
            self._reset()

    def restart(self) -> None:
        """Roll back to the last commit, and make the file usable. The caller then replays the log from `applied()`."""
        self.rollback()
        self._is_valid = True

    def applied(self) -> dict[tuple[str, str], Applied]:
        """Return up to which position of the log the file is written, by gateway and shard."""
        rows = self.sql.execute("SELECT gateway, shard, epoch, applied_seq FROM applied")
        return {(gateway, shard): Applied(*rest) for gateway, shard, *rest in rows}

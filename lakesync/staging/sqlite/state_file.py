"""The file `state.db`: its connection, its transaction, its checkpoints, and how far it contains each gateway's log.

The base class of `LayeredFile`.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import structlog

from lakesync.staging.head import Head
from lakesync.staging.sqlite.entry_file import BucketNumbers, EntryFile
from lakesync.staging.sqlite.files import STATE_FILE, connect, migrate
from lakesync.staging.sqlite.row_file import RowFile

_CACHE_MIB = 1
_log = structlog.get_logger(__name__)


class Checkpointer:
    """Runs SQLite's checkpoints of the file in a thread with its own connection.

    They copy the write-ahead log to the file, which takes long.
    """

    def __init__(self, path: Path) -> None:
        """Start the thread."""
        self._sql = connect(path, _CACHE_MIB)
        self._wanted = threading.Event()
        self.under_way = threading.Lock()
        """Held during a checkpoint."""
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"checkpoints of {path.name}", daemon=True)
        self._thread.start()

    def want(self) -> None:
        """Request a checkpoint, after a commit."""
        self._wanted.set()

    def stop(self) -> None:
        """Finish the current checkpoint, and end the thread."""
        self._stopped = True
        self._wanted.set()
        self._thread.join()
        self._sql.close()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._stopped:
                return
            try:
                with self.under_way:
                    self._sql.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            except sqlite3.Error:
                _log.warning("no checkpoint: the next one does it all", exc_info=True)


_PAGES_MIB = 64
"""Memory of SQLite's page cache."""


class Applied(NamedTuple):
    """How far `state.db` contains the log of one shard of a gateway."""

    epoch: int
    seq: int
    rules_version: int


class StateFile:
    """The state's connection. All methods belong to the owner thread."""

    def __init__(self, folder: Path, store_id: str) -> None:
        """Open or create `state.db`; if it belongs to another journal, delete its contents.

        Args:
            folder: of the store.
            store_id: of the journal.

        Raises:
            StagingVersionError: a newer version wrote it.
        """
        self.path = folder / STATE_FILE
        self.sql = connect(self.path, _PAGES_MIB)
        self.sql.execute("PRAGMA synchronous=NORMAL")
        self.sql.execute("PRAGMA wal_autocheckpoint=0").fetchall()
        migrate(self.sql, "sqlite/state", self.path)
        self._buckets = BucketNumbers(self.sql)
        self._rows = RowFile(self.sql)
        self._entries = EntryFile(self.sql, self._buckets, self._rows)
        self._forget()
        self._adopt(store_id)
        self._checkpointer = Checkpointer(self.path)

    def close(self) -> None:
        """Close the file; what was not committed is rebuilt from the journal."""
        self._checkpointer.stop()
        self.sql.close()

    def _adopt(self, store_id: str) -> None:
        found = self.sql.execute("SELECT store_id FROM store").fetchone()
        if found is None or found[0] != store_id:
            self.empty()
            self.sql.execute("INSERT OR REPLACE INTO store VALUES (1, ?)", (store_id,))

    def empty(self) -> None:
        """Delete everything, so that it is rebuilt."""
        for table in ("applied", "row_state", "row_body", "bucket", "entry"):
            self.sql.execute(f"DELETE FROM {table}")
        self._forget()

    def _forget(self) -> None:
        """Reset the transaction's flags: none is open."""
        self._whole = False
        self._begun = False
        self._mistrust()

    def _mistrust(self) -> None:
        """Clear caches of the file's contents, which may have been rolled back."""
        self._buckets.forget()
        self._rows.forget()

    @property
    def intact(self) -> bool:
        """Whether file and memory are consistent: SQLite ends a transaction by itself if the disk is full."""
        return self._whole and (self.sql.in_transaction or not self._begun)

    def _begin(self) -> None:
        if not self._begun:
            self.sql.execute("BEGIN IMMEDIATE")
            self._begun = True

    def commit(self, heads: Iterable[tuple[Head, int]]) -> None:
        """Commit the transaction with the applied seq of each changed head. The frozen layer must be complete.

        The commit survives a crash of the process. After a crash of the machine, the file may be at an earlier commit.
        """
        self._begin()
        self.sql.executemany(
            "INSERT OR REPLACE INTO applied VALUES (?, ?, ?, ?, ?)",
            [(head.gateway, head.shard, head.epoch, seq, head.config.rules_version) for head, seq in heads],
        )
        self.sql.execute("COMMIT")
        self._begun = False
        self._checkpointer.want()

    @contextmanager
    def without_checkpoints(self) -> Iterator[None]:
        """Keep the checkpointer from the file for the `with` block."""
        with self._checkpointer.under_way:
            yield

    def harden(self) -> None:
        """Make commits survive a crash of the machine."""
        file = os.open(f"{self.path}-wal", os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def rollback(self) -> None:
        """Roll back everything since the last commit; the state is not intact afterwards."""
        if self.sql.in_transaction:
            self.sql.execute("ROLLBACK")
        self._forget()

    def restart(self) -> None:
        """Begin at the last commit, to replay the journal."""
        self.rollback()
        self._whole = True

    def applied(self) -> dict[tuple[str, str], Applied]:
        """Return how far the file contains the log of each gateway and shard."""
        rows = self.sql.execute("SELECT gateway, shard, epoch, applied_seq, rules_version FROM applied")
        return {(gateway, shard): Applied(*rest) for gateway, shard, *rest in rows}

"""The file `state.db`: its transaction, how far it holds each gateway's log, and what makes it outlast what."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from lakesync.staging.head import Head
from lakesync.staging.sqlite.buckets import Buckets
from lakesync.staging.sqlite.checkpointer import Checkpointer
from lakesync.staging.sqlite.entry_file import EntryFile
from lakesync.staging.sqlite.files import STATE_FILE, connect, migrate
from lakesync.staging.sqlite.row_file import RowFile

_PAGES_MIB = 64
"""What SQLite may hold of the file."""


class Applied(NamedTuple):
    """How far `state.db` holds one shard of a gateway."""

    epoch: int
    seq: int
    rules_version: int


class StateFile:
    """The state's connection. All methods belong to the owner thread."""

    def __init__(self, folder: Path, store_id: str) -> None:
        """Open or make `state.db`; one that belongs to another journal is emptied.

        Raises:
            StagingVersionError: it was written by a newer version.
        """
        self.path = folder / STATE_FILE
        self.sql = connect(self.path, _PAGES_MIB)
        self.sql.execute("PRAGMA synchronous=NORMAL")
        self.sql.execute("PRAGMA wal_autocheckpoint=0").fetchall()
        migrate(self.sql, "sqlite/state", self.path)
        self._buckets = Buckets(self.sql)
        self._rows = RowFile(self.sql)
        self._entries = EntryFile(self.sql, self._buckets, self._rows)
        self._forget()
        self._adopt(store_id)
        self._checkpointer = Checkpointer(self.path)

    def close(self) -> None:
        """Release the file; what was not committed is made again from the journal."""
        self._checkpointer.stop()
        self.sql.close()

    def _adopt(self, store_id: str) -> None:
        found = self.sql.execute("SELECT store_id FROM store").fetchone()
        if found is None or found[0] != store_id:
            self.empty()
            self.sql.execute("INSERT OR REPLACE INTO store VALUES (1, ?)", (store_id,))

    def empty(self) -> None:
        """Forget everything, to be made again."""
        for table in ("applied", "row_state", "row_body", "bucket", "entry"):
            self.sql.execute(f"DELETE FROM {table}")
        self._forget()

    def _forget(self) -> None:
        """Nothing is in an open transaction."""
        self._whole = False
        self._begun = False
        self._mistrust()

    def _mistrust(self) -> None:
        """What is remembered of the file may have been taken back."""
        self._buckets.forget()
        self._rows.forget()

    @property
    def intact(self) -> bool:
        """Whether file and memory hold what they should: SQLite ends a transaction on its own when a disk is full."""
        return self._whole and (self.sql.in_transaction or not self._begun)

    def _begin(self) -> None:
        if not self._begun:
            self.sql.execute("BEGIN IMMEDIATE")
            self._begun = True

    def commit(self, heads: Iterable[tuple[Head, int]]) -> None:
        """End the transaction, with the applied seq of each head that moved. What is frozen must be written.

        Durable after a crash of the process; after one of the machine the file may be at an earlier commit.
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
        """While nothing but this connection touches the file: a checkpoint under way has ended, none begins."""
        with self._checkpointer.under_way:
            yield

    def harden(self) -> None:
        """Make what was committed outlast a crash of the machine."""
        file = os.open(f"{self.path}-wal", os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def rollback(self) -> None:
        """Give up everything since the last commit; not intact from here on."""
        if self.sql.in_transaction:
            self.sql.execute("ROLLBACK")
        self._forget()

    def restart(self) -> None:
        """Begin at the last commit, to be brought up to the journal."""
        self.rollback()
        self._whole = True

    def applied(self) -> dict[tuple[str, str], Applied]:
        """`(gateway, shard)` → what the file holds."""
        rows = self.sql.execute("SELECT gateway, shard, epoch, applied_seq, rules_version FROM applied")
        return {(gateway, shard): Applied(*rest) for gateway, shard, *rest in rows}

"""`SqliteStore`: a staging store (the database that pushes are committed to) on a folder of two SQLite files.

`staging.open_store` creates it for a `sqlite://` URL; the engine opens it, and gateways, the pipeline and `lakesync
staging` call its methods, which `staging.store` describes. `SqliteStore` creates the parts of the store, and submits
all calls as *jobs* (functions) to the thread that owns the files (`group.Owner`). `log.db`, the journal, has the
pushes. `state.db` has the rows that result from them, and feed entries, which say when a row joined and left a bucket
of the sync rules. It is written a little later (*write-behind*). The *log* is the part of `log.db` with one log row for
each push; after a crash, a *replay* of log rows computes the rows that `state.db` lacks. A *gateway* is one app's
stream of changes; a *shard* has some of its tables in a store of their own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from lakesync.model.errors import StagingUnavailableError
from lakesync.model.secrets import make_private_folder
from lakesync.staging.base_store import BaseStore
from lakesync.staging.head import MAIN_SHARD, Head
from lakesync.staging.notices import Listener, Notices
from lakesync.staging.pipeline_tables import PipelineTables
from lakesync.staging.records import LogSource
from lakesync.staging.sqlite.commit import SqliteCommit, SqliteView
from lakesync.staging.sqlite.file_copy import delete_copy
from lakesync.staging.sqlite.file_rewrite import Rewriter
from lakesync.staging.sqlite.files import LOG_FILE, STATE_FILE, OwnerLock, check_journal, check_no_rebuild
from lakesync.staging.sqlite.group import GroupCommit, Owner
from lakesync.staging.sqlite.journal import Journal
from lakesync.staging.sqlite.recovery import Recovery
from lakesync.staging.sqlite.state import State
from lakesync.staging.sqlite.write_behind import WriteBehind, WriteBehindLimits
from lakesync.staging.store import Commit, View
from lakesync.staging.store.push import Replayer

T = TypeVar("T")


class _Pipeline(PipelineTables):
    """What the data pipeline reads and writes in `log.db`.

    Only the thread that owns the store calls its methods. `PipelineTables` has the statements, which the Postgres store
    shares; `staging.store.pipeline` says what each method promises, and defines the terms.
    """

    def __init__(self, journal: Journal) -> None:
        """Use the store's journal, `log.db`, which is open."""
        self._journal = journal

    def writing(self) -> _Pipeline:
        """Prepare the file for a method that writes, and return this object; see `Journal.prepare_sql`."""
        self._journal.prepare_sql()
        return self

    def _query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._journal.sql.execute(statement, values).fetchall()

    def gateways(self) -> list[str]:
        """Return the ids of all gateways, sorted. The journal has the heads (counters) of all of them in memory."""
        return sorted(self._journal.heads)

    def _head(self, gateway: str) -> Head:
        return self._journal.head(gateway)

    def _set_head(self, head: Head) -> None:
        self._journal.set_head(head)

    def _now_ms(self) -> int:
        return self._journal.wall()


class _Opened:
    """The parts of an open store. Creating it locks the folder and opens the files; if that fails, all are closed."""

    def __init__(
        self,
        folder: Path,
        wall: Callable[[], int],
        replayer: Replayer,
        limits: WriteBehindLimits,
        notices: Notices,
        shard: str,
    ) -> None:
        make_private_folder(folder)
        with ExitStack() as opening:
            opening.callback(OwnerLock(folder).release)
            check_journal(folder)
            for name in (LOG_FILE, STATE_FILE):
                delete_copy(folder / name)
            self.journal = Journal(folder, wall, shard)
            opening.callback(self.journal.close)
            self.state = State(folder, self.journal.store_id)
            opening.callback(self.state.close)
            recovery = Recovery(self.journal, self.state, replayer)
            self.behind = WriteBehind(self.journal, self.state, recovery, limits)
            self.group = GroupCommit(self.journal, self.state, self.behind, notices)
            self.behind.recover_if_lost()
            self.pipeline = _Pipeline(self.journal)
            owner = self.owner = Owner(self.group, self.behind, f"staging {folder.name}", limits)
            self.rewriter = Rewriter(
                lambda run: owner.submit(lambda _: run(), writes=False).result(), self.behind.write
            )
            self._files = opening.pop_all()

    def close(self) -> None:
        self.rewriter.stop()
        self.owner.stop()
        self._files.close()


class SqliteStore(BaseStore):
    """A store with one owner process: it is locked while open. Methods may be called from any thread.

    The log, in `log.db`, is the journal from which rows and feed entries can be rebuilt. A push waits for `log.db`
    only; rows and feed entries follow within seconds. The ids of deltas are kept forever, 16 bytes each, so that a
    repeated push is recognised however old it is.
    """

    is_shared = False
    """No other process uses the store at the same time."""

    def __init__(
        self,
        folder: Path,
        wall: Callable[[], int],
        behind: WriteBehindLimits | None = None,
        shard: str = MAIN_SHARD,
    ) -> None:
        """Create the store; `open` opens its files.

        Args:
            folder: the store's folder, created if it is missing.
            wall: returns the server's wall time in milliseconds since 1970.
            behind: how many changes, and for how many seconds, may be in memory and not in `state.db`; None for the
                defaults.
            shard: name of the shard that the store serves; gateways created in it get this name.
        """
        self._shard = shard
        self._limits = behind or WriteBehindLimits()
        self.folder = folder
        self.wall = wall
        self._notices = Notices()
        self._opened: _Opened | None = None

    @property
    def _open(self) -> _Opened:
        """The parts of the open store; raises StagingUnavailableError before `open`."""
        if self._opened is None:
            raise StagingUnavailableError(f"the staging store {self.folder} is not open: call open first")
        return self._opened

    def open(self, replayer: Replayer) -> None:
        """Lock the folder, apply migrations, and replay the log rows that are not in `state.db` yet.

        Args:
            replayer: replays log rows; normally the engine.

        Raises:
            StagingVersionError: a newer LakeSync wrote the store.
            StagingUnavailableError: another process owns the folder, or it cannot be read.
            IntegrityError: `log.db` is missing, or `state.db` belongs to another store and cannot be rebuilt, because
                log bodies were trimmed.
        """
        if self._opened is not None:
            raise StagingUnavailableError(f"the staging store {self.folder} is open already")
        check_no_rebuild(self.folder)
        try:
            self._opened = _Opened(self.folder, self.wall, replayer, self._limits, self._notices, self._shard)
        except (OSError, sqlite3.Error) as exc:
            raise StagingUnavailableError(f"the staging folder {self.folder} cannot be opened: {exc}") from exc
        self._replayer = replayer
        self._finish_erasures()

    def close(self) -> None:
        """Run the submitted functions, write all rows to `state.db`, and unlock the folder; do nothing if not open."""
        if self._opened is not None:
            self._opened.close()

    def ensure_gateway(self, gateway: str) -> None:
        """Create a gateway, unless it exists. Its epoch (the wall time) identifies this store's copy of its data."""
        opened = self._open
        if gateway not in opened.journal.heads:
            self._write(lambda: opened.journal.ensure_gateway(gateway))

    def submit(self, gateway: str, job: Callable[[Commit], T]) -> Future[T]:
        """Run `job` in a commit; the future completes when the log contains it durably. See `StagingStore.submit`.

        A function that calls `run_alone` or `put_rules` runs twice: first in a group, which it leaves by an error that
        rolls it back, and then alone.

        Args:
            gateway: the gateway's id.
            job: the function to run, given the transaction.
        """
        opened = self._open
        return opened.owner.submit(
            lambda alone: job(
                SqliteCommit(opened.journal, opened.state, gateway, alone=alone, announcement=opened.group.announcement)
            ),
            writes=True,
            gateway=gateway,
        )

    def read(self, gateway: str, job: Callable[[View], T]) -> Future[T]:
        """Run `job` over a consistent view, between two groups; see `StagingStore.read`."""
        opened = self._open
        return opened.owner.submit(
            lambda _: job(SqliteView(opened.journal, opened.state, gateway)), writes=False, gateway=gateway
        )

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` for new visible commits, in the owner thread; return a function that removes it."""
        return self._notices.watch(listener)

    # -- the pipeline --------------------------------------------------------------------------------------------

    def trim(self, gateway: str, shard: str) -> int:
        """Delete the log bodies of confirmed batches, and return the freed bytes; see `PipelineStore.trim`.

        The rows are written to `state.db` first, because a row that is only in memory is rebuilt from the log body.
        """
        opened = self._open
        self._read(opened.behind.write)

        def trim() -> int:
            durable_seq = opened.behind.durable.get((gateway, shard), 0)  # up to here, rows are safe in `state.db`
            return opened.pipeline.writing().trim(gateway, shard, durable_seq)

        return self._write(trim)

    def log_source(self, shard: str = MAIN_SHARD) -> LogSource:  # noqa: ARG002 all shards are in one table
        """Return the address of `log.db` for SQLite's JDBC driver, read-only; see `PipelineStore.log_source`."""
        path = (self.folder / LOG_FILE).absolute()
        return LogSource(url=f"jdbc:sqlite:{path}", table="log", properties={"open_mode": "1", "busy_timeout": "10000"})

    def _now_ms(self) -> int:
        return self.wall()

    def _purge(self) -> None:
        """Rewrite both files, so that values that an erasure deleted are not left in free pages.

        `PRAGMA secure_delete` would leave fragments of deleted values in pages that were reused.
        """
        opened = self._open
        for file in (opened.journal, opened.state):
            opened.rewriter.rewrite(file)

    def _read_tables(self, run: Callable[[PipelineTables], T]) -> T:
        pipeline = self._open.pipeline
        return self._read(lambda: run(pipeline))

    def _write_tables(self, run: Callable[[PipelineTables], T]) -> T:
        pipeline = self._open.pipeline
        return self._write(lambda: run(pipeline.writing()))

    def _write(self, run: Callable[[], T]) -> T:
        """Run a function in the owner thread, in a transaction of `log.db`, and wait for it."""
        return self._open.owner.submit(lambda _: run(), writes=True).result()

    def _read(self, run: Callable[[], T]) -> T:
        """Run a function in the owner thread, outside of a transaction of `log.db`, and wait for it.

        It may write too, in transactions of its own.
        """
        return self._open.owner.submit(lambda _: run(), writes=False).result()

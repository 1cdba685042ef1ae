"""`StagingStore` on a folder of two SQLite files."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from lakesync.model.crash_points import crash_point
from lakesync.model.errors import StagingUnavailableError
from lakesync.model.private_files import make_private_folder
from lakesync.model.types import StoredConnector
from lakesync.staging.erasing import ErasingStore
from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.holding import HoldingStore
from lakesync.staging.notices import Listener, Notices
from lakesync.staging.records import Backlog, Batch, Cut, GatewayConfig, LedgerDay, LogSource
from lakesync.staging.sqlite.behind import Behind, WriteBehind
from lakesync.staging.sqlite.commit import SqliteCommit, SqliteView
from lakesync.staging.sqlite.drafts import check_no_draft
from lakesync.staging.sqlite.files import LOG_FILE, OwnerLock, check_journal
from lakesync.staging.sqlite.group import GroupCommit
from lakesync.staging.sqlite.journal import Journal
from lakesync.staging.sqlite.owner import Owner
from lakesync.staging.sqlite.pipeline import Pipeline
from lakesync.staging.sqlite.purging import purge
from lakesync.staging.sqlite.recovery import Recovery
from lakesync.staging.sqlite.state import State
from lakesync.staging.store import Commit, Replayer, View

T = TypeVar("T")


class _Opened:
    """What an open store is made of."""

    def __init__(
        self,
        folder: Path,
        wall: Callable[[], int],
        replayer: Replayer,
        behind: WriteBehind,
        notices: Notices,
        shard: str,
    ) -> None:
        make_private_folder(folder)
        with ExitStack() as opening:
            opening.callback(OwnerLock(folder).release)
            check_journal(folder)
            self.journal = Journal(folder, wall, shard)
            opening.callback(self.journal.close)
            self.state = State(folder, self.journal.store_id)
            opening.callback(self.state.close)
            recovery = Recovery(self.journal, self.state, replayer)
            self.behind = Behind(self.journal, self.state, recovery, behind)
            self.group = GroupCommit(self.journal, self.state, self.behind, notices)
            self.behind.ensure()
            self.pipeline = Pipeline(self.journal)
            self.owner = Owner(self.group, self.behind, f"staging {folder.name}", behind)
            self._files = opening.pop_all()

    def close(self) -> None:
        self.owner.stop()
        self._files.close()


class SqliteStore(ErasingStore, HoldingStore):
    """A store with one owner process, whose log is the journal.

    An answer waits for `log.db` alone; rows and feed entries follow within seconds and are made again from the log
    after a crash. Ids are kept for good, 16 bytes a delta, so a repeat is known however old it is.
    """

    shared = False

    def __init__(
        self,
        folder: Path,
        wall: Callable[[], int],
        behind: WriteBehind | None = None,
        shard: str = MAIN_SHARD,
    ) -> None:
        """Args:
        folder: made when it is not there.
        wall: the server's clock in milliseconds.
        shard: what the streams of new gateways are called.
        """
        self._shard = shard
        self._behind = behind or WriteBehind()
        self._folder = folder
        self._wall = wall
        self._notices = Notices()
        self._opened: _Opened | None = None

    @property
    def _open(self) -> _Opened:
        if self._opened is None:
            raise StagingUnavailableError(f"the staging store {self._folder} is not open: call open first")
        return self._opened

    def open(self, replayer: Replayer) -> None:
        """Take ownership of the folder, apply migrations, replay what the last owner left.

        Raises:
            StagingVersionError: the store was written by a newer version.
            StagingUnavailableError: it has another owner, or cannot be read.
            IntegrityError: `state.db` is not this store's and bodies were trimmed, or `log.db` is gone.
        """
        if self._opened is not None:
            raise StagingUnavailableError(f"the staging store {self._folder} is open already")
        check_no_draft(self._folder)
        try:
            self._opened = _Opened(self._folder, self._wall, replayer, self._behind, self._notices, self._shard)
        except (OSError, sqlite3.Error) as exc:
            raise StagingUnavailableError(f"the staging folder {self._folder} cannot be opened: {exc}") from exc
        self._replayer = replayer
        self._finish_erasures()

    def close(self) -> None:
        """Finish what was submitted, write behind, release the folder; nothing when it is not open."""
        if self._opened is not None:
            self._opened.close()

    def ensure_gateway(self, gateway: str) -> None:
        """Make a gateway with a new epoch; nothing when it exists."""
        opened = self._open
        if gateway not in opened.journal.heads:
            self._write(lambda: opened.journal.ensure_gateway(gateway))

    def submit(self, gateway: str, work: Callable[[Commit], T]) -> Future[T]:
        """Run `work` in a commit; the future ends once the journal holds it.

        Work that calls `put_rules` is run twice: first in a group, then alone.
        """
        opened = self._open
        return opened.owner.submit(
            lambda alone: work(
                SqliteCommit(opened.journal, opened.state, gateway, alone=alone, announcement=opened.group.announcement)
            ),
            writes=True,
            gateway=gateway,
        )

    def read(self, gateway: str, work: Callable[[View], T]) -> Future[T]:
        """Run `work` over a consistent view, between two groups."""
        opened = self._open
        return opened.owner.submit(
            lambda _: work(SqliteView(opened.journal, opened.state, gateway)), writes=False, gateway=gateway
        )

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` of new visible arrivals, in the owner thread; what is returned ends that."""
        return self._notices.watch(listener)

    # -- the pipeline --------------------------------------------------------------------------------------------

    def gateways(self) -> list[str]:
        """Every gateway id of the store."""
        return self._read(lambda: sorted(self._open.journal.heads))

    def backlog(self) -> list[Backlog]:
        """What waits, shard by shard."""
        return self._read(self._open.pipeline.backlog)

    def gateway_config(self, gateway: str) -> GatewayConfig:
        """Schemas and rules of a gateway."""
        return self._read(lambda: self._open.journal.head(gateway).config)

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """The connectors registered at run time."""
        return self.read(gateway, lambda view: view.connectors()).result()

    def plan(
        self, gateway: str, shard: str, max_deltas: int, through: int | None = None, since: int | None = None
    ) -> Batch | None:
        """The open batch, or a new one, durable before it is returned."""
        return self._write(lambda: self._open.pipeline.plan(gateway, shard, max_deltas, through, since))

    def confirm(self, batch_id: str, deltas: int, id_sum: int, snapshot_id: int | None = None) -> None:
        """Record that the lake was read and holds the batch."""
        self._write(lambda: self._open.pipeline.confirm(batch_id, deltas, id_sum, snapshot_id))

    def trim(self, gateway: str, shard: str) -> int:
        """Drop the bodies of confirmed batches, once they are written behind."""
        opened = self._open
        self._read(opened.behind.write)
        crash_point("staging.before_trim")
        return self._write(lambda: opened.pipeline.trim(gateway, shard, opened.behind.durable.get((gateway, shard), 0)))

    def ledger(self, gateway: str) -> list[LedgerDay]:
        """Every arrival day that the gateway ever had."""
        return self._read(lambda: self._open.pipeline.ledger(gateway))

    def request_flush(self, gateway: str) -> None:
        """Make the next `backlog` say that a flush was asked for, where anything waits."""
        self._write(lambda: self._open.pipeline.request_flush(gateway))

    def publish_cut(self, cut: Cut) -> bool:
        """Publish a cut whole."""
        return self._write(lambda: self._open.pipeline.publish_cut(cut))

    def newest_cut(self, gateway: str) -> Cut | None:
        """The newest published cut."""
        return self._read(lambda: self._open.pipeline.newest_cut(gateway))

    def marks(self) -> dict[str, str]:
        """Return the stored marks."""
        return self._read(self._open.pipeline.marks)

    def put_mark(self, name: str, body: str) -> None:
        """Store a mark."""
        self._write(lambda: self._open.pipeline.put_mark(name, body))

    def log_source(self, shard: str = MAIN_SHARD) -> LogSource:  # noqa: ARG002 all of them stand in one table
        """`log.db`, for SQLite's JDBC driver, opened for reading alone."""
        path = (self._folder / LOG_FILE).absolute()
        return LogSource(url=f"jdbc:sqlite:{path}", table="log", properties={"open_mode": "1", "busy_timeout": "10000"})

    def _now_ms(self) -> int:
        return self._wall()

    def _purge(self) -> None:
        opened = self._open
        self._read(lambda: purge(opened.journal, opened.state, opened.behind))

    def _write(self, run: Callable[[], T]) -> T:
        return self._open.owner.submit(lambda _: run(), writes=True).result()

    def _read(self, run: Callable[[], T]) -> T:
        return self._open.owner.submit(lambda _: run(), writes=False).result()

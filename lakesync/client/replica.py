"""A client's database and the core over it: each step of the core is one transaction, on a connection of its own.

Whoever only looks does so on another one: a step may wait for the app's transaction, within which the app looks.

What the app wrote meanwhile, on whatever connection, is recorded first, in the same transaction: no page is ever
applied over a write that the core does not know.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from lakesync.client.core import Changes, ClientCore, CoreLimits, Edit, Mode, RetryPolicy, Wait
from lakesync.client.core.messages import Answer, Request
from lakesync.client.database import connect, fault, reader
from lakesync.client.errors import DbError
from lakesync.client.queues import QueueItem, QueueLink, SyncQueue
from lakesync.client.store_sqlite import SqliteClientStore, stored_position
from lakesync.client.tracking import Tracking
from lakesync.model.errors import ConfigurationError, IntegrityError, LakeSyncError
from lakesync.model.hlc import wall_clock, wall_of
from lakesync.model.schema import ColumnType, TableSchema
from lakesync.model.types import SyncResponse
from lakesync.wire.json import decode_deltas

T = TypeVar("T")
log = logging.getLogger("lakesync.client")

AT_ONCE = 5000
"""Rows recorded in one transaction."""
_CLOSING_MS = 500
"""How long closing waits while another connection writes."""
_PRAGMAS = ("PRAGMA cache_size = -32000", "PRAGMA wal_autocheckpoint = 8000", "PRAGMA threads = 1")


class SyncThread(threading.Thread):
    """A thread that waits where the app writes; the app's own threads would wait for themselves."""


class Replica:
    """Threads may share it; one at a time is let in."""

    def __init__(
        self,
        path: Path,
        client_id: str,
        schemas: Iterable[TableSchema],
        *,
        gateway: str = "",
        mode: Mode = "full",
        limits: CoreLimits | None = None,
        retry: RetryPolicy | None = None,
        queue: SyncQueue | None = None,
        wall: Callable[[], int] | None = None,
    ) -> None:
        """Open the database and take up where it stands.

        Args:
            queue: follows the changes that are kept here, and says what is sent next.
            gateway: with which one it is kept in step; empty where nobody knows.
            wall: milliseconds; without it edits are stamped with the moment at which they were written.

        Raises:
            ConfigurationError: the database is another client's or gateway's, or a table in it cannot be used.
            SchemaError: a table has a column of another type.
            DbError: the database cannot be written now.
        """
        self._lock = threading.RLock()
        self._looking = threading.Lock()
        self._stepping: int | None = None
        """The thread that is within a step."""
        self._stamped = wall is None
        self.app_writes: Callable[[], bool] = lambda: False
        """Whether the app has a transaction open on its own connection, that this thread would wait for."""
        self.check_open: Callable[[], None] = lambda: None
        """Raises where the app's database was closed, or opened by the process that this one was forked from."""
        self._live = False
        self._client_id = client_id
        self.limits = limits or CoreLimits()
        self.retry = retry or RetryPolicy()
        self._wall = wall or wall_clock
        self.path = path
        self.mode: Mode = mode
        self.db = connect(path, autocommit=True)
        for pragma in _PRAGMAS:
            self.db.execute(pragma)
        try:
            stored_position(self.db).claimed(client_id, gateway)  # before tables are made and their rows taken over
            self.store = SqliteClientStore(self.db, schemas)
            self._claim(gateway)
            if queue is not None:
                self.store.link = QueueLink(queue)
                self.store.link.reconcile(self.store.edits())
            self._core = self._make_core()
            if self.store.remade():
                self.step(self._mend)
            self._looks = reader(path)
        except sqlite3.Error as error:
            self.db.close()
            raise DbError(f"{path} cannot be used now: {error}") from error
        except BaseException:
            self.db.close()
            raise

    @property
    def core(self) -> ClientCore:
        """The core, to look at; `step` changes it."""
        return self._core

    def step(self, work: Callable[[ClientCore], T]) -> T:
        """Do something with the core, after recording what the app wrote; all of it in one transaction.

        Raises:
            DbError: the database cannot be written now; nothing was changed.
            TableError: the app's own table cannot take it; nothing was changed.
            ConfigurationError: as for `check_ready`.
        """
        self.check_ready()
        with self._lock:
            try:
                while self._record_some():
                    pass
                with self._writing():
                    while self._record():  # all of it: more may have been written while this waited to begin
                        pass
                    self._stepping = threading.get_ident()
                    return work(self._core)
            except sqlite3.Error as error:
                self._core = self._make_core()
                raise fault(error, "the client's database") from error
            except BaseException:
                self._core = self._make_core()  # what it knows may have been undone
                raise
            finally:
                self._stepping = None

    def check_ready(self) -> None:
        """Refuse what would wait for itself, or use what is not there any more.

        Raises:
            ConfigurationError: the app has a transaction open, or the database was closed, or opened before a fork.
        """
        self.check_open()
        if not isinstance(threading.current_thread(), SyncThread) and self.app_writes():
            raise ConfigurationError("a transaction is open on db.conn: commit it or roll it back first")

    def next_request(self) -> Request | Wait:
        """What to ask the gateway now.

        Raises:
            TableError: what the app writes to one of its tables is no longer tracked.
        """

        def work(core: ClientCore) -> Request | Wait:
            if self.store.check_tracked():
                self._mend(core)
            return core.next_request()

        return self.step(work)

    def receive(self, answer: Answer) -> Changes:
        """Take in what it said. Rows that were taken away past the triggers are asked for anew."""
        with self._lock, self._lasting(answer):
            try:
                return self.step(lambda core: core.receive(answer))
            except IntegrityError:
                self.step(self._mend)
                return Changes()

    def resync(self) -> None:
        """Ask for everything anew; rows and edits stay meanwhile."""
        self.step(self._mend)

    def edits(self) -> list[Edit]:
        """Everything that the gateway is not known to have."""
        return self.step(lambda core: core.edits())

    def read(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query: of what was committed; within a step, of what it did too.

        Raises:
            ConfigurationError: the database was closed, or opened before a fork.
        """
        with self._look() as db:
            return db.execute(statement, parameters).fetchall()

    def entered(self, limit: int) -> list[QueueItem]:
        """What a custom queue holds besides the client's own changes, as far as it is to be sent next."""
        link = self.store.link
        if link is None:
            return []

        def work(core: ClientCore) -> list[QueueItem]:
            link.reconcile(core.edits())
            return link.entered(limit)

        return self.step(work)

    def tables(self) -> list[str]:
        """The tables that are synchronised."""
        return list(self.store.schemas)

    def types(self) -> dict[str, dict[str, ColumnType]]:
        """The columns of each table, and what they hold."""
        return {table: schema.types for table, schema in self.store.schemas.items()}

    def unrecorded(self) -> int:
        """How many rows the app wrote to since it was last looked."""
        with self._look() as db:
            return Tracking(db, self.store.schemas).count()

    def oldest_unsent(self) -> int | None:
        """When the oldest change that waits was made, in milliseconds on this machine's clock."""
        with self._look() as db:
            moments = [Tracking(db, self.store.schemas).oldest()]
        for status in ("sent", "waiting"):
            first = "SELECT delta FROM _lakesync_edits WHERE status = ? ORDER BY number LIMIT 1"
            for (body,) in self.read(first, (status,)):
                moments += [wall_of(delta.hlc) for delta in decode_deltas(body)]
        return min((moment for moment in moments if moment is not None), default=None)

    def waits_for_answer(self) -> bool:
        """Whether the core has asked something that was not answered."""
        return self._core.asking

    def line_opened(self) -> None:
        """The gateway may broadcast from now on."""
        with self._lock:
            self._live = True
            self.step(lambda core: core.connected())

    def line_closed(self) -> None:
        """It no longer does."""
        with self._lock:
            self._live = False
            self.step(lambda core: core.disconnected())

    def version(self) -> int:
        """A number that is another one once anybody wrote to the database."""
        with self._lock:
            return int(self.db.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        """Close the connection, after a last look: what is written to a remade table later is tracked."""
        with self._lock, self._looking:
            self._look_again()
            self.db.close()
            self._looks.close()

    @contextmanager
    def _look(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees what was committed; within a step, what it did too."""
        self.check_open()
        if self._stepping == threading.get_ident():
            yield self.db
            return
        with self._looking:
            yield self._looks

    @contextmanager
    def _lasting(self, answer: Answer) -> Iterator[None]:
        """A page that others follow is not waited for until it is on the disk, as the commit after them is.

        It outlives the process like any other. A power cut takes the newest of such commits back, cursor and all, and
        they are asked for again.
        """
        more = isinstance(answer, SyncResponse) and answer.has_more
        if more:
            self.db.execute("PRAGMA synchronous = NORMAL")
        try:
            yield
        finally:
            if more:
                self.db.execute("PRAGMA synchronous = FULL")

    def _claim(self, gateway: str) -> None:
        """From now on the database is this client's, and kept in step with this gateway."""
        with self.store.transaction():
            position = self.store.position()
            claimed = position.claimed(self._client_id, gateway)
            if claimed != position:
                self.store.commit(Changes(position=claimed))

    def _make_core(self) -> ClientCore:
        core = ClientCore(
            self.store, self._client_id, mode=self.mode, limits=self.limits, retry=self.retry, wall=self._wall
        )
        if self._live:
            core.connected()
        return core

    def _record_some(self) -> bool:
        """Record as much as one transaction should hold, where more than that waits."""
        if self.store.tracking.count() <= AT_ONCE:
            return False
        with self._writing():
            self._record()
        return True

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction; in it nobody else writes, and what others wrote before is known."""
        with self.store.transaction():
            self._core.look_up()
            yield

    def _record(self) -> bool:
        """Record what one transaction should hold; whether there may be more."""
        touched = self.store.tracking.touched(AT_ONCE)
        if touched:
            changes = touched if self._stamped else [change._replace(at=None) for change in touched]
            self._core.record(changes, applied=True)
            self.store.tracking.forget(touched)
        if len(touched) == AT_ONCE:
            return True
        self.store.tracking.forget_unwritten()
        return False

    def _mend(self, core: ClientCore) -> None:
        """Have remade tables show the changes that wait, and ask for everything anew."""
        self.store.forget_missing()
        if remade := set(self.store.remade()):
            core.repaint([key for key in self.store.edited() if key[0] in remade])
            self.store.refilled()
        core.resync()

    def _look_again(self) -> None:
        """Track tables again that the app has remade, as opening does, unless the file cannot be written now."""
        try:
            self.db.execute(f"PRAGMA busy_timeout = {_CLOSING_MS}")
            with self._writing():
                if not self.store.track_again():
                    return
                self._core = self._make_core()  # whatever was asked is not answered any more
                while self._record():
                    pass
                self._mend(self._core)
        except (LakeSyncError, sqlite3.Error) as error:
            log.warning("%s is closed with remade tables, which the next opening mends: %s", self.path, error)

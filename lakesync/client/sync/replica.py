"""The replica: the app's database with the core that synchronises it. Each step of the core is one transaction.

`SyncCoordinator` creates the replica; the other modules of `sync` read and change the database through it. The core
(`lakesync.client.core`) is a state machine that decides what to push and pull, and applies responses. An *edit* is a
change by the app that the gateway has not acknowledged. A step first turns what the app has written, on any connection,
into edits, in the same transaction. So no page of the gateway is ever applied over a write that the core does not know.
Reads use a second connection, because a step may have to wait for a transaction of the app in which the app itself
reads. A *full pull*, or *resync*, fetches all rows again and removes those that the gateway does not name.
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
from lakesync.client.core.messages import Broadcast, Request, Response
from lakesync.client.errors import DbError
from lakesync.client.queues import SyncQueue
from lakesync.client.sqlite.change_tracking import ChangeTracking
from lakesync.client.sqlite.client_store import SqliteClientStore, stored_position
from lakesync.client.sqlite.database import connect, connect_read_only, database_error
from lakesync.model.errors import ConfigurationError, IntegrityError, LakeSyncError
from lakesync.model.hlc import wall_clock, wall_of
from lakesync.model.schema import ColumnType, TableSchema
from lakesync.model.types import SyncResponse
from lakesync.wire.json import decode_deltas

T = TypeVar("T")
log = logging.getLogger("lakesync.client")

RECORDED_TOGETHER = 5000
"""Written rows that one transaction turns into edits, at most."""
_CLOSING_MS = 500
"""Milliseconds that `close` waits while another connection writes."""
_PRAGMAS = ("PRAGMA cache_size = -32000", "PRAGMA wal_autocheckpoint = 8000", "PRAGMA threads = 1")
"""32 MB of cache; the WAL is copied into the file every 8,000 pages; sorting may use a second thread."""


class SyncThread(threading.Thread):
    """The class of auto-sync's thread. It may wait for a transaction of the app; the app's threads must not."""


class Replica:
    """A client's database and core. Thread-safe: one thread at a time runs a step.

    `store` has the client's durable state, in tables beside the app's. `store.tracking` is the change tracking:
    triggers write every row that the app changes into a journal in the file. A *recreated* table is one that the app
    dropped and created again, by which it lost its triggers.
    """

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
        """Open the database, and continue from the cursor and clocks that are stored in it.

        Args:
            path: the app's database file.
            client_id: this client's id.
            schemas: schemas of the synced tables, in addition to those stored in the file.
            gateway: the gateway's id; empty if the transport does not know it.
            mode: `full` (push and pull), `pushOnly` or `pullOnly`.
            limits: the largest push and page; None for the defaults.
            retry: delays and attempts after failures; None for the defaults.
            queue: an app's own queue, which is notified of all edits and chooses the next ones to push.
            wall: returns milliseconds since 1970, for tests. None: the system's clock, and an edit is stamped with the
                time at which the app wrote it.

        Raises:
            ConfigurationError: the database belongs to another client or gateway, or a table cannot be synchronised.
            SchemaError: a schema changes a column's type.
            DbError: the database cannot be written now.
        """
        self._lock = threading.RLock()
        """Held during a step."""
        self._read_lock = threading.Lock()
        """Held while `_read_connection` is used."""
        self._step_thread: int | None = None
        """The id of the thread that runs a step."""
        self._uses_write_times = wall is None
        """Whether edits are stamped with the times at which the app wrote them."""
        self.app_blocks_this_thread: Callable[[], bool] = lambda: False
        """Returns whether the app has an open transaction that cannot end while this thread waits for it."""
        self.check_open: Callable[[], None] = lambda: None
        """Raises if the app's database is closed, or was opened before a fork. The coordinator sets both functions."""
        self._has_subscription = False
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
            stored_position(self.db).bound_to(client_id, gateway)  # raises before any table is created or changed
            self.store = SqliteClientStore(self.db, schemas)
            self._bind(gateway)
            if queue is not None:
                self.store.edit_table.link_queue(queue)
            self._core = self._create_core()
            if self.store.recreated_tables():
                self.step(self._resync)
            self._read_connection = connect_read_only(path)
        except sqlite3.Error as error:
            self.db.close()
            raise DbError(f"{path} cannot be used now: {error}") from error
        except BaseException:
            self.db.close()
            raise

    @property
    def core(self) -> ClientCore:
        """The core. Read it at any time; call methods that change it only in a `step`."""
        return self._core

    def step(self, function: Callable[[ClientCore], T]) -> T:
        """Record the app's writes, then call a function with the core, all in one transaction.

        Args:
            function: called with the core; it may also read and write `store`.

        Returns:
            The function's result.

        Raises:
            DbError: the database cannot be written now; nothing was changed.
            TableError: a table of the app rejects a row; nothing was changed.
            ConfigurationError: the app has an open transaction, or the database is closed or was opened before a fork.
        """
        self.check_usable()
        with self._lock:
            pending = self._core.pending_request
            try:
                while self._record_full_chunk():
                    pass
                with self._transaction():
                    while self._record():  # the app may have written more before this transaction began
                        pass
                    self._step_thread = threading.get_ident()
                    return function(self._core)
            except sqlite3.Error as error:
                self._replace_core(pending)
                raise database_error(error, "the client's database") from error
            except BaseException:
                self._replace_core(pending)
                raise
            finally:
                self._step_thread = None

    def record(self) -> int:
        """Turn what the app has written so far into edits. Raises as `step` does.

        Returns:
            The number of the newest edit.
        """
        return self.step(lambda core: core.edit_count)

    def check_usable(self) -> None:
        """Check that a step would not use a closed database, or wait for its own thread.

        Raises:
            ConfigurationError: the app has an open transaction, or the database is closed or was opened before a fork.
        """
        self.check_open()
        if not isinstance(threading.current_thread(), SyncThread) and self.app_blocks_this_thread():
            raise ConfigurationError("a transaction is open on db.conn: commit it or roll it back first")

    def next_request(self, last_edit: int | None = None) -> Request | Wait:
        """Return the core's next request. Raises as `step` does.

        Args:
            last_edit: number of the last edit that belongs to this synchronisation; None if it has no last one.

        Raises:
            TableError: a table has lost its triggers, so that changes are no longer tracked.
        """

        def request(core: ClientCore) -> Request | Wait:
            if self.store.has_recreated_tables_after_schema_change():
                self._resync(core)
            return core.next_request(last_edit)

        return self.step(request)

    def receive(self, response: Response) -> Changes:
        """Pass a response to the core, and return the committed changes. Raises as `step` does.

        If the database contradicts its records, as after rows were deleted without the triggers, the response is
        discarded and a full pull starts. The response to a request that is no longer pending, because a full pull has
        started meanwhile, is discarded too.
        """

        def receive(core: ClientCore) -> Changes:
            is_expected = core.has_pending_request or isinstance(response, Broadcast)
            return core.receive(response) if is_expected else Changes()

        with self._lock, self._relaxed_durability(response):
            try:
                return self.step(receive)
            except IntegrityError:
                self._replace_core(None)
                self.step(self._resync)
                return Changes()
            except BaseException:
                if not isinstance(response, Broadcast):  # the response is lost, and the request is repeated
                    self._replace_core(None)
                raise

    def resync(self) -> None:
        """Start a full pull; rows and edits are kept meanwhile."""
        self.step(self._resync)

    def edits(self) -> list[Edit]:
        """Return all edits."""
        return self.step(lambda core: core.edits())

    def read(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a query on committed data; within a step, also on what the step has written.

        Args:
            statement: a statement that returns rows.
            parameters: values for its placeholders.

        Raises:
            ConfigurationError: the database is closed, or was opened before a fork.
        """
        with self._reader() as db:
            return db.execute(statement, parameters).fetchall()

    def tables(self) -> list[str]:
        """Return the names of the synced tables."""
        return list(self.store.schemas)

    def types(self) -> dict[str, dict[str, ColumnType]]:
        """Return the column types of each synced table."""
        # a copy, as in the methods below: a step of another thread may add a table meanwhile
        return {table: schema.types for table, schema in dict(self.store.schemas).items()}

    def unrecorded_count(self) -> int:
        """Return the number of rows that the app has written and that no step has turned into edits yet."""
        with self._reader() as db:
            return ChangeTracking(db, dict(self.store.schemas)).count()

    def oldest_unacknowledged_at(self) -> int | None:
        """Return when the oldest unacknowledged change was made, in milliseconds of this machine's clock.

        Refused changes do not count. None if every change is acknowledged.
        """
        with self._reader() as db:
            times = [ChangeTracking(db, dict(self.store.schemas)).oldest_change_at()]
        for status in ("sent", "waiting"):
            oldest = "SELECT delta FROM _lakesync_edits WHERE status = ? ORDER BY number LIMIT 1"
            for (body,) in self.read(oldest, (status,)):
                times += [wall_of(delta.hlc) for delta in decode_deltas(body)]
        return min((time for time in times if time is not None), default=None)

    def subscription_opened(self) -> None:
        """Record in the core that a subscription (a WebSocket) is open, on which the gateway can send changes."""
        with self._lock:
            self._has_subscription = True
            self.step(lambda core: core.connection_opened())

    def subscription_closed(self) -> None:
        """Record in the core that the subscription is closed."""
        with self._lock:
            self._has_subscription = False
            self.step(lambda core: core.connection_closed())

    def data_version(self) -> int:
        """Return a number that changes when another connection commits to the database."""
        with self._lock:
            return int(self.db.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        """Close the connections. Tables that the app has recreated get triggers first, so that later writes count."""
        with self._lock, self._read_lock:
            self._track_recreated_tables()
            self.db.close()
            self._read_connection.close()

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection for reading; within a step, the step's own."""
        self.check_open()
        if self._step_thread == threading.get_ident():
            yield self.db
            return
        with self._read_lock:
            yield self._read_connection

    @contextmanager
    def _relaxed_durability(self, response: Response) -> Iterator[None]:
        """Commit a page without waiting for the disk if more pages follow; the commit of the last page waits.

        A killed process loses nothing. A power cut undoes the newest of these commits with their cursors, and their
        pages are pulled again.
        """
        more_pages_follow = isinstance(response, SyncResponse) and response.has_more
        if more_pages_follow:
            self.db.execute("PRAGMA synchronous = NORMAL")
        try:
            yield
        finally:
            if more_pages_follow:
                self.db.execute("PRAGMA synchronous = FULL")

    def _bind(self, gateway: str) -> None:
        """Store the client and the gateway that the database belongs to."""
        with self.store.transaction():
            position = self.store.position()
            bound = position.bound_to(self._client_id, gateway)
            if bound != position:
                self.store.commit(Changes(position=bound))

    def _replace_core(self, pending: Request | None) -> None:
        """Replace the core after a failed step, because it may hold state that was rolled back.

        Args:
            pending: the pending request before the step. Its response is still expected, unless the step changed it.
                None if the request must be repeated.
        """
        failed, self._core = self._core, self._create_core()
        self._core.take_over(failed, pending)

    def _create_core(self) -> ClientCore:
        """Return a core that continues from the stored position, without a pending request."""
        core = ClientCore(
            self.store, self._client_id, mode=self.mode, limits=self.limits, retry=self.retry, wall=self._wall
        )
        if self._has_subscription:
            core.connection_opened()
        return core

    def _record_full_chunk(self) -> bool:
        """If the journal has more rows than RECORDED_TOGETHER, make edits of that many, and return True."""
        if self.store.tracking.count() <= RECORDED_TOGETHER:
            return False
        with self._transaction():
            self._record()
        return True

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run a transaction, after reading the schemas and position that another client of the file may have stored."""
        with self.store.transaction():
            self.store.reload_schemas()
            self._core.reload()
            yield

    def _record(self) -> bool:
        """Turn rows of the change journal into edits; return whether the journal may have more."""
        journalled = self.store.tracking.read_journal(RECORDED_TOGETHER)
        if journalled:
            changes = journalled if self._uses_write_times else [change._replace(at=None) for change in journalled]
            self._core.record(changes, applied=True)
            self.store.tracking.remove(journalled)
        if len(journalled) == RECORDED_TOGETHER:
            return True
        self.store.tracking.remove_unwritten()  # rows that the triggers journalled before a write that did not happen
        return False

    def _resync(self, core: ClientCore) -> None:
        """Write the rows with edits into recreated tables again, and start a full pull, which fetches the others."""
        self.store.forget_missing()
        if recreated := set(self.store.recreated_tables()):
            core.refresh_rows([key for key in self.store.edit_table.edited_rows() if key[0] in recreated])
            self.store.clear_recreated()
        core.resync()

    def _track_recreated_tables(self) -> None:
        """Create the triggers of recreated tables, as opening the file does; only log a warning if that fails."""
        try:
            self.db.execute(f"PRAGMA busy_timeout = {_CLOSING_MS}")
            with self._transaction():
                if not self.store.track_recreated_tables():
                    return
                self._core = self._create_core()  # a pending request will get no response
                while self._record():
                    pass
                self._resync(self._core)
        except (LakeSyncError, sqlite3.Error) as error:
            log.warning("%s was closed with recreated tables; opening it again repairs them: %s", self.path, error)

"""Whole synchronisations, one at a time: push, pull, send actions, adopt new columns, and call the app's listeners.

The core (`lakesync.client.core`) is a state machine that decides which request comes next: a push of the app's changes,
or a pull of a page of other clients' changes. A session sends its requests with an `Exchange`, which passes the
responses to the core. `SyncCoordinator` calls a session for the app, and `AutoSync` calls it in its thread.
`ActionSender` sends the queued actions, which are requests that the gateway executes once in an external system.
`SchemaSynchroniser` adds columns that the gateway's schemas have and the app's tables lack; apps may call it too. The
replica is the app's database with the core. An edit is a change of the app that the gateway has not acknowledged; it is
*refused* if the gateway rejected it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from msgspec.structs import replace

from lakesync.client.core import ClientCore, NoResponse, Wait
from lakesync.client.core.store import Edit
from lakesync.client.errors import UnreachableError
from lakesync.client.queues import SyncQueue
from lakesync.client.sqlite.database import SyncLock
from lakesync.client.status import EventListeners, SyncReport
from lakesync.client.sync.exchange import CycleResult, Exchange
from lakesync.client.sync.outbox import ActionQueue
from lakesync.client.sync.replica import Replica
from lakesync.client.transports.base import ActionTransport, SchemaTransport, SyncTransport
from lakesync.model.errors import (
    ConfigurationError,
    ForbiddenError,
    LakeSyncError,
    NotFoundError,
    RejectedError,
    Rejection,
    SchemaError,
)
from lakesync.model.schema import TableSchema
from lakesync.model.types import Action, ActionFailure, ActionPush, ActionResult, RowDelta, SyncPush

SCHEMA_INTERVAL = 60.0
"""Seconds between two requests of auto-sync for the schemas of tables whose schema refused an edit."""
CLOSE_TIMEOUT = 0.5
"""Seconds that closing waits for the request in progress before it cancels it."""
_POSTPONING_CODES = ("AUTH_ERROR", "NOT_FOUND")
"""Codes of errors after which all actions stay queued: a rejected token, or an unknown gateway."""


class SyncSession:
    """The steps of a synchronisation, for the app's threads and for auto-sync; one runs at a time.

    Within `foreground` (for the app) or `exclusive` (for auto-sync), the caller calls `repeat_interrupted_request`,
    `send_all`, `action_sender.send_due` and, at last, `finish`.
    """

    def __init__(
        self, replica: Replica, transport: SyncTransport, actions: ActionQueue, listeners: EventListeners
    ) -> None:
        """Create a session; no request is sent yet.

        Args:
            replica: the database and its state machine, which the session synchronises.
            transport: sends requests to the gateway; `close` closes it.
            actions: the queued actions.
            listeners: the app's listeners of events.
        """
        self.replica = replica
        self.transport = transport
        self.exchange = Exchange(replica, transport, lambda progress: listeners.emit("onProgress", progress))
        self.action_sender = ActionSender(actions, transport, replica.core.client_id, listeners)
        self.last_sync: float | None = None
        """When the client last had everything that the gateway had, in seconds since 1970; None: not yet."""
        self.last_error: LakeSyncError | None = None
        """The newest failure; None after a later success."""
        self.had_contact = False
        """Whether a synchronisation that sent or received something has ended, with or without success."""
        self._listeners = listeners
        self._schemas = SchemaSynchroniser(replica)
        self._knows_schemas = False
        """Whether the gateway's newest schemas were adopted."""
        self._cancel_lock = threading.Lock()
        """Held while `_cancellations` is changed."""
        self._next_schema_check = 0.0
        """When auto-sync may request the schemas of tables with refused edits again, on the monotonic clock."""
        self._lock = threading.RLock()
        """Held during a synchronisation, so that other threads wait for its end."""
        self.is_foreground = False
        """Whether the synchronisation in progress was started by the app, not by auto-sync."""
        self._cancellations = 0
        """Number of calls of `cancel`."""
        self._earlier_cancellations = 0
        """Value of `_cancellations` when the app started its latest synchronisation."""
        self.sync_lock = SyncLock(replica.path)
        """Keeps other clients from synchronising the same file. It is held from its first use until `close`."""

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other threads and other clients of the file from synchronising. Calls may be nested.

        Raises:
            DbError: another client of the file is synchronising.
            ConfigurationError: the database is closed, or was opened before a fork.
        """
        with self._lock:
            self.replica.check_open()  # after the wait for the lock: another thread may have closed the database
            self.sync_lock.acquire()
            yield

    @contextmanager
    def foreground(self) -> Iterator[None]:
        """Do the same as `exclusive`, for a synchronisation that the app starts and that `cancel` can end.

        A call of `cancel` also ends it while it waits for another one, and does not end later ones.
        """
        earlier_cancellations = self._cancellations
        with self.exclusive():
            if self.is_foreground:  # it is nested, and ends with the outer one
                yield
                return
            self._earlier_cancellations, self.is_foreground = earlier_cancellations, True
            try:
                yield
            finally:
                self.is_foreground = False

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called since the app's latest synchronisation began. Valid only within `foreground`."""
        return self._cancellations > self._earlier_cancellations

    def repeat_interrupted_request(self) -> None:
        """Make the core repeat a request whose sender was interrupted, so that the core got no response to it."""
        if self.replica.core.has_pending_request:
            self.replica.receive(NoResponse("interrupted"))

    def send_all(self, result: CycleResult, should_stop: Callable[[], bool]) -> float | None:
        """Push the custom deltas, and then send the core's requests until it has none.

        A thread pulls pages in advance. Its pull in progress is awaited at the end if the core has no more requests,
        otherwise cancelled.

        Args:
            result: the outcomes are added to it.
            should_stop: called before each request of the core; True ends the method.

        Returns:
            Seconds until the core has another request; None if it waits for an edit, or the method was stopped.
        """
        try:
            self.push_custom_deltas(result, should_stop)
            while not should_stop():
                request = self.replica.next_request()
                if isinstance(request, Wait):
                    self.exchange.prefetcher.stop()  # waits for a pull in progress, so that none is left to cancel
                    return request.seconds
                self.exchange.send(request, result)
            return None
        finally:
            self.exchange.prefetcher.cancel()

    def adopt_refused_columns(self) -> None:
        """Adopt columns that the gateway got since it refused edits for them, so that these edits are pushed next.

        A failure ends the method. `finish` repeats it for edits that are still refused, and reports the failure.
        """
        if isinstance(self.transport, SchemaTransport):
            with suppress(LakeSyncError):
                for table in self._schemas.tables_with_refused_edits():
                    self._schemas.fetch(self.transport, table)

    def push_custom_deltas(self, result: CycleResult, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Push the deltas in the app's custom queue, which it passed to `lakesync.open`.

        A delta is a change of one row. The app has put these into the queue itself, without writing to its tables, so
        they are no edits. The queue removes those that the gateway rejects. After another failure, it keeps them.

        Args:
            result: the outcomes are added to it, also a failure.
            should_stop: called before each request; True ends the method.
        """
        replica = self.replica
        link, limit = replica.store.edit_table.queue_link, replica.limits.push_deltas  # `link` has the custom queue
        if link is None or replica.core.mode == "pullOnly":
            return
        while not should_stop() and (deltas := replica.step(lambda core: link.deltas_of_app(core.edits(), limit))):
            ids = [delta.delta_id for delta in deltas]
            link.queue.mark_sending(ids)
            result.had_contact = True
            try:
                self._push_custom_batch(link.queue, deltas, result)
            except BaseException as error:
                link.queue.nack(ids)  # it has only those that are neither accepted nor rejected
                if not isinstance(error, LakeSyncError):
                    raise
                result.error, result.failed_request = error, "push of the app's queue"
                return

    def _push_custom_batch(self, queue: SyncQueue, deltas: Sequence[RowDelta], result: CycleResult) -> None:
        """Push deltas of the app, and remove them from its queue; those that the gateway rejects are reported.

        If the gateway rejects the push without naming deltas, the two halves are pushed until the cause is alone.
        """
        replica = self.replica
        try:
            self.transport.push(SyncPush(replica.core.client_id, tuple(deltas), replica.core.cursor))
        except RejectedError as error:
            rejections = {rejection.delta_id: rejection for rejection in error.rejected}
            if len(deltas) == 1 and not isinstance(error, ForbiddenError):
                rejections.setdefault(deltas[0].delta_id, Rejection(deltas[0].delta_id, error.code, str(error)))
            rejected = [delta for delta in deltas if delta.delta_id in rejections]
            if not rejected and isinstance(error, ForbiddenError):  # it rejects the client
                raise
            for delta in rejected:
                rejection = rejections[delta.delta_id]
                result.refused.append(Edit(0, delta, "refused", rejection.code, rejection.message))
            queue.ack([delta.delta_id for delta in rejected])
            rest = [delta for delta in deltas if delta.delta_id not in rejections]
            middle = len(rest) if rejected else len(rest) // 2
            for part in (rest[:middle], rest[middle:]):
                if part:
                    self._push_custom_batch(queue, part, result)
        else:
            queue.ack([delta.delta_id for delta in deltas])
            result.pushed += len(deltas)

    def report_failure(self, error: LakeSyncError) -> None:
        """Record a failure, and call the listeners of `onError`."""
        self.had_contact = True
        self.last_error = error
        self._listeners.emit("onError", error)

    def finish(self, result: CycleResult) -> SyncReport:
        """End a synchronisation: adopt new columns, update the status, and call the app's listeners.

        Args:
            result: the outcomes of all requests. A failure to adopt columns is stored in it.
        """
        report = SyncReport(result.pushed, result.pulled, tuple(result.refused))
        if not result.had_contact:
            return report
        if result.found_new_column or any(edit.code == SchemaError.code for edit in result.refused):
            self._knows_schemas = False
        if result.error is None:
            result.error = self._adopt_schemas()
        if result.tables:
            self._listeners.emit("onChange", result.pulled, result.tables)
        if result.refused:
            self._listeners.emit("onRejected", report.refused)
        if result.error is not None:
            self.report_failure(result.error)
            return report
        self.had_contact, self.last_error = True, None
        if self.replica.core.caught_up and (result.received_page or self.replica.core.mode == "pushOnly"):
            self.last_sync = time.time()
        self._listeners.emit("onSyncComplete", report)
        return report

    def cancel(self) -> None:
        """End the synchronisation that the app has started, not one of auto-sync. Any thread may call it."""
        with self._cancel_lock:
            self._cancellations += 1
        if self.is_foreground:
            self.exchange.cancel_request()

    def close(self) -> None:
        """Close the transport and the replica; a synchronisation of the app is cancelled after `CLOSE_TIMEOUT`.

        Stop auto-sync before: its synchronisation would be awaited, not cancelled.
        """
        while not self._lock.acquire(timeout=CLOSE_TIMEOUT):
            self.cancel()
        with ExitStack() as steps:  # each is done even if an earlier one raises
            steps.callback(self._lock.release)
            steps.callback(self.sync_lock.release)
            steps.callback(self.replica.close)
            steps.callback(self.transport.close)

    def _adopt_schemas(self) -> LakeSyncError | None:
        """Fetch the gateway's schemas and add their new columns, if that may be necessary; return the failure.

        It may be after the first synchronisation, and after each in which the gateway refused an edit because of its
        columns, or sent a column that the app's table lacks. As long as such an edit is refused, the schema of its
        table is fetched again, because it may have the column by now.
        """
        if not isinstance(self.transport, SchemaTransport):
            return None
        tables: list[str] = []
        if not self._knows_schemas:
            tables = self.replica.tables()
        elif self.is_foreground or time.monotonic() >= self._next_schema_check:
            tables = self._schemas.tables_with_refused_edits()
        failure: LakeSyncError | None = None
        try:
            for table in tables:
                try:
                    self._schemas.fetch(self.transport, table)
                except SchemaError as error:  # of this table alone
                    failure = failure or error
            self._knows_schemas = self._knows_schemas or failure is None
        except LakeSyncError as error:
            return error
        finally:
            if tables:
                self._next_schema_check = time.monotonic() + SCHEMA_INTERVAL
        return failure


class SchemaSynchroniser:
    """Adds columns that the gateway's schemas have and the app's tables lack."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def fetch(self, transport: SchemaTransport, table: str) -> None:
        """Fetch the gateway's schema of a table, if it has one, and call `synchronise`.

        Args:
            transport: sends the request.
            table: a synced table.

        Raises:
            LakeSyncError: the gateway rejected the request or did not respond.
            SchemaError: a column has another type in the gateway's schema, or a name that is reserved here.
        """
        registered = transport.schema(table)
        if registered is not None:
            self.synchronise(table, registered.schema, registered.version)

    def tables_with_refused_edits(self) -> list[str]:
        """Return the tables with edits that the gateway refused because of their columns."""
        rows = self._replica.read(
            "SELECT DISTINCT tbl FROM _lakesync_edits WHERE status = 'refused' AND code = ?", (SchemaError.code,)
        )
        return [table for (table,) in rows if table in self._replica.tables()]

    def synchronise(self, table: str, server_schema: TableSchema, server_version: int) -> bool:
        """Add the columns of the gateway's schema to the app's table, and retry edits that were refused without them.

        Args:
            table: a synced table.
            server_schema: the gateway's schema of this table.
            server_version: the version of that schema, from 1.

        Returns:
            Whether the schema was newer than the one that this client had.

        Raises:
            NotFoundError: the table is not synchronised.
            SchemaError: a column has another type in the gateway's schema, or a name that is reserved here.
        """
        if table not in self._replica.tables():
            raise NotFoundError(f"table {table!r} is not synchronised: pass its schema when you open the database")
        if server_schema.table != table:
            raise SchemaError(
                f"the schema for table {table!r} is one of table {server_schema.table!r}: request the right one"
            )
        # an old gateway may have a column row_id; here every table has this column already
        columns = tuple(column for column in server_schema.columns if column.name.lower() != "row_id")
        usable = replace(server_schema, columns=columns)

        def adopt(core: ClientCore) -> bool:
            """Adopt the schema if it is newer, and retry the refused edits whose columns it has."""
            store = self._replica.store
            if store.version(table) >= server_version:
                return False
            store.put_gateway_schema(usable, server_version)  # this adds the columns to the app's table
            names = {column.name for column in usable.columns}
            numbers = [
                edit.number
                for edit in core.edits()
                if edit.status == "refused"
                and edit.code == SchemaError.code
                and edit.delta.table == table
                and names >= {cell.column for cell in edit.delta.columns}
            ]
            core.retry(numbers)
            return True

        return self._replica.step(adopt)


class ActionSender:
    """Sends the actions of a queue. A repeated action is executed once, because it keeps its id."""

    def __init__(self, queue: ActionQueue, transport: SyncTransport, client_id: str, listeners: EventListeners) -> None:
        """Create a sender; nothing is sent yet.

        Args:
            queue: the queued actions.
            transport: sends the actions, if it is an `ActionTransport`.
            client_id: this client's id.
            listeners: those of `onActionComplete` are called for each action that ends.
        """
        self._queue = queue
        self._transport = transport
        self._client_id = client_id
        self._listeners = listeners

    @property
    def transport(self) -> ActionTransport:
        """The transport.

        Raises:
            ConfigurationError: the transport cannot send actions.
        """
        if not isinstance(self._transport, ActionTransport):
            raise ConfigurationError("this transport cannot send actions: use HttpTransport or LocalTransport")
        return self._transport

    def send_due(self, result: CycleResult) -> float | None:
        """Send the actions that are due. After a failed request, they are sent again later.

        Args:
            result: the outcome of the request is added to it; its errors are not raised.

        Returns:
            Seconds until another action is due; None if none is waiting.
        """
        while isinstance(self._transport, ActionTransport) and (actions := self._queue.peek()):
            result.had_contact = True
            try:
                outcomes = self._outcomes(actions)
            except LakeSyncError as error:
                result.error = error
                return self._queue.postpone(actions, getattr(error, "retry_after", None))
            for ended in self._queue.record_outcomes(outcomes):
                self._listeners.emit("onActionComplete", ended.action_id, ended)
        return self._queue.delay()

    def _outcomes(self, actions: Sequence[Action]) -> list[ActionResult | ActionFailure]:
        """Send actions in one request, and return the outcome of each.

        One action may make the gateway reject the request. Sent alone, the others are executed.

        Raises:
            LakeSyncError: the actions may succeed later.
        """
        try:
            return self._execute(*actions)
        except LakeSyncError as error:
            if error.retryable or error.code in _POSTPONING_CODES:
                raise
        return [self._execute_alone(action) for action in actions]

    def _execute_alone(self, action: Action) -> ActionResult | ActionFailure:
        """Send one action alone, after the gateway rejected the request that it was in, and return its outcome."""
        try:
            (outcome,) = self._execute(action)
        except LakeSyncError as error:
            if error.code in _POSTPONING_CODES:
                raise
            return ActionFailure(action.action_id, error.code, str(error), error.retryable)
        return outcome

    def _execute(self, *actions: Action) -> list[ActionResult | ActionFailure]:
        """Send actions in one request, and return the outcome of each.

        Raises:
            UnreachableError: an outcome is missing. An empty response, as from a proxy, decodes as no outcomes.
        """
        outcomes = list(self.transport.execute_actions(ActionPush(self._client_id, actions)).results)
        if {outcome.action_id for outcome in outcomes} != {action.action_id for action in actions}:
            raise UnreachableError(
                f"the response has {len(outcomes)} outcomes for {len(actions)} actions: check that the address is a "
                "gateway's"
            )
        return outcomes

"""The coordinator: starts synchronisations for the app, and connects the database, the transport, queues and listeners.

`lakesync.open` creates one; apps reach it as `client.coordinator`, or create a `SyncCoordinator` as in the TypeScript
client, whose protocol LakeSync uses. A transport sends requests to the gateway. An *edit* is a change by the app that
the gateway has not acknowledged; it is *refused* if the gateway rejected it. The outbox has all edits. The replica is
the app's database with the client's state machine (`core`). It changes in steps: a step is a transaction that first
records what the app has written as edits. Auto-sync is a thread that synchronises by itself. An *action* is a command
that a *connector* at the gateway executes in an external system, such as opening a ticket.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, get_args

from lakesync.client.core import CoreLimits, Mode, RetryPolicy
from lakesync.client.errors import UnreachableError
from lakesync.client.queues import SyncQueue
from lakesync.client.sqlite.client_store import stored_position
from lakesync.client.sqlite.database import LocalDB
from lakesync.client.sqlite.tables import SyncTracker, Tables
from lakesync.client.status import Event, EventListeners, SyncReport, SyncStatus, TableCheck
from lakesync.client.sync.action_queue import ActionQueue
from lakesync.client.sync.auto_sync import AutoSync
from lakesync.client.sync.exchange import CycleResult
from lakesync.client.sync.outbox import Outbox
from lakesync.client.sync.replica import Replica
from lakesync.client.sync.sync_session import SyncSession
from lakesync.client.sync.verification import checksums, record_untracked_changes
from lakesync.client.transports.base import ConnectorTypesTransport, NamedTransport, SyncTransport
from lakesync.model.action_handlers import ActionDiscovery, ConnectorDescriptor
from lakesync.model.errors import ConfigurationError, LakeSyncError
from lakesync.model.schema import TableSchema, parse_schema
from lakesync.model.types import Action

log = logging.getLogger("lakesync.client")

DEFAULT_INTERVAL_SECONDS = 10.0
"""Seconds between the pulls of auto-sync."""
DEFAULT_HEARTBEAT = 60.0
"""Seconds between the pulls of auto-sync while a WebSocket is open."""


def check_mode(mode: str) -> None:
    """Check that a mode is `full`, `pushOnly` or `pullOnly`.

    Raises:
        ConfigurationError: the mode is unknown.
    """
    if mode not in get_args(Mode):
        raise ConfigurationError(f"mode is {mode!r}, it must be one of {', '.join(get_args(Mode))}")


def check_positive(name: str, value: float) -> None:
    """Check that a setting is a number greater than 0.

    Args:
        name: the setting's name, for the message.
        value: seconds or a count.

    Raises:
        ConfigurationError: the value is 0, negative or no number.
    """
    if not isinstance(value, int | float) or not value > 0:  # NaN is not greater than 0
        raise ConfigurationError(f"{name} is {value!r}, it must be greater than 0")


class SyncCoordinator:
    """Synchronises a database with a gateway, on demand or in a thread (auto-sync). Thread-safe."""

    def __init__(
        self,
        db: LocalDB,
        transport: SyncTransport,
        *,
        client_id: str | None = None,
        schemas: Iterable[TableSchema | Mapping[str, Any]] = (),
        queue: SyncQueue | None = None,
        mode: Mode = "full",
        interval: float = DEFAULT_INTERVAL_SECONDS,
        heartbeat: float = DEFAULT_HEARTBEAT,
        retry: RetryPolicy | None = None,
        limits: CoreLimits | None = None,
    ) -> None:
        """Prepare a database for synchronisation; no request is sent yet.

        Args:
            db: the app's database; `close` leaves it open.
            transport: sends requests to the gateway; `close` closes it.
            client_id: this client's id; None for the id stored in the database, or a new random one.
            schemas: schemas of the synced tables, in addition to those stored in the database. Missing tables are
                created.
            queue: an app's own queue, which chooses what to push next; None for the outbox in the database.
            mode: `full` (push and pull), `pushOnly` or `pullOnly`.
            interval: seconds between the pulls of auto-sync.
            heartbeat: seconds between the pulls of auto-sync while a WebSocket is open.
            retry: delays and attempts after failures; None for the defaults.
            limits: the largest push and the largest pulled page; None for the defaults of `CoreLimits`.

        Raises:
            ConfigurationError: the database belongs to another client or gateway, or a table cannot be synchronised.
            SchemaError: a schema is wrong, or changes a column's type.
            DbError: the database cannot be written now.
        """
        check_mode(mode)
        for name, seconds in (("interval", interval), ("heartbeat", heartbeat)):
            check_positive(name, seconds)
        retry = retry or RetryPolicy()
        for name in ("first_delay", "longest_delay", "pushes", "actions"):
            if (value := getattr(retry, name)) is not None:
                check_positive(f"retry.{name}", value)
        self.transport = transport
        self.replica = Replica(
            db.path,
            client_id or stored_position(db.conn).client_id or uuid.uuid4().hex,
            [parse_schema(each) for each in schemas],
            gateway=transport.gateway_id if isinstance(transport, NamedTransport) else "",
            mode=mode,
            limits=limits,
            retry=retry,
            queue=queue,
        )
        db.reload_schema()
        self.replica.app_blocks_this_thread = lambda: db.blocks_this_thread
        self.replica.check_open = db.check_open
        self.events = EventListeners()
        """The app's listeners."""
        self.outbox = Outbox(self.replica, self.wake)
        """The unacknowledged changes, in the database."""
        self.queue: SyncQueue = queue or self.outbox
        """Chooses the next changes to push: the outbox, or the app's custom queue."""
        self.actions = ActionQueue(self.replica, self.wake)
        """The queued actions, in the database."""
        self.tables = Tables(db, lambda: self.replica.store.committed_schemas, self.notify_write)
        """The synced tables by name, to read and write rows."""
        self.tracker = SyncTracker(self.tables)
        """Does the same with the methods of the TypeScript client's `SyncTracker`."""
        self._session = SyncSession(self.replica, transport, self.actions, self.events)
        """Its `exclusive()` and `foreground()` keep other threads and processes from synchronising; a thread may nest
        them. `cancel` ends the requests in a `foreground()` block only."""
        self._auto_sync = AutoSync(self._session, interval, heartbeat)

    @property
    def client_id(self) -> str:
        """This client's id."""
        return self.replica.core.client_id

    @property
    def last_sync_time(self) -> datetime | None:
        """When the client last had everything that the gateway had, in UTC."""
        last = self._session.last_sync
        return None if last is None else datetime.fromtimestamp(last, UTC)

    @property
    def status(self) -> SyncStatus:
        """The current state of the synchronisation."""
        session, last = self._session, self._session.last_sync
        return SyncStatus(
            connected=session.had_contact and session.last_error is None,
            live=self._auto_sync.live,
            last_sync=self.last_sync_time,
            pending=self.outbox.depth(),
            refused=self.outbox.refused(),
            oldest_pending=self._oldest_pending(),
            lag=None if last is None else time.time() - last,
            last_error=session.last_error,
            clock_offset=session.exchange.clock_offset,
            mode=self.replica.mode,
        )

    def on(self, event: Event, listener: Callable[..., Any]) -> None:
        """Call a function whenever an event occurs. See `EventListeners`.

        Args:
            event: the event's name.
            listener: called with the event's arguments, which `Event` lists.

        Raises:
            ValidationError: the event is unknown.
        """
        self.events.on(event, listener)

    def off(self, event: Event, listener: Callable[..., Any]) -> None:
        """Remove a listener; do nothing if `on` did not add it.

        Args:
            event: the event's name.
            listener: the function that was passed to `on`.

        Raises:
            ValidationError: the event is unknown.
        """
        self.events.off(event, listener)

    def sync_once(self) -> SyncReport:
        """Push, pull and send actions now, without waiting for retry delays.

        Raises:
            LakeSyncError: a request failed, and no later one of its kind succeeded. Results of others are kept, and
                edits stay in the outbox.
            UnreachableError: `cancel` was called.
            DbError: another client of the file is synchronising.
            ConfigurationError: this thread has an open transaction, or the database is closed.
        """
        return self._sync(None)

    def push_to_gateway(self) -> SyncReport:
        """Push, without pulling; also in a `pullOnly` client. Raises as `sync_once` does."""
        return self._sync("pushOnly")

    def pull_from_gateway(self, source: str | None = None) -> int:
        """Pull, without pushing; also in a `pushOnly` client. Raises as `sync_once` does.

        Args:
            source: a named source, a database that the gateway reads for clients beside its own changes; None for the
                gateway's own changes.

        Returns:
            The number of changed rows.
        """
        return self._sync("pullOnly", source).pulled

    def pull_from(self, source: str) -> int:
        """Do the same as `pull_from_gateway`, for a named source; the TypeScript client has both methods."""
        return self.pull_from_gateway(source)

    def execute_action(
        self, connector: str, action_type: str, params: Mapping[str, Any], idempotency_key: str | None = None
    ) -> Action:
        """Queue an action; it is sent when the gateway can be reached, and `onActionComplete` reports its end.

        Args:
            connector: name of the connector at the gateway that executes it.
            action_type: one of the connector's actions.
            params: a JSON object.
            idempotency_key: actions with the same key are executed once; None if every call is an action of its own.

        Returns:
            The queued action. It has no result yet.

        Raises:
            ConfigurationError: the transport cannot send actions.
            ValidationError: `params` is not a JSON object.
        """
        _ = self._session.action_sender.transport  # raises if it cannot send actions
        return self.actions.push(connector, action_type, params, idempotency_key)

    def describe_actions(self) -> ActionDiscovery:
        """Return the gateway's connectors and their actions.

        Raises:
            ConfigurationError: the transport cannot send actions.
            LakeSyncError: the gateway rejected the request or did not respond.
        """
        with self._session.foreground():
            return self._session.action_sender.transport.describe_actions()

    def list_connector_types(self) -> list[ConnectorDescriptor]:
        """Return the types of connector that the gateway supports, with the JSON Schema of their settings.

        Raises:
            ConfigurationError: the transport cannot list them.
            LakeSyncError: the gateway rejected the request or did not respond.
        """
        if not isinstance(self.transport, ConnectorTypesTransport):
            raise ConfigurationError("this transport cannot list connector types: use HttpTransport or LocalTransport")
        with self._session.foreground():
            return self.transport.list_connector_types()

    def queue_depth(self) -> int:
        """Return the number of changes to push, without refused ones."""
        return self.outbox.depth()

    def resync(self) -> SyncReport:
        """Synchronise, and pull all rows again; rows and edits stay meanwhile.

        Raises:
            ConfigurationError: the client never pulls (mode `pushOnly`).
            LakeSyncError: as for `sync_once`.
        """
        self._check_pulls("resync")
        with self._session.exclusive():
            self._session.repeat_interrupted_request()
            self.replica.resync()
        return self.sync_once()

    def verify(self) -> dict[str, TableCheck]:
        """Compare every table with the gateway by pulling everything again, and repair the tables that differ.

        Unacknowledged changes are kept, and are part of both checksums.

        Returns:
            The checksums before and after, by table.

        Raises:
            ConfigurationError: the client never pulls (mode `pushOnly`).
            LakeSyncError: the gateway rejected a request or did not respond; rows that were pulled before it stay.
        """
        self._check_pulls("verify")
        with self._session.exclusive():
            record_untracked_changes(self.replica)
            self.sync_once()
            before = checksums(self.replica)
            self.resync()
            after = checksums(self.replica)
            self.sync_once()  # acknowledges the newest page to the gateway
        return {table: TableCheck(before[table], after[table]) for table in before}

    def start_auto_sync(self) -> None:
        """Synchronise in a thread: at intervals, after local writes, and when the gateway sends changes.

        Raises:
            DbError: another client of the file is synchronising.
        """
        self._session.sync_lock.acquire()
        self._auto_sync.start()

    def stop_auto_sync(self) -> None:
        """Stop the thread of auto-sync; its request in progress is cancelled after half a second."""
        self._auto_sync.stop()

    def notify_write(self) -> None:
        """Wake auto-sync after a local write; first record the write as an edit if the app's own queue must see it.

        A failure is only logged: the write is committed, and an app that got an error would write it again.
        """
        # A step would wait forever for a transaction that the app has open in this thread.
        if self.replica.store.edit_table.queue_link is not None and not self.replica.app_blocks_this_thread():
            try:
                self.replica.step(lambda _: None)
            except LakeSyncError as error:
                log.warning("a write will be in the custom queue only after the next sync: %s", error)
        self.wake()

    def wake(self) -> None:
        """Make auto-sync synchronise now; do nothing if it is not running. Any thread may call it."""
        self._auto_sync.wake()

    def cancel(self) -> None:
        """Make the `sync_once` in progress raise `UnreachableError`. Any thread may call it."""
        self._session.cancel()

    def close(self) -> None:
        """Stop auto-sync, and close the transport and this class's connections; the app's `db` stays open.

        A request in progress is cancelled after half a second.
        """
        self._auto_sync.stop(closing=True)
        self._session.close()

    def _check_pulls(self, method: str) -> None:
        """Raise ConfigurationError if the client never pulls, which the calling method has to do."""
        if self.replica.mode == "pushOnly":
            raise ConfigurationError(
                f"{method} pulls all rows, and the mode (syncMode) of this client is pushOnly: open the database in "
                "mode full or pullOnly"
            )

    def _sync(self, mode: Mode | None, source: str | None = None) -> SyncReport:
        """Synchronise once.

        Args:
            mode: the mode of this synchronisation instead of the client's own, without actions; None for the client's
                own, with actions.
            source: a named source to pull from; None for the gateway's own changes.

        Raises:
            LakeSyncError: as for `sync_once`.
        """
        session = self._session
        self.replica.check_usable()  # a thread with an open transaction must not wait for one that waits for it
        with session.foreground():
            own_mode = self.replica.core.mode
            result = CycleResult()
            try:
                if mode is not None:
                    self.replica.core.mode = mode
                session.repeat_interrupted_request()
                self.replica.core.reset_backoff()
                if mode != "pushOnly":
                    self.replica.core.request_pull(source)  # if the client's own mode is `pushOnly`, no pull follows
                session.schema_fetcher.fetch_for_refused_edits()
                session.send_all(result, lambda: session.is_cancelled)
                if mode is None and not session.is_cancelled:
                    self.actions.clear_delays()
                    session.action_sender.send_due(result)
            except LakeSyncError as error:
                session.report_failure(error)
                raise
            finally:
                self.replica.core.mode = own_mode
            if session.is_cancelled and result.error is None:
                result.error = UnreachableError("the synchronisation was cancelled")
            report = session.finish(result)
        if result.error is not None:
            raise result.error
        return report

    def _oldest_pending(self) -> datetime | None:
        """Return the time of the oldest change that the gateway has not acknowledged; None if it has all."""
        oldest_ms = self.replica.oldest_unacknowledged_at()
        return None if oldest_ms is None else datetime.fromtimestamp(oldest_ms / 1000, UTC)

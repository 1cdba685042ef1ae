"""The synchronisation of one database with one gateway."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, get_args

from lakesync.client.actions import ActionQueue
from lakesync.client.background import Background
from lakesync.client.core import CoreLimits, Mode, RetryPolicy
from lakesync.client.database import LocalDB
from lakesync.client.errors import UnreachableError
from lakesync.client.events import Event, Events
from lakesync.client.exchange import Tally
from lakesync.client.outbox import Outbox
from lakesync.client.queues import SyncQueue
from lakesync.client.replica import Replica
from lakesync.client.rounds import Rounds
from lakesync.client.status import SyncReport, SyncStatus
from lakesync.client.store_sqlite import stored_position
from lakesync.client.tables import Tables
from lakesync.client.tracker import SyncTracker
from lakesync.client.transports.base import ConnectorTypesTransport, NamedTransport, SyncTransport
from lakesync.client.verify import TableCheck, checksums, take_care
from lakesync.model.action_handlers import ActionDiscovery, ConnectorDescriptor
from lakesync.model.errors import ConfigurationError, LakeSyncError
from lakesync.model.schema import TableSchema, parse_schema
from lakesync.model.types import Action

DEFAULT_INTERVAL = 10.0
DEFAULT_HEARTBEAT = 60.0


def check_mode(mode: str) -> None:
    """Refuse a mode that there is not.

    Raises:
        ConfigurationError: with those that there are.
    """
    if mode not in get_args(Mode):
        raise ConfigurationError(f"mode is {mode!r}, it must be one of {', '.join(get_args(Mode))}")


def check_positive(name: str, given: float) -> None:
    """Refuse a time or a count that is none.

    Raises:
        ConfigurationError: it is 0 or less.
    """
    if given <= 0:
        raise ConfigurationError(f"{name} is {given}: give a number above 0")


class SyncCoordinator:
    """Pushes, pulls and does actions, when asked or by itself. Threads may share it."""

    def __init__(
        self,
        db: LocalDB,
        transport: SyncTransport,
        *,
        client_id: str | None = None,
        schemas: Iterable[TableSchema | Mapping[str, Any]] = (),
        queue: SyncQueue | None = None,
        mode: Mode = "full",
        interval: float = DEFAULT_INTERVAL,
        heartbeat: float = DEFAULT_HEARTBEAT,
        retry: RetryPolicy | None = None,
        limits: CoreLimits | None = None,
        wall: Callable[[], int] | None = None,
    ) -> None:
        """Take up where the database stands; nothing is asked yet.

        Args:
            db: stays open when this is closed.
            client_id: who this is; what the database says, or a new one.
            schemas: the synced tables, made where they are missing, besides those that the database has.
            queue: a queue of the app's own, as `SyncQueue` has it; otherwise the one in the database.
            interval: seconds between pulls of auto-sync.
            heartbeat: the same while a WebSocket is open.
            retry: when requests and actions that failed are tried again.
            wall: milliseconds; without it edits are stamped with the moment at which they were written.

        Raises:
            ConfigurationError: the database is another client's or gateway's, or a table in it cannot be used.
            SchemaError: a schema is wrong, or a table has a column of another type.
        """
        check_mode(mode)
        for name, seconds in (("interval", interval), ("heartbeat", heartbeat)):
            check_positive(name, seconds)
        retry = retry or RetryPolicy()
        for name in ("first_delay", "longest_delay", "pushes", "actions"):
            if (given := getattr(retry, name)) is not None:
                check_positive(f"retry.{name}", given)
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
            wall=wall,
        )
        db.look_up_schema()
        self.replica.app_writes, self.replica.check_open = lambda: db.held, db.check_open
        self.events = Events()
        self.outbox = Outbox(self.replica, self.wake)
        """The changes that wait, in the database."""
        self.queue: SyncQueue = queue or self.outbox
        """What decides which of them is sent next: the outbox itself, unless the app has a queue of its own."""
        self.actions = ActionQueue(self.replica, retry=self.replica.retry)
        self.tables = Tables(db, self.replica, self.wrote)
        self.tracker = SyncTracker(self.tables)
        """Local writes as the reference has them."""
        self._mode = mode
        self._rounds = Rounds(self.replica, transport, self.actions, self.events)
        self._background = Background(self._rounds, interval, heartbeat, self.replica.retry)

    @property
    def client_id(self) -> str:
        """Who this is."""
        return self.replica.core.client_id

    @property
    def last_sync_time(self) -> datetime | None:
        """When the client last had all that the gateway had, in UTC."""
        last = self._rounds.last_sync
        return None if last is None else datetime.fromtimestamp(last, UTC)

    @property
    def status(self) -> SyncStatus:
        """How things are now."""
        rounds, last = self._rounds, self._rounds.last_sync
        return SyncStatus(
            connected=rounds.asked and rounds.last_error is None,
            live=self._background.live,
            last_sync=self.last_sync_time,
            pending=self.outbox.depth(),
            refused=self.outbox.refused(),
            oldest_pending=self._oldest_pending(),
            lag=None if last is None else time.time() - last,
            last_error=rounds.last_error,
            clock_offset=rounds.clock_offset,
            mode=self._mode,
        )

    def on(self, event: Event, listener: Callable[..., Any]) -> None:
        """Tell a listener of an event."""
        self.events.on(event, listener)

    def off(self, event: Event, listener: Callable[..., Any]) -> None:
        """Tell it no more."""
        self.events.off(event, listener)

    def sync_once(self) -> SyncReport:
        """Push what waits, pull what is new, do actions, now; whatever delay a failure before has brought.

        Raises:
            LakeSyncError: the newest request failed; what was done before it stays, and edits wait on.
        """
        return self._ask_for(None)

    def push_to_gateway(self) -> SyncReport:
        """Push alone."""
        return self._ask_for("pushOnly")

    def pull_from_gateway(self, source: str | None = None) -> int:
        """Pull alone, of the gateway or of a named source; how many rows changed."""
        return self._ask_for("pullOnly", source).pulled

    def pull_from(self, source: str) -> int:
        """Pull from a named source."""
        return self.pull_from_gateway(source)

    def execute_action(
        self, connector: str, action_type: str, params: Mapping[str, Any], idempotency_key: str | None = None
    ) -> Action:
        """Have an action done, now or when the gateway can be reached; `onActionComplete` tells its end.

        Raises:
            ConfigurationError: the transport carries no actions.
            ValidationError: the params are no JSON object.
        """
        _ = self._rounds.acting.transport
        action = self.actions.push(connector, action_type, params, idempotency_key)
        self.wake()
        return action

    def describe_actions(self) -> ActionDiscovery:
        """What connectors there are, and what they do."""
        with self._rounds.asked_for():
            return self._rounds.acting.transport.describe_actions()

    def list_connector_types(self) -> list[ConnectorDescriptor]:
        """Which types of connector the gateway may have, with the JSON Schema of their settings.

        Raises:
            ConfigurationError: the transport does not know.
        """
        if not isinstance(self.transport, ConnectorTypesTransport):
            raise ConfigurationError("this transport lists no connector types: use HttpTransport or LocalTransport")
        with self._rounds.asked_for():
            return self.transport.list_connector_types()

    def queue_depth(self) -> int:
        """How many changes wait to be pushed."""
        return self.outbox.depth()

    def resync(self) -> SyncReport:
        """Ask for everything anew; rows and edits stay meanwhile."""
        with self._rounds.exclusively():
            self.replica.resync()
        return self.sync_once()

    def verify(self) -> dict[str, TableCheck]:
        """Compare every table with what the gateway says, by asking for everything anew, and repair what differs.

        Changes that wait to be sent stay, and count on both sides.

        Raises:
            LakeSyncError: the gateway cannot be asked; nothing was changed.
        """
        with self._rounds.exclusively():
            take_care(self.replica)
            self.sync_once()
            found = checksums(self.replica)
            self.resync()
            repaired = checksums(self.replica)
            self.sync_once()  # the gateway learns that all of it has come
        return {table: TableCheck(found[table], repaired[table]) for table in found}

    def start_auto_sync(self) -> None:
        """Synchronise in a thread from now on: at intervals, when something was written, when the gateway says so."""
        self._rounds.take_file()
        self._background.start()

    def stop_auto_sync(self) -> None:
        """End that thread."""
        self._background.stop()

    def wrote(self) -> None:
        """Something was written by a table: do not wait, and have a queue of the app's own know it at once."""
        if self.replica.store.link is not None and not self.replica.app_writes():
            self.replica.step(lambda _: None)
        self.wake()

    def wake(self) -> None:
        """Something was written: do not wait."""
        self._background.wake()

    def break_off(self) -> None:
        """End the `sync` that is under way, in whichever thread: there it raises `UnreachableError`."""
        self._rounds.break_off()

    def close(self) -> None:
        """Stop, and let go of the gateway and of the database."""
        self._background.stop(closing=True)
        self._rounds.close()

    def _ask_for(self, mode: Mode | None, source: str | None = None) -> SyncReport:
        rounds = self._rounds
        self.replica.check_ready()  # a thread that has a transaction open must not wait for one that waits for it
        with rounds.asked_for():
            kept = self.replica.core.mode
            tally = Tally()
            try:
                if mode is not None:
                    self.replica.core.mode = mode
                rounds.settle()
                self.replica.core.hurry()
                if mode != "pushOnly":
                    rounds.want(source)
                rounds.carry_all(tally, lambda: rounds.broken_off)
                if mode is None and not rounds.broken_off:
                    self.actions.hurry()
                    rounds.do_actions(tally)
            except LakeSyncError as error:
                rounds.failed(error)
                raise
            finally:
                self.replica.core.mode = kept
            if rounds.broken_off and tally.error is None:
                tally.error = UnreachableError("the synchronisation was broken off here")
            report = rounds.end(tally)
        if tally.error is not None:
            raise tally.error
        return report

    def _oldest_pending(self) -> datetime | None:
        found = self.replica.oldest_unsent()
        return None if found is None else datetime.fromtimestamp(found / 1000, UTC)

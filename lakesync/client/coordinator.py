"""The synchronisation of one database with one gateway."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lakesync.client.actions import ActionQueue
from lakesync.client.background import Background
from lakesync.client.core import Mode
from lakesync.client.errors import DbError, TableError, UnreachableError
from lakesync.client.events import Event, Events
from lakesync.client.exchange import Tally
from lakesync.client.outbox import SyncQueue
from lakesync.client.replica import Replica
from lakesync.client.rounds import Rounds
from lakesync.client.status import SyncReport, SyncStatus
from lakesync.client.transports.base import SyncTransport
from lakesync.client.verify import TableCheck, checksums, take_care
from lakesync.handlers import ActionDiscovery
from lakesync.types import Action

if TYPE_CHECKING:
    from lakesync.client.tracker import SyncTracker

DEFAULT_INTERVAL = 10.0
DEFAULT_HEARTBEAT = 60.0


class SyncCoordinator:
    """Pushes, pulls and does actions, when asked or by itself. Threads may share it."""

    def __init__(
        self,
        replica: Replica,
        transport: SyncTransport,
        *,
        interval: float = DEFAULT_INTERVAL,
        heartbeat: float = DEFAULT_HEARTBEAT,
        max_action_retries: int = 5,
    ) -> None:
        """Nothing is asked yet.

        Args:
            interval: seconds between pulls of auto-sync.
            heartbeat: the same while a WebSocket is open.
            max_action_retries: after how many failed attempts an action is set aside.
        """
        self.replica = replica
        self.transport = transport
        self.events = Events()
        self.queue = SyncQueue(replica, self.wake)
        self.actions = ActionQueue(replica, max_retries=max_action_retries)
        self.tracker: SyncTracker
        """Local writes as the reference has them; set by the client that this is the coordinator of."""
        self._mode = replica.core.mode
        self._rounds = Rounds(replica, transport, self.actions, self.events)
        self._background = Background(self._rounds, interval, heartbeat)

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
            pending=self.queue.depth(),
            refused=self.queue.refused(),
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

    def queue_depth(self) -> int:
        """How many changes wait to be pushed."""
        return self.queue.depth()

    def resync(self) -> SyncReport:
        """Ask for everything anew; rows and edits stay meanwhile."""
        with self._rounds.exclusively():
            self.replica.step(lambda core: core.resync())
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
            except (DbError, TableError) as error:
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

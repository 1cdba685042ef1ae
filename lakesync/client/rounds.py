"""Rounds of a synchronisation: everything that a client has to say to its gateway and to hear of it, carried once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lakesync.client.acting import Acting
from lakesync.client.actions import ActionQueue
from lakesync.client.core import Lost, Wait
from lakesync.client.core.messages import Answer, Request
from lakesync.client.core.records import Changes
from lakesync.client.database import SyncLock
from lakesync.client.events import Events
from lakesync.client.exchange import Exchange, Tally
from lakesync.client.replica import Replica
from lakesync.client.schema_sync import SchemaSynchroniser
from lakesync.client.status import SyncReport
from lakesync.client.transports.base import SchemaTransport, SyncTransport
from lakesync.model.errors import LakeSyncError, SchemaError
from lakesync.model.types import SyncPull, SyncPush, SyncResponse

PATIENCE = 0.5
"""Seconds that a request under way has to be answered when the client is closed."""


class Rounds:
    """One at a time, by whichever thread."""

    def __init__(self, replica: Replica, transport: SyncTransport, actions: ActionQueue, events: Events) -> None:
        """Nothing is asked yet."""
        self.replica = replica
        self.transport = transport
        self.acting = Acting(actions, transport, replica.core.client_id, events)
        self.last_sync: float | None = None
        """When the client last had all that the gateway had, by this machine's clock."""
        self.last_error: LakeSyncError | None = None
        """The newest failure, None once something succeeded after it."""
        self.asked = False
        """Whether the gateway was asked anything yet."""
        self._events = events
        self._schemas = SchemaSynchroniser(replica)
        self._schemas_known = False
        self._exchange = Exchange(replica, transport, lambda progress: events.emit("onProgress", progress))
        self._one = threading.RLock()
        self.foreground = False
        """Whether the round is one that the app asked for."""
        self.broken_off = False
        """Whether the round that the app asked for last is to end."""
        self._lock = SyncLock(replica.path)

    @property
    def clock_offset(self) -> float | None:
        """Seconds that this machine's clock is ahead of the gateway's, where the transport measures it."""
        return self._exchange.clock_offset

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Nobody else talks to the gateway meanwhile.

        Raises:
            DbError: another client of the file does.
            ConfigurationError: the database was closed, or opened before a fork.
        """
        self.replica.check_open()
        with self._one:
            self.take_file()
            yield

    @contextmanager
    def asked_for(self) -> Iterator[None]:
        """`exclusively`, for a round that can be broken off."""
        self.broken_off = False
        with self.exclusively():
            self.foreground = True
            try:
                yield
            finally:
                self.foreground = False

    def take_file(self) -> None:
        """From now on no other client of the file talks to the gateway.

        Raises:
            DbError: another one does.
        """
        self._lock.take()

    def settle(self) -> None:
        """Whoever asked something was interrupted, perhaps, before anybody could say so."""
        if self.replica.waits_for_answer():
            self.replica.receive(Lost("interrupted"))

    def want(self, source: str | None = None) -> None:
        """Pull in the next round."""
        self.replica.core.sync(source)

    def carry(self, request: Any, tally: Tally) -> None:
        """Carry a request of the core by the transport."""
        self._exchange.carry(request, tally)

    def check_progress(self, request: SyncPull, page: SyncResponse) -> None:
        """Refuse an answer to a pull that came by another way than `carry`, and would be asked for without end.

        Raises:
            UnreachableError: as `Exchange.check_progress`.
        """
        self._exchange.check_progress(request, page)

    def count(self, request: Request | None, answer: Answer | None, changes: Changes, tally: Tally) -> None:
        """Count in what a page changed that came by another way than `carry`."""
        self._exchange.count(request, answer, changes, tally)

    def carry_all(self, tally: Tally, stopping: Callable[[], bool]) -> float | None:
        """Carry requests until there is nothing to do, or somebody stops it; seconds until there is again."""
        try:
            self.send_entered(tally)
            while not stopping():
                request = self.replica.next_request()
                if isinstance(request, Wait):
                    return request.seconds
                self.carry(request, tally)
            self._exchange.break_off()
            return None
        except BaseException:
            self._exchange.break_off()
            raise
        finally:
            self._exchange.rest()

    def send_entered(self, tally: Tally) -> None:
        """Send what the app put into a custom queue by itself, as it is; the app's rows are its own business."""
        link = self.replica.store.link
        while link is not None and self.replica.core.mode != "pullOnly":
            deltas = tuple(item.delta for item in self.replica.entered(self.replica.limits.push_deltas))
            if not deltas:
                return
            ids = [delta.delta_id for delta in deltas]
            link.queue.mark_sending(ids)
            tally.asked = True
            try:
                self.transport.push(SyncPush(self.replica.core.client_id, deltas))
            except LakeSyncError as error:
                link.queue.nack(ids)
                tally.error = error
                return
            except BaseException:
                link.queue.nack(ids)
                raise
            link.queue.ack(ids)
            tally.pushed += len(ids)

    def do_actions(self, tally: Tally) -> float | None:
        """Send the actions that are due; seconds until one is."""
        return self.acting.send(tally)

    def failed(self, error: LakeSyncError) -> None:
        """Note and tell a failure, of a round or outside of one."""
        self.asked = True
        self.last_error = error
        self._events.emit("onError", error)

    def end(self, tally: Tally) -> SyncReport:
        """After a round: tell what it came to."""
        report = SyncReport(tally.pushed, tally.pulled, tuple(tally.refused))
        if not tally.asked:
            return report
        if tally.error is None:
            self._learn_schemas(tally)
        if tally.tables:
            self._events.emit("onChange", tally.pulled, tally.tables)
        if tally.refused:
            self._events.emit("onRejected", report.refused)
        if tally.error is not None:
            self.failed(tally.error)
            return report
        self.asked, self.last_error = True, None
        if self.replica.core.complete and (tally.caught_up or self.replica.core.mode == "pushOnly"):
            self.last_sync = time.time()
        self._events.emit("onSyncComplete", report)
        return report

    def hang_up(self) -> None:
        """End the request that is under way, in whichever thread, where the transport can."""
        self._exchange.hang_up()

    def break_off(self) -> None:
        """End the round that the app asked for, in whichever thread; from any other one."""
        self.broken_off = True
        if self.foreground:
            self.hang_up()

    def close(self) -> None:
        """Let go of the gateway and of the database, after the request that is under way or, soon, without it."""
        while not self._one.acquire(timeout=PATIENCE):
            self.break_off()
        try:
            self.transport.close()
            self.replica.close()
            self._lock.release()
        finally:
            self._one.release()

    def _learn_schemas(self, tally: Tally) -> None:
        """Once a process, and when an edit or a page did not fit, ask whether the gateway's schemas have grown."""
        if tally.grown or any(edit.code == SchemaError.code for edit in tally.refused):
            self._schemas_known = False
        if not self._schemas_known and isinstance(self.transport, SchemaTransport):
            try:
                self._schemas.synchronise_all(self.transport)
                self._schemas_known = True
            except LakeSyncError as error:
                tally.error = error

"""The steps of whole synchronisations, one at a time: push, pull, send actions, add columns, call the app's listeners.

`SyncCoordinator` calls a session for the app, and `AutoSync` calls it in its thread. The core (`lakesync.client.core`)
is a state machine that decides which request comes next: a push of the app's changes, or a pull of a page of other
clients' changes. The session's `Exchange` sends it and passes the response to the core. The replica is the app's
database with the core.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from lakesync.client.core import Edit, NoResponse, Wait
from lakesync.client.queues import SyncQueue
from lakesync.client.sqlite.sync_lock import SyncLock
from lakesync.client.status import EventListeners, SyncReport
from lakesync.client.sync.action_queue import ActionQueue, ActionSender
from lakesync.client.sync.exchange import CycleResult, Exchange
from lakesync.client.sync.replica import Replica
from lakesync.client.sync.schema_synchroniser import SchemaFetcher
from lakesync.client.transports.base import SyncTransport
from lakesync.model.errors import ForbiddenError, LakeSyncError, RejectedError, Rejection
from lakesync.model.types import RowDelta, SyncPush

CLOSE_SECONDS = 0.5
"""Seconds that closing waits for the request in progress before it cancels it."""


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
        self.schema_fetcher = SchemaFetcher(replica, transport)
        self.custom_deltas = CustomDeltaPusher(replica, transport)
        self.action_sender = ActionSender(actions, transport, replica.core.client_id, listeners)
        self.last_sync: float | None = None
        """When the client last had everything that the gateway had, in seconds since 1970; None: not yet."""
        self.last_error: LakeSyncError | None = None
        """The newest failure; None after a later success."""
        self.had_contact = False
        """Whether a synchronisation that sent or received something has ended, with or without success."""
        self._listeners = listeners
        self._lock = threading.RLock()
        """Held during a synchronisation, so that other threads wait for its end."""
        self.is_foreground = False
        """Whether the synchronisation in progress was started by the app, not by auto-sync."""
        self._cancellations = 0
        """Number of calls of `cancel`."""
        self._cancel_lock = threading.Lock()
        """Held while `_cancellations` is changed."""
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

        Edits that the app makes meanwhile may be left to the next call; otherwise an app that writes all the time would
        never let this one end. A thread pulls pages in advance. Its pull in progress is awaited at the end if the core
        has no more requests, otherwise cancelled.

        Args:
            result: the outcomes are added to it.
            should_stop: called before each request of the core; True ends the method.

        Returns:
            Seconds until the core has another request, 0 if edits were left; None if it waits for an edit, or the
            method was stopped.
        """
        try:
            self.custom_deltas.push(result, should_stop)
            last_edit = self.replica.record()
            while not should_stop():
                request = self.replica.next_request(last_edit)
                if isinstance(request, Wait):
                    self.exchange.prefetcher.stop()  # waits for a pull in progress, so that none is left to cancel
                    return request.seconds
                self.exchange.send(request, result)
            return None
        finally:
            self.exchange.prefetcher.cancel()

    def report_failure(self, error: LakeSyncError) -> None:
        """Record a failure, and call the listeners of `onError`."""
        self.had_contact = True
        self.last_error = error
        self._listeners.emit("onError", error)

    def finish(self, result: CycleResult) -> SyncReport:
        """End a synchronisation: add new columns, update the status, and call the app's listeners.

        Args:
            result: the outcomes of all requests. A failure to fetch schemas is stored in it.
        """
        report = SyncReport(result.pushed, result.pulled, tuple(result.refused))
        if not result.had_contact:
            return report
        self.schema_fetcher.fetch_after(result, is_foreground=self.is_foreground)
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
        """Close the transport and the replica; a synchronisation of the app is cancelled after `CLOSE_SECONDS`.

        Stop auto-sync before: its synchronisation would be awaited, not cancelled.
        """
        while not self._lock.acquire(timeout=CLOSE_SECONDS):
            self.cancel()
        with ExitStack() as steps:  # each is done even if an earlier one raises
            steps.callback(self._lock.release)
            steps.callback(self.sync_lock.release)
            steps.callback(self.replica.close)
            steps.callback(self.transport.close)


class CustomDeltaPusher:
    """Pushes custom deltas: changes of rows that an app has put into its own queue, without writing to its tables.

    The app passed the queue to `lakesync.open`. The same queue is notified of the app's *edits* (unacknowledged writes
    to its tables), which the core pushes.
    """

    def __init__(self, replica: Replica, transport: SyncTransport) -> None:
        """Create a pusher; nothing is pushed yet.

        Args:
            replica: the app's database, which has the link to the queue.
            transport: sends the pushes.
        """
        self._replica = replica
        self._transport = transport

    def push(self, result: CycleResult, should_stop: Callable[[], bool]) -> None:
        """Push the custom deltas.

        The queue removes those that the gateway accepts or rejects. After another failure, it keeps them.

        Args:
            result: the outcomes are added to it, also a failure.
            should_stop: called before each request; True ends the method.
        """
        replica = self._replica
        link, limit = replica.store.edit_table.queue_link, replica.limits.push_deltas
        if link is None or replica.core.mode == "pullOnly":
            return
        queue = link.queue
        while not should_stop() and (deltas := replica.step(lambda core: link.custom_deltas(core.edits(), limit))):
            ids = [delta.delta_id for delta in deltas]
            queue.mark_sending(ids)
            result.had_contact = True
            try:
                self._push_batch(queue, deltas, result)
            except BaseException as error:
                queue.nack(ids)  # it has only those that are neither accepted nor rejected
                if not isinstance(error, LakeSyncError):
                    raise
                result.error, result.failed_request = error, "push of the app's queue"
                return

    def _push_batch(self, queue: SyncQueue, deltas: Sequence[RowDelta], result: CycleResult) -> None:
        """Push deltas, and remove them from the queue; those that the gateway rejects are reported.

        If the gateway rejects the push without naming deltas, the two halves are pushed until the cause is alone.
        """
        core = self._replica.core
        try:
            self._transport.push(SyncPush(core.client_id, tuple(deltas), core.cursor))
        except RejectedError as error:
            rejections = {rejection.delta_id: rejection for rejection in error.rejected}
            if len(deltas) == 1 and not isinstance(error, ForbiddenError):
                rejections.setdefault(deltas[0].delta_id, Rejection(deltas[0].delta_id, error.code, str(error)))
            rejected = [delta for delta in deltas if delta.delta_id in rejections]
            if not rejected and isinstance(error, ForbiddenError):  # it rejects the client
                raise
            for delta in rejected:
                code, message = rejections[delta.delta_id].code, rejections[delta.delta_id].message
                result.refused.append(Edit(number=0, delta=delta, status="refused", code=code, message=message))
            queue.ack([delta.delta_id for delta in rejected])
            rest = [delta for delta in deltas if delta.delta_id not in rejections]
            middle = len(rest) if rejected else len(rest) // 2
            for part in (rest[:middle], rest[middle:]):
                if part:
                    self._push_batch(queue, part, result)
        else:
            queue.ack([delta.delta_id for delta in deltas])
            result.pushed += len(deltas)

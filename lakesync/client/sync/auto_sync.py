"""Auto-sync: a thread that synchronises at intervals, after local writes, and when the gateway sends changes.

`SyncCoordinator` starts and stops it. If the transport can open *subscriptions* (WebSockets), the thread keeps one
open. The gateway sends changes on it as broadcasts, which are pages without a request, and the thread also sends its
pulls on it. Pushes are HTTP requests in any case. The thread uses a subscription until it fails, and then synchronises
by HTTP until it opens another one.

The session has the steps of a synchronisation. The replica is the app's database, with the core: the state machine that
decides which request is next. A pull fetches a *page* of other clients' changes. The core has *caught up* if the
gateway had no further page after the newest one.
"""

from __future__ import annotations

import logging
import random
import threading
import time

from lakesync.client.core import Broadcast, NoResponse, Wait
from lakesync.client.core.messages import Backoff
from lakesync.client.errors import UnreachableError
from lakesync.client.sync.exchange import CycleResult, response_of
from lakesync.client.sync.replica import SyncThread
from lakesync.client.sync.sync_session import CLOSE_SECONDS, SyncSession
from lakesync.client.transports.base import RealtimeTransport, Subscription
from lakesync.model.errors import LakeSyncError
from lakesync.model.types import SyncPull, SyncResponse

POLL_SECONDS = 0.5
"""Seconds between checks whether another connection has written to the database."""
SLEEP_GAP_SECONDS = 10.0
"""If the wall clock gains this many seconds on the monotonic clock, the machine slept, and its WebSocket is dead."""
RESPONSE_SECONDS = 30.0
"""Seconds to wait for the response to a pull on a subscription."""

log = logging.getLogger("lakesync.client")


class AutoSync:
    """The thread of auto-sync. It can be started and stopped any number of times."""

    def __init__(self, session: SyncSession, interval: float, heartbeat: float) -> None:
        """Create it; `start` starts the thread.

        Args:
            session: runs the synchronisations.
            interval: seconds between pulls.
            heartbeat: seconds between pulls while a subscription is open.
        """
        self._session = session
        self._interval = interval
        self._heartbeat = heartbeat
        self._backoff = Backoff(time.monotonic, random.random, session.replica.retry)
        """The delays before a subscription is opened again."""
        self._woken = threading.Event()
        """Set by `wake` to end a wait."""
        self._stopping = threading.Event()
        self._thread: SyncThread | None = None
        self._subscription: Subscription | None = None
        self._next_pull = 0.0
        """When a pull is due, on the monotonic clock; 0 for now."""
        self._wall = time.time
        """Returns seconds since 1970."""
        self._clock_difference = 0.0
        """The wall clock minus the monotonic clock, when last measured."""

    @property
    def live(self) -> bool:
        """Whether a subscription is open."""
        return self._subscription is not None

    def start(self) -> None:
        """Start the thread, unless it runs already."""
        if self._thread is None:
            self._stopping.clear()
            self._next_pull = 0.0
            self._thread = SyncThread(target=self._run, name="lakesync-sync", daemon=True)
            self._thread.start()

    def stop(self, *, closing: bool = False) -> None:
        """Stop the thread; its request in progress is cancelled after a short time.

        Args:
            closing: also cancel a synchronisation that the app has started; otherwise wait for it.
        """
        if self._thread is not None:
            self._stopping.set()
            self.wake()
            self._thread.join(CLOSE_SECONDS)
            while self._thread.is_alive():
                if closing:
                    self._session.cancel()
                if not self._session.is_foreground:  # the request in progress is this thread's, not the app's
                    self._session.exchange.cancel_request()
                self._thread.join(CLOSE_SECONDS)
            self._thread = None

    def wake(self) -> None:
        """Make the thread synchronise now. Any thread may call it."""
        self._woken.set()
        subscription = self._subscription
        if subscription is not None:
            subscription.wake()

    def _run(self) -> None:
        """Synchronise until `stop` is called. Unexpected errors are logged, and the thread continues."""
        while not self._stopping.is_set():
            try:
                self._run_once()
            except Exception:  # a listener's bug or a full disk must not end the thread
                log.exception("auto-sync failed; it is retried")
                self._woken.wait(self._interval)
                self._woken.clear()

    def _run_once(self) -> None:
        """Use a subscription until it ends; without one, synchronise once and wait."""
        try:
            transport = self._session.transport
            if not isinstance(transport, RealtimeTransport):
                self._sleep(self._cycle())
            elif self._backoff.is_over and self._catch_up():
                self._use_subscription(transport)
            else:
                self._sleep(min(self._cycle(), self._backoff.delay()))
        except LakeSyncError as error:
            self._report_failure(error)
            self._sleep(self._interval)

    def _catch_up(self) -> bool:
        """Pull until there are no more pages, before a subscription is opened; return whether that succeeded.

        On a slow connection, large pages on a WebSocket would delay its pings.
        """
        replica = self._session.replica
        was_recent = time.time() - (self._session.last_sync or 0.0) < self._heartbeat
        if replica.core.mode == "pushOnly" or (was_recent and replica.core.caught_up):
            return True
        self._next_pull = 0.0
        self._cycle()
        if not replica.core.caught_up:
            self._backoff.failed()
        return replica.core.caught_up

    def _report_failure(self, error: LakeSyncError) -> None:
        """Report an error to the app, unless the thread is stopped."""
        if not self._stopping.is_set():  # the request may have failed because it was cancelled
            self._session.report_failure(error)

    def _finish(self, result: CycleResult) -> None:
        """Report the result of a synchronisation to the app, unless it failed and the thread is stopped."""
        if result.error is None or not self._stopping.is_set():  # it may have failed because it was cancelled
            self._session.finish(result)

    def _cycle(self) -> float:
        """Synchronise once by HTTP; return the seconds until the next time, negative if it is overdue."""
        session, result = self._session, CycleResult()
        with session.exclusive():
            self._request_pull_if_due(self._interval)
            session.repeat_interrupted_request()  # `stop` may have interrupted one
            waits = [session.send_all(result, self._stopping.is_set)]
            if not self._stopping.is_set():
                waits.append(session.action_sender.send_due(result))
            self._finish(result)
        return self._seconds_until_due(waits)

    def _request_pull_if_due(self, interval: float) -> None:
        """Request a pull from the core, if one is due; the next one is due after about `interval` seconds.

        The time varies by a tenth, so that clients that started together do not pull together.
        """
        if time.monotonic() >= self._next_pull:
            self._next_pull = time.monotonic() + interval * random.uniform(0.9, 1.1)  # noqa: S311 not a secret
            self._session.replica.core.request_pull()

    def _seconds_until_due(self, waits: list[float | None]) -> float:
        """Return the seconds until a pull or one of `waits` (None: not needed) is due; negative if it is overdue."""
        return min([self._next_pull - time.monotonic(), *(wait for wait in waits if wait is not None)])

    def _sleep(self, seconds: float) -> None:
        """Wait for a time, until `wake` is called, or until another connection writes to the database."""
        deadline = time.monotonic() + max(0.0, seconds)
        replica = self._session.replica
        version = replica.data_version()
        while not self._stopping.is_set() and (remaining := deadline - time.monotonic()) > 0:
            if self._woken.wait(min(remaining, POLL_SECONDS)):
                break
            if replica.data_version() != version:
                break
        self._woken.clear()

    def _use_subscription(self, transport: RealtimeTransport) -> None:
        """Open a subscription, and pull and receive broadcasts on it until it fails or the thread is stopped."""
        replica, session = self._session.replica, self._session
        try:
            subscription = transport.connect()
        except LakeSyncError as error:
            self._backoff.failed()
            self._report_failure(error)
            return
        self._subscription = subscription
        try:
            with session.exclusive():
                replica.subscription_opened()
            self._next_pull, self._clock_difference = 0.0, self._wall() - time.monotonic()
            while not self._stopping.is_set():
                self._synchronise_on(subscription)
        except LakeSyncError as error:
            self._backoff.failed(getattr(error, "retry_after", None))
            self._report_failure(error)
        finally:
            self._subscription = None
            self._next_pull = min(self._next_pull, time.monotonic() + self._interval)
            subscription.close()
            with session.exclusive():
                replica.subscription_closed()

    def _synchronise_on(self, subscription: Subscription) -> None:
        """Send everything that is due, pulls on the subscription, then wait for a broadcast."""
        session, replica, result = self._session, self._session.replica, CycleResult()
        with session.exclusive():
            self._request_pull_if_due(self._heartbeat)
            session.custom_deltas.push(result, self._stopping.is_set)
            last_edit = replica.record()  # later ones are left to the next call
            waits: list[float | None] = []
            while not self._stopping.is_set():
                request = replica.next_request(last_edit)
                if isinstance(request, Wait):
                    waits = [request.seconds, session.action_sender.send_due(result)]
                    break
                if isinstance(request, SyncPull) and request.source is None:
                    self._pull_over(subscription, request, result)
                else:  # a push, or a pull from a named source (a database beside the gateway's own changes)
                    session.exchange.send(request, result)
            self._finish(result)
        self._wait_for_broadcast(subscription, self._seconds_until_due(waits))

    def _pull_over(self, subscription: Subscription, request: SyncPull, result: CycleResult) -> None:
        """Send a pull on the subscription and apply the response, and broadcasts that arrive before it.

        Raises:
            LakeSyncError: the subscription has failed, or the gateway did not respond within RESPONSE_SECONDS.
        """
        replica, session = self._session.replica, self._session
        deadline = time.monotonic() + RESPONSE_SECONDS
        try:
            subscription.pull(request)
            while (message := subscription.receive(deadline - time.monotonic())) is None or message.is_broadcast:
                if message is not None:
                    self._apply_broadcast(message.page, result)
                elif self._stopping.is_set() or time.monotonic() >= deadline:
                    replica.receive(NoResponse("no response in time"))
                    raise UnreachableError(
                        f"the gateway did not answer on the WebSocket within {RESPONSE_SECONDS:.0f} s"
                    )
            session.exchange.check_progress(request, message.page)
        except LakeSyncError as error:
            if replica.core.has_pending_request:
                result.error = error
                replica.receive(response_of(error))
            raise
        self._backoff.reset()
        session.exchange.apply(request, message.page, result)

    def _apply_broadcast(self, page: SyncResponse, result: CycleResult) -> None:
        """Apply a broadcast, and add what it changed to `result`."""
        self._session.exchange.apply(None, Broadcast(page), result)

    def _wait_for_broadcast(self, subscription: Subscription, seconds: float) -> None:
        """Wait at most some seconds for a broadcast and apply it; do not wait if there is something to send.

        Raises:
            LakeSyncError: the subscription has failed, or the machine slept meanwhile.
        """
        replica, session = self._session.replica, self._session
        deadline = time.monotonic() + max(0.0, seconds)
        version = replica.data_version()
        while not self._stopping.is_set():
            remaining = 0.0 if self._woken.is_set() else max(0.0, deadline - time.monotonic())
            message = subscription.receive(min(remaining, POLL_SECONDS))
            before, self._clock_difference = self._clock_difference, self._wall() - time.monotonic()
            if self._clock_difference - before > SLEEP_GAP_SECONDS:
                raise UnreachableError("this machine slept: the WebSocket is opened again")
            if message is not None:
                result = CycleResult()
                with session.exclusive():
                    self._apply_broadcast(message.page, result)
                    session.finish(result)
                break
            if remaining == 0 or replica.data_version() != version:
                break
        self._woken.clear()

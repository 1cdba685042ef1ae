"""Auto-sync: a thread that synchronises at intervals, when something was written, and when the gateway speaks."""

from __future__ import annotations

import logging
import random
import threading
import time

from lakesync.client.core import Broadcast, Lost, Wait
from lakesync.client.core.lane import Lane
from lakesync.client.core.limits import RetryPolicy
from lakesync.client.errors import UnreachableError
from lakesync.client.exchange import Tally, answer_of
from lakesync.client.replica import SyncThread
from lakesync.client.rounds import PATIENCE, Rounds
from lakesync.client.transports.base import Line, RealtimeTransport
from lakesync.model.errors import LakeSyncError
from lakesync.model.types import SyncPull, SyncResponse

LOOK = 0.5
"""Seconds between looks whether another connection wrote to the database."""
ASLEEP = 10.0
"""Seconds by which the clock on the wall gains on the one that stands while a machine sleeps: its line is dead then."""
ANSWER = 30.0
"""Seconds to wait for an answer on a line."""

log = logging.getLogger("lakesync.client")


class Background:
    """Started and stopped any number of times."""

    def __init__(self, rounds: Rounds, interval: float, heartbeat: float, retry: RetryPolicy | None = None) -> None:
        """Args: interval: seconds between pulls; heartbeat: the same while a line is open."""
        self._rounds = rounds
        self._interval = interval
        self._heartbeat = heartbeat
        self._lane = Lane(time.monotonic, random.random, retry)
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread: SyncThread | None = None
        self._line: Line | None = None
        self._next_pull = 0.0
        self._wall = time.time
        self._drift = 0.0

    @property
    def live(self) -> bool:
        """Whether a line is open."""
        return self._line is not None

    def start(self) -> None:
        """Begin, unless it runs already."""
        if self._thread is None:
            self._stopping.clear()
            self._next_pull = 0.0
            self._thread = SyncThread(target=self._run, name="lakesync-sync", daemon=True)
            self._thread.start()

    def stop(self, *, closing: bool = False) -> None:
        """End it, after the request that is under way or, soon, without it.

        Args:
            closing: the round that the app asked for ends as well; else it is waited for.
        """
        if self._thread is not None:
            self._stopping.set()
            self.wake()
            self._thread.join(PATIENCE)
            while self._thread.is_alive():
                if closing:
                    self._rounds.break_off()
                if not self._rounds.foreground:
                    self._rounds.hang_up()
                self._thread.join(PATIENCE)
            self._thread = None

    def wake(self) -> None:
        """Look now."""
        self._woken.set()
        line = self._line
        if line is not None:
            line.wake()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._turn()
            except Exception:  # neither a listener's fault nor a full disk ends the synchronisation
                log.exception("synchronisation failed")
                self._woken.wait(self._interval)
                self._woken.clear()

    def _turn(self) -> None:
        try:
            transport = self._rounds.transport
            if not isinstance(transport, RealtimeTransport):
                self._sleep(self._cycle())
            elif not self._lane.delay() and self._near():
                self._hold_line(transport)
            else:
                self._sleep(min(self._cycle(), self._lane.delay()))
        except LakeSyncError as error:
            self._failed(error)
            self._sleep(self._interval)

    def _near(self) -> bool:
        """Come near to what the gateway has, by requests: on a slow line a WebSocket's pings wait behind long pages."""
        replica = self._rounds.replica
        lately = time.time() - (self._rounds.last_sync or 0.0) < self._heartbeat
        if replica.core.mode == "pushOnly" or (lately and replica.core.complete):
            return True
        self._next_pull = 0.0
        self._cycle()
        if not replica.core.complete:
            self._lane.failed()
        return replica.core.complete

    def _failed(self, error: LakeSyncError) -> None:
        if not self._stopping.is_set():  # else what was broken off is no news
            self._rounds.failed(error)

    def _end(self, tally: Tally) -> None:
        if tally.error is None or not self._stopping.is_set():
            self._rounds.end(tally)

    def _cycle(self, tally: Tally | None = None) -> float:
        """One cycle by requests; seconds until the next is due."""
        rounds, tally = self._rounds, tally or Tally()
        with rounds.exclusively():
            if time.monotonic() >= self._next_pull:
                self._next_pull = time.monotonic() + self._interval * random.uniform(0.9, 1.1)  # noqa: S311 no secret
                rounds.want()
            rounds.settle()
            waits = [rounds.carry_all(tally, self._stopping.is_set)]
            if not self._stopping.is_set():
                waits.append(rounds.do_actions(tally))
            self._end(tally)
        return min([self._next_pull - time.monotonic(), *(wait for wait in waits if wait is not None)])

    def _sleep(self, seconds: float) -> None:
        """Until it is time, something was written, or somebody wakes us."""
        until = time.monotonic() + max(0.0, seconds)
        replica = self._rounds.replica
        version = replica.version()
        while not self._stopping.is_set() and (left := until - time.monotonic()) > 0:
            if self._woken.wait(min(left, LOOK)):
                break
            if replica.version() != version:
                break
        self._woken.clear()

    def _hold_line(self, transport: RealtimeTransport) -> None:
        """Keep a line open until it ends; meanwhile pulls and broadcasts come on it."""
        replica, rounds = self._rounds.replica, self._rounds
        try:
            line = transport.connect()
        except LakeSyncError as error:
            self._lane.failed()
            self._failed(error)
            return
        self._line = line
        try:
            with rounds.exclusively():
                replica.line_opened()
            self._next_pull, self._drift = 0.0, self._wall() - time.monotonic()
            while not self._stopping.is_set():
                self._serve(line)
        except LakeSyncError as error:
            self._lane.failed(getattr(error, "retry_after", None))
            self._failed(error)
        finally:
            self._line = None
            self._next_pull = min(self._next_pull, time.monotonic() + self._interval)
            line.close()
            with rounds.exclusively():
                replica.line_closed()

    def _serve(self, line: Line) -> None:
        rounds, replica, tally = self._rounds, self._rounds.replica, Tally()
        with rounds.exclusively():
            if time.monotonic() >= self._next_pull:
                self._next_pull = time.monotonic() + self._heartbeat * random.uniform(0.9, 1.1)  # noqa: S311 no secret
                rounds.want()
            rounds.send_entered(tally)
            waits: list[float | None] = []
            while not self._stopping.is_set():
                request = replica.next_request()
                if isinstance(request, Wait):
                    waits = [request.seconds, rounds.do_actions(tally)]
                    break
                if isinstance(request, SyncPull) and request.source is None:
                    self._pull(line, request, tally)
                else:
                    rounds.carry(request, tally)
            self._end(tally)
        left = min([self._next_pull - time.monotonic(), *(wait for wait in waits if wait is not None)])
        self._listen(line, left)

    def _pull(self, line: Line, request: SyncPull, tally: Tally) -> None:
        replica, rounds = self._rounds.replica, self._rounds
        until = time.monotonic() + ANSWER
        try:
            line.pull(request)
            while (got := line.receive(until - time.monotonic())) is None or got[0]:
                if got is not None:
                    self._told(got[1], tally)
                elif self._stopping.is_set() or time.monotonic() >= until:
                    replica.receive(Lost("no answer in time"))
                    raise UnreachableError("the gateway does not answer on the WebSocket")
            rounds.check_progress(request, got[1])
        except LakeSyncError as error:
            if replica.waits_for_answer():
                tally.error = error
                replica.receive(answer_of(error))
            raise
        self._lane.succeeded()
        rounds.count(request, got[1], replica.receive(got[1]), tally)

    def _told(self, page: SyncResponse, tally: Tally) -> None:
        self._rounds.count(None, None, self._rounds.replica.receive(Broadcast(page)), tally)

    def _listen(self, line: Line, seconds: float) -> None:
        """Take broadcasts until there is something else to do."""
        replica, rounds = self._rounds.replica, self._rounds
        until = time.monotonic() + max(0.0, seconds)
        version = replica.version()
        while not (self._stopping.is_set() or self._woken.is_set()) and (left := until - time.monotonic()) > 0:
            got = line.receive(min(left, LOOK))
            before, self._drift = self._drift, self._wall() - time.monotonic()
            if self._drift - before > ASLEEP:
                raise UnreachableError("this machine slept: the WebSocket is opened anew")
            if got is not None:
                tally = Tally()
                with rounds.exclusively():
                    self._told(got[1], tally)
                    rounds.end(tally)
                break
            if replica.version() != version:
                break
        self._woken.clear()

"""The thread that owns both databases of a SQLite store. `SqliteStore` submits all of its jobs to it.

A *job* is a function that reads or changes the store. The thread runs jobs, with gateways in turn, and in between
writes rows that are only in memory to `state.db` (*write-behind*).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TypeVar

from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.group_commit import Turns
from lakesync.staging.sqlite.group import GroupCommit, QueuedJob
from lakesync.staging.sqlite.write_behind import WriteBehind, WriteBehindLimits

T = TypeVar("T")


_IDLE_PART = 60
"""After a pause without jobs, rows are written to `state.db`. The pause is one 60th of `WriteBehindLimits.seconds`."""


class Owner:
    """Runs jobs until `stop`: gateways take turns, and the jobs of one gateway run in order of submission.

    Reads and writes have separate queues, so a read may run before a write of its gateway that was submitted earlier.
    """

    def __init__(self, group: GroupCommit, behind: WriteBehind, name: str, allowed: WriteBehindLimits) -> None:
        """Start the thread.

        Args:
            group: runs jobs that wait at the same time in one transaction.
            behind: writes rows from memory to `state.db`.
            name: the thread's name.
            allowed: for how long rows may be in memory only.
        """
        self._group = group
        self._behind = behind
        self._allowed = allowed
        self._queue: SimpleQueue[tuple[str, QueuedJob] | None] = SimpleQueue()
        self._writing: Turns[QueuedJob] = Turns()
        self._reading: Turns[QueuedJob] = Turns()
        self._lock = threading.Lock()
        self._stopped = False
        """Whether `stop` was called; guarded by the lock."""
        self._ended = False
        """Whether the thread has received every job before `stop`."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, run: Callable[[bool], T], *, writes: bool, gateway: str = "") -> Future[T]:
        """Run a function in the owner thread; if it writes, in a transaction with others (group commit).

        Args:
            run: the function; its argument says whether it runs alone in its transaction.
            writes: whether it changes anything.
            gateway: the id of the gateway for which it runs; empty for the store itself, which takes turns with the
                gateways.

        Returns:
            A future of what `run` returns or raises.

        Raises (in the future):
            StagingUnavailableError: the store is closed, or the transaction failed.
        """
        future: Future[T] = Future()
        with self._lock:
            if not self._stopped:
                self._queue.put((gateway, QueuedJob(run, future, writes)))
                return future
        future.set_exception(StagingUnavailableError("the staging store is closed: make another one"))
        return future

    def stop(self) -> None:
        """Complete submitted jobs, write all rows to `state.db`, and end the thread."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        """Run jobs until `stop`; write rows to `state.db` when they are old or many, or the thread is idle.

        `due` is the monotonic time at which rows in memory are too old; `inf` if there are none, `-inf` while a part of
        them is still to be written. `quiet` says that no job ran in this round, so that writing delays none.
        `GroupCommit.run` calls `_receive` too, so that jobs which were submitted meanwhile join the group.
        """
        due = inf
        while True:
            idle = monotonic() + self._allowed.seconds / _IDLE_PART if self._behind.has_pending else inf
            self._wait(min(due, idle))
            busy = self._busy
            self._group.run(self._writing, self._reading, self._receive)
            while self._ended and self._busy:
                self._group.run(self._writing, self._reading, self._receive)
            if self._ended:
                self._behind.try_write()
                return
            if self._behind.has_pending:
                due = min(due, monotonic() + self._allowed.seconds)
            quiet = not busy and self._behind.has_pending
            if quiet or monotonic() >= due or self._behind.full:
                due = inf if self._behind.try_write_part() else -inf

    @property
    def _busy(self) -> bool:
        """Whether a received job waits."""
        return bool(self._writing or self._reading)

    def _wait(self, due: float) -> None:
        """Receive all submitted jobs; if none waits, wait for one.

        Args:
            due: the monotonic time until which to wait; `inf` to wait without limit.
        """
        if not self._busy:
            with suppress(Empty):
                self._sort(self._queue.get(timeout=None if due == inf else max(0.0, due - monotonic())))
        self._receive()

    def _receive(self) -> None:
        """Sort all submitted jobs into the queues of writing and of reading jobs."""
        with suppress(Empty):
            while not self._ended:
                self._sort(self._queue.get_nowait())

    def _sort(self, received: tuple[str, QueuedJob] | None) -> None:
        """Put a job into its queue; None is the signal of `stop`, which comes after all jobs."""
        if received is None:
            self._ended = True
        else:
            gateway, job = received
            (self._writing if job.writes else self._reading).put(gateway, job)

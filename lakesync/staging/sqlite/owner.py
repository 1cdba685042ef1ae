"""The one thread that touches both databases: it takes what was submitted as a group, and writes behind in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TypeVar

from lakesync.exceptions import StagingUnavailableError
from lakesync.staging.sqlite.behind import Behind, WriteBehind
from lakesync.staging.sqlite.group import GroupCommit, Job

T = TypeVar("T")

_GROUP = 256
_IDLE_PART = 60
"""After this part of the allowed seconds without anything to do, the state is written behind."""


class Owner:
    """Runs jobs in order of submission until it is stopped."""

    def __init__(self, group: GroupCommit, behind: Behind, name: str, allowed: WriteBehind) -> None:
        """Start the thread."""
        self._group = group
        self._behind = behind
        self._allowed = allowed
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, run: Callable[[bool], T], *, writes: bool) -> Future[T]:
        """Have `run` called in the owner thread; a writing one in a group's transaction.

        Raises (in the future):
            StagingUnavailableError: the store is closed.
        """
        future: Future[T] = Future()
        with self._lock:
            if not self._stopped:
                self._queue.put(Job(run, future, writes))
                return future
        future.set_exception(StagingUnavailableError("the staging store is closed: make another one"))
        return future

    def stop(self) -> None:
        """Finish what was submitted, write behind, end the thread."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        due = inf
        while True:
            idle = monotonic() + self._allowed.seconds / _IDLE_PART if self._behind.any else inf
            jobs, more = self._take(min(due, idle))
            if jobs:
                self._group.run(jobs)
            if not more:
                self._behind.try_write()
                return
            if self._behind.any:
                due = min(due, monotonic() + self._allowed.seconds)
            quiet = not jobs and self._behind.any
            if quiet or monotonic() >= due or self._behind.full:
                due = inf if self._behind.try_write_on() else -inf

    def _take(self, due: float) -> tuple[list[Job], bool]:
        """What waits, and whether the thread goes on; none when the write-behind is due."""
        jobs: list[Job] = []
        try:
            job = self._queue.get(timeout=None if due == inf else max(0.0, due - monotonic()))
            while job is not None:
                jobs.append(job)
                if len(jobs) == _GROUP:
                    return jobs, True
                job = self._queue.get_nowait()
        except Empty:
            return jobs, True
        return jobs, False

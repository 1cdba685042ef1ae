"""The thread that owns both databases of a SQLite store, and its group commit: several jobs share one transaction.

`log.db` has the *log*, one row for each push. `state.db` has the rows that result from the pushes, and feed entries,
which say when a row joined and left a bucket of the sync rules.

A *job* is a function that the engine or the pipeline submits to the store; `SqliteStore` passes all of them to `Owner`.
The thread runs jobs, and gateways take turns; each is one app's stream of changes. In between, it writes rows that are
only in memory to `state.db` (*write-behind*).

Jobs that wait at the same time, or arrive while others run, form a *group*: they run one after another in one
transaction of `log.db`, and are acknowledged once it is durable. So the disk is synchronised once for all of them. A
job whose changes the log does not contain, such as a re-index (an update of all rows' bucket keys), runs *alone*: after
a crash, a replay of the log could not repeat these changes.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from lakesync.model.crash_points import crash_point
from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.group_commit import Outcome, Turns
from lakesync.staging.notices import Announcement, Notices
from lakesync.staging.sqlite.journal import Journal, MustRunAloneError
from lakesync.staging.sqlite.state import State
from lakesync.staging.sqlite.write_behind import WriteBehind, WriteBehindLimits

T = TypeVar("T")

_GROUP_SECONDS = 0.05
"""Seconds after which a group is committed before more jobs join it, and after which a round of reads ends. So no job
waits for all others."""
_IDLE_DIVISOR = 60
"""`WriteBehindLimits.seconds` divided by this is the pause without jobs after which rows are written to `state.db`."""


class QueuedJob(NamedTuple):
    """A job that waits for the owner thread, and the future of its result."""

    function: Callable[[bool], Any]
    """The job. Its argument says whether it runs alone in its transaction; False for a job that only reads."""
    future: Future[Any]
    """Completed with the function's result or error; for a job that writes, when its transaction is durable."""
    writes: bool
    """Whether it may change something."""


class GroupCommit:
    """Runs jobs over the log and the rows. Only the thread that owns the store calls its methods.

    A job that raises is rolled back alone. If the commit fails, all jobs of its group are rolled back, and their
    futures fail with StagingUnavailableError.
    """

    def __init__(self, journal: Journal, state: State, behind: WriteBehind, notices: Notices) -> None:
        """Create it over the parts of an open store.

        Args:
            journal: the store's `log.db`.
            state: the store's rows, and the entries of the feed that clients pull.
            behind: writes committed rows to `state.db`, also while a commit waits for the disk.
            notices: the listeners, which are notified of each commit.
        """
        self._journal = journal
        self._state = state
        self._behind = behind
        self._notices = notices
        self.announcement = Announcement()
        """The notices of the current group, delivered once it is committed and its futures are completed."""

    def run(self, writing: Turns[QueuedJob], reading: Turns[QueuedJob], receive: Callable[[], None]) -> None:
        """Run a group of writing jobs, and then reading jobs for a limited time.

        Args:
            writing: the queue of jobs that may change something.
            reading: the queue of reads.
            receive: adds jobs that were submitted meanwhile to the queues; writing ones still join the group, because
                fewer and larger groups cost less.
        """
        if writing and (alone := self._run_group(writing, receive)) is not None:
            self._run_alone(alone)
        deadline = monotonic() + _GROUP_SECONDS
        while reading and monotonic() < deadline:
            job = reading.take()
            if job.future.set_running_or_notify_cancel():
                self._read(job)

    def _read(self, job: QueuedJob) -> None:
        """Run a read, and complete its future."""
        try:
            self._recover()
            outcome = Outcome(job.future, job.function(False))
        except BaseException as exc:
            outcome = Outcome(job.future, error=self._error_for_caller(exc))
        outcome.complete()

    # -- groups --------------------------------------------------------------------------------------------------

    def _run_group(self, writing: Turns[QueuedJob], receive: Callable[[], None]) -> QueuedJob | None:
        """Run one group of jobs.

        Args:
            writing: the queue of jobs that may change something.
            receive: adds jobs that were submitted meanwhile to the queue.

        Returns:
            A job that ended the group because it must run alone, after it; None without one.
        """
        deadline = monotonic() + _GROUP_SECONDS
        done: list[Outcome] = []
        alone: QueuedJob | None = None
        job = _next_of(writing)
        try:
            self._begin()
            while job is not None:
                try:
                    done.append(self._attempt(job, alone=False))
                except MustRunAloneError:
                    alone = job  # which ends the group after `receive`
                receive()
                job = _next_of(writing) if alone is None and monotonic() < deadline else None
            self._commit()
        except Exception as exc:
            failed = [outcome.future for outcome in done]
            if job is not None:
                failed.append(job.future)
            self._fail(failed, exc)
            return alone
        for outcome in done:
            outcome.complete()
        self._notices.deliver(self.announcement.take())
        return alone

    def _run_alone(self, job: QueuedJob) -> None:
        """Run a job in a transaction of its own, with all rows written to `state.db` before and after it.

        So a replay of the log never crosses the job, whose changes the log does not contain.
        """
        try:
            self._behind.write()
            self._begin(alone=True)
            outcome = self._attempt(job, alone=True)
            if outcome.error is not None:  # the job has no savepoint in `log.db`: its transaction is rolled back
                self._fail([job.future], outcome.error)
                return
            self._commit()
        except Exception as exc:
            self._fail([job.future], exc)
            return
        try:
            self._behind.write()
        except Exception as exc:
            job.future.set_exception(
                self._error_for_caller(exc, "the change is committed, and seen once its rows are written")
            )
        else:
            outcome.complete()
        self._notices.deliver(self.announcement.take())

    def _begin(self, *, alone: bool = False) -> None:
        """Begin a transaction, after `_recover`."""
        self._recover()
        self._journal.begin(alone=alone)

    def _recover(self) -> None:
        """Repeat a rollback of `log.db` that failed, and rebuild rows that were lost by an error."""
        self._journal.reopen()
        if self._journal.has_transaction:
            self._journal.rollback()
        self._behind.recover_if_lost()

    def _attempt(self, job: QueuedJob, *, alone: bool) -> Outcome:
        """Run one job in the group.

        Args:
            job: the job.
            alone: whether the job has a transaction of its own.

        Returns:
            The job's future, with its result or error.

        Raises:
            MustRunAloneError: the job was rolled back and must run again, alone.
            sqlite3.Error: the job could not be rolled back alone, so the whole group must be.
        """
        self._journal.begin_job()
        try:
            result = job.function(alone)
            self._state.end_job()
        except BaseException as exc:
            self._state.drop_job()
            self._journal.roll_back_job()
            if isinstance(exc, MustRunAloneError):
                raise
            self._check_transactions()
            return Outcome(job.future, error=self._error_for_caller(exc))
        return Outcome(job.future, result)

    def _commit(self) -> None:
        """Commit the group to `log.db`; its rows are visible, in memory, afterwards.

        While the disk is busy, rows of earlier groups are written to `state.db`.
        """
        self._check_transactions()
        crash_point("staging.before_commit")
        meanwhile = self._behind.write_during_commit if self._behind.can_write_during_commit else None
        changed_gateways = self._journal.commit(meanwhile)
        self._behind.note_commit(changed_gateways)
        crash_point("staging.after_commit")
        try:
            self._state.publish()
        except sqlite3.Error as exc:
            self._behind.discard_memory(exc)

    def _check_transactions(self) -> None:
        """Check that the transactions of both files are open: SQLite ends one by itself if the disk is full.

        Without a transaction, each further write would be committed immediately and could not be rolled back.

        Raises:
            sqlite3.OperationalError: a transaction was ended; the group is lost.
        """
        if not (self._journal.has_transaction and self._state.is_intact):
            raise sqlite3.OperationalError("the group's transaction was ended by SQLite")

    def _fail(self, futures: Iterable[Future[Any]], exc: BaseException) -> None:
        """Roll back the group, and complete its futures with the error.

        Args:
            futures: the futures of all jobs of the group.
            exc: the error, which `_error_for_caller` converts.
        """
        self.announcement.take()  # the group's notices are discarded
        with suppress(sqlite3.Error):  # before the next job, `_recover` repeats it
            self._journal.rollback()
        if self._state.is_intact:
            try:
                self._state.drop_group()
            except sqlite3.Error as rollback_error:
                self._behind.discard_memory(rollback_error)
        for future in futures:
            future.set_exception(self._error_for_caller(exc))

    def _error_for_caller(self, exc: BaseException, effect: str = "nothing was committed") -> BaseException:
        """Return the error that the caller of a job gets.

        Args:
            exc: the error that was raised.
            effect: says in the message whether anything was committed.

        Returns:
            StagingUnavailableError for an error of SQLite or of the disk; `exc` itself for any other error.
        """
        if not isinstance(exc, sqlite3.Error | OSError):
            return exc
        error = StagingUnavailableError(
            f"the staging store cannot be used: {effect}; look at its disk and the free space, then repeat",
            details=f"{self._journal.path.parent}: {exc}",
        )
        error.__cause__ = exc
        return error


class Owner:
    """Runs jobs until `stop`: gateways take turns, and the jobs of one gateway run in order of submission.

    Reads and writes have separate queues, so a read may run before a write of its gateway that was submitted earlier.
    """

    def __init__(self, group: GroupCommit, behind: WriteBehind, name: str, limits: WriteBehindLimits) -> None:
        """Start the thread.

        Args:
            group: runs jobs that wait at the same time in one transaction.
            behind: writes rows from memory to `state.db`.
            name: the thread's name.
            limits: for how long rows may be in memory only.
        """
        self._group = group
        self._behind = behind
        self._limits = limits
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

        `due` is the monotonic time at which rows in memory are too old; `inf` without such rows, `-inf` while a part of
        them is still to be written. In a round without jobs, writing delays none. `GroupCommit.run` calls `_receive`
        too, so that jobs which were submitted meanwhile join the group.
        """
        due = inf
        while True:
            idle_from = monotonic() + self._limits.seconds / _IDLE_DIVISOR if self._behind.has_pending else inf
            self._wait(min(due, idle_from))
            had_jobs = self._has_jobs
            self._group.run(self._writing, self._reading, self._receive)
            while self._ended and self._has_jobs:
                self._group.run(self._writing, self._reading, self._receive)
            if self._ended:
                self._behind.try_write()
                return
            if self._behind.has_pending:
                due = min(due, monotonic() + self._limits.seconds)
            is_idle = not had_jobs and self._behind.has_pending
            if is_idle or monotonic() >= due or self._behind.is_full:
                due = inf if self._behind.try_write_part(busy=had_jobs) else -inf

    @property
    def _has_jobs(self) -> bool:
        """Whether a received job waits."""
        return bool(self._writing or self._reading)

    def _wait(self, due: float) -> None:
        """Receive all submitted jobs; if none waits, wait for one.

        Args:
            due: the monotonic time until which to wait; `inf` to wait without limit.
        """
        if not self._has_jobs:
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


def _next_of(jobs: Turns[QueuedJob]) -> QueuedJob | None:
    """Remove and return the next job whose future was not cancelled; None if all were."""
    while jobs:
        job = jobs.take()
        if job.future.set_running_or_notify_cancel():
            return job
    return None

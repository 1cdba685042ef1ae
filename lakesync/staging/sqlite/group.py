"""Group commit of a SQLite store: several jobs share one transaction of `log.db`.

A *job* is a function that the engine or the pipeline submits to the store. Jobs that wait at the same time, or arrive
while others run, form a *group*: they run one after another in one transaction, and are acknowledged once it is
durable. So the disk is synchronised once for all of them. A job whose changes the log does not contain, such as a
re-index (an update of all rows' bucket keys), runs *alone*: after a crash, a replay of the log could not repeat these
changes. The store's owner thread calls `GroupCommit.run` with its queues.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from time import monotonic
from typing import Any, NamedTuple

from lakesync.model.crash_points import crash_point
from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.group_commit import Outcome, Turns
from lakesync.staging.notices import Announcement, Notices
from lakesync.staging.sqlite.journal import Journal, MustRunAloneError
from lakesync.staging.sqlite.state import State
from lakesync.staging.sqlite.write_behind import WriteBehind

_GROUP_SECONDS = 0.05
"""Seconds after which a group is committed before more jobs join it, and after which a round of reads ends. So no job
waits for all others."""


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
            self._behind.recover_if_lost()
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
            A job that ended the group because it must run alone, after it; None if there is none.
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
                    alone = job
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
        """Begin a transaction; rows that were lost by an error are rebuilt first."""
        self._behind.recover_if_lost()
        self._journal.begin(alone=alone)

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
        mark = self._journal.begin_job()
        try:
            result = job.function(alone)
            self._state.end_job()
        except BaseException as exc:
            self._state.drop_job()
            self._journal.roll_back_job(mark)
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
        behind = self._behind
        behind.note_commit(self._journal.commit(behind.write_during_commit if behind.can_write_during_commit else None))
        crash_point("staging.after_commit")
        try:
            self._state.publish()
        except sqlite3.Error as exc:
            self._behind.discard_memory(exc)

    def _check_transactions(self) -> None:
        """Check that the transactions of both files are open: SQLite ends one by itself if the disk is full.

        Without a transaction, each further write would be committed at once and could not be rolled back.

        Raises:
            sqlite3.OperationalError: a transaction was ended; the group is lost.
        """
        if not (self._journal.intact and self._state.intact):
            raise sqlite3.OperationalError("the group's transaction was ended by SQLite")

    def _fail(self, futures: Iterable[Future[Any]], exc: Exception) -> None:
        """Roll back the group, and complete its futures with the error.

        Args:
            futures: the futures of all jobs of the group.
            exc: the error, which `_error_for_caller` converts.
        """
        self.announcement.take()
        self._journal.rollback()
        if self._state.intact:
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
            f"the staging folder {self._journal.path.parent} cannot be used ({exc}): {effect}, "
            "look at the disk and its free space, then repeat"
        )
        error.__cause__ = exc
        return error


def _next_of(jobs: Turns[QueuedJob]) -> QueuedJob | None:
    """Remove and return the next job whose future was not cancelled; None if there is none."""
    while jobs:
        job = jobs.take()
        if job.future.set_running_or_notify_cancel():
            return job
    return None

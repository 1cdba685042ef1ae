"""Group commit: the journal first, then the answers; the state behind it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from time import monotonic
from typing import Any, NamedTuple

from lakesync.model.crash_points import crash_point
from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.notices import Announcement, Notices
from lakesync.staging.outcome import Outcome
from lakesync.staging.sqlite.behind import Behind
from lakesync.staging.sqlite.journal import Journal, MustRunAloneError
from lakesync.staging.sqlite.state import State
from lakesync.staging.turns import Turns

_GROUP_SECONDS = 0.05
"""A group that took longer is committed before more join it, and readings of one round end: no job waits for all
others."""


class Job(NamedTuple):
    """Something for the owner thread."""

    run: Callable[[bool], Any]
    """Given whether it runs alone in its group."""
    future: Future[Any]
    writes: bool


class GroupCommit:
    """Runs jobs against both databases. All methods belong to the owner thread.

    A job that fails is taken back alone. When the journal's commit fails, all of its group are, in the state too.
    """

    def __init__(self, journal: Journal, state: State, behind: Behind, notices: Notices) -> None:
        self._journal = journal
        self._state = state
        self._behind = behind
        self._notices = notices
        self.announcement = Announcement()
        """What the group under way moves; told once it is committed and its futures have ended."""

    def run(self, writing: Turns[Job], reading: Turns[Job]) -> None:
        """Take a group of the writing jobs and then some of the reading ones, and run them."""
        if writing and (alone := self._run_group(writing)) is not None:
            self._run_alone(alone)
        until = monotonic() + _GROUP_SECONDS
        while reading and monotonic() < until:
            job = reading.take()
            if job.future.set_running_or_notify_cancel():
                self._read(job)

    def _read(self, job: Job) -> None:
        try:
            self._behind.ensure()
            outcome = Outcome(job.future, job.run(False))
        except BaseException as exc:
            outcome = Outcome(job.future, error=self._shown(exc))
        outcome.tell()

    # -- groups --------------------------------------------------------------------------------------------------

    def _run_group(self, writing: Turns[Job]) -> Job | None:
        """Run one group of the jobs; return one that must run alone after it."""
        until = monotonic() + _GROUP_SECONDS
        done: list[Outcome] = []
        alone: Job | None = None
        job = _next_of(writing)
        try:
            self._begin()
            while job is not None:
                try:
                    done.append(self._attempt(job, alone=False))
                except MustRunAloneError:
                    alone = job
                job = _next_of(writing) if alone is None and monotonic() < until else None
            self._commit()
        except Exception as exc:
            lost = [outcome.future for outcome in done]
            if job is not None:
                lost.append(job.future)
            self._fail(lost, exc)
            return alone
        for outcome in done:
            outcome.tell()
        self._notices.tell(self.announcement.take())
        return alone

    def _run_alone(self, job: Job) -> None:
        """A job before and after which the state is written behind."""
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
            job.future.set_exception(self._shown(exc, "the change is committed, and seen once its rows are written"))
        else:
            outcome.tell()
        self._notices.tell(self.announcement.take())

    def _begin(self, *, alone: bool = False) -> None:
        self._behind.ensure()
        self._journal.begin(alone=alone)

    def _attempt(self, job: Job, *, alone: bool) -> Outcome:
        """Run one job in the group.

        Raises:
            MustRunAloneError: it was taken back and must run again.
            sqlite3.Error: it could not be taken back alone; the group is lost.
        """
        mark = self._journal.mark()
        try:
            result = job.run(alone)
            self._state.end_work()
        except BaseException as exc:
            self._state.drop_work()
            self._journal.take_back(mark)
            if isinstance(exc, MustRunAloneError):
                raise
            self._check_transactions()
            return Outcome(job.future, error=self._shown(exc))
        return Outcome(job.future, result)

    def _commit(self) -> None:
        self._check_transactions()
        crash_point("staging.before_commit")
        self._behind.note(self._journal.commit(self._behind.write_beside if self._behind.may_go_on else None))
        crash_point("staging.after_commit")
        try:
            self._state.publish()
        except sqlite3.Error as exc:
            self._behind.lose(exc)

    def _check_transactions(self) -> None:
        """SQLite may end a transaction on its own, when a disk is full: what is written then is committed at once.

        Raises:
            sqlite3.OperationalError: it did; the group is lost.
        """
        if not (self._journal.intact and self._state.intact):
            raise sqlite3.OperationalError("the group's transaction was ended by SQLite")

    def _fail(self, futures: Iterable[Future[Any]], exc: Exception) -> None:
        """Nothing of the group happened."""
        self.announcement.take()
        self._journal.rollback()
        if self._state.intact:
            try:
                self._state.drop_group()
            except sqlite3.Error as also:
                self._behind.lose(also)
        for future in futures:
            future.set_exception(self._shown(exc))

    def _shown(self, exc: BaseException, happened: str = "nothing was committed") -> BaseException:
        """An error as the protocol has it."""
        if not isinstance(exc, sqlite3.Error | OSError):
            return exc
        error = StagingUnavailableError(
            f"the staging folder {self._journal.path.parent} cannot be used ({exc}): {happened}, "
            "look at the disk and its free space, then repeat"
        )
        error.__cause__ = exc
        return error


def _next_of(jobs: Turns[Job]) -> Job | None:
    """The next job that somebody still waits for."""
    while jobs:
        job = jobs.take()
        if job.future.set_running_or_notify_cancel():
            return job
    return None

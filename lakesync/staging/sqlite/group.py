"""Group commit: the journal first, then the answers; the state behind it."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from time import monotonic
from typing import Any, NamedTuple

import structlog

from lakesync.crash import crash_point
from lakesync.exceptions import StagingUnavailableError
from lakesync.staging.notices import Announcement, Notices
from lakesync.staging.outcome import Outcome
from lakesync.staging.sqlite.commit import MustRunAloneError
from lakesync.staging.sqlite.journal import Journal
from lakesync.staging.sqlite.recovery import Recovery
from lakesync.staging.sqlite.state import State

_GROUP_SECONDS = 0.05
"""A group that took longer is committed before more join it: a push never waits for all others."""

_log = structlog.get_logger(__name__)


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

    def __init__(self, journal: Journal, state: State, recovery: Recovery, notices: Notices) -> None:
        self._journal = journal
        self._state = state
        self._recovery = recovery
        self._notices = notices
        self.announcement = Announcement()
        """What the group under way moves; told once it is committed and its futures have ended."""
        self._behind: set[str] = set()
        self.applied: dict[tuple[str, str], int] = {}
        """`(gateway, shard)` → the seq up to which `state.db` durably holds the log."""

    def run(self, jobs: Iterable[Job]) -> None:
        """Run the writing jobs in order, in as few groups as latency allows; the reading ones after the first group."""
        jobs = [job for job in jobs if job.future.set_running_or_notify_cancel()]
        writing = deque(job for job in jobs if job.writes)
        reading = deque(job for job in jobs if not job.writes)
        while writing or reading:
            if writing and self._run_group(writing):
                self._run_alone(writing.popleft())
            while reading:
                self._read(reading.popleft())

    def _read(self, job: Job) -> None:
        try:
            self.ensure_state()
            outcome = Outcome(job.future, job.run(False))
        except BaseException as exc:
            outcome = Outcome(job.future, error=self._shown(exc))
        outcome.tell()

    # -- groups --------------------------------------------------------------------------------------------------

    def _run_group(self, writing: deque[Job]) -> bool:
        """One group of the jobs from the left; whether the next one must run alone."""
        until = monotonic() + _GROUP_SECONDS
        done: list[Outcome] = []
        alone = False
        try:
            self._begin()
            while writing and not alone and (not done or monotonic() < until):
                try:
                    outcome = self._attempt(writing[0], alone=False)
                except MustRunAloneError:
                    alone = True
                else:
                    done.append(outcome)
                    writing.popleft()
            self._commit()
        except Exception as exc:
            lost = [outcome.future for outcome in done]
            if writing and not alone and not done:
                lost.append(writing.popleft().future)
            self._fail(lost, exc)
            return alone
        for outcome in done:
            outcome.tell()
        self._notices.tell(self.announcement.take())
        return alone

    def _run_alone(self, job: Job) -> None:
        """A job before and after which the state is written behind."""
        try:
            self.write_behind()
            self._begin()
            outcome = self._attempt(job, alone=True)
            self._commit()
        except Exception as exc:
            self._fail([job.future], exc)
            return
        self.try_write_behind()
        outcome.tell()
        self._notices.tell(self.announcement.take())

    def _begin(self) -> None:
        self.ensure_state()
        self._journal.begin()
        self._state.mark("together")

    def _attempt(self, job: Job, *, alone: bool) -> Outcome:
        """Run one job in the group.

        Raises:
            MustRunAloneError: it was taken back and must run again.
            sqlite3.Error: it could not be taken back alone; the group is lost.
        """
        mark = self._journal.mark()
        self._state.mark("work")
        try:
            result = job.run(alone)
        except BaseException as exc:
            self._state.take_back("work")
            self._journal.take_back(mark)
            if isinstance(exc, MustRunAloneError):
                raise
            return Outcome(job.future, error=self._shown(exc))
        self._state.keep("work")
        self._journal.keep()
        return Outcome(job.future, result)

    def _commit(self) -> None:
        if not self._state.intact:
            raise sqlite3.OperationalError("the state's transaction was ended by SQLite")
        crash_point("staging.before_commit")
        self._behind |= self._journal.commit()
        crash_point("staging.after_commit")
        try:
            self._state.keep("together")
        except sqlite3.Error as exc:
            self._lose_state(exc)

    def _fail(self, futures: Iterable[Future[Any]], exc: Exception) -> None:
        """Nothing of the group happened."""
        self.announcement.take()
        self._journal.rollback()
        if self._state.intact:
            try:
                self._state.take_back("together")
            except sqlite3.Error as also:
                self._lose_state(also)
        for future in futures:
            future.set_exception(self._shown(exc))

    def _shown(self, exc: BaseException) -> BaseException:
        """An error as the protocol has it."""
        if not isinstance(exc, sqlite3.Error):
            return exc
        error = StagingUnavailableError(
            f"the staging folder {self._journal.path.parent} cannot be used ({exc}): nothing was committed, "
            "look at the disk and its free space, then repeat"
        )
        error.__cause__ = exc
        return error

    # -- the state behind ----------------------------------------------------------------------------------------

    @property
    def pending_rows(self) -> int:
        """Rows that only the open transaction holds."""
        return self._state.pending_rows

    @property
    def behind(self) -> bool:
        """Whether the journal holds anything that the state does not hold durably."""
        return bool(self._behind) or not self._state.intact

    def write_behind(self) -> None:
        """Make the state durable as far as the journal is.

        Raises:
            sqlite3.Error: it cannot be written; it is made again from the journal before anything else happens.
        """
        self.ensure_state()
        heads = [self._journal.heads[gateway] for gateway in self._behind]
        crash_point("staging.before_write_behind")
        try:
            self._state.commit((head, head.last_seq) for head in heads)
        except sqlite3.Error as exc:
            self._lose_state(exc)
            raise
        self.applied.update({(head.gateway, head.shard): head.last_seq for head in heads})
        self._behind.clear()
        crash_point("staging.after_write_behind")

    def try_write_behind(self) -> None:
        """`write_behind`, put off where it cannot be done: the journal holds everything."""
        try:
            self.write_behind()
        except Exception:
            _log.warning("state not written behind", folder=str(self._journal.path.parent), exc_info=True)

    def ensure_state(self) -> None:
        """Make the state again from the journal where it was lost; SQLite may end a transaction on its own.

        Raises:
            IntegrityError: bodies that are needed were trimmed.
            sqlite3.Error: a database cannot be written.
        """
        if not self._state.intact:
            self.applied = self._recovery.recover()
            self._behind = {
                head.gateway
                for head in self._journal.heads.values()
                if head.last_seq > self.applied.get((head.gateway, head.shard), 0)
            }

    def _lose_state(self, exc: sqlite3.Error) -> None:
        _log.warning("state lost, it is made again from the journal", error=str(exc))
        self._state.rollback()

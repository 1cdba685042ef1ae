"""`PostgresStore`: a staging store (the database that pushes are committed to) on Postgres.

`staging.open_store` creates it for a `postgresql://` URL; the engine opens it. The base class has the methods that the
data pipeline calls; each is one transaction over `PipelineTables`, which has their statements. `PostgresNotices`
delivers *notices*: messages of a commit to all processes with the store. `staging.store` documents each method. A
*gateway* is one app's stream of changes. Its *head* has its counters, such as the number of its last log row; its
*epoch* identifies one copy of its data. An *arrival* is its timestamp of a commit. A *feed entry* says when a row
joined and left a bucket of the sync rules. A *shard* is a store with some of a gateway's tables. An *erasure* deletes a
row, or what a client wrote, permanently.

`Groups` is the group commit of one process: jobs of a gateway that wait at the same time share one transaction. A *job*
is a function that was passed to `PostgresStore.submit`, which hands it to `Groups`. One commit for many jobs saves
round trips, and the gateway's lock is taken once. Jobs and reads run in a pool of threads, one for each connection.
Tests end the process at a `crash_point`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import psycopg
import structlog
from psycopg import sql

from lakesync.model.crash_points import crash_point
from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.base_store import BaseStore
from lakesync.staging.group_commit import Outcome, Turns
from lakesync.staging.head import MAIN_SHARD, Head
from lakesync.staging.notices import Announcement, Listener, Notice
from lakesync.staging.pipeline_tables import PipelineTables
from lakesync.staging.postgres.commit import PostgresCommit, PostgresView
from lakesync.staging.postgres.connection import POOL_SIZE, Connection, Database, unavailable
from lakesync.staging.postgres.heads import ConfigCache, Transaction, ensure_gateway, load_head, save_head
from lakesync.staging.postgres.notices import PostgresNotices
from lakesync.staging.records import LogSource
from lakesync.staging.store import Commit, View
from lakesync.staging.store.push import Replayer

log = structlog.get_logger(__name__)

T = TypeVar("T")

_MAX_GROUP = 32
"""The most jobs in one transaction."""


class QueuedJob(NamedTuple):
    """A function that runs in a commit, and the future of its result."""

    function: Callable[[PostgresCommit], Any]
    """The function that was submitted."""
    future: Future[Any]
    """Completed with the function's result or error, once the transaction has ended."""


class QueuedRead(NamedTuple):
    """A function that reads a snapshot, and the future of its result."""

    function: Callable[[PostgresView], Any]
    """The function that was passed to `read`."""
    future: Future[Any]
    """Completed with the function's result or error."""
    gateway: str
    """The id of the gateway that it reads."""


class Groups:
    """Runs jobs in threads: those of one gateway in order of submission, one thread at a time; gateways take turns."""

    def __init__(
        self, database: Database, wall: Callable[[], int], configs: ConfigCache, notices: PostgresNotices
    ) -> None:
        """Create the threads.

        Args:
            database: the pool of connections.
            wall: returns the server's wall time in milliseconds since 1970.
            configs: the cache of gateways' configurations.
            notices: delivers the notices of commits.
        """
        self._database = database
        self._notices = notices
        self._wall = wall
        self._configs = configs
        self._threads = ThreadPoolExecutor(POOL_SIZE, thread_name_prefix="staging")
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[QueuedJob]] = {}
        """The waiting jobs, by gateway for which `_drain` runs or is queued; empty while a gateway's last jobs run."""
        self._reads: Turns[QueuedRead] = Turns()
        """The waiting reads; gateways take turns."""
        self._closed = False

    def submit(self, gateway: str, job: Callable[[PostgresCommit], T]) -> Future[T]:
        """Run `job` in one of the gateway's next transactions; see `TransactionStore.submit`."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                future.set_exception(StagingUnavailableError("the staging store is closed: make another one"))
                return future
            waiting = self._waiting.get(gateway)
            if waiting is not None:
                waiting.append(QueuedJob(job, future))
            else:
                self._waiting[gateway] = deque([QueuedJob(job, future)])
                self._threads.submit(self._drain, gateway)
        return future

    def read(self, gateway: str, job: Callable[[PostgresView], T]) -> Future[T]:
        """Run `job` over a read-only snapshot; see `TransactionStore.read`."""
        future: Future[T] = Future()
        with self._lock:
            if not self._closed:
                self._reads.put(gateway, QueuedRead(job, future, gateway))
                self._threads.submit(self._read_next)
                return future
        future.set_exception(StagingUnavailableError("the staging store is closed: make another one"))
        return future

    def close(self) -> None:
        """Run the submitted jobs, and end the threads."""
        with self._lock:
            self._closed = True
        self._threads.shutdown(wait=True)

    def _read_next(self) -> None:
        """Run the next read; gateways take turns."""
        with self._lock:
            job, future, gateway = self._reads.take()
        if not future.set_running_or_notify_cancel():
            return
        try:
            with self._database.reading() as connection:
                result = job(PostgresView(connection, load_head(connection, gateway, self._configs, lock=False)))
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    def _drain(self, gateway: str) -> None:
        """Run a gateway's next group of jobs, in a thread of the pool.

        Afterwards the gateway is queued again, behind others that wait for a thread, until it has no jobs.
        """
        while group := self._next(gateway):
            self._run_group(gateway, group)
            if self._requeue(gateway):
                return

    def _run_group(self, gateway: str, group: list[QueuedJob]) -> None:
        """Run a group of jobs, complete their futures, and deliver the notices of the transaction.

        It raises nothing: after an error, later jobs of the gateway would wait forever, because `submit` starts no
        thread for a gateway that has one.
        """
        jobs = [job for job in group if job.future.set_running_or_notify_cancel()]
        notices: list[Notice] = []
        try:
            outcomes = self._run(gateway, jobs, notices)
        except BaseException as exc:
            outcomes = [Outcome(job.future, error=exc) for job in jobs]
        calls: list[Callable[[], None]] = [outcome.complete for outcome in outcomes]
        calls.append(partial(self._notices.deliver, notices))
        for call in calls:
            try:
                call()
            except BaseException:  # of a function that waits for a future, of a listener, or of their log
                with suppress(Exception):
                    log.exception("a function that was notified of a commit failed", gateway=gateway)

    def _requeue(self, gateway: str) -> bool:
        """Queue a gateway behind those that wait for a thread; return whether it was queued.

        In a closed store nothing can be queued. The thread then runs all jobs of its gateway.
        """
        with self._lock:
            if not self._closed:
                self._threads.submit(self._drain, gateway)
            return not self._closed

    def _next(self, gateway: str) -> list[QueuedJob]:
        """Return a gateway's next group of jobs; if it is empty, record that no thread works for the gateway."""
        with self._lock:
            waiting = self._waiting[gateway]
            if not waiting:
                del self._waiting[gateway]
            return [waiting.popleft() for _ in range(min(len(waiting), _MAX_GROUP))]

    def _run(self, gateway: str, jobs: list[QueuedJob], notices: list[Notice]) -> list[Outcome]:
        """Run jobs in one transaction. A job that raises is rolled back alone.

        Args:
            gateway: the gateway's id.
            jobs: the jobs, in order of submission.
            notices: an empty list, to which this method adds the notices that the caller must deliver. They must be
                delivered even if this method raises, because the transaction may have been committed.

        Raises:
            StagingUnavailableError: the transaction failed, or its outcome is unknown.
        """
        announced: list[int] = []  # the numbers of the notices, needed if the outcome is unknown
        try:
            with self._database.writing() as connection:
                head = load_head(connection, gateway, self._configs, lock=True)
                transaction = Transaction(connection, head, self._wall)
                outcomes = [self._attempt(transaction, job) for job in jobs]
                if transaction.head is not head:  # heads are immutable: a job that changed anything replaced it
                    save_head(connection, transaction.head)
                notices += transaction.announcement.take()
                # from a generator: if a call raises, the numbers of the calls before it are in the list
                announced.extend(self._notices.announce(connection, notice) for notice in notices)
                crash_point("staging.before_commit")
        except BaseException:
            # Postgres sends each notice to all processes, this one included, which ignores it, because it delivers its
            # own notices itself. Now it must not: the notice is the only sign that the commit happened after all.
            for number in announced:
                self._notices.accept_copy(number)
            raise
        crash_point("staging.after_commit")
        return outcomes

    def _attempt(self, transaction: Transaction, job: QueuedJob) -> Outcome:
        """Run one job within a savepoint.

        Args:
            transaction: the state of the transaction.
            job: the job; its notices are dropped if it is rolled back.

        Returns:
            The job's outcome if the transaction commits.
        """
        head, announcement = transaction.head, transaction.announcement
        transaction.announcement = Announcement()
        connection = transaction.connection
        connection.execute("SAVEPOINT job")
        try:
            result = job.function(PostgresCommit(transaction))
        except BaseException as exc:
            if isinstance(exc, psycopg.Error) and connection.closed:
                raise  # the transaction is lost, so there is nothing to roll back
            transaction.head = head
            transaction.announcement = announcement
            connection.execute("ROLLBACK TO job")
            connection.execute("RELEASE job")
            if not isinstance(exc, psycopg.Error):
                return Outcome(job.future, error=exc)
            error = unavailable(self._database.address, "a job", exc)
            error.__cause__ = exc
            return Outcome(job.future, error=error)
        connection.execute("RELEASE job")
        announcement.add(transaction.announcement)
        transaction.announcement = announcement
        return Outcome(job.future, result)


class _PipelineTransaction(PipelineTables):
    """The pipeline's tables in one transaction. A transaction that writes locks the gateways whose heads it reads.

    The base class documents the methods.
    """

    def __init__(self, connection: Connection, wall: Callable[[], int], configs: ConfigCache, *, writes: bool) -> None:
        self._connection = connection
        self._wall = wall
        self._configs = configs
        self._writes = writes

    def _query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(sql.SQL(statement.replace("?", "%s")), values)
        return cursor.fetchall() if cursor.description else []

    def gateways(self) -> list[str]:
        """Return the ids of all gateways, sorted."""
        return [gateway for (gateway,) in self._query("SELECT id FROM gateway ORDER BY id")]

    def _head(self, gateway: str) -> Head:
        return load_head(self._connection, gateway, self._configs, lock=self._writes)

    def _set_head(self, head: Head) -> None:
        save_head(self._connection, head)

    def _now_ms(self) -> int:
        return self._wall()


class PostgresStore(BaseStore):
    """A store that any number of processes may open at once; a lock on the gateway's row orders their commits.

    The log is never replayed, because rows and feed entries are part of the commit. The ids of deltas are kept forever,
    16 bytes each, so that a repeated push is recognised however old it is.
    """

    is_shared = True
    """Other processes may use the store at the same time."""

    def __init__(self, url: str, wall: Callable[[], int], shard: str = MAIN_SHARD) -> None:
        """Create the store; `open` connects it.

        Args:
            url: the database's address, in libpq's form (`postgresql://USER@HOST/NAME`).
            wall: returns the server's wall time in milliseconds since 1970.
            shard: name of the shard that the store serves; gateways that are created in it belong to this shard.
        """
        self._database = Database(url)
        self._wall = wall
        self._configs = ConfigCache()
        self._shard = shard
        self._notices = PostgresNotices(self._database.info, self._database.address)
        self._groups = Groups(self._database, wall, self._configs, self._notices)

    def open(self, replayer: Replayer | None = None) -> None:
        """Connect, apply migrations, and complete erasures that a crash has interrupted.

        Args:
            replayer: the engine, which writes the rows without the erased values. None for a process that only reads or
                flushes.

        Raises:
            StagingVersionError: a newer LakeSync wrote the store.
            StagingUnavailableError: the database cannot be reached.
        """
        self._database.open()
        self._replayer = replayer
        if replayer is not None:
            self._finish_erasures()

    def close(self) -> None:
        """Run the functions that were submitted before, and close every connection."""
        self._groups.close()
        self._notices.close()
        self._database.close()

    def ensure_gateway(self, gateway: str) -> None:
        """Create a gateway, unless it exists. Its epoch is the wall time."""
        with self._database.writing() as connection:
            ensure_gateway(connection, gateway, self._wall(), self._shard)

    def submit(self, gateway: str, job: Callable[[Commit], T]) -> Future[T]:
        """Run `job` in a commit; the future completes when Postgres has committed. See `StagingStore.submit`.

        Args:
            gateway: the gateway's id.
            job: the function to run, given the transaction.
        """
        return self._groups.submit(gateway, job)

    def read(self, gateway: str, job: Callable[[View], T]) -> Future[T]:
        """Run `job` over a snapshot; see `StagingStore.read`."""
        return self._groups.read(gateway, job)

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with the notices of each commit, of every process; return a function that removes it."""
        return self._notices.watch(listener)

    def log_source(self, shard: str = MAIN_SHARD) -> LogSource:  # noqa: ARG002 all shards are in one table
        """Return the log's address for Postgres' JDBC driver, with this store's credentials."""
        url, properties = self._database.jdbc()
        return LogSource(url=url, table="lakesync.log", properties=properties)

    def _read_tables(self, run: Callable[[PipelineTables], T]) -> T:
        """Run a function over the pipeline's tables in a read-only transaction."""
        with self._database.reading() as connection:
            return run(_PipelineTransaction(connection, self._wall, self._configs, writes=False))

    def _write_tables(self, run: Callable[[PipelineTables], T]) -> T:
        """Run a function over the pipeline's tables in a transaction of its own."""
        with self._database.writing() as connection:
            return run(_PipelineTransaction(connection, self._wall, self._configs, writes=True))

    def _now_ms(self) -> int:
        return self._wall()

    def _purge(self) -> None:
        self._database.vacuum()

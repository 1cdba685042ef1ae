"""`FanOutAdapter`: an adapter that stores deltas in a primary adapter, and copies them to secondary ones.

Programs with an embedded gateway create it. The pipeline does not: of a `[fan_out]` in `lakesync.toml`, it copies the
lake to the primary and to each secondary independently.

A write waits only for the primary. Each secondary has a thread that applies batches in order, and retries each until it
succeeds. A secondary may miss batches: those that were queued when the process ended, and those that did not fit into
the queue. So it catches up when its thread starts, and after a full queue: it reads the primary's deltas again, from a
day before the newest delta that it has itself. After a full queue it also rewrites the destination tables for which a
write did not fit, from its own deltas; it must be a `StateWriter` for that. If the process ends while writes to
destination tables are queued, those rows stay as they were until they change again, or until `materialise` is called
for them. So do rows whose write did not fit if the secondary is no `StateWriter`.

Deltas are deleted from the primary only, for example when a `LifecycleAdapter` moves old ones to its cold tier. The
secondaries keep theirs, as those of a `[fan_out]` in `lakesync.toml` do.

A *delta* is a change of a row; its *arrival* is the gateway's timestamp of the push. A *destination table* has the
current rows of a synced table, beside its deltas; to materialise rows is to write them there.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from lakesync.adapters.arrow_access import copy_page, read_pages, write_arrow
from lakesync.adapters.base import DatabaseAdapter, Materialisable, StateWriter
from lakesync.adapters.composite import CompositeBase
from lakesync.adapters.deltas import BatchChecksum, DeltaQuery, RowContent, RowId
from lakesync.adapters.transfer.table_rewrites import rewrite_table
from lakesync.model import hlc
from lakesync.model.backoff import doubled_wait
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

log = structlog.get_logger("adapters")

MAX_QUEUED_CHANGES = 200_000
"""Limit of deltas and of rows of destination tables that are queued in memory per secondary. What exceeds it is dropped
and written again later: deltas are read from the primary, and tables are rewritten."""
_CATCH_UP_MS = 24 * 3600 * 1000
"""Milliseconds before the arrival of a secondary's newest delta from which it catches up. Deltas do not reach the
primary in order of arrival, so a missing one may be older. It reads them only at its start and after a full queue, so
the span is longer than the one that each run of a flow reads again (`transfer.flow_pages`)."""
_FIRST_RETRY_SECONDS = 0.5
"""Pause before the first retry of a failed write; doubled for each further one."""
_MAX_RETRY_SECONDS = 60.0
"""The pause is not doubled beyond this."""


class SecondaryLag(msgspec.Struct, frozen=True):
    """How far a secondary lags behind the primary."""

    name: str
    """The secondary's name."""
    deltas: int
    """Deltas queued in memory."""
    rows: int
    """Rows of destination tables whose write is queued in memory."""
    is_catching_up: bool
    """Whether the secondary reads, or must read, the primary again, because it may lack further deltas or rows."""
    failures: int
    """Consecutive failed attempts."""
    error: str | None
    """The message of the last failure."""


class FanOutAdapter(CompositeBase):
    """`DatabaseAdapter` and `StateWriter` that reads and writes the primary, and queues writes for the secondaries."""

    def __init__(
        self,
        primary: DatabaseAdapter,
        secondaries: Mapping[str, DatabaseAdapter],
        *,
        first_wait_seconds: float = _FIRST_RETRY_SECONDS,
    ) -> None:
        """Start one replication thread for each secondary.

        Args:
            primary: serves all reads, and confirms all writes.
            secondaries: name → adapter.
            first_wait_seconds: pause before the first retry; tests set a shorter one.
        """
        super().__init__((primary,))
        self._primary = primary
        self._secondaries = [_Secondary(name, each, primary, first_wait_seconds) for name, each in secondaries.items()]

    def insert_arrow(self, batch_id: str, gateway: str, deltas: pa.Table) -> BatchChecksum:
        """Insert a batch into the primary and queue it for the secondaries."""
        stored = write_arrow(self._primary, batch_id, gateway, deltas)
        for secondary in self._secondaries:
            secondary.enqueue(_Task(lambda adapter: write_arrow(adapter, batch_id, gateway, deltas), len(deltas)))
        return stored

    def ensure_schema(self, schema: TableSchema) -> None:
        """Create the table in the primary, then in the secondaries, if they have destination tables."""

        def write(adapter: DatabaseAdapter) -> int:
            if isinstance(adapter, Materialisable):
                adapter.ensure_schema(schema)
            return 0

        self._write_tables(schema, write)

    def materialise(self, gateway: str, schema: TableSchema, row_ids: Sequence[str]) -> int:
        """Rewrite rows in the primary and, later, in the secondaries; return the primary's number of rows."""
        return self._write_tables(
            schema, lambda each: each.materialise(gateway, schema, row_ids) if isinstance(each, Materialisable) else 0
        )

    def write_states(self, schema: TableSchema, read: Callable[[], Mapping[RowId, RowContent]]) -> int:
        """Write rows in the primary and, later, in the secondaries; return the primary's number of rows."""
        return self._write_tables(
            schema, lambda each: each.write_states(schema, read) if isinstance(each, StateWriter) else 0
        )

    def lags(self) -> list[SecondaryLag]:
        """Return the lag of each secondary."""
        return [secondary.lag() for secondary in self._secondaries]

    def wait_until_replicated(self, seconds: float) -> bool:
        """Wait until every secondary is up to date; return False after `seconds`."""
        end = time.monotonic() + seconds
        return all(each.wait_until_replicated(max(0.0, end - time.monotonic())) for each in self._secondaries)

    def close(self) -> None:
        """Stop replication and close all adapters.

        A fan-out that is opened again catches up on the deltas that are queued now, but not on destination tables. To
        replicate both first, call `wait_until_replicated`.
        """
        with ExitStack() as closing:
            closing.callback(super().close)
            for secondary in reversed(self._secondaries):
                closing.callback(secondary.stop)

    def _write_tables(self, schema: TableSchema, write: Callable[[DatabaseAdapter], int]) -> int:
        """Call `write` with the primary, queue it for the secondaries, and return the primary's number of rows."""
        rows = write(self._primary)
        for secondary in self._secondaries:
            secondary.enqueue(_Task(write, max(rows, 1), schema))
        return rows


class _Task(NamedTuple):
    """A write to repeat on a secondary."""

    write: Callable[[DatabaseAdapter], object]
    """Called with the secondary; again until it succeeds."""
    changes: int
    """Number of deltas that it inserts, or of rows that it writes: at least 1."""
    schema: TableSchema | None = None
    """The destination table that it writes; None if it inserts deltas."""


class _Secondary:
    """One secondary and its replication thread, which starts immediately. `_changed` guards its queue and its state."""

    def __init__(
        self, name: str, adapter: DatabaseAdapter, primary: DatabaseAdapter, first_wait_seconds: float
    ) -> None:
        self._name = name
        self._adapter = adapter
        self._primary = primary
        self._first_wait_seconds = first_wait_seconds
        self._tasks: deque[_Task] = deque()
        self._deltas = 0
        self._rows = 0
        self._outdated: dict[str, TableSchema] = {}  # tables for which a write was dropped
        self._must_catch_up = True  # the previous process may have lost queued tasks
        self._is_catching_up = False
        self._failures = 0
        self._error: str | None = None
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"follows: {name}", daemon=True)
        self._thread.start()

    def enqueue(self, task: _Task) -> None:
        """Queue a task after all earlier ones. If it does not fit, drop it, and catch up later instead."""
        with self._changed:
            if self._deltas + self._rows + task.changes <= MAX_QUEUED_CHANGES:
                self._tasks.append(task)
                self._count(task, task.changes)
            else:
                self._must_catch_up = True
                if task.schema is not None:
                    self._outdated[task.schema.table] = task.schema
            self._changed.notify_all()

    def lag(self) -> SecondaryLag:
        """Return how far the secondary lags behind the primary."""
        with self._changed:
            return SecondaryLag(
                self._name,
                self._deltas,
                self._rows,
                self._must_catch_up or self._is_catching_up,
                self._failures,
                self._error,
            )

    def wait_until_replicated(self, seconds: float) -> bool:
        """Wait until nothing is queued and the secondary lacks nothing; return False after `seconds`."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._tasks or self._must_catch_up or self._is_catching_up), seconds
            )

    def stop(self) -> None:
        """End the thread, without applying what is queued, and close the adapter."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()
        self._adapter.close()

    def _run(self) -> None:
        """Catch up if necessary, else apply tasks in order, until `stop` is called."""
        while not self._stopping.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._stopping.is_set() or self._must_catch_up or self._tasks)
                must_catch_up, task = self._must_catch_up, self._tasks[0] if self._tasks else None
            if self._stopping.is_set():
                return
            if must_catch_up:
                self._attempt(self._catch_up)
            elif task is not None and self._attempt(lambda task=task: task.write(self._adapter)):  # type: ignore[misc]
                with self._changed:
                    self._tasks.popleft()
                    self._count(task, -task.changes)
                    self._changed.notify_all()

    def _count(self, task: _Task, changes: int) -> None:
        """Add to the number of queued deltas, or to that of queued rows, by what a task writes."""
        if task.schema is None:
            self._deltas += changes
        else:
            self._rows += changes

    def _attempt(self, call: Callable[[], object]) -> bool:
        """Call a function and return whether it succeeded. After a failure of any kind, wait before returning."""
        try:
            call()
        except Exception as error:  # also one that the adapter should not raise: it would end the thread
            with self._changed:
                self._failures += 1
                self._error = str(error)
                wait_seconds = doubled_wait(self._first_wait_seconds, _MAX_RETRY_SECONDS, self._failures - 1)
            log.warning("replication to a secondary failed and is retried", secondary=self._name, reason=str(error))
            self._stopping.wait(wait_seconds)
            return False
        with self._changed:
            self._failures, self._error = 0, None
        return True

    def _catch_up(self) -> None:
        """Copy from the primary every delta that the secondary may lack, then rewrite its outdated tables."""
        with self._changed:
            self._must_catch_up, self._is_catching_up = False, True  # `enqueue` may request another one meanwhile
            outdated, self._outdated = self._outdated, {}
        is_complete = False
        try:
            newest = self._adapter.newest_position()
            since = -1 if newest is None else max(-1, newest.value - (_CATCH_UP_MS << hlc.COUNTER_BITS))
            for page in read_pages(self._primary, DeltaQuery(since=since)):
                if self._stopping.is_set():
                    return
                if len(page.deltas):
                    copy_page(self._adapter, "fan-out", page.deltas)
            if isinstance(self._adapter, StateWriter):
                for schema in outdated.values():
                    rewrite_table(self._adapter, schema)
            is_complete = True
        finally:
            with self._changed:
                if not is_complete:
                    self._outdated = outdated | self._outdated
                self._must_catch_up, self._is_catching_up = self._must_catch_up or not is_complete, False
                self._changed.notify_all()

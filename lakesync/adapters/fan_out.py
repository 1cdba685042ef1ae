"""One adapter that counts, and others that follow it: a writer waits for the primary alone.

Each secondary has a thread of its own, which takes what was written in that order and tries each batch until it is in.
What was not yet replicated when the process ended, or did not fit into memory, is read again from the primary: from a
day before the secondary's newest delta on, when its thread starts.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import structlog

from lakesync.adapters.arrow import to_arrow
from lakesync.adapters.base import DatabaseAdapter, DeltaBatch, DeltaQuery, Held, Materialisable, StateWriter
from lakesync.adapters.contents import RowContent, RowId
from lakesync.adapters.moving import PAGE, copy_page
from lakesync.adapters.several import Several, read_arrow, walk, write_arrow
from lakesync.model import hlc
from lakesync.model.errors import LakeSyncError
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

_R = TypeVar("_R")
log = structlog.get_logger("adapters")

MOST_WAITING = 200_000
"""Deltas that wait in memory for one secondary; above, they are read again from the primary."""
LOOK_BACK_MS = 24 * 3600 * 1000
"""How much older than a secondary's newest delta something may be that it never got."""
_FIRST_WAIT = 0.5
_LONGEST_WAIT = 60.0


class Lag(msgspec.Struct, frozen=True):
    """How far a secondary is behind."""

    name: str
    deltas: int
    """That wait in memory."""
    catching_up: bool
    """It reads from the primary what it may lack, besides."""
    failures: int
    """Tries in a row that failed."""
    error: str | None
    """What the last of them said."""


class FanOutAdapter(Several):
    """`DatabaseAdapter` and `StateWriter`: the primary's answers, and copies at the secondaries."""

    def __init__(
        self, primary: DatabaseAdapter, secondaries: Mapping[str, DatabaseAdapter], *, first_wait: float = _FIRST_WAIT
    ) -> None:
        """Args: secondaries: by name; first_wait: seconds before a second try, doubled from then."""
        super().__init__((primary,))
        self._primary = primary
        self._followers = [_Follower(name, each, primary, first_wait) for name, each in secondaries.items()]

    def insert_deltas(self, batch: DeltaBatch) -> Held:
        """Keep a batch at the primary; secondaries are told of it."""
        return self.insert_arrow(batch.batch_id, batch.gateway, to_arrow(batch.deltas))

    def insert_arrow(self, batch_id: str, gateway: str, deltas: pa.Table) -> Held:
        """Keep a batch at the primary; secondaries are told of it."""
        held = write_arrow(self._primary, batch_id, gateway, deltas)
        for follower in self._followers:
            follower.take(_Task(len(deltas), lambda to: write_arrow(to, batch_id, gateway, deltas)))
        return held

    def ensure_schema(self, schema: TableSchema) -> None:
        """At the primary, and then at the secondaries, where they keep tables."""
        self._everywhere(lambda to: to.ensure_schema(schema) if isinstance(to, Materialisable) else None)

    def materialise(self, gateway: str, schema: TableSchema, row_ids: Sequence[str]) -> int:
        """At the primary, and then at the secondaries, where they keep tables."""
        return self._everywhere(
            lambda to: to.materialise(gateway, schema, row_ids) if isinstance(to, Materialisable) else 0
        )

    def write_states(self, schema: TableSchema, read: Callable[[], Mapping[RowId, RowContent]]) -> int:
        """At the primary, and then at the secondaries, where they keep tables."""
        return self._everywhere(lambda to: to.write_states(schema, read) if isinstance(to, StateWriter) else 0)

    def lags(self) -> list[Lag]:
        """How far each secondary is behind."""
        return [follower.lag() for follower in self._followers]

    def settle(self, seconds: float) -> bool:
        """Wait until the secondaries have everything, no longer than this; whether they have."""
        return all(follower.settle(seconds) for follower in self._followers)

    def close(self) -> None:
        """Stop following, and close all of them; what a secondary lacks it gets when it is opened again."""
        for follower in self._followers:
            follower.stop()
        super().close()

    def _everywhere(self, work: Callable[[DatabaseAdapter], _R]) -> _R:
        done = work(self._primary)
        for follower in self._followers:
            follower.take(_Task(0, work))
        return done


class _Task(NamedTuple):
    deltas: int
    work: Callable[[DatabaseAdapter], object]


class _Follower:
    """One secondary and its thread."""

    def __init__(self, name: str, adapter: DatabaseAdapter, primary: DatabaseAdapter, first_wait: float) -> None:
        self._name = name
        self._adapter = adapter
        self._primary = primary
        self._first_wait = first_wait
        self._tasks: deque[_Task] = deque()
        self._deltas = 0
        self._behind = True  # nobody knows what was lost when the last process ended
        self._reading = False
        self._failures = 0
        self._error: str | None = None
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"follows: {name}", daemon=True)
        self._thread.start()

    def take(self, task: _Task) -> None:
        """Have something done, after all that came before."""
        with self._changed:
            if task.deltas and self._deltas + task.deltas > MOST_WAITING:
                self._behind = True
            else:
                self._tasks.append(task)
                self._deltas += task.deltas
            self._changed.notify_all()

    def lag(self) -> Lag:
        with self._changed:
            return Lag(self._name, self._deltas, self._behind or self._reading, self._failures, self._error)

    def settle(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not (self._tasks or self._behind or self._reading), seconds)

    def stop(self) -> None:
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()
        self._adapter.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._stopping.is_set() or self._behind or self._tasks)
                behind, task = self._behind, self._tasks[0] if self._tasks else None
            if self._stopping.is_set():
                return
            if behind:
                self._try(self._catch_up)
            elif task is not None and self._try(lambda task=task: task.work(self._adapter)):  # type: ignore[misc]
                with self._changed:
                    self._tasks.popleft()
                    self._deltas -= task.deltas
                    self._changed.notify_all()

    def _try(self, work: Callable[[], object]) -> bool:
        try:
            work()
        except LakeSyncError as error:
            with self._changed:
                self._failures += 1
                self._error = str(error)
                wait = min(_LONGEST_WAIT, self._first_wait * 2.0 ** (self._failures - 1))
            log.warning("a secondary does not follow and is tried again", secondary=self._name, reason=str(error))
            self._stopping.wait(wait)
            return False
        with self._changed:
            self._failures, self._error = 0, None
        return True

    def _catch_up(self) -> None:
        """Copy from the primary whatever may be missing."""
        with self._changed:
            self._behind, self._reading = False, True  # what is turned away meanwhile sets it again
        whole = False
        try:
            newest = self._adapter.newest_position()
            since = -1 if newest is None else max(-1, newest.value - (LOOK_BACK_MS << hlc.COUNTER_BITS))
            for page in walk(lambda query: read_arrow(self._primary, query), DeltaQuery(since=since, limit=PAGE)):
                if self._stopping.is_set():
                    return
                if len(page.deltas):
                    copy_page(self._adapter, "fan-out", page.deltas)
            whole = True
        finally:
            with self._changed:
                self._behind, self._reading = self._behind or not whole, False
                self._changed.notify_all()

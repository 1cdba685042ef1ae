"""Pushes the changes in landed rows to the gateway: tasks of Spark push in chunks and pause while it is full.

Polls and replays of connectors call it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa

from lakehouse.failures import Failure
from lakehouse.spark_errors import lake_errors
from lakehouse.task_runner import prepare_worker
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import BackpressureError, LakeSyncError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import date

    from pyspark.sql import DataFrame

    from lakehouse.landing.gateway_intake import Intake, OpenIntake
    from lakehouse.landing.reading import LandedTables
    from lakesync.connectors.source import Table

CHUNK = 500
"""Deltas in one push."""

SECONDS_A_TASK = 60.0
"""Seconds after which a task ends and another continues, so that others, such as a flush, get its core."""

PATIENCE_SECONDS = 1_800.0
"""Seconds for which a gateway may accept nothing, before the delivery fails."""

_WAIT_SECONDS = 5.0
_ASK_SECONDS = 30.0
_PUSHED = "report string"
_PUSHED_ARROW = pa.schema([("report", pa.string())])


class DeliveryReport(msgspec.Struct, kw_only=True):
    """What was pushed of a table's landings."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    pushes: int = 0
    waited_s: float = 0.0
    """Seconds for which the gateway accepted nothing."""

    @property
    def deltas(self) -> int:
        """Number of pushed deltas."""
        return self.inserted + self.updated + self.deleted


class TaskReport(DeliveryReport, kw_only=True):
    """What one task pushed."""

    page: int | None = None
    """The last page all of whose deltas were pushed."""
    ended: bool = False
    """Whether no delta is left."""
    failure: Failure | None = None


class PushTask(NamedTuple):
    """The task that pushes the deltas of its partition, which are in order."""

    open_intake: OpenIntake
    gateway: str
    client_id: str
    chunk: int
    skipped: int
    """Number of deltas that earlier tasks have pushed."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Push the deltas, and yield one row with the report."""
        prepare_worker()
        pushed = TaskReport()
        try:
            with self.open_intake() as intake:
                self._push(intake, batches, pushed)
        except LakeSyncError as error:
            pushed.failure = Failure.of(error)
        yield pa.RecordBatch.from_pylist([{"report": msgspec.json.encode(pushed).decode()}], _PUSHED_ARROW)

    def _push(self, intake: Intake, batches: Iterable[pa.RecordBatch], pushed: TaskReport) -> None:
        until = time.monotonic() + SECONDS_A_TASK
        current: int | None = None
        for rows, is_new in self._chunks(batches):
            if is_new:
                deltas = ",".join(rows["delta"].to_pylist()).encode()
                intake.push(self.gateway, b'{"clientId":"%s","deltas":[%s]}' % (self.client_id.encode(), deltas))
                pushed.pushes += 1
                _count(pushed, rows)
            for page in rows["page"].unique().to_pylist():
                current, pushed.page = page, current if page != current else pushed.page
            if time.monotonic() >= until and is_new:
                return
        pushed.page, pushed.ended = current, True

    def _chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.Table, bool]]:
        """Yield the deltas that were pushed before, then the others in chunks, each with whether it is new."""
        held, skipped = pa.table({}), self.skipped
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            if skipped:
                yield rows.slice(0, skipped), False
                rows, skipped = rows.slice(min(skipped, rows.num_rows)), max(0, skipped - rows.num_rows)
            held = pa.concat_tables([held, rows]) if held.num_rows else rows
            while held.num_rows >= self.chunk:
                yield held.slice(0, self.chunk), True
                held = held.slice(self.chunk)
        if held.num_rows:
            yield held, True


class Delivery:
    """One connector's deltas on their way into its gateway."""

    def __init__(
        self,
        landing: LandedTables,
        open_intake: OpenIntake,
        gateway: str,
        request_flush: Callable[[], object],
        *,
        chunk: int = CHUNK,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Prepare the delivery; nothing is sent yet.

        Args:
            landing: what landed of the connector's tables.
            open_intake: the way into the gateways, for tasks too.
            gateway: its id.
            request_flush: has the gateway's log carried to the lake, so that it takes more.
            chunk: deltas in one push.
            sleep: waits for so many seconds.
        """
        self._landing = landing
        self._open_intake = open_intake
        self._gateway = gateway
        self._request_flush = request_flush
        self._chunk = chunk
        self._sleep = sleep

    @lake_errors
    def deliver(self, table: Table) -> DeliveryReport:
        """Push what landed of a table since its mark, and move the mark. A repeat continues an interrupted delivery.

        Raises:
            BackpressureError: the gateway accepted nothing for `PATIENCE_SECONDS`.
            LakeUnavailableError: Spark cannot be reached.
            LakeSyncError: the gateway rejects a delta.
        """
        done = DeliveryReport()
        if not self._landing.is_due(table.name):
            return done
        self._prepare(table)
        for page in self._push(self._landing.deltas(table.name), done, self._landing.newest):
            crash_point("delivery.pushed")
            self._landing.record_delivered(table.name, page)
            crash_point("delivery.noted")
        if done.pushes:
            self._landing.update_known(table.name)
        return done

    @lake_errors
    def replay(self, table: Table, days: Sequence[date]) -> DeliveryReport:
        """Push the deltas of the landings of some days again. Deltas that the gateway has change nothing.

        Args:
            table: the connector's table.
            days: UTC days of landing.

        Raises:
            As `deliver`.
        """
        done = DeliveryReport()
        self._prepare(table)
        deltas = self._landing.history(table.name, days)
        if deltas is not None:
            list(self._push(deltas, done, self._landing.newest))
        return done

    def _prepare(self, table: Table) -> None:
        if (schema := table.schema()) is not None:
            with self._open_intake() as intake:
                intake.ensure_schema(self._gateway, schema)

    def _push(self, deltas: DataFrame, done: DeliveryReport, upto: int) -> Iterator[int]:
        """Push in task after task, and wait between them while the gateway accepts nothing.

        No task waits itself: it would occupy the core that the flush needs, for which the gateway waits.

        Yields:
            The page up to which everything is pushed; finally `upto`.
        """
        waited = asked = 0.0
        reached = 0
        while True:
            pushed = self._run(deltas, done.deltas)
            done.inserted += pushed.inserted
            done.updated += pushed.updated
            done.deleted += pushed.deleted
            done.pushes += pushed.pushes
            if pushed.ended:
                yield upto
                return
            if pushed.page is not None and pushed.page > reached:
                reached = pushed.page
                yield reached
            if pushed.failure is None:
                continue
            error = pushed.failure.error()
            if pushed.deltas:
                waited = asked = 0.0
            if not isinstance(error, BackpressureError) or waited >= PATIENCE_SECONDS:
                raise error
            if waited >= asked:
                self._request_flush()
                asked = waited + _ASK_SECONDS
            pause = min(error.retry_after or _WAIT_SECONDS, _WAIT_SECONDS)
            self._sleep(pause)
            waited += pause
            done.waited_s += pause

    def _run(self, deltas: DataFrame, skipped: int) -> TaskReport:
        task = PushTask(self._open_intake, self._gateway, self._landing.client_id, self._chunk, skipped)
        (row,) = deltas.mapInArrow(task.run, _PUSHED).collect()
        return msgspec.json.decode(row["report"], type=TaskReport)


def _count(pushed: TaskReport, deltas: pa.Table) -> None:
    for each in deltas["op"].combine_chunks().value_counts().to_pylist():
        match each["values"]:
            case "INSERT":
                pushed.inserted += each["counts"]
            case "UPDATE":
                pushed.updated += each["counts"]
            case _:
                pushed.deleted += each["counts"]

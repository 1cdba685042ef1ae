"""Pushes the changes that polls of a connector have found to the connector's gateway, an app's stream of changes.

A poll reads an external system and appends the rows to the lake's table `landing`, page by page. A page is numbered by
the hlc (timestamp) of its first row. Spark tasks push the deltas (changes of rows) that follow from these rows, in the
order of pages, so the last page that was pushed completely says where to continue. The table `known` has each row's
version as of an earlier page, from which the deltas are computed. An intake is a connection that pushes to a gateway.

While the gateway rejects pushes because too much is unflushed (backpressure), the driver waits and then starts another
task. Polls and replays of connectors (`lakehouse.landing.polls`) create a `Delivery`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.gateway_connections import MAX_REQUEST_BYTES
from lakehouse.spark_errors import lake_errors
from lakehouse.task_runner import Failure, column_ddl, prepare_worker
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import BackpressureError, LakeSyncError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import date

    from pyspark.sql import DataFrame

    from lakehouse.gateway_connections import Intake, OpenIntake
    from lakehouse.landing.reading import LandedTables
    from lakesync.connectors.base import Table

SECONDS_PER_TASK = 60.0
"""Seconds after which a task ends and another continues, so that others, such as a flush, get its core."""

PATIENCE_SECONDS = 1_800.0
"""Seconds for which a gateway may reject everything, before the delivery fails."""

_MAX_PAUSE_SECONDS = 5.0
"""Seconds between two tasks while the gateway rejects pushes, at most."""
_FLUSH_REQUEST_SECONDS = 30.0
"""Seconds of waiting after which a flush is requested again."""
_REPORT = pa.schema([("report", pa.string())])
"""Column of the row that a task yields: a `TaskReport` as JSON."""


class DeliveryReport(msgspec.Struct, kw_only=True):
    """How many deltas of a table were pushed."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    pushes: int = 0
    """Number of push requests."""
    waited_s: float = 0.0
    """Seconds of waiting while the gateway rejected pushes."""

    @property
    def deltas(self) -> int:
        """Number of pushed deltas."""
        return self.inserted + self.updated + self.deleted


class TaskReport(DeliveryReport, kw_only=True):
    """What one task pushed."""

    page: int | None = None
    """The last page all of whose deltas were pushed; None if no page is complete."""
    is_done: bool = False
    """Whether all deltas are pushed."""
    failure: Failure | None = None
    """Why the task stopped early; None if it did not, or ran out of time."""


class PushTask(NamedTuple):
    """The Spark task that pushes deltas. It gets them in order, in one partition."""

    open_intake: OpenIntake
    gateway: str
    """The gateway's id."""
    client_id: str
    """The client id of the connector's deltas."""
    chunk: int
    """Deltas in one push, at most."""
    skipped: int
    """Number of deltas that earlier tasks have pushed, from the start of the partition."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Push the deltas, and yield one row with the report."""
        prepare_worker()
        pushed = TaskReport()
        try:
            with self.open_intake() as intake:
                self._push(intake, batches, pushed)
        except LakeSyncError as error:
            pushed.failure = Failure.of(error)
        yield pa.RecordBatch.from_pylist([{"report": msgspec.json.encode(pushed).decode()}], _REPORT)

    def _push(self, intake: Intake, batches: Iterable[pa.RecordBatch], pushed: TaskReport) -> None:
        """Push the new deltas until all are pushed or the task's time is over, and count them in `pushed`.

        The deltas are in order of pages. So a page is complete when a delta of a later page has been pushed.
        """
        deadline = time.monotonic() + SECONDS_PER_TASK
        current_page: int | None = None
        for rows, is_new in self._chunks(batches):
            if is_new:
                deltas = ",".join(rows["delta"].to_pylist()).encode()
                intake.push(self.gateway, b'{"clientId":"%s","deltas":[%s]}' % (self.client_id.encode(), deltas))
                pushed.pushes += 1
                _count(pushed, rows)
            for page in rows["page"].unique().to_pylist():
                if page != current_page:
                    pushed.page, current_page = current_page, page
            if time.monotonic() >= deadline and is_new:
                return
        pushed.page, pushed.is_done = current_page, True

    def _chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.Table, bool]]:
        """Yield `(deltas, is_new)`: first the deltas that earlier tasks have pushed, then the others in chunks.

        The pages of pushed deltas count too: a page is complete only if all of its deltas are pushed, by any task.
        """
        buffered, skipped = pa.table({}), self.skipped
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            if skipped:
                yield rows.slice(0, skipped), False
                rows, skipped = rows.slice(min(skipped, rows.num_rows)), max(0, skipped - rows.num_rows)
            buffered = pa.concat_tables([buffered, rows]) if buffered.num_rows else rows
            while (end := self._end_of_chunk(buffered)) is not None:
                yield buffered.slice(0, end), True
                buffered = buffered.slice(end)
        if buffered.num_rows:
            yield buffered, True

    def _end_of_chunk(self, rows: pa.Table) -> int | None:
        """Return how many deltas are the next chunk; None if further deltas fit in it."""
        sizes = pc.binary_length(rows["delta"].slice(0, self.chunk)) if rows.num_rows else []
        end = int(np.searchsorted(np.cumsum(sizes), MAX_REQUEST_BYTES, side="right"))
        return None if end == rows.num_rows and end < self.chunk else max(1, end)


class Delivery:
    """Pushes one connector's deltas into its gateway."""

    def __init__(
        self,
        landing: LandedTables,
        open_intake: OpenIntake,
        gateway: str,
        request_flush: Callable[[], object],
        *,
        needs_schema: Callable[[str], bool],
        chunk: int,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Prepare the delivery; nothing is sent yet.

        Args:
            landing: the connector's landed tables.
            open_intake: opens the connection for pushes, in the driver or in a task.
            gateway: the gateway's id.
            request_flush: requests a flush of the gateway, after which it accepts more.
            needs_schema: returns whether a table never had a schema at the gateway.
            chunk: deltas in one push.
            sleep: waits for a number of seconds.
        """
        self._landing = landing
        self._open_intake = open_intake
        self._gateway = gateway
        self._request_flush = request_flush
        self._needs_schema = needs_schema
        self._chunk = chunk
        self._sleep = sleep

    @lake_errors
    def deliver(self, table: Table) -> DeliveryReport:
        """Push the deltas of a table that the gateway lacks, and record the pages whose deltas it has then.

        A repeat continues an interrupted delivery.

        Args:
            table: the connector's table.

        Raises:
            BackpressureError: the gateway accepted nothing for `PATIENCE_SECONDS`.
            LakeUnavailableError: Spark cannot be reached.
            LakeSyncError: the gateway rejects a delta.
        """
        report = DeliveryReport()
        if not self._landing.is_due(table.name):
            return report
        self._ensure_schema(table)
        # the newest landed hlc is at or after the number of the last page, and before that of the next
        for page in self._push(self._landing.deltas(table.name), report, self._landing.newest):
            crash_point("delivery.pushed")  # tests kill the process here
            self._landing.record_delivered(table.name, page)
            crash_point("delivery.noted")
        if report.pushes:
            self._landing.update_known(table.name)
        return report

    @lake_errors
    def replay(self, table: Table, days: Sequence[date]) -> DeliveryReport:
        """Push the deltas that landed on some days again. Deltas that the gateway has change nothing.

        Args:
            table: the connector's table.
            days: UTC days on which rows landed.

        Raises:
            BackpressureError, LakeUnavailableError, LakeSyncError: as `deliver`.
        """
        report = DeliveryReport()
        self._ensure_schema(table)
        deltas = self._landing.deltas_of_days(table.name, days)
        if deltas is not None:
            list(self._push(deltas, report, self._landing.newest))  # pages are not recorded again
        return report

    def _ensure_schema(self, table: Table) -> None:
        """Register the table's schema at the gateway, if the connector has one and the gateway has none yet.

        Only then is the connector asked, because it may call the source, which may be unreachable.
        """
        if self._needs_schema(table.name) and (schema := table.schema()) is not None:
            with self._open_intake() as intake:
                intake.ensure_schema(self._gateway, schema)

    def _push(self, deltas: DataFrame, total: DeliveryReport, last_page: int) -> Iterator[int]:
        """Push in one task after another, and wait between them while the gateway rejects pushes.

        A task does not wait itself: it would occupy the core that the awaited flush needs.

        Args:
            deltas: all deltas to push, in one partition.
            total: the report, to which the counts are added.
            last_page: the page to yield once all deltas are pushed.

        Yields:
            The page up to which everything is pushed; finally `last_page`.
        """
        waited_in_vain = 0.0  # seconds of waiting since the gateway last accepted a push
        next_request = 0.0  # when `waited_in_vain` reaches it, a flush is requested (again)
        last_yielded = 0
        while True:
            pushed = self._run_task(deltas, total.deltas)
            total.inserted += pushed.inserted
            total.updated += pushed.updated
            total.deleted += pushed.deleted
            total.pushes += pushed.pushes
            if pushed.is_done:
                yield last_page
                return
            if pushed.page is not None and pushed.page > last_yielded:
                last_yielded = pushed.page
                yield last_yielded
            if pushed.failure is None:  # the task's time was over; another one continues
                continue
            error = pushed.failure.error()
            if pushed.deltas:
                waited_in_vain = next_request = 0.0
            if not isinstance(error, BackpressureError) or waited_in_vain >= PATIENCE_SECONDS:
                raise error
            if waited_in_vain >= next_request:
                self._request_flush()
                next_request = waited_in_vain + _FLUSH_REQUEST_SECONDS
            pause = min(error.retry_after or _MAX_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
            self._sleep(pause)
            waited_in_vain += pause
            total.waited_s += pause

    def _run_task(self, deltas: DataFrame, skipped: int) -> TaskReport:
        """Run one task, which continues after the first `skipped` deltas."""
        task = PushTask(self._open_intake, self._gateway, self._landing.client_id, self._chunk, skipped)
        (row,) = deltas.mapInArrow(task.run, column_ddl(_REPORT)).collect()
        return msgspec.json.decode(row["report"], type=TaskReport)


def _count(pushed: TaskReport, deltas: pa.Table) -> None:
    """Add the numbers of INSERTs, UPDATEs and DELETEs among deltas to a report."""
    for each in deltas["op"].combine_chunks().value_counts().to_pylist():
        match each["values"]:
            case "INSERT":
                pushed.inserted += each["counts"]
            case "UPDATE":
                pushed.updated += each["counts"]
            case _:
                pushed.deleted += each["counts"]

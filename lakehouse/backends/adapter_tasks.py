"""Runs tasks that open adapters on Spark's executors, so that no data passes through the driver.

Destinations, flows, moves and erasures call it.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sf

from lakehouse.failures import failure_text, raise_failure
from lakehouse.spark_errors import lake_errors
from lakehouse.task_runner import in_tasks
from lakesync.adapters.backend_config import Backend, open_backend
from lakesync.model.errors import LakeSyncError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from lakesync.adapters.base import DatabaseAdapter

R = TypeVar("R", bound=msgspec.Struct)

_REPORTS = "number int, report string, failure string"
_REPORTS_ARROW = pa.schema([("number", pa.int32()), ("report", pa.string()), ("failure", pa.string())])


class AdapterTask(Protocol):
    """A task as a value that can be pickled. `run` is called on an executor."""

    def run(self) -> Iterator[msgspec.Struct]:
        """Run the task, and yield a report for each part that is done."""


@lake_errors
def on_executors(spark: SparkSession, tasks: Sequence[AdapterTask], report: type[R]) -> list[list[R]]:
    """Run each task on an executor, and return the reports of each, in the order of the tasks.

    Args:
        spark: an open Spark session.
        tasks: at least one.
        report: the type of their reports.

    Raises:
        LakeSyncError: the first error of a task. The other tasks have ended as well.
        LakeUnavailableError: Spark cannot be reached.
    """
    rows = in_tasks(spark, len(tasks), _Runner(tasks), _REPORTS, waiting=True).collect()
    raise_failure(row["failure"] for row in rows)
    reports: list[list[R]] = [[] for _ in tasks]
    for row in rows:
        reports[row["number"]].append(msgspec.json.decode(row["report"], type=report))
    return reports


def one_report_each(spark: SparkSession, tasks: Sequence[AdapterTask], report: type[R]) -> list[R]:
    """Run tasks that report once, and return the report of each, in the order of the tasks.

    Args:
        spark: an open Spark session.
        tasks: at least one.
        report: the type of their reports.

    Raises:
        LakeSyncError, LakeUnavailableError: as `on_executors`.
    """
    return [reported for (reported,) in on_executors(spark, tasks, report)]


@lake_errors
def task_slots(spark: SparkSession) -> int:
    """Return the number of tasks that Spark runs at the same time, over all executors.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    slots = spark.range(0, 1 << 10).select(sf.spark_partition_id()).toArrow()  # Spark makes one partition for each slot
    return len(pc.unique(slots.column(0)))


class _Runner:
    """The function that Spark runs on an executor: runs the task with a number."""

    def __init__(self, tasks: Sequence[AdapterTask]) -> None:
        self._tasks = list(tasks)

    def __call__(self, number: int) -> Iterator[pa.RecordBatch]:
        try:
            for part in self._tasks[number].run():
                yield _row(number, msgspec.json.encode(part).decode(), None)
        except LakeSyncError as error:
            yield _row(number, None, failure_text(error))


def open_backends(backends: Sequence[Backend], closing: ExitStack) -> list[DatabaseAdapter]:
    """Open backends as adapters.

    Args:
        backends: the backends to open.
        closing: closes the adapters.
    """
    adapters = []
    for backend in backends:
        adapters.append(open_backend(backend))
        closing.callback(adapters[-1].close)
    return adapters


def _row(number: int, report: str | None, failed: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"number": number, "report": report, "failure": failed}], schema=_REPORTS_ARROW)

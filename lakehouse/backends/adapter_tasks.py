"""Runs tasks on Spark's executors that open database adapters there, so that no data passes through the driver.

An adapter reads and writes one backend, such as a Postgres database. A backend may also be several adapters behind one
(`open_backend` combines them). A task sends back only small reports. The other modules of `lakehouse.backends` call
`on_executors`, or `one_report_each`, and their tasks `open_backends`.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sf

from lakehouse.spark_errors import lake_errors
from lakehouse.task_runner import failure_text, in_tasks, raise_failure
from lakesync.adapters.backend_config import Backend, open_backend
from lakesync.model.errors import LakeSyncError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from lakesync.adapters.base import DatabaseAdapter

R = TypeVar("R", bound=msgspec.Struct)

_REPORTS = pa.schema([("number", pa.int32()), ("report", pa.string()), ("failure", pa.string())])
"""Columns of the rows that tasks yield: number of the task, and a report or the task's error as JSON."""


class AdapterTask(Protocol):
    """A task that can be pickled. `run` is called on an executor."""

    def run(self) -> Iterator[msgspec.Struct]:
        """Run the task, and yield a report after each step."""


@lake_errors
def on_executors(spark: SparkSession, tasks: Sequence[AdapterTask], report: type[R]) -> list[list[R]]:
    """Run each task on an executor, and return a list of reports for each, in the order of the tasks.

    Args:
        spark: an open Spark session.
        tasks: the tasks, at least one.
        report: the type of the tasks' reports.

    Raises:
        LakeSyncError: the error of the first task that failed. It is raised when all tasks have ended.
        LakeUnavailableError: Spark cannot be reached.
    """
    rows = in_tasks(spark, len(tasks), partial(run_task, list(tasks)), _REPORTS, one_task_each=True).collect()
    raise_failure(row["failure"] for row in rows)
    reports: list[list[R]] = [[] for _ in tasks]
    for row in rows:
        reports[row["number"]].append(msgspec.json.decode(row["report"], type=report))
    return reports


def one_report_each(spark: SparkSession, tasks: Sequence[AdapterTask], report: type[R]) -> list[R]:
    """Run tasks that each report exactly once, and return the reports in the order of the tasks.

    Args:
        spark: an open Spark session.
        tasks: the tasks, at least one.
        report: the type of the tasks' reports.

    Raises:
        LakeSyncError, LakeUnavailableError: as `on_executors`.
    """
    return [only_report for (only_report,) in on_executors(spark, tasks, report)]


@lake_errors
def task_slots(spark: SparkSession) -> int:
    """Return the number of tasks that Spark runs at the same time, over all executors.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    slots = spark.range(0, 1 << 10).select(sf.spark_partition_id()).toArrow()  # Spark makes one partition for each slot
    return len(pc.unique(slots.column(0)))


def run_task(tasks: Sequence[AdapterTask], number: int) -> Iterator[pa.RecordBatch]:
    """Run the task with this number, and yield a row for each of its reports, or for its error. Executors call it."""
    try:
        for report in tasks[number].run():
            yield _row(number, report=msgspec.json.encode(report).decode())
    except LakeSyncError as error:
        yield _row(number, failure=failure_text(error))


def open_backends(backends: Sequence[Backend], closing: ExitStack) -> list[DatabaseAdapter]:
    """Open backends as adapters.

    Args:
        backends: the backends to open.
        closing: the stack that closes the adapters when it ends.
    """
    adapters = []
    for backend in backends:
        adapters.append(open_backend(backend))
        closing.callback(adapters[-1].close)
    return adapters


def _row(number: int, report: str | None = None, failure: str | None = None) -> pa.RecordBatch:
    """Return a task's row for the driver: its number, and a report or an error as JSON."""
    return pa.RecordBatch.from_pylist([{"number": number, "report": report, "failure": failure}], schema=_REPORTS)

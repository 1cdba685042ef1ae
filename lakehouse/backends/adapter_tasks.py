"""Work on adapters, done by Spark's executors: what moves never passes through the step's own process."""

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

_REPORTS = "place int, report string, failure string"
_REPORTS_ARROW = pa.schema([("place", pa.int32()), ("report", pa.string()), ("failure", pa.string())])


class Work(Protocol):
    """Something to be done, as a value; `run` is called on an executor."""

    def run(self) -> Iterator[msgspec.Struct]:
        """Do it, telling of each part that is done."""


@lake_errors
def on_executors(spark: SparkSession, works: Sequence[Work], report: type[R]) -> list[list[R]]:
    """Each work in a task of its own; what each told, in their order.

    Args:
        spark: a session.
        works: what can be pickled, one at least.
        report: what they tell.

    Raises:
        LakeSyncError: the first error that one raised; the others are done, or have failed, too.
        LakeUnavailableError: Spark is gone.
    """
    rows = in_tasks(spark, len(works), _Task(works), _REPORTS, waiting=True).collect()
    raise_failure(row["failure"] for row in rows)
    reports: list[list[R]] = [[] for _ in works]
    for row in rows:
        reports[row["place"]].append(msgspec.json.decode(row["report"], type=report))
    return reports


def one_report_each(spark: SparkSession, works: Sequence[Work], report: type[R]) -> list[R]:
    """Run works that report once; return the report of each, in their order.

    Args:
        spark: a session.
        works: what can be pickled, one at least.
        report: the type of their reports.

    Raises:
        LakeSyncError, LakeUnavailableError: as `on_executors`.
    """
    return [reported for (reported,) in on_executors(spark, works, report)]


@lake_errors
def task_slots(spark: SparkSession) -> int:
    """Return how many tasks Spark runs at the same time, over all of its executors.

    Raises:
        LakeUnavailableError: Spark is gone.
    """
    slots = spark.range(0, 1 << 10).select(sf.spark_partition_id()).toArrow()  # Spark makes a partition a slot
    return len(pc.unique(slots.column(0)))


class _Task:
    """What an executor runs: the work of a number."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = list(works)

    def __call__(self, place: int) -> Iterator[pa.RecordBatch]:
        try:
            for part in self._works[place].run():
                yield _row(place, msgspec.json.encode(part).decode(), None)
        except LakeSyncError as error:
            yield _row(place, None, failure_text(error))


def open_backends(places: Sequence[Backend], closing: ExitStack) -> list[DatabaseAdapter]:
    """Open backends as adapters, which the stack closes.

    Args:
        places: what is opened.
        closing: the stack.
    """
    adapters = []
    for place in places:
        adapters.append(open_backend(place))
        closing.callback(adapters[-1].close)
    return adapters


def _row(place: int, report: str | None, failed: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"place": place, "report": report, "failure": failed}], schema=_REPORTS_ARROW)

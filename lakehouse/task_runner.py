"""Runs work in parallel: in Spark tasks, and in threads that call Spark.

Work for tasks is divided into numbered parts. A function, which Spark sends to its Python workers, yields the result of
the part with a number. Spark would carry only the text of an error from a task to the driver, so a part yields its
`LakeSyncError` as a row of its result. Threads are for small Spark queries: planning takes most of their time, and uses
one core for each query. All modules of `lakehouse` that work in tasks call this module.
"""

from __future__ import annotations

import ctypes
import gc
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pyarrow as pa

from lakesync.model import errors as exceptions
from lakesync.model.errors import LakeSyncError, TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    Part = Callable[[int], Iterator[pa.RecordBatch]]
    """Yields the result's rows for the part with a number. It is sent to tasks as a pickle."""


_PARALLELISM = "spark.default.parallelism"
"""Spark setting that `lakesync up` sets to the number of cores of the embedded server."""
_SPARK_TYPES = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.date32(): "date",
}
"""Arrow type → Spark type, of the columns that tasks return."""
_MALLOC_OPTIONS = ((-3, 32 << 20), (-1, 64 << 20), (-2, 16 << 20))
"""glibc's M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD, each with its value in bytes."""


def in_tasks(
    spark: SparkSession, count: int, part: Part, schema: pa.Schema | StructType | str, *, one_task_each: bool = False
) -> DataFrame:
    """Return a DataFrame with the rows that all parts yield in tasks.

    Args:
        spark: an open Spark session.
        count: number of parts.
        part: yields the rows of the part with a number; called in a task.
        schema: schema of the rows; a text declares the columns in Spark's SQL.
        one_task_each: True to run each part in its own task, for parts that mostly wait for other systems. False to
            divide the parts among as many tasks as there are cores, so that each task has more memory.
    """
    tasks = count if one_task_each else min(count, cores(spark) or count)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for numbers in batches:
            for number in numbers.column(0).to_pylist():
                yield from part(number)

    spark_schema = column_ddl(schema) if isinstance(schema, pa.Schema) else schema
    return spark.range(0, count, 1, max(1, tasks)).mapInArrow(run, spark_schema)


def column_ddl(schema: pa.Schema) -> str:
    """Return the columns of an Arrow schema as Spark's SQL declares them."""
    return ", ".join(f"{field.name} {_SPARK_TYPES[field.type]}" for field in schema)


def cores(spark: SparkSession) -> int | None:
    """Return the number of cores of the embedded Spark server; None for another server, which may be a cluster."""
    parallelism = spark.conf.get(_PARALLELISM, None)
    return int(parallelism) if parallelism is not None else None


@cache
def prepare_worker() -> None:
    """Configure a Spark task's Python process: one core, and freed memory is kept for the next allocations.

    With pyarrow's allocator and glibc's defaults freed pages return to the kernel, which clears them before they are
    used again; that takes up to a third of a task's time. `gc.freeze` makes the garbage collection after each task
    quick.
    """
    gc.freeze()
    pa.set_cpu_count(1)
    pa.set_memory_pool(pa.system_memory_pool())
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc only
        for option, size in _MALLOC_OPTIONS:
            libc.mallopt(option, size)


class Failure(msgspec.Struct, frozen=True):
    """A task's error, in a form that can be sent to the driver as JSON."""

    kind: str
    """Name of its class in `lakesync.model.errors`."""
    message: str
    retry_after: float | None = None
    """Seconds after which a retry may succeed; None if the error does not say."""

    @classmethod
    def of(cls, error: LakeSyncError) -> Failure:
        """Convert an error. A connector's own class becomes its nearest base in `lakesync.model.errors`."""
        kind = next(each.__name__ for each in type(error).__mro__ if hasattr(exceptions, each.__name__))
        return cls(kind, str(error), error.retry_after if isinstance(error, TransientError) else None)

    def error(self) -> LakeSyncError:
        """Return the error, as an instance of its class in `lakesync.model.errors`."""
        kind: type[LakeSyncError] = getattr(exceptions, self.kind)
        if issubclass(kind, TransientError):
            return kind(self.message, retry_after=self.retry_after)
        return kind(self.message)


def failure_text(error: LakeSyncError) -> str:
    """Convert an error to the text that a task yields in a row."""
    return msgspec.json.encode(Failure.of(error)).decode()


def raise_failure(texts: Iterable[str | None]) -> None:
    """Raise the first error among the results of tasks, if there is one.

    Args:
        texts: results of `failure_text`; None for a row without an error.

    Raises:
        LakeSyncError: a task failed.
    """
    for text in texts:
        if text is not None:
            raise msgspec.json.decode(text, type=Failure).error()


Argument = TypeVar("Argument")
Result = TypeVar("Result")

THREADS = 4
"""Number of threads of `in_threads`."""


def in_threads(
    spark: SparkSession, function: Callable[[Argument], Result], arguments: Iterable[Argument]
) -> list[Result]:
    """Call a function for several arguments in parallel, and return the results in order.

    Args:
        spark: an open Spark session. Its tags, by which a step's jobs are found, apply in the threads too.
        function: the function to call.
        arguments: an argument for each call.

    Raises:
        Exception: the first error of `function`, after the other calls have ended.
    """
    pool = ThreadPoolExecutor(THREADS, initializer=_tag, initargs=(spark, spark.getTags()))
    try:
        calls = [pool.submit(function, each) for each in arguments]  # `pool.map` cancels the others after an error
        wait(calls)
    finally:
        pool.shutdown(cancel_futures=True)  # if the run is cancelled, which interrupts `wait`, no further call begins
    return [call.result() for call in calls]


def _tag(spark: SparkSession, tags: Iterable[str]) -> None:
    """Add tags to the session, for the calling thread."""
    for tag in tags:
        spark.addTag(tag)

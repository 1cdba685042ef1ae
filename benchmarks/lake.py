"""A lake for benchmarks: a Spark server, and a generator of synthetic deltas for the history (the table `deltas`).

The benchmarks `tables`, `checkpoint`, `flush` and `polls`, and `spark_transfers`, use it. An arrival is the gateway's
timestamp of a push: milliseconds since 1970, above 16 bits of a counter.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.usage import MeasuredProcess, Usage
from lakehouse.history.decoding import DELTAS_ARROW
from lakehouse.sessions import session
from lakehouse.table_creation import ensure_deltas
from lakehouse.table_definitions import DELTAS_FIELDS, NAMES, LakeNames
from lakehouse.task_runner import in_tasks
from lakesync import config
from lakesync.cli.up import jars
from lakesync.cli.up.process import Process, accepts, free_ports
from lakesync.cli.up.spark_server import prepare
from lakesync.config import Config
from lakesync.model.schema import parse_schema

GATEWAY = "bench"
TASKS = parse_schema(
    {
        "table": "tasks",
        "columns": [
            {"name": "title", "type": "string"},
            {"name": "team", "type": "string"},
            {"name": "done", "type": "boolean"},
            {"name": "points", "type": "number"},
        ],
    }
)
"""The schema of the synthetic rows' table."""
FIRST_ARRIVAL = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000) << 16
"""The arrival of the first push: 1 March 2026, noon UTC."""

_DELTAS_PER_PUSH = 100
_CLIENTS = [f"client-{number}" for number in range(16)]
_DELTAS_PER_FILE = 125_000
"""Deltas in one data file, as a flush of 250,000 deltas writes with two tasks."""
_ROWS_PER_BATCH = 16_384
"""Rows of one Arrow batch that a Spark task returns."""
_READY_SECONDS = 120
"""Longest time for Spark to start."""


class Lake(NamedTuple):
    """A running Spark server with an empty history, and a session on it."""

    config: Config
    """The configuration with which others reach it."""
    spark: SparkSession
    """An open session."""
    spark_process: MeasuredProcess
    """Spark's JVM with its Python workers."""

    @contextmanager
    def measure(self) -> Iterator[list[Usage]]:
        """Like `MeasuredProcess.measure`, for Spark and this process together, which plans and commits."""
        found: list[Usage] = []
        with self.spark_process.measure() as spark, MeasuredProcess(os.getpid()).measure() as own:
            yield found
        one, other = spark[0], own[0]
        sums = [round(first + second, 2) for first, second in zip(one[1:], other[1:], strict=True)]
        found.append(Usage(one.seconds, *sums))


@contextmanager
def lake(folder: Path, memory: str = "3g") -> Iterator[Lake]:
    """Start Spark on a lake in a folder, and stop it at the end of the block.

    Args:
        folder: an empty folder, or one with an earlier lake.
        memory: heap of Spark's JVM, such as `3g`.
    """
    (port,) = free_ports(1)
    os.environ["LAKESYNC_CONFIG"] = ""
    remote = {"remote": f"sc://localhost:{port}", "port": port, "token": secrets.token_urlsafe(16), "memory": memory}
    settings = config.load({"data_dir": folder, "spark": remote})
    server = prepare(settings, port=port, token=remote["token"], jars=jars.ensure_all())  # type: ignore[arg-type]
    process = Process("Spark", server.command, server.environment, folder / "spark.log")
    try:
        process.wait_ready(lambda: accepts(port), timeout=_READY_SECONDS)
        with session(settings) as spark:
            ensure_deltas(spark)
            yield Lake(settings, spark, MeasuredProcess(process.pid, family=True))
    finally:
        process.stop(grace=10)


class SyntheticHistory(NamedTuple):
    """A range of synthetic deltas. Delta number n below `rows` inserts a row; later ones update two of its columns."""

    first: int
    """Number of the first delta."""
    deltas: int
    """Number of deltas."""
    rows: int
    """Number of distinct rows."""
    stride: int = 1_000_003
    """Delta n writes row `n * stride % rows`. Of a million rows this stride visits every third."""

    @property
    def last_arrival(self) -> int:
        """The arrival of the last push."""
        return arrival_of(self.first + self.deltas - 1)


def arrival_of(number: int) -> int:
    """Return the arrival of a delta's push, one push per millisecond."""
    return FIRST_ARRIVAL + (number // _DELTAS_PER_PUSH << 16)


def write_history(spark: SparkSession, history: SyntheticHistory, names: LakeNames = NAMES) -> None:
    """Append deltas to the history, in files as large as those of a flush of 250,000 deltas.

    Args:
        spark: an open Spark session.
        history: the deltas.
        names: catalogue and namespaces of the lake's tables.
    """
    starts = range(history.first, history.first + history.deltas, _DELTAS_PER_FILE)

    def part(number: int) -> Iterator[pa.RecordBatch]:
        first = starts[number]
        count = min(_DELTAS_PER_FILE, history.first + history.deltas - first)
        made = _deltas(range(first, first + count), history, f"b-{first}")
        yield from pa.Table.from_batches([made]).to_batches(max_chunksize=_ROWS_PER_BATCH)

    in_tasks(spark, len(starts), part, DELTAS_FIELDS).writeTo(names.deltas).append()


def _deltas(numbers: range, history: SyntheticHistory, batch: str) -> pa.RecordBatch:
    """Return the deltas with some numbers in the columns of the table `deltas`; `batch` is their batch id."""
    count, rows = len(numbers), history.rows
    day = datetime.fromtimestamp((FIRST_ARRIVAL >> 16) / 1000, UTC).date()
    at = np.array(numbers)
    arrivals = FIRST_ARRIVAL + (at // _DELTAS_PER_PUSH << 16)
    cells = [columns_of(number, rows) for number in numbers]
    flat = list(chain.from_iterable(cells))
    widths = np.fromiter(map(len, cells), np.int32, count)
    offsets = np.concatenate([[0], np.cumsum(widths)])
    names, values = (pa.array(each) for each in zip(*flat, strict=True))
    constants = {"gateway": GATEWAY, "shard": "main", "batch_id": batch, "table_name": "tasks"}
    return pa.RecordBatch.from_pydict(
        {
            **{name: pa.repeat(value, count) for name, value in constants.items()},
            "epoch": np.ones(count, np.int64),
            "seq": at // _DELTAS_PER_PUSH,
            "ordinal": (at % _DELTAS_PER_PUSH).astype(np.int32),
            "arrival": arrivals,
            "day": pa.repeat(pa.scalar(day), count),
            "row_id": [row_of(number, rows, history.stride) for number in numbers],
            "op": np.where(at < rows, "INSERT", "UPDATE"),
            "client_id": [_CLIENTS[number % len(_CLIENTS)] for number in numbers],
            "hlc": arrivals - (at % 7 << 16) + at % _DELTAS_PER_PUSH,
            "delta_id": [id_of(number) for number in numbers],
            "width": widths,
            "columns": pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), names, values),
        },
        schema=DELTAS_ARROW,
    )


def id_of(number: int) -> str:
    """Return the id of delta `number`, a hash as real ids are."""
    return hashlib.sha256(b"%d" % number).hexdigest()


def row_of(number: int, rows: int, stride: int = 1_000_003) -> str:
    """Return the id of the row that delta `number` writes.

    Args:
        number: the delta's number.
        rows: number of distinct rows.
        stride: see `SyntheticHistory.stride`.
    """
    return f"task-{number * stride % rows:08d}"


def columns_of(number: int, rows: int) -> list[tuple[str, str]]:
    """Return `(column, value as canonical JSON)` for each column that delta `number` writes.

    Args:
        number: the delta's number.
        rows: number of distinct rows.
    """
    if number < rows:
        return [
            ("done", "false"),
            ("points", str(number % 13)),
            ("team", f'"team-{number % 100}"'),
            ("title", f'"Task number {number}"'),
        ]
    return [("done", "true"), ("points", str(number % 1009))]

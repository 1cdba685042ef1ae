"""A lake for benchmarks: an embedded Spark server, and synthetic history."""

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

from benchmarks.usage import Usage, Watched
from lakehouse.history.decoding import DELTAS_ARROW, DELTAS_SCHEMA
from lakehouse.sessions import session
from lakehouse.table_definitions import NAMES, LakeNames, ensure_deltas
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
FIRST_ARRIVAL = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000) << 16

_A_PUSH = 100
_CLIENTS = [f"client-{number}" for number in range(16)]
_DELTAS_PER_FILE = 125_000
_ROWS_PER_BATCH = 16_384
_READY_SECONDS = 120


class Lake(NamedTuple):
    """A running Spark server and a session."""

    config: Config
    spark: SparkSession
    watched: Watched
    """Spark with its Python workers."""

    @contextmanager
    def measured(self) -> Iterator[list[Usage]]:
        """Measure like `Watched.measured`, including this process, which plans and commits."""
        found: list[Usage] = []
        with self.watched.measured() as spark, Watched(os.getpid()).measured() as own:
            yield found
        one, other = spark[0], own[0]
        sums = [round(first + second, 2) for first, second in zip(one[1:], other[1:], strict=True)]
        found.append(Usage(one.seconds, *sums))


@contextmanager
def lake(folder: Path, memory: str = "3g") -> Iterator[Lake]:
    """Start a lake in a folder, with a warm Spark of two cores.

    Args:
        folder: an empty folder.
        memory: the heap of Spark's JVM.
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
            yield Lake(settings, spark, Watched(process.pid, family=True))
    finally:
        process.stop(grace=10)


class Story(NamedTuple):
    """Deltas numbered from `first`: each row is inserted once, then two of its columns are updated."""

    first: int
    deltas: int
    rows: int
    stride: int = 1_000_003
    """Distance between consecutive rows: steps of three through a million rows."""

    @property
    def last_arrival(self) -> int:
        """The arrival of its last push."""
        return arrival_of(self.first + self.deltas - 1)


def arrival_of(number: int) -> int:
    """Return the arrival of a delta's push, one push per millisecond."""
    return FIRST_ARRIVAL + (number // _A_PUSH << 16)


def write_history(spark: SparkSession, story: Story, names: LakeNames = NAMES) -> None:
    """Append the deltas to `deltas` like flushes of 250,000 deltas: two files each."""
    starts = range(story.first, story.first + story.deltas, _DELTAS_PER_FILE)

    def part(number: int) -> Iterator[pa.RecordBatch]:
        first = starts[number]
        count = min(_DELTAS_PER_FILE, story.first + story.deltas - first)
        made = _history(range(first, first + count), story, f"b-{first}")
        yield from pa.Table.from_batches([made]).to_batches(max_chunksize=_ROWS_PER_BATCH)

    in_tasks(spark, len(starts), part, DELTAS_SCHEMA).writeTo(names.deltas).append()


def _history(numbers: range, story: Story, batch: str) -> pa.RecordBatch:
    count, rows = len(numbers), story.rows
    day = datetime.fromtimestamp((FIRST_ARRIVAL >> 16) / 1000, UTC).date()
    places = np.array(numbers)
    arrivals = FIRST_ARRIVAL + (places // _A_PUSH << 16)
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
            "seq": places // _A_PUSH,
            "ordinal": (places % _A_PUSH).astype(np.int32),
            "arrival": arrivals,
            "day": pa.repeat(pa.scalar(day), count),
            "row_id": [row_of(number, rows, story.stride) for number in numbers],
            "op": np.where(places < rows, "INSERT", "UPDATE"),
            "client_id": [_CLIENTS[number % len(_CLIENTS)] for number in numbers],
            "hlc": arrivals - (places % 7 << 16) + places % _A_PUSH,
            "delta_id": [id_of(number) for number in numbers],
            "width": widths,
            "columns": pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), names, values),
        },
        schema=DELTAS_ARROW,
    )


def id_of(number: int) -> str:
    """Return a delta's id: a hash."""
    return hashlib.sha256(b"%d" % number).hexdigest()


def row_of(number: int, rows: int, stride: int = 1_000_003) -> str:
    """Return a delta's row id."""
    return f"task-{number * stride % rows:08d}"


def columns_of(number: int, rows: int) -> list[tuple[str, str]]:
    """Return a delta's values as JCS text by column."""
    if number < rows:
        return [
            ("done", "false"),
            ("points", str(number % 13)),
            ("team", f'"team-{number % 100}"'),
            ("title", f'"Task number {number}"'),
        ]
    return [("done", "true"), ("points", str(number % 1009))]

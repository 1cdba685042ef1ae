"""A lake of a benchmark's own: an embedded Spark server, and synthetic history made on it."""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from lakesync import config
from lakesync.cli import jars
from lakesync.cli.process import Process, accepts, free_ports
from lakesync.cli.spark_server import prepare
from lakesync.config import Config
from lakesync.schema import parse_schema
from resources.lake.tables import NAMES, LakeNames, ensure_deltas
from resources.spark import session
from transforms.decode import DELTAS_SCHEMA

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
_DELTAS_A_FILE = 250_000
_READY_SECONDS = 120
_SAMPLE_SECONDS = 0.2
_MIB = 1 << 20


class Spent(NamedTuple):
    """What Spark, its Python workers included, used inside of a block."""

    seconds: float
    cpu_seconds: float
    peak_mib: float
    """Resident memory of all of its processes together."""


class Lake:
    """A running Spark server and a session on it."""

    def __init__(self, settings: Config, process: Process, spark: SparkSession) -> None:
        self.config = settings
        self.spark = spark
        self._process = psutil.Process(process.pid)

    @contextmanager
    def measured(self) -> Iterator[list[Spent]]:
        """What the block takes; the list holds it at the end."""
        found: list[Spent] = []
        peaks, done = [self._rss()], threading.Event()

        def sample() -> None:
            while not done.wait(_SAMPLE_SECONDS):
                peaks.append(self._rss())

        sampler = threading.Thread(target=sample, daemon=True)
        sampler.start()
        cpu, begun = self._cpu(), time.perf_counter()
        try:
            yield found
        finally:
            seconds = time.perf_counter() - begun
            done.set()
            sampler.join()
            found.append(Spent(round(seconds, 2), round(self._cpu() - cpu, 2), round(max(peaks) / _MIB)))

    def _tree(self) -> list[psutil.Process]:
        return [self._process, *self._process.children(recursive=True)]

    def _rss(self) -> float:
        return sum(_of(each, lambda one: one.memory_info().rss) for each in self._tree())

    def _cpu(self) -> float:
        def used(one: psutil.Process) -> float:
            times = one.cpu_times()
            return times.user + times.system + times.children_user + times.children_system

        return sum(_of(each, used) for each in self._tree())


def _of(process: psutil.Process, ask: Callable[[psutil.Process], float]) -> float:
    try:
        return ask(process)
    except psutil.NoSuchProcess:
        return 0


@contextmanager
def lake(folder: Path, memory: str = "3g") -> Iterator[Lake]:
    """A lake in a folder, with a Spark of two cores that has run a query.

    Args:
        folder: an empty one.
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
            yield Lake(settings, process, spark)
    finally:
        process.stop(grace=10)


class Story(NamedTuple):
    """Deltas numbered from `first` on: each row is inserted whole once, and from then two of its columns updated."""

    first: int
    deltas: int
    rows: int

    @property
    def last_arrival(self) -> int:
        """Of its last push."""
        return arrival_of(self.first + self.deltas - 1)


def arrival_of(number: int) -> int:
    """The arrival of a delta's push: a push a millisecond."""
    return FIRST_ARRIVAL + (number // _A_PUSH << 16)


def write_history(spark: SparkSession, story: Story, names: LakeNames = NAMES) -> None:
    """Append it to `deltas`, as flushes of 250,000 deltas would have left it."""
    for first in range(story.first, story.first + story.deltas, _DELTAS_A_FILE):
        count = min(_DELTAS_A_FILE, story.first + story.deltas - first)
        made = spark.range(first, first + count, 1, 1).mapInArrow(_made(story.rows, f"b-{first}"), DELTAS_SCHEMA)
        made.writeTo(names.deltas).append()


def _made(rows: int, batch: str) -> Any:
    def make(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            yield _history(each.column(0).to_pylist(), rows, batch)

    return make


def _history(numbers: list[int], rows: int, batch: str) -> pa.RecordBatch:
    day = datetime.fromtimestamp((FIRST_ARRIVAL >> 16) / 1000, UTC).date()
    count = len(numbers)
    columns = [columns_of(number, rows) for number in numbers]
    return pa.RecordBatch.from_pydict(
        {
            "gateway": [GATEWAY] * count,
            "shard": ["main"] * count,
            "epoch": [1] * count,
            "batch_id": [batch] * count,
            "seq": [number // _A_PUSH for number in numbers],
            "ordinal": pa.array([number % _A_PUSH for number in numbers], pa.int32()),
            "arrival": [arrival_of(number) for number in numbers],
            "day": [day] * count,
            "table_name": ["tasks"] * count,
            "row_id": [row_of(number, rows) for number in numbers],
            "op": ["INSERT" if number < rows else "UPDATE" for number in numbers],
            "client_id": [f"client-{number % 16}" for number in numbers],
            "hlc": [arrival_of(number) - (number % 7 << 16) + number % _A_PUSH for number in numbers],
            "delta_id": [hashlib.sha256(b"%d" % number).hexdigest() for number in numbers],
            "width": pa.array([len(each) for each in columns], pa.int32()),
            "columns": pa.array(columns, pa.map_(pa.string(), pa.string())),
        }
    )


def row_of(number: int, rows: int) -> str:
    """The row of a delta."""
    return f"task-{number * 1_000_003 % rows:08d}"


def columns_of(number: int, rows: int) -> list[tuple[str, str]]:
    """Column → JCS text of a delta's values."""
    if number < rows:
        return [
            ("done", "false"),
            ("points", str(number % 13)),
            ("team", f'"team-{number % 100}"'),
            ("title", f'"Task number {number}"'),
        ]
    return [("done", "true"), ("points", str(number % 1009))]

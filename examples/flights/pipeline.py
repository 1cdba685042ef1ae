"""The pipeline as the demo watches it: whether everything is flushed, the state as of a time, and Dagster's runs.

Runs are listed, awaited and launched through Dagster's GraphQL API.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from examples.flights.schemas import COLUMNS, GATEWAY
from lakehouse.checkpoints.checkpoint import state_as_of
from lakehouse.sessions import session
from lakehouse.staging_connection import pipeline_store
from lakehouse.table_definitions import LakeNames
from lakehouse.tables.increments import forget_marks
from lakesync.cli import dagster_client
from lakesync.config import Config
from lakesync.staging.store.pipeline import GatewayStore, PipelineStore

POLL = 0.5
"""Seconds between two checks."""


class NotCarriedError(Exception):
    """The flush sensor's runs did not flush everything in time."""


@contextmanager
def staging(config: Config) -> Iterator[PipelineStore]:
    """Open the store as the pipeline sees it."""
    with pipeline_store(config) as store:
        yield store


def wait_until_carried(store: PipelineStore, patience: float, on_progress: Callable[[int], None]) -> None:
    """Return once nothing is unflushed and the newest checkpoint covers the last arrival.

    `on_progress` is called with the number of unflushed deltas.

    Raises:
        NotCarriedError: there was no progress for `patience` seconds.
    """
    deadline, before = time.monotonic() + patience, None
    while True:
        shards = [shard for shard in store.backlog() if shard.gateway == GATEWAY]
        waiting = sum(shard.deltas for shard in shards)
        on_progress(waiting)
        checkpoint = store.newest_checkpoint(GATEWAY)
        last = max((shard.last_arrival for shard in shards), default=0)
        if not waiting and checkpoint is not None and checkpoint.arrival >= last:
            return
        where = checkpoint.arrival if checkpoint else None
        if (waiting, where) != before:
            deadline, before = time.monotonic() + patience, (waiting, where)
        if time.monotonic() > deadline:
            raise NotCarriedError(
                f"for {patience:.0f} s {waiting} deltas have waited, and the newest checkpoint is at {where} of {last}"
            )
        time.sleep(POLL)


def states_as_of(config: Config, store: GatewayStore, milliseconds: int) -> dict[str, pa.Table]:
    """Return each table's rows as of a server time in milliseconds, reduced by the lake from its history."""
    schemas = store.gateway_config(GATEWAY).schemas
    arrival = milliseconds << 16
    with session(config) as spark:
        return {
            table: _to_arrow(state_as_of(spark, schemas[table].schema, GATEWAY, arrival, names=LakeNames()))
            for table in COLUMNS
        }


def _to_arrow(state: DataFrame) -> pa.Table:
    """Convert to Arrow, with nullable fields because stamps may be null."""
    for stamp in ("_tombstone", "_inserted"):
        state = state.withColumn(stamp, state[stamp].cast("struct<hlc: bigint, client_id: string>"))
    return state.toArrow()


def erase_marks(config: Config) -> None:
    """Delete the merge mark of every state table."""
    with session(config) as spark:
        for table in COLUMNS:
            forget_marks(spark, table, LakeNames())


SENSOR_TAG = "lakesync/requested_by"
REASON_TAG = "lakesync/reason"
LOCATION = "lakesync"
"""Name of the code location."""
FINISHED = frozenset({"SUCCESS", "FAILURE", "CANCELED"})


class RunFailedError(Exception):
    """A run failed, or did not end in time."""


@dataclass(frozen=True)
class Run:
    """One run of a Dagster job."""

    id: str
    job: str
    status: str
    requested_by: str | None
    """The sensor that requested it; None if it was launched manually."""
    reason: str | None
    seconds: float | None

    def as_json(self) -> dict[str, Any]:
        """Return the run as JSON."""
        return asdict(self)


class Dagster:
    """The runs of a Dagster instance."""

    def __init__(self, url: str) -> None:
        self._dagster = dagster_client.DagsterClient(url)

    def runs(self, limit: int = 1000) -> list[Run]:
        """Return the latest runs, newest first."""
        return [_run(run) for run in self._dagster.runs(limit)]

    def finished(self, wanted: Iterable[str], seconds: float) -> list[Run]:
        """Return the runs with these ids once all have succeeded.

        Raises:
            RunFailedError: a run failed, or did not end in time.
        """
        ids = set(wanted)
        deadline = time.monotonic() + seconds
        while True:
            runs = [run for run in self.runs() if run.id in ids]
            broken = [run for run in runs if run.status in FINISHED and run.status != "SUCCESS"]
            if broken:
                raise RunFailedError(f"run {broken[0].id} of {broken[0].job} ended as {broken[0].status}")
            if len(runs) == len(ids) and all(run.status == "SUCCESS" for run in runs):
                return runs
            if time.monotonic() > deadline:
                raise RunFailedError(f"after {seconds:.0f} s not all runs have ended: {runs}")
            time.sleep(POLL)

    def launch(self, job: str, tags: Mapping[str, str], config: Mapping[str, Any] | None = None) -> str:
        """Launch a run of a job, and return its id.

        Raises:
            ValidationError, NotFoundError: Dagster rejected it.
        """
        selector = {"repositoryLocationName": LOCATION, "repositoryName": "__repository__", "jobName": job}
        return self._dagster.launch(selector, tags, config or {})


def _run(found: Mapping[str, Any]) -> Run:
    """Convert Dagster's record of a run."""
    tags = {tag["key"]: tag["value"] for tag in found["tags"]}
    lasted = found["endTime"] - found["startTime"] if found["endTime"] and found["startTime"] else None
    return Run(
        id=found["runId"],
        job=found["jobName"],
        status=found["status"],
        requested_by=tags.get(SENSOR_TAG),
        reason=tags.get(REASON_TAG),
        seconds=None if lasted is None else round(lasted, 2),
    )

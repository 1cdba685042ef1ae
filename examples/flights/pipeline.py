"""The pipeline as the demo sees it: whether the lake has everything, the state as of a time, and Dagster's runs.

The pipeline *flushes* pushed deltas (changes of rows) from the staging store to the lake's history, and *merges* them
into state tables, the current rows. A table's merge mark says up to which arrival, the server's time of a push, it is
merged. A checkpoint, all rows at one arrival, is made last.

Runs are listed, awaited and launched through Dagster's GraphQL API. `demo.py` and `driver.py` call this module.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sf

from examples.flights.data import COLUMNS, GATEWAY
from examples.flights.lake import Lake
from lakehouse.gateway_connections import pipeline_store
from lakehouse.sessions import session
from lakehouse.table_creation import typed_columns
from lakehouse.table_definitions import LakeNames
from lakehouse.tables.merge_job import merged_frames
from lakehouse.tables.merging import forget_marks
from lakesync.cli import dagster_client
from lakesync.config import Config
from lakesync.staging.store.pipeline import PipelineStore

RUN_SECONDS = 300.0
"""Seconds after which a repeated merge has failed."""
TABLES_JOB = "tables"
"""The Dagster job that merges the history into the state tables."""
MAX_FAILURES = 5
"""Number of failed runs in a row after which the pipeline has failed. A killed Spark makes fewer fail."""
POLL_SECONDS = 0.5
"""Seconds between two checks."""


class NotInLakeError(Exception):
    """The runs that the flush sensor requested did not bring everything into the lake in time."""


@contextmanager
def staging(config: Config) -> Iterator[PipelineStore]:
    """Open the staging store as the pipeline does: SQLite's through the gateway that owns it."""
    with pipeline_store(config) as store:
        yield store


def wait_until_in_lake(store: PipelineStore, patience: float, on_progress: Callable[[int], None]) -> None:
    """Return once nothing is unflushed and the newest checkpoint covers the last arrival.

    Args:
        store: the staging store.
        patience: seconds to wait without any progress.
        on_progress: called at each check with the number of unflushed deltas.

    Raises:
        NotInLakeError: there was no progress for `patience` seconds.
    """
    deadline, before = time.monotonic() + patience, None
    while True:
        shards = [shard for shard in store.backlog() if shard.gateway == GATEWAY]
        unflushed = sum(shard.deltas for shard in shards)
        on_progress(unflushed)
        checkpoint = store.newest_checkpoint(GATEWAY)
        last_arrival = max((shard.last_arrival for shard in shards), default=0)
        if not unflushed and checkpoint is not None and checkpoint.arrival >= last_arrival:
            return
        covered = checkpoint.arrival if checkpoint else None
        if (unflushed, covered) != before:
            deadline, before = time.monotonic() + patience, (unflushed, covered)
        if time.monotonic() > deadline:
            raise NotInLakeError(
                f"nothing changed for {patience:.0f} s: {unflushed} deltas are not flushed, and the newest checkpoint "
                f"covers arrival {covered} of {last_arrival}"
            )
        time.sleep(POLL_SECONDS)


def states_as_of(config: Config, milliseconds: int) -> dict[str, pa.Table]:
    """Return each table's rows as of a time, which Spark computes from the history.

    Args:
        config: the configuration of the running system.
        milliseconds: the server's time since 1970.
    """
    names = LakeNames()
    with session(config) as spark:
        of_gateway = sf.col("gateway") == GATEWAY
        deltas = spark.table(names.deltas).where(of_gateway & (sf.col("arrival") <= milliseconds << 16))
        states = {}
        for table in COLUMNS:
            typed = typed_columns(spark, names.state(table))
            merged = merged_frames(deltas.where(sf.col("table_name") == table), None, tuple(typed.items()))
            states[table] = merged.toArrow()
        return states


def erase_marks(config: Config) -> None:
    """Delete the merge mark of every state table, so that the next merge starts from the beginning."""
    with session(config) as spark:
        for table in COLUMNS:
            forget_marks(spark, table, LakeNames())


SENSOR_TAG = "lakesync/requested_by"
"""The tag of a run with the sensor that requested it."""
REASON_TAG = "lakesync/reason"
"""The tag of a run with the sensor's reason."""
LOCATION = "lakesync"
"""Name of the code location."""
FINISHED = frozenset({"SUCCESS", "FAILURE", "CANCELED"})
"""The statuses of runs that have ended."""


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
    """Why the sensor requested it."""
    seconds: float | None
    """How long it took; None if it has not ended."""

    def as_json(self) -> dict[str, Any]:
        """Return the run as JSON."""
        return asdict(self)


class Dagster:
    """The runs of a Dagster instance."""

    def __init__(self, url: str) -> None:
        """Use the Dagster whose web pages have this address."""
        self._dagster = dagster_client.DagsterClient(url)

    def runs(self, limit: int = 1000) -> list[Run]:
        """Return the latest runs, newest first."""
        return [_run(run) for run in self._dagster.runs(limit)]

    def wait_for(self, run_ids: Iterable[str], seconds: float) -> list[Run]:
        """Return the runs with these ids once all have succeeded.

        Args:
            run_ids: the runs' ids.
            seconds: the longest time to wait.

        Raises:
            RunFailedError: a run failed, or did not end in time.
        """
        ids = set(run_ids)
        deadline = time.monotonic() + seconds
        while True:
            runs = [run for run in self.runs() if run.id in ids]
            failed = [run for run in runs if run.status in FINISHED and run.status != "SUCCESS"]
            if failed:
                raise RunFailedError(f"run {failed[0].id} of {failed[0].job} ended as {failed[0].status}")
            if len(runs) == len(ids) and all(run.status == "SUCCESS" for run in runs):
                return runs
            if time.monotonic() > deadline:
                raise RunFailedError(f"after {seconds:.0f} s not all runs have ended: {runs}")
            time.sleep(POLL_SECONDS)

    def check(self, runs: Iterable[Run]) -> None:
        """Check that the pipeline does not fail again and again.

        Args:
            runs: the latest runs, newest first.

        Raises:
            RunFailedError: the latest `MAX_FAILURES` runs that have ended all failed. The message has the newest error.
        """
        ended = [run for run in runs if run.status in FINISHED][:MAX_FAILURES]
        if len(ended) == MAX_FAILURES and all(run.status == "FAILURE" for run in ended):
            newest = ended[0]
            raise RunFailedError(
                f"the latest {MAX_FAILURES} runs failed; {newest.job}, run {newest.id}: "
                f"{self._dagster.error_of(newest.id) or 'its log names no error'}"
            )

    def launch(self, job: str, tags: Mapping[str, str], config: Mapping[str, Any] | None = None) -> str:
        """Launch a run of a job, and return its id.

        Args:
            job: the job's name.
            tags: the run's tags, with its partition.
            config: the run's configuration by op; None for the defaults.

        Raises:
            ValidationError, NotFoundError: Dagster rejected it.
        """
        selector = {"repositoryLocationName": LOCATION, "repositoryName": "__repository__", "jobName": job}
        return self._dagster.launch(selector, tags, config or {})


def _run(record: Mapping[str, Any]) -> Run:
    """Convert a run as Dagster's GraphQL API returns it."""
    tags = {tag["key"]: tag["value"] for tag in record["tags"]}
    has_ended = record["endTime"] and record["startTime"]
    return Run(
        id=record["runId"],
        job=record["jobName"],
        status=record["status"],
        requested_by=tags.get(SENSOR_TAG),
        reason=tags.get(REASON_TAG),
        seconds=round(record["endTime"] - record["startTime"], 2) if has_ended else None,
    )


def repeat_merges(dagster: Dagster, lake: Lake, days: Iterable[str], on_progress: Callable[[str], None]) -> int:
    """Merge every day of arrival again, one run per day in random order, then rebuild all tables.

    Args:
        dagster: runs the merges.
        lake: the lake, which is read after each run.
        days: the days, as `YYYY-MM-DD`.
        on_progress: called before each run with the day, or with a text for the rebuild.

    Returns:
        How many tables had another content after a run; each must be 0, because a repeated merge changes nothing.

    Raises:
        RunFailedError: a run failed.
    """
    before = lake.hashes()
    order = sorted(days)
    random.shuffle(order)
    rebuild = {"ops": {f"tables__{table}": {"config": {"rebuild": True}} for table in COLUMNS}}
    merges = [(day, day, None) for day in order] + [("a rebuild from nothing", max(order), rebuild)]
    changed = 0
    for name, day, config in merges:
        on_progress(name)
        run = dagster.launch(TABLES_JOB, {"dagster/partition": day, "demo": name}, config)
        dagster.wait_for([run], RUN_SECONDS)
        after = lake.hashes()
        changed += sum(after[table] != content for table, content in before.items())
    return changed

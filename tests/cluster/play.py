"""The scenario of the cluster demo: a flush, a worker that is killed during the next merge, and every check."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any, Self

import boto3
import dagster as dg
import requests
from rich.console import Console

from lakehouse.schema_snapshot import registered
from lakehouse.sessions import session
from lakesync.config import Config
from lakesync.engine import Engine
from lakesync.model.delta import extract_delta
from lakesync.model.hlc import OffsetClock
from lakesync.model.schema import parse_schema
from lakesync.model.types import SyncPush
from lakesync.staging import configured_store
from lakesync_dagster.definitions import make_definitions
from resources.stores import LakeResource
from tests.cluster.spark_cluster import SparkCluster

GATEWAY = "apart"
ROWS = parse_schema(
    {"table": "rows", "columns": [{"name": "number", "type": "number"}, {"name": "text", "type": "string"}]}
)
PUSH = 5_000
WAIT_SECONDS = 600
WORKERS = 2


class Play:
    """A gateway over Postgres staging; this process runs Dagster's assets."""

    def __init__(self, config: Config, cluster: SparkCluster, console: Console) -> None:
        self._config, self._cluster, self._console = config, cluster, console
        self._wall = OffsetClock().now_ms
        self._engine = Engine(configured_store(config, self._wall), self._wall)
        self._instance = dg.DagsterInstance.ephemeral()

    def __enter__(self) -> Self:
        self._engine.open()
        self._engine.gateway(GATEWAY).register_schema(ROWS)
        self._definitions = make_definitions(self._config, registered(self._engine.store))
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()

    def run(self, rows: int) -> dict[str, Any]:
        """Run the scenario; return its figures, and whether every check passed."""
        self._push(rows, "INSERT", 0)
        first = self._job("flush", whole=False)
        report: dict[str, Any] = {"workers": self._cluster.workers(), "first_flush_seconds": self._seconds(first)}
        self._console.print(f"flushed, merged and cut over two workers: {report['first_flush_seconds']}")
        loaded = self._job("destinations", whole=True)
        report["load_seconds"] = self._seconds(loaded)
        report["tasks"] = {**self._tasks_of(first), **self._tasks_of(loaded)}
        for asset, tasks in report["tasks"].items():
            each = ", ".join(f"{count} on worker {worker}" for worker, count in tasks.items())
            self._console.print(f"tasks of {asset}: {each}")
        report["both_worked"] = all(len(tasks) == WORKERS for tasks in report["tasks"].values())

        self._push(rows, "UPDATE", rows)
        outcome: list[dg.ExecuteInProcessResult] = []
        before = self._files()
        merging = threading.Thread(target=lambda: outcome.append(self._job("flush", whole=False)))
        merging.start()
        self._until(lambda: self._files() != before or not merging.is_alive(), "the merge to write its first file")
        report["killed_while_merging"] = merging.is_alive()
        self._cluster.kill("worker-1")
        merging.join(WAIT_SECONDS)
        self._until(lambda: self._cluster.workers() == 1, "the master to miss the worker")
        report["killed_flush_seconds"] = self._seconds(outcome[0]) if outcome else None
        report["killed_flush"] = bool(outcome) and outcome[0].success
        self._console.print(
            f"a worker was killed in the merge; the run ended {'well' if report['killed_flush'] else 'badly'}"
        )

        audit = self._job("audit", whole=True)
        evaluations = audit.get_asset_check_evaluations()
        report["checks"] = {f"{one.asset_key.to_user_string()} {one.check_name}": one.passed for one in evaluations}
        report |= self._lake(rows)
        report["ok"] = all(
            [
                report["both_worked"],
                report["killed_while_merging"],
                report["killed_flush"],
                report["right"],
                *report["checks"].values(),
            ]
        )
        return report

    def _push(self, rows: int, op: str, above: int) -> None:
        """INSERT rows with a number and a text, or UPDATE the number of each row."""
        gateway = self._engine.gateway(GATEWAY)
        now = self._wall()
        for start in range(0, rows, PUSH):
            numbers = range(start, min(start + PUSH, rows))
            gateway.handle_push(SyncPush("client", tuple(_delta(op, number, above, now, number) for number in numbers)))

    def _job(self, name: str, *, whole: bool) -> dg.ExecuteInProcessResult:
        today = time.strftime("%Y-%m-%d", time.gmtime())
        days = {"dagster/asset_partition_range_start": today, "dagster/asset_partition_range_end": today}
        tags = {} if whole else {**days, "lakesync/requested_by": "flush_sensor"}
        job = self._definitions.resolve_job_def(name)
        quiet = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
        return job.execute_in_process(instance=self._instance, tags=tags, run_config=quiet, raise_on_error=False)

    def _tasks_of(self, run: dg.ExecuteInProcessResult) -> dict[str, dict[str, int]]:
        """Return, by asset and executor (one a worker), the number of completed tasks, as Spark counts them."""
        found = {}
        for event in run.get_asset_materialization_events():
            metadata = event.step_materialization_data.materialization.metadata
            application, links = metadata.get("spark/application"), metadata.get("spark/ui")
            if application is None or links is None or event.asset_key is None:
                continue
            jobs = [int(link.partition(")")[0]) for link in str(links.value).split("id=")[1:]]
            found[event.asset_key.to_user_string()] = self._tasks(str(application.value), jobs)
        return found

    def _tasks(self, application: str, jobs: list[int]) -> dict[str, int]:
        root = f"{self._config.spark.ui_url}/api/v1/applications/{application}"
        stages = {stage for job in jobs for stage in requests.get(f"{root}/jobs/{job}", timeout=30).json()["stageIds"]}
        counted: Counter[str] = Counter()
        for stage in stages:
            for attempt in requests.get(f"{root}/stages/{stage}?details=true", timeout=30).json():
                ended = [task for task in attempt["tasks"].values() if task["status"] == "SUCCESS"]
                counted.update(task["executorId"] for task in ended)
        return dict(sorted(counted.items()))

    def _lake(self, rows: int) -> dict[str, Any]:
        """Compare the rows that Spark reads from the lake with the pushed rows."""
        with session(self._config) as spark:
            names = LakeResource.configured_by(self._config).names
            deltas = spark.table(names.deltas).count()
            state = spark.table(names.state("rows"))
            found = state.selectExpr("count(*)", "sum(number)", "count(text)").collect()[0]
        expected = (rows, float(sum(range(rows, 2 * rows))), rows)
        cut = self._engine.store.newest_checkpoint(GATEWAY)
        frames = cut.tables[0].rows if cut is not None else 0
        return {
            "deltas": deltas,
            "state": list(found),
            "frames_rows": frames,
            "right": deltas == 2 * rows and tuple(found) == expected and frames == rows,
        }

    def _files(self) -> set[str]:
        """The data files of the state table."""
        pages = boto3.client("s3").get_paginator("list_objects_v2")
        prefix = "warehouse/tables/rows/data/"
        listed = pages.paginate(Bucket="lake", Prefix=prefix)
        return {entry["Key"] for page in listed for entry in page.get("Contents", [])}

    def _seconds(self, result: dg.ExecuteInProcessResult) -> dict[str, float]:
        """Return the duration of each step."""
        return {
            str(event.step_key): round(event.step_success_data.duration_ms / 1000, 1)
            for event in result.all_events
            if event.is_step_success
        }

    def _until(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {WAIT_SECONDS} s for {what}")
            time.sleep(0.1)


def _delta(op: str, number: int, above: int, now: int, place: int) -> Any:
    before = {} if op == "INSERT" else {"number": number, "text": f"row {number}"}
    after = {"number": number + above, "text": f"row {number}"}
    return extract_delta(
        before or None, after, table="rows", row_id=f"{number}", client_id="client", hlc=(now << 16) + place
    )

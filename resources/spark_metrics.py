"""What Spark did for a step, as the REST API of Spark's UI reports it."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import requests

_TIMEOUT = (1.0, 15.0)
"""Seconds to connect and to read. The first answer of Spark's REST API takes three, and more on a busy machine."""
_SETTLE_SECONDS = 2.0
"""How long Spark may take to report the end of a job whose result is there already."""
_LOOK_SECONDS = 0.05


class SparkWork(NamedTuple):
    """Jobs of one tag, summed. Rows and bytes are those that Spark's readers, writers and shuffles count."""

    jobs: tuple[int, ...]
    stages: int
    """Stages that ran; a stage whose shuffle was reused is not one."""
    tasks: int
    rows_read: int
    rows_written: int
    bytes_read: int
    bytes_written: int
    shuffle_bytes: int
    failed_tasks: int
    complete: bool
    """False where Spark has forgotten older jobs: `spark.ui.retainedJobs`."""


class SparkStatus:
    """The REST API of one Spark application's UI.

    Every method returns None where the UI cannot be reached: a step does not fail for its figures.
    """

    def __init__(self, ui_url: str, application: str) -> None:
        """Args: ui_url: the UI's address; application: the application's id."""
        self._root = f"{ui_url.rstrip('/')}/api/v1/applications/{application}"
        self._http = requests.Session()
        self._http.trust_env = False  # a proxy does not know this machine's ports

    def newest_job(self) -> int | None:
        """The highest job id so far; -1 before the first job."""
        jobs = self._get("jobs")
        return None if jobs is None else max((job["jobId"] for job in jobs), default=-1)

    def work_of(self, tag: str, after: int) -> SparkWork | None:
        """Sum the jobs that were run under a tag, once all of them have ended.

        Args:
            tag: as given to `SparkSession.addTag`.
            after: a job id; only younger jobs count.
        """
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            jobs = self._get("jobs")
            if jobs is None:
                return None
            mine = [job for job in jobs if job["jobId"] > after and _is_of(job, tag)]
            if all(job["status"] != "RUNNING" for job in mine) or time.monotonic() > deadline:
                break
            time.sleep(_LOOK_SECONDS)
        stages = self._get("stages") if mine else []
        if stages is None:
            return None
        wanted = {stage for job in mine for stage in job["stageIds"]}
        ran = [stage for stage in stages if stage["stageId"] in wanted and stage["status"] != "SKIPPED"]
        oldest = min((job["jobId"] for job in jobs), default=0)

        def total(*fields: str) -> int:
            return sum(stage[field] for stage in ran for field in fields)

        return SparkWork(
            jobs=tuple(sorted(job["jobId"] for job in mine)),
            stages=len({stage["stageId"] for stage in ran}),
            tasks=total("numCompleteTasks"),
            rows_read=total("inputRecords"),
            rows_written=total("outputRecords"),
            bytes_read=total("inputBytes"),
            bytes_written=total("outputBytes"),
            shuffle_bytes=total("shuffleWriteBytes"),
            failed_tasks=total("numFailedTasks"),
            complete=oldest <= after + 1,
        )

    def _get(self, what: str) -> list[dict[str, Any]] | None:
        try:
            answer = self._http.get(f"{self._root}/{what}", timeout=_TIMEOUT)
            found: list[dict[str, Any]] | None = answer.json() if answer.ok else None
        except (requests.RequestException, ValueError):
            return None
        return found


def _is_of(job: dict[str, Any], tag: str) -> bool:
    """Spark Connect writes user and session before a tag."""
    return any(each.endswith(f"_Tag_{tag}") for each in job.get("jobTags", ()))

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

    def work_of(self, tag: str) -> SparkWork | None:
        """Sum the jobs that were run under a tag, once all of them have ended.

        Args:
            tag: as given to `SparkSession.addTag`.
        """
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            jobs = self._get("jobs")
            if jobs is None:
                return None
            mine = [job for job in jobs if _is_of(job, tag)]
            if all(job["status"] != "RUNNING" for job in mine) or time.monotonic() > deadline:
                break
            time.sleep(_LOOK_SECONDS)
        # each stage by itself: a list of all that Spark remembers is megabytes
        wanted = sorted({stage for job in mine for stage in job["stageIds"]})
        attempts = [attempt for stage in wanted for attempt in self._get(f"stages/{stage}?details=false") or ()]
        ran = [attempt for attempt in attempts if attempt["status"] != "SKIPPED"]
        numbers, oldest = sorted(job["jobId"] for job in mine), min((job["jobId"] for job in jobs), default=0)

        def total(*fields: str) -> int:
            return sum(stage[field] for stage in ran for field in fields)

        return SparkWork(
            jobs=tuple(numbers),
            stages=len({stage["stageId"] for stage in ran}),
            tasks=total("numCompleteTasks"),
            rows_read=total("inputRecords"),
            rows_written=total("outputRecords"),
            bytes_read=total("inputBytes"),
            bytes_written=total("outputBytes"),
            shuffle_bytes=total("shuffleWriteBytes"),
            failed_tasks=total("numFailedTasks"),
            complete=oldest == 0 or not numbers or oldest < numbers[0],
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

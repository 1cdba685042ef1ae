"""Dagster's runs through its GraphQL API: list, wait for and launch runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lakesync.cli import dagster_client

SENSOR_TAG = "lakesync/requested_by"
REASON_TAG = "lakesync/reason"
LOCATION = "lakesync"
FINISHED = frozenset({"SUCCESS", "FAILURE", "CANCELED"})
POLL = 0.5


class RunFailedError(Exception):
    """A run failed, or did not end in time."""


@dataclass(frozen=True)
class Run:
    """One run."""

    id: str
    job: str
    status: str
    requested_by: str | None
    """The sensor that requested it; None if it was launched manually."""
    reason: str | None
    seconds: float | None

    def told(self) -> dict[str, Any]:
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

"""Dagster as seen from outside, over its GraphQL: which runs there were, who asked for them, and new ones."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import requests

SENSOR_TAG = "lakesync/requested_by"
REASON_TAG = "lakesync/reason"
LOCATION = "lakesync"
FINISHED = frozenset({"SUCCESS", "FAILURE", "CANCELED"})
POLL = 0.5

_RUNS = """
query Runs($limit: Int!) {
  runsOrError(limit: $limit) {
    __typename
    ... on Runs { results { runId jobName status startTime endTime tags { key value } } }
    ... on PythonError { message }
  }
}
"""
_LAUNCH = """
mutation Launch($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
    ... on InvalidSubsetError { message }
    ... on UnauthorizedError { message }
    ... on PipelineNotFoundError { message }
  }
}
"""


class RunFailedError(Exception):
    """Dagster refused a run, or it did not succeed in time."""


@dataclass(frozen=True)
class Run:
    """One run."""

    id: str
    job: str
    status: str
    requested_by: str | None
    """The sensor that asked for it; None for a run that somebody launched."""
    reason: str | None
    seconds: float | None

    def told(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class Dagster:
    """A webserver's GraphQL."""

    def __init__(self, url: str) -> None:
        self._url = f"{url.rstrip('/')}/graphql"
        self._session = requests.Session()
        self._session.trust_env = False

    def runs(self, limit: int = 1000) -> list[Run]:
        """The latest runs, the newest first."""
        found = self._ask(_RUNS, {"limit": limit})["runsOrError"]
        if found["__typename"] != "Runs":
            raise RunFailedError(f"Dagster does not list its runs: {found}")
        return [_run(run) for run in found["results"]]

    def finished(self, wanted: Iterable[str], seconds: float) -> list[Run]:
        """The runs of these ids, once all have ended well.

        Raises:
            RunFailedError: one did not succeed, or they took longer.
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
        """Launch a run of a job; its id.

        Raises:
            RunFailedError: Dagster refused it.
        """
        params = {
            "selector": {
                "repositoryLocationName": LOCATION,
                "repositoryName": "__repository__",
                "jobName": job,
            },
            "runConfigData": config or {},
            "mode": "default",
            "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in tags.items()]},
        }
        answer = self._ask(_LAUNCH, {"params": params})["launchRun"]
        if answer["__typename"] != "LaunchRunSuccess":
            raise RunFailedError(f"Dagster refused a run of {job}: {answer}")
        return str(answer["run"]["runId"])

    def _ask(self, query: str, variables: Mapping[str, Any]) -> Any:
        answer = self._session.post(self._url, json={"query": query, "variables": variables}, timeout=60)
        answer.raise_for_status()
        told = answer.json()
        if told.get("errors"):
            raise RunFailedError(f"Dagster did not understand: {told['errors']}")
        return told["data"]


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

"""A client for Dagster's GraphQL API: assets, partitions, runs and backfills.

`lakesync backfill`, `status`, `doctor` and `dlq retry` use it, `lakesync up`, to see whether Dagster is ready, and the
schema sensor, which reloads the code location.

In Dagster's words, an *asset* is something that the pipeline makes, such as a table. Its key is written with slashes:
`tables/todos`. A *run* of a *job* makes assets, which is to *materialise* them. Most assets have a *partition* for each
UTC day, which is materialised alone. A *backfill* materialises chosen partitions again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import requests

from lakesync.cli.data_folder import running_service
from lakesync.client.errors import UnreachableError
from lakesync.model.errors import NotFoundError, ValidationError

if TYPE_CHECKING:
    from lakesync.config import Config

_ENDED = ("SUCCESS", "FAILURE", "CANCELED")
"""Statuses of runs that have ended."""
_TIMEOUT_SECONDS = 60.0
"""Seconds to wait for a connection, and for each part of a response."""
LOCATION = "lakesync"
"""The code location's name in every workspace."""
READY_SECONDS = 5.0
"""Timeout of a `DagsterClient` with which a caller checks whether Dagster is ready."""
REQUESTS = files(__package__).joinpath("dagster.graphql").read_text("utf-8")
"""The GraphQL document with all queries and mutations, which the client sends by their names."""
FINISHED = frozenset({"COMPLETED", "COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED", "CANCELED"})
"""Statuses of a backfill that has ended."""
SUCCEEDED = frozenset({"COMPLETED", "COMPLETED_SUCCESS"})
"""Statuses of a backfill that has ended successfully."""


class DagsterUnreachableError(UnreachableError):
    """Dagster does not answer."""


class Partition(NamedTuple):
    """A partition of an asset."""

    key: str
    """Dagster's key: all dimensions, joined by `|`."""
    day: str | None
    """`YYYY-MM-DD`; None if the asset is not partitioned by time."""
    other_keys: tuple[str, ...]
    """Its keys in the other dimensions, such as a table or a gateway."""

    def matches(self, first_day: str | None, last_day: str | None, wanted: Collection[str]) -> bool:
        """Return whether the partition is in a range of days and among the wanted ones.

        Every range includes a partition without a day.

        Args:
            first_day: `YYYY-MM-DD`; None: no limit.
            last_day: `YYYY-MM-DD`; None: no limit.
            wanted: whole keys, or keys in one dimension; empty: all.
        """
        if self.day is not None and not (first_day or "") <= self.day <= (last_day or self.day):
            return False
        return not wanted or self.key in wanted or any(key in wanted for key in self.other_keys)


def partitions_of(keys: Iterable[str], dimensions: Sequence[Mapping[str, str]]) -> list[Partition]:
    """Split partition keys into their dimensions. A key has its dimensions in the order of their names.

    Args:
        keys: Dagster's partition keys, such as `2026-11-01` or `2026-11-01|todos`.
        dimensions: `name` and `type` of each dimension.
    """
    are_time = [each["type"] == "TIME_WINDOW" for each in sorted(dimensions, key=lambda each: each["name"])]
    partitions = []
    for key in keys:
        parts = key.split("|") if len(are_time) > 1 else [key]
        days = [part for part, is_time in zip(parts, are_time, strict=True) if is_time]
        other_keys = tuple(part for part, is_time in zip(parts, are_time, strict=True) if not is_time)
        partitions.append(Partition(key, days[0] if days else None, other_keys))
    return partitions


class DagsterClient:
    """Requests to one Dagster webserver.

    Every method raises UnreachableError if Dagster does not answer, and ValidationError or NotFoundError if it rejects
    the request.
    """

    def __init__(self, url: str, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        """Prepare requests; none is sent yet.

        Args:
            url: the webserver's URL.
            timeout_seconds: how long to wait for a connection, and for each part of a response.
        """
        self.url = url.rstrip("/")
        self._timeout_seconds = timeout_seconds
        self._session = requests.Session()
        self._session.trust_env = False  # an HTTP proxy cannot reach ports of this machine

    def launch(self, selector: Mapping[str, Any], tags: Mapping[str, str], config: Mapping[str, Any]) -> str:
        """Launch a run of a job.

        Args:
            selector: Dagster's job selector: `repositoryLocationName`, `repositoryName`, `jobName`, and optionally
                `assetSelection`.
            tags: the run's tags.
            config: the run's configuration.

        Returns:
            The run id.

        Raises:
            UnreachableError: Dagster does not answer.
            ValidationError: Dagster rejects the run.
        """
        params = {
            "selector": selector,
            "runConfigData": config,
            "mode": "default",
            "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in tags.items()]},
        }
        launched = self._request("Launch", {"params": params}, "launchRun", "LaunchRunSuccess")
        return str(launched["run"]["runId"])

    def materialise(self, asset: str, job: str, requested_by: str) -> str:
        """Launch a run of a job for one asset and its newest partition.

        Args:
            asset: the asset's key.
            job: the job's name.
            requested_by: the command that requests the run, for the tag `lakesync/requested_by`.

        Returns:
            The run id.

        Raises:
            NotFoundError: there is no such asset, or it has no partition yet.
            UnreachableError: Dagster does not answer.
            ValidationError: Dagster rejects the run.
        """
        nodes = self.assets()
        if asset not in nodes:
            raise NotFoundError(
                f"Dagster at {self.url} has no asset {asset!r}; check that the destination is declared there"
            )
        repository = nodes[asset]["repository"]
        selector = {
            "repositoryLocationName": repository["location"]["name"],
            "repositoryName": repository["name"],
            "jobName": job,
            "assetSelection": [{"path": asset.split("/")}],
        }
        tags = {"lakesync/requested_by": requested_by}
        if nodes[asset]["isPartitioned"]:
            keys = self._node(asset)["partitionKeys"]
            if not keys:
                raise NotFoundError(
                    f"asset {asset!r} has no partition yet; Dagster at {self.url} runs it when it has one"
                )
            tags["dagster/partition"] = keys[-1]
        return self.launch(selector, tags, {})

    def runs(self, limit: int = 5) -> list[dict[str, Any]]:
        """Return the newest runs.

        Each has `runId`, `jobName`, `status`, `tags`, and `creationTime`, `startTime` and `endTime` in seconds.
        """
        runs: list[dict[str, Any]] = self._request("Runs", {"limit": limit}, "runsOrError", "Runs")["results"]
        return runs

    def error_of(self, run_id: str) -> str:
        """Return the first paragraph of the error in a run's log that caused the first failure; empty without one.

        It is LakeSync's own error, if there is one: that names the backend, which a driver's error behind it does not.
        """
        events = self._request("RunErrors", {"id": run_id}, "logsForRun", "EventConnection")["events"]
        error = next((event["error"] for event in events if event.get("error")), None)
        if error is None:
            return ""
        messages: list[str] = [cause["message"] for cause in error["causes"] or [error]]
        message = next((text for text in reversed(messages) if text.startswith("lakesync.")), messages[-1])
        return message.strip().partition("\n\n")[0]

    def last_runs(self) -> list[dict[str, Any]]:
        """Return the newest run of each job as `runs` does, the newest first.

        Each also has `failedRunId`: the id of the job's newest run that has ended, if that failed; otherwise None.
        """
        nodes = self._request("LastRuns", {}, "repositoriesOrError", "RepositoryConnection")["nodes"]
        newest = []
        for runs in (job["runs"] for node in nodes for job in node["jobs"] if job["runs"]):
            ended = next((run for run in runs if run["status"] in _ENDED), None)
            failed = ended["runId"] if ended is not None and ended["status"] == "FAILURE" else None
            newest.append({**runs[0], "failedRunId": failed})
        return sorted(newest, key=lambda run: -float(run["creationTime"]))

    def switched_off(self) -> list[str]:
        """Return the names of the sensors and schedules that are switched off in Dagster, so that they do not run."""
        nodes = self._request("Automations", {}, "repositoriesOrError", "RepositoryConnection")["nodes"]
        states = {each["name"]: each["sensorState"] for node in nodes for each in node["sensors"]}
        states |= {each["name"]: each["scheduleState"] for node in nodes for each in node["schedules"]}
        return sorted(name for name, state in states.items() if state["status"] == "STOPPED")

    def assets(self) -> dict[str, dict[str, Any]]:
        """Return the assets that can be materialised, by key: `groupName`, `isPartitioned`, `repository` of each."""
        nodes = self._query("Assets", {})["assetNodes"]
        return {"/".join(node["assetKey"]["path"]): node for node in nodes if node["isMaterializable"]}

    def partitions(self, asset: str) -> list[Partition]:
        """Return the partitions of an asset, in order; none for an asset that is not partitioned."""
        node = self._node(asset)
        definition = node["partitionDefinition"]
        return partitions_of(node["partitionKeys"], definition["dimensionTypes"]) if definition is not None else []

    def backfill(self, assets: list[str], partitions: list[str], title: str, *, rebuild: bool = False) -> str:
        """Launch a backfill and return its id.

        Args:
            assets: the assets' keys.
            partitions: keys of partitions that every asset has.
            title: the backfill's title in Dagster's web UI.
            rebuild: whether to run the assets with `rebuild: true`, which computes or writes existing data again too.
        """
        params: dict[str, Any] = {
            "assetSelection": [{"path": asset.split("/")} for asset in assets],
            "partitionNames": partitions,
            "title": title,
            "tags": [{"key": "lakesync/requested_by", "value": "lakesync backfill"}],
        }
        if rebuild:
            ops = [name for asset in assets for name in self._node(asset)["opNames"]]
            params["runConfigData"] = {"ops": {name: {"config": {"rebuild": True}} for name in ops}}
        launched = self._request("Backfill", {"params": params}, "launchPartitionBackfill", "LaunchBackfillSuccess")
        return str(launched["backfillId"])

    def backfill_status(self, backfill_id: str) -> dict[str, Any]:
        """Return `status`, `numPartitions`, `runs` and `error` of a backfill."""
        return self._request("BackfillStatus", {"id": backfill_id}, "partitionBackfillOrError", "PartitionBackfill")

    def materialisations(
        self, asset: str, partitions: list[str], run_ids: Collection[str]
    ) -> dict[str, dict[str, Any]]:
        """Return the metadata of each partition's newest materialisation by one of some runs.

        Args:
            asset: the asset's key.
            partitions: partition keys.
            run_ids: the runs.

        Returns:
            The metadata by partition key and label, with the run id as `run`. Partitions without such a
            materialisation are absent.
        """
        variables = {"key": {"path": asset.split("/")}, "partitions": partitions}
        result: dict[str, dict[str, Any]] = {}  # Dagster returns a partition's newest materialisation first
        for each in self._request("Materialisations", variables, "assetOrError", "Asset")["assetMaterializations"]:
            if each["runId"] in run_ids:
                values = {entry["label"]: _value(entry) for entry in each["metadataEntries"]}
                plain = {label: value for label, value in values.items() if value is not None}
                result.setdefault(each["partition"], {"run": each["runId"], **plain})
        return result

    def is_location_loaded(self) -> bool:
        """Return whether Dagster has loaded all its code locations, of which LakeSync has one, without an error."""
        entries = self._request("Locations", {}, "workspaceOrError", "Workspace")["locationEntries"]
        types = [
            (entry["locationOrLoadError"] or {}).get("__typename") for entry in entries
        ]  # None while it is loading
        return bool(types) and all(each == "RepositoryLocation" for each in types)

    def reload_location(self) -> None:
        """Let Dagster load LakeSync's code location again.

        Raises:
            NotFoundError, ValidationError: Dagster did not load it.
            DagsterUnreachableError: Dagster does not answer.
        """
        variables = {"location": LOCATION}
        entry = self._request("Reload", variables, "reloadRepositoryLocation", "WorkspaceLocationEntry")
        message = (entry["locationOrLoadError"] or {}).get("message")
        if message:
            raise ValidationError(f"Dagster at {self.url} could not load {LOCATION!r} again: {message}")

    def are_daemons_healthy(self) -> bool:
        """Return whether all required daemons have sent a heartbeat recently."""
        statuses = self._query("Daemons", {})["instance"]["daemonHealth"]["allDaemonStatuses"]
        required = [status["healthy"] for status in statuses if status["required"]]
        return bool(required) and all(required)

    def _node(self, asset: str) -> dict[str, Any]:
        """Return an asset's operations, partition keys and partition definition."""
        return self._request("Partitions", {"key": {"path": asset.split("/")}}, "assetNodeOrError", "AssetNode")

    def _request(self, operation: str, variables: dict[str, Any], field: str, success_type: str) -> dict[str, Any]:
        """Send a query or mutation, and return one field of its result.

        Args:
            operation: its name in `REQUESTS`.
            variables: values for its variables.
            field: the field to return, which is a union of a success and errors.
            success_type: the type name of a success.

        Raises:
            NotFoundError, ValidationError: the field is an error.
            UnreachableError: Dagster does not answer.
        """
        value: dict[str, Any] = self._query(operation, variables)[field]
        if value["__typename"] == success_type:
            return value
        message = value.get("message") or "; ".join(each["message"] for each in value.get("errors", ()))
        why = f"Dagster at {self.url} rejected the request: {message or value['__typename']}"
        raise NotFoundError(why) if "NotFound" in value["__typename"] else ValidationError(why)

    def _query(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Send a query or mutation of `REQUESTS`, and return its data."""
        body = {"query": REQUESTS, "operationName": operation, "variables": variables}
        try:
            response = self._session.post(f"{self.url}/graphql", json=body, timeout=self._timeout_seconds)
            decoded = response.json()
        except (requests.RequestException, ValueError) as error:
            raise DagsterUnreachableError(f"no Dagster answers at {self.url}: {type(error).__name__}") from error
        if isinstance(decoded, dict) and decoded.get("errors"):
            raise ValidationError(f"Dagster at {self.url} rejected the request: {decoded['errors'][0]['message']}")
        if not isinstance(decoded, dict) or not isinstance(decoded.get("data"), dict):
            raise DagsterUnreachableError(
                f"{self.url} answered {response.status_code} without GraphQL data; check that it is Dagster's URL"
            )
        data: dict[str, Any] = decoded["data"]
        return data


def dagster_url(config: Config) -> str | None:
    """Return the URL of Dagster's web UI: as configured, else that of a running `lakesync up`; None if unknown."""
    return config.dagster.url or running_service(config, "dagster").get("url")


def _value(entry: Mapping[str, Any]) -> Any:
    """Return the value of a metadata entry; None for types that only Dagster's web UI displays."""
    if "intRepr" in entry:  # GraphQL's integers have 32 bits
        return int(entry["intRepr"])
    return next((entry[name] for name in ("floatValue", "boolValue", "text") if name in entry), None)

"""A client for Dagster's GraphQL API: assets, partitions, runs and backfills."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import requests

from lakesync.client.errors import UnreachableError
from lakesync.model.errors import NotFoundError, ValidationError

if TYPE_CHECKING:
    from lakesync.config import Config

_TIMEOUT_SECONDS = 60.0

_RUN = """
fragment run on Run { runId jobName status creationTime startTime endTime tags { key value } }
"""
RUNS = f"""{_RUN}
query Runs($limit: Int!) {{
  runsOrError(limit: $limit) {{
    __typename
    ... on Runs {{ results {{ ...run }} }}
    ... on PythonError {{ message }}
  }}
}}
"""
LAST_RUNS = f"""{_RUN}
query LastRuns {{
  repositoriesOrError {{
    __typename
    ... on RepositoryConnection {{ nodes {{ jobs {{ runs(limit: 1) {{ ...run }} }} }} }}
    ... on PythonError {{ message }}
  }}
}}
"""
ASSETS = """
query Assets {
  assetNodes { assetKey { path } groupName isMaterializable isPartitioned repository { name location { name } } }
}
"""
PARTITIONS = """
query Partitions($key: AssetKeyInput!) {
  assetNodeOrError(assetKey: $key) {
    __typename
    ... on AssetNode { opNames partitionKeys partitionDefinition { dimensionTypes { name type } } }
  }
}
"""
MATERIALISATIONS = """
query Materialisations($key: AssetKeyInput!, $partitions: [String!]!) {
  assetOrError(assetKey: $key) {
    __typename
    ... on Asset {
      assetMaterializations(partitions: $partitions) {
        partition
        runId
        metadataEntries {
          label
          ... on IntMetadataEntry { intValue }
          ... on FloatMetadataEntry { floatValue }
          ... on BoolMetadataEntry { boolValue }
          ... on TextMetadataEntry { text }
        }
      }
    }
  }
}
"""
BACKFILL = """
mutation Backfill($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PartitionKeysNotFoundError { message }
    ... on PythonError { message }
    ... on UnauthorizedError { message }
    ... on InvalidSubsetError { message }
  }
}
"""
BACKFILL_STATUS = """
query Status($id: String!) {
  partitionBackfillOrError(backfillId: $id) {
    __typename
    ... on PartitionBackfill { status numPartitions runs { runId status } error { message } }
    ... on BackfillNotFoundError { message }
    ... on PythonError { message }
  }
}
"""
LAUNCH = """
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
FINISHED = frozenset({"COMPLETED", "COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED", "CANCELED"})
SUCCEEDED = frozenset({"COMPLETED", "COMPLETED_SUCCESS"})


class Partition(NamedTuple):
    """A partition of an asset."""

    key: str
    day: str | None
    """`YYYY-MM-DD`, if a dimension of the partitions is time."""
    others: tuple[str, ...]
    """Its keys in the other dimensions, such as a table or a gateway."""

    def is_chosen(self, first: str | None, last: str | None, wanted: Collection[str]) -> bool:
        """Return whether the partition is selected.

        Args:
            first: first day; None: no limit.
            last: last day; None: no limit.
            wanted: whole keys, or keys in one dimension; empty: all.
        """
        if self.day is not None and not (first or "") <= self.day <= (last or self.day):
            return False
        return not wanted or self.key in wanted or any(other in wanted for other in self.others)


def partitions_of(keys: Iterable[str], dimensions: Sequence[Mapping[str, str]]) -> list[Partition]:
    """Split partition keys into their dimensions. A key has its dimensions in the order of their names.

    Args:
        keys: partition keys of Dagster.
        dimensions: `name` and `type` of each dimension.
    """
    is_time = [each["type"] == "TIME_WINDOW" for each in sorted(dimensions, key=lambda each: each["name"])]
    found = []
    for key in keys:
        parts = key.split("|") if len(is_time) > 1 else [key]
        days = [part for part, time in zip(parts, is_time, strict=True) if time]
        others = tuple(part for part, time in zip(parts, is_time, strict=True) if not time)
        found.append(Partition(key, days[0] if days else None, others))
    return found


class DagsterClient:
    """Requests to one Dagster webserver."""

    def __init__(self, url: str) -> None:
        """Prepare requests; none is sent yet.

        Args:
            url: URL of the webserver.
        """
        self.url = url.rstrip("/")
        self._session = requests.Session()
        self._session.trust_env = False  # an HTTP proxy cannot reach ports of this machine

    def launch(self, selector: Mapping[str, Any], tags: Mapping[str, str], config: Mapping[str, Any]) -> str:
        """Launch a run of a job.

        Args:
            selector: `repositoryLocationName`, `repositoryName`, `jobName`.
            tags: tags of the run.
            config: run configuration.

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
        answer = self._ask(LAUNCH, {"params": params}, "launchRun", "LaunchRunSuccess")
        return str(answer["run"]["runId"])

    def materialise(self, asset: str, job: str, requested_by: str) -> str:
        """Launch a run of a job for one asset and its newest partition.

        Args:
            asset: key of the asset, with slashes.
            job: name of the job.
            requested_by: value of the tag `lakesync/requested_by`.

        Returns:
            The run id.

        Raises:
            NotFoundError: there is no such asset.
            UnreachableError: Dagster does not answer.
        """
        known = self.assets()
        if asset not in known:
            raise NotFoundError(
                f"Dagster at {self.url} has no asset {asset!r}; check that the destination is declared there"
            )
        repository = known[asset]["repository"]
        selector = {
            "repositoryLocationName": repository["location"]["name"],
            "repositoryName": repository["name"],
            "jobName": job,
            "assetSelection": [{"path": asset.split("/")}],
        }
        tags = {"lakesync/requested_by": requested_by}
        if known[asset]["isPartitioned"]:
            tags["dagster/partition"] = self._node(asset)["partitionKeys"][-1]
        return self.launch(selector, tags, {})

    def runs(self, limit: int = 5) -> list[dict[str, Any]]:
        """Return the newest runs.

        Each has `runId`, `jobName`, `status`, `tags`, and `creationTime`, `startTime` and `endTime` in seconds.
        """
        found: list[dict[str, Any]] = self._ask(RUNS, {"limit": limit}, "runsOrError", "Runs")["results"]
        return found

    def last_runs(self) -> list[dict[str, Any]]:
        """Return the newest run of each job as `runs` does, the newest first."""
        nodes = self._ask(LAST_RUNS, {}, "repositoriesOrError", "RepositoryConnection")["nodes"]
        found: list[dict[str, Any]] = [run for node in nodes for job in node["jobs"] for run in job["runs"]]
        return sorted(found, key=lambda run: -float(run["creationTime"]))

    def assets(self) -> dict[str, dict[str, Any]]:
        """Return key, with slashes → node, of every asset that can be materialised."""
        nodes = self._query(ASSETS, {})["assetNodes"]
        return {"/".join(node["assetKey"]["path"]): node for node in nodes if node["isMaterializable"]}

    def partitions(self, asset: str) -> list[Partition]:
        """Return the partitions of an asset, in order."""
        node = self._node(asset)
        return partitions_of(node["partitionKeys"], node["partitionDefinition"]["dimensionTypes"])

    def backfill(self, assets: list[str], partitions: list[str], title: str, *, rebuild: bool = False) -> str:
        """Launch a backfill and return its id.

        Args:
            assets: keys of the assets, with slashes.
            partitions: keys of partitions that every asset has.
            title: title of the backfill.
            rebuild: run the assets with `rebuild: true`.
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
        answer = self._ask(BACKFILL, {"params": params}, "launchPartitionBackfill", "LaunchBackfillSuccess")
        return str(answer["backfillId"])

    def backfill_status(self, backfill: str) -> dict[str, Any]:
        """Return `status`, `numPartitions`, `runs` and `error` of a backfill."""
        return self._ask(BACKFILL_STATUS, {"id": backfill}, "partitionBackfillOrError", "PartitionBackfill")

    def materialisations(self, asset: str, partitions: list[str], runs: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return partition → metadata of its newest materialisation by one of some runs.

        Args:
            asset: key of the asset, with slashes.
            partitions: keys of partitions.
            runs: run ids.
        """
        variables = {"key": {"path": asset.split("/")}, "partitions": partitions}
        found: dict[str, dict[str, Any]] = {}
        for each in self._ask(MATERIALISATIONS, variables, "assetOrError", "Asset")["assetMaterializations"]:
            if each["runId"] in runs:
                values = {entry["label"]: _value(entry) for entry in each["metadataEntries"]}
                plain = {label: value for label, value in values.items() if value is not None}
                found.setdefault(each["partition"], {"run": each["runId"], **plain})
        return found

    def _node(self, asset: str) -> dict[str, Any]:
        return self._ask(PARTITIONS, {"key": {"path": asset.split("/")}}, "assetNodeOrError", "AssetNode")

    def _ask(self, query: str, variables: dict[str, Any], field: str, wanted: str) -> dict[str, Any]:
        found: dict[str, Any] = self._query(query, variables)[field]
        if found["__typename"] == wanted:
            return found
        message = found.get("message") or "; ".join(each["message"] for each in found.get("errors", ()))
        why = f"Dagster at {self.url} rejected the request: {message or found['__typename']}"
        raise NotFoundError(why) if "NotFound" in found["__typename"] else ValidationError(why)

    def _query(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = self._session.post(
                f"{self.url}/graphql", json={"query": query, "variables": variables}, timeout=_TIMEOUT_SECONDS
            )
            decoded = answer.json()
        except (requests.RequestException, ValueError) as error:
            raise UnreachableError(f"no Dagster answers at {self.url}: {type(error).__name__}") from error
        if decoded.get("errors"):
            raise ValidationError(f"Dagster at {self.url} rejected the request: {decoded['errors'][0]['message']}")
        found: dict[str, Any] = decoded["data"]
        return found


def _value(entry: Mapping[str, Any]) -> Any:
    """Return the value of a metadata entry; None for types that only Dagster's web UI displays."""
    return next((entry[name] for name in ("intValue", "floatValue", "boolValue", "text") if name in entry), None)


def dagster_url(config: Config) -> str | None:
    """Return the URL of Dagster's web UI: as configured, else that of a running `lakesync up`; None if unknown."""
    from lakesync.cli.connection import running_service

    return config.dagster.url or running_service(config, "dagster").get("url")

"""The jobs: a flush with all that follows it, the state tables alone, checks of everything, upkeep, and erasure."""

import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC

import dagster as dg

from assets.checks import PUBLISHED
from assets.labels import FLUSH_SLOT, OTHER_SLOT, POLL_SLOT, SLOT, UPKEEP, UPKEEP_SLOT
from assets.maintenance import GROUP
from resources.compat_dagster import UnresolvedAssetJobDefinition

_SOON, _LATER = {"dagster/priority": "1"}, {"dagster/priority": "-1"}
"""Of runs that wait for the same place the first goes first."""
_DAY_SECONDS = 86_400
_WEEK_SECONDS = 7 * _DAY_SECONDS


def flush_job(max_seconds: int, apart: Sequence[dg.AssetCheckKey] = ()) -> UnresolvedAssetJobDefinition:
    """Log → `deltas` → state tables → cut → checkpoint; `apart` are checks that sensors tell."""
    return dg.define_asset_job(
        "flush",
        # the cut publishes the checkpoints: a run's partitions are days, and theirs are gateways
        selection=_without(apart, "flush", "tables", "cut") | dg.AssetSelection.checks(PUBLISHED),
        description="Carries what waits into the lake, merges the state tables and publishes a checkpoint.",
        tags={"dagster/max_runtime": str(max_seconds), SLOT: FLUSH_SLOT, **_SOON},
    )


def tables_job(max_seconds: int, apart: Sequence[dg.AssetCheckKey] = ()) -> UnresolvedAssetJobDefinition:
    """The state tables of the days that are asked for, or anew with `rebuild`."""
    return dg.define_asset_job(
        "tables",
        selection=_without(apart, "tables"),
        description="Merges the state tables again from the history, for the chosen days of arrival or from nothing.",
        tags={"dagster/max_runtime": str(max_seconds), SLOT: OTHER_SLOT},
    )


def audit_job(max_seconds: int) -> UnresolvedAssetJobDefinition:
    """Every check, of everything that there is rather than of some days."""
    return dg.define_asset_job(
        "audit",
        selection=dg.AssetSelection.all_asset_checks(),
        description="Checks the whole history, every state table and every checkpoint, and changes nothing.",
        tags={"dagster/max_runtime": str(max_seconds), SLOT: UPKEEP_SLOT},
    )


def maintenance_job(max_seconds: int) -> UnresolvedAssetJobDefinition:
    """The upkeep of every table, of staging and of Dagster's records."""
    return dg.define_asset_job(
        "maintenance",
        selection=dg.AssetSelection.groups("maintenance"),
        description="Joins small files, expires snapshots, removes orphans, trims the log, deletes old runs.",
        tags={"dagster/max_runtime": str(max_seconds), SLOT: UPKEEP_SLOT, UPKEEP: "one at a time", **_LATER},
    )


def maintenance_schedule(job: UnresolvedAssetJobDefinition, cron: str) -> dg.ScheduleDefinition:
    """The upkeep, when the configuration says: a run for each part that has something to do.

    A run holds the places of all writers that it stands in for, from its begin to its end. One of everything would keep
    flushes waiting until the last table is tidied; so each table has its own, one runs at a time, and a flush that
    waits goes before the next.
    """

    @dg.schedule(
        name="maintenance",
        job=job,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Tidies what has passed a threshold; `[maintenance]` in lakesync.toml names them.",
    )
    def tidying(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        graph = context.repository_def.asset_graph
        worth = False
        for key in sorted(graph.materializable_asset_keys, key=dg.AssetKey.to_user_string):
            if key.path[0] == GROUP and _worth_tidying(context.instance, key, graph.get(key).parent_keys):
                worth = True
                run_key = f"{context.scheduled_execution_time.isoformat()} {key.to_user_string()}"
                yield dg.RunRequest(run_key=run_key, asset_selection=[key])
        if not worth:
            yield dg.SkipReason("no table was made anew since it was tidied, less than a day ago")

    return tidying


def _worth_tidying(instance: dg.DagsterInstance, key: dg.AssetKey, kept: AbstractSet[dg.AssetKey]) -> bool:
    """Whether what an upkeep tidies was made anew since, or the upkeep is a day old, as snapshots expire by age."""
    last = instance.get_latest_materialization_event(key)
    if last is None or last.timestamp < time.time() - _DAY_SECONDS:
        return True
    made = [instance.get_latest_materialization_event(each) for each in kept]
    return any(event is not None and event.timestamp > last.timestamp for event in made)


def erasure_job(max_seconds: int) -> UnresolvedAssetJobDefinition:
    """Everything that holds data, in the pools of all writers at once."""
    return dg.define_asset_job(
        "erasure",
        selection=dg.AssetSelection.groups("erasure"),
        description="Carries requests to erase through history, tables, snapshots, destinations and checkpoints.",
        tags={"dagster/max_runtime": str(max_seconds), SLOT: UPKEEP_SLOT},
    )


def poll_job(max_seconds: int) -> UnresolvedAssetJobDefinition:
    """The tables of connectors: asked for now by the poll sensor, replayed by days otherwise."""
    return dg.define_asset_job(
        "poll",
        selection=dg.AssetSelection.groups("ingest"),
        description="Polls connectors, or pushes again what they brought on the chosen days.",
        tags={"dagster/max_runtime": str(max_seconds), SLOT: POLL_SLOT},
    )


def audit_schedule(job: UnresolvedAssetJobDefinition) -> dg.ScheduleDefinition:
    """The audit, every night in which there is something new to look at, and once a week in any case."""

    @dg.schedule(
        name="nightly_audit",
        job=job,
        cron_schedule="10 3 * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Checks everything at 03:10 UTC; what runs for a flush looks at the days of the flush alone.",
    )
    def auditing(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        passed = dg.RunsFilter(job_name=job.name, statuses=[dg.DagsterRunStatus.SUCCESS])
        records = context.instance.get_run_records(passed, limit=1)
        begun = records[0].create_timestamp.replace(tzinfo=UTC).timestamp() if records else 0.0
        if begun < time.time() - _WEEK_SECONDS:
            return dg.RunRequest()
        graph = context.repository_def.asset_graph
        made = [context.instance.get_latest_materialization_event(key) for key in graph.materializable_asset_keys]
        if any(event is not None and event.timestamp > begun for event in made):
            return dg.RunRequest()
        return dg.SkipReason(f"nothing was made since the last audit, which passed: {records[0].dagster_run.run_id}")

    return auditing


def _without(apart: Sequence[dg.AssetCheckKey], *groups: str) -> dg.AssetSelection:
    """Groups of assets with their checks, but for those that are told apart from runs."""
    return dg.AssetSelection.groups(*groups) - dg.AssetSelection.checks(*apart)

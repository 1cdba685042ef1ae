"""The jobs: a flush with all that follows it, the state tables alone, checks of everything, upkeep, and erasure."""

from collections.abc import Iterator, Sequence

import dagster as dg

from assets.asset_metadata import AUDIT, FLUSH_SLOT, OTHER_SLOT, POLL_SLOT, REASON, SLOT, UPKEEP, UPKEEP_SLOT
from assets.checks import PUBLISHED
from assets.erasure import ERASURE
from assets.maintenance import MAINTENANCE
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.config import Config
from lakesync.model.errors import LakeUnavailableError
from lakesync.staging.store import OpenStaging
from resources.compat_dagster import UnresolvedAssetJobDefinition
from sensors.upkeep import assets_to_audit, parts_to_maintain

_SOON, _LATER = {"dagster/priority": "1"}, {"dagster/priority": "-1"}
"""Of runs that wait for the same place the first goes first."""


def flush_job(max_seconds: int, apart: Sequence[dg.AssetCheckKey] = ()) -> UnresolvedAssetJobDefinition:
    """Create the job of a flush: log → `deltas` → state tables → cut → checkpoint.

    Args:
        max_seconds: after which Dagster ends a run.
        apart: checks that sensors report instead of runs.
    """
    return dg.define_asset_job(
        "flush",
        # the cut publishes the checkpoints: a run's partitions are days, and theirs are gateways
        selection=_without(apart, "flush", "tables", "cut") | dg.AssetSelection.checks(PUBLISHED),
        description="Carries what waits into the lake, merges the state tables and publishes a checkpoint.",
        tags={"dagster/max_runtime": str(max_seconds), SLOT: FLUSH_SLOT, **_SOON},
    )


def tables_job(max_seconds: int, apart: Sequence[dg.AssetCheckKey] = ()) -> UnresolvedAssetJobDefinition:
    """Create the job that merges state tables again for chosen days, or anew with `rebuild`.

    Args:
        max_seconds: after which Dagster ends a run.
        apart: checks that sensors report instead of runs.
    """
    return dg.define_asset_job(
        "tables",
        selection=_without(apart, "tables"),
        description="Merges the state tables again from the history, for the chosen days of arrival or from nothing.",
        tags={"dagster/max_runtime": str(max_seconds), SLOT: OTHER_SLOT},
    )


def audit_job(max_seconds: int) -> UnresolvedAssetJobDefinition:
    """Every check, of everything that there is rather than of some days."""
    return dg.define_asset_job(
        AUDIT,
        selection=dg.AssetSelection.all_asset_checks(),
        description="Checks the whole history, every state table and every checkpoint, and changes nothing.",
        tags={"dagster/max_runtime": str(max_seconds), SLOT: UPKEEP_SLOT},
    )


def maintenance_job(max_seconds: int) -> UnresolvedAssetJobDefinition:
    """The upkeep of every table, of staging and of Dagster's records."""
    return dg.define_asset_job(
        "maintenance",
        selection=dg.AssetSelection.assets(MAINTENANCE),
        description="Joins small files, expires snapshots, removes orphans, trims the log, deletes old runs.",
        tags={"dagster/max_runtime": str(max_seconds), SLOT: UPKEEP_SLOT, UPKEEP: "one at a time", **_LATER},
    )


def maintenance_schedule(
    config: Config, job: UnresolvedAssetJobDefinition, snapshot: SchemaSnapshot, open_staging: OpenStaging
) -> dg.ScheduleDefinition:
    """The upkeep, when the configuration says: a run for each part that has something to do.

    A run holds the pool of the history. One of everything would keep flushes waiting until the last table is tidied; so
    each part has its own, one runs at a time, and a flush that waits goes before the next.

    Args:
        config: when it runs, the lake and the clock.
        job: tidies the parts that are its run's partitions.
        snapshot: names the tables.
        open_staging: opens the staging store, which has the marks.
    """

    @dg.schedule(
        name="maintenance",
        job=job,
        cron_schedule=config.maintenance.schedule,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Tidies what has passed a threshold; `[maintenance]` in lakesync.toml names them.",
    )
    def tidying(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        try:
            with open_staging() as store:
                due = parts_to_maintain(config, snapshot, store)
        except LakeUnavailableError as error:
            yield dg.SkipReason(str(error))
            return
        for part in due:
            run_key = f"{context.scheduled_execution_time.isoformat()} {part}"
            yield dg.RunRequest(run_key=run_key, partition_key=part)
        if not due:
            yield dg.SkipReason("nothing was written since it was tidied, less than a day ago")

    return tidying


def erasure_job(max_seconds: int) -> UnresolvedAssetJobDefinition:
    """Everything that holds data, in the pools of all writers at once."""
    return dg.define_asset_job(
        "erasure",
        selection=dg.AssetSelection.assets(ERASURE),
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


def audit_schedule(
    config: Config, job: UnresolvedAssetJobDefinition, snapshot: SchemaSnapshot, open_staging: OpenStaging
) -> dg.ScheduleDefinition:
    """The audit, every night in which there is something new to look at, and once a week in any case.

    Args:
        config: the lake, the destinations and the clock.
        job: checks everything.
        snapshot: names the tables.
        open_staging: opens the staging store, which has the marks.
    """

    @dg.schedule(
        name="nightly_audit",
        job=job,
        cron_schedule="10 3 * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Checks everything at 03:10 UTC; what runs for a flush looks at the days of the flush alone.",
    )
    def auditing() -> dg.RunRequest | dg.SkipReason:
        try:
            with open_staging() as store:
                due = assets_to_audit(config, snapshot, store)
        except LakeUnavailableError as error:
            return dg.SkipReason(str(error))
        if due:
            return dg.RunRequest(tags={REASON: f"written since the last audit, or a week ago: {', '.join(due)}"})
        return dg.SkipReason("nothing was written since the last audit, which found nothing")

    return auditing


def _without(apart: Sequence[dg.AssetCheckKey], *groups: str) -> dg.AssetSelection:
    """Groups of assets with their checks, but for those that are told apart from runs."""
    return dg.AssetSelection.groups(*groups) - dg.AssetSelection.checks(*apart)

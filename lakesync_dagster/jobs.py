"""The jobs: a flush with all that follows it, the state tables alone, checks of everything, upkeep, and erasure."""

from collections.abc import Sequence

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition


def flush_job(max_seconds: int, apart: Sequence[dg.AssetCheckKey] = ()) -> UnresolvedAssetJobDefinition:
    """Log → `deltas` → state tables → cut → checkpoint; `apart` are checks that sensors tell."""
    return dg.define_asset_job(
        "flush",
        selection=_without(apart, "flush", "tables", "cut", "checkpoint"),
        description="Carries what waits into the lake, merges the state tables and publishes a checkpoint.",
        tags={"dagster/max_runtime": str(max_seconds)},
    )


def tables_job(max_seconds: int, apart: Sequence[dg.AssetCheckKey] = ()) -> UnresolvedAssetJobDefinition:
    """The state tables of the days that are asked for, or anew with `rebuild`."""
    return dg.define_asset_job(
        "tables",
        selection=_without(apart, "tables"),
        description="Merges the state tables again from the history, for the chosen days of arrival or from nothing.",
        tags={"dagster/max_runtime": str(max_seconds)},
    )


def audit_job(max_seconds: int) -> UnresolvedAssetJobDefinition:
    """Every check, of everything that there is rather than of some days."""
    return dg.define_asset_job(
        "audit",
        selection=dg.AssetSelection.all_asset_checks(),
        description="Checks the whole history, every state table and every checkpoint, and changes nothing.",
        tags={"dagster/max_runtime": str(max_seconds)},
    )


def maintenance_job(max_seconds: int) -> UnresolvedAssetJobDefinition:
    """The upkeep of every table, of staging and of Dagster's records."""
    return dg.define_asset_job(
        "maintenance",
        selection=dg.AssetSelection.groups("maintenance"),
        description="Joins small files, expires snapshots, removes orphans, trims the log, deletes old runs.",
        tags={"dagster/max_runtime": str(max_seconds)},
    )


def maintenance_schedule(job: UnresolvedAssetJobDefinition, cron: str) -> dg.ScheduleDefinition:
    """The upkeep, when the configuration says."""
    return dg.ScheduleDefinition(
        name="maintenance",
        job=job,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Tidies what has passed a threshold; `[maintenance]` in lakesync.toml names them.",
    )


def erasure_job(max_seconds: int) -> UnresolvedAssetJobDefinition:
    """Everything that holds data, in the pools of all writers at once."""
    return dg.define_asset_job(
        "erasure",
        selection=dg.AssetSelection.groups("erasure"),
        description="Carries requests to erase through history, tables, snapshots and checkpoints, and proves it.",
        tags={"dagster/max_runtime": str(max_seconds)},
    )


def poll_job(max_seconds: int) -> UnresolvedAssetJobDefinition:
    """The tables of connectors: asked for now by the poll sensor, replayed by days otherwise."""
    return dg.define_asset_job(
        "poll",
        selection=dg.AssetSelection.groups("ingest"),
        description="Polls connectors, or pushes again what they brought on the chosen days.",
        tags={"dagster/max_runtime": str(max_seconds)},
    )


def audit_schedule(job: UnresolvedAssetJobDefinition) -> dg.ScheduleDefinition:
    """The audit, every night."""
    return dg.ScheduleDefinition(
        name="nightly_audit",
        job=job,
        cron_schedule="10 3 * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Checks everything at 03:10 UTC; what runs for a flush looks at the days of the flush alone.",
    )


def _without(apart: Sequence[dg.AssetCheckKey], *groups: str) -> dg.AssetSelection:
    """Groups of assets with their checks, but for those that are told apart from runs."""
    return dg.AssetSelection.groups(*groups) - dg.AssetSelection.checks(*apart)

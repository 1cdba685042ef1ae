"""Creates the jobs of the code location, and the schedules of maintenance and audits.

A schedule requests runs of the assets whose state has changed since their last maintenance or audit. Marks in staging
have the state and time of the last one. `lakesync_dagster.definitions` calls this module.
"""

from collections.abc import Iterator, Mapping, Sequence

import dagster as dg

from assets.asset_metadata import (
    AUDIT,
    CHECKPOINT,
    FLUSH_SLOT,
    OTHER_SLOT,
    POLL_SLOT,
    REASON,
    SLOT,
    UPKEEP,
    UPKEEP_SLOT,
    target_key,
)
from assets.checks import PUBLISHED
from assets.erasure import ERASURE
from assets.maintenance import HISTORY, LOG, MAINTENANCE, RUNS, LakePart, lake_parts
from lakehouse.backends.declared import destination_targets
from lakehouse.marks import audit_mark, maintenance_mark
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.analysis.marks import checkpoint_state, destination_state, flushed_state, is_changed
from lakesync.config import Config
from lakesync.model.errors import LakeUnavailableError
from lakesync.model.hlc import WallClock
from lakesync.staging.store.pipeline import OpenStaging, PipelineStore
from resources.compat_dagster import UnresolvedAssetJobDefinition

_HIGH_PRIORITY, _LOW_PRIORITY = {"dagster/priority": "1"}, {"dagster/priority": "-1"}
"""Of runs that wait for the same pool, the one with the greater priority starts first."""


def flush_job(max_seconds: int, apart: Sequence[dg.AssetCheckKey] = ()) -> UnresolvedAssetJobDefinition:
    """Create the job of a flush: log → `deltas` → state tables → checkpoint snapshots.

    Args:
        max_seconds: seconds after which Dagster ends a run.
        apart: checks that are not in the job, because sensors report them outside runs.
    """
    return dg.define_asset_job(
        "flush",
        # `checkpoint_snapshots` publishes the checkpoints; `checkpoint` has other partitions than the run, gateways
        selection=_without(apart, "flush", "tables", "checkpoint_snapshots") | dg.AssetSelection.checks(PUBLISHED),
        description="Flushes the log into the lake, merges the state tables and publishes checkpoints.",
        tags={"dagster/max_runtime": str(max_seconds), SLOT: FLUSH_SLOT, **_HIGH_PRIORITY},
    )


def tables_job(max_seconds: int, apart: Sequence[dg.AssetCheckKey] = ()) -> UnresolvedAssetJobDefinition:
    """Create the job that merges state tables again for selected days, or recomputes them with `rebuild`.

    Args:
        max_seconds: seconds after which Dagster ends a run.
        apart: checks that are not in the job, because sensors report them outside runs.
    """
    return dg.define_asset_job(
        "tables",
        selection=_without(apart, "tables"),
        description="Merges the state tables again from the history, for the chosen days of arrival or completely.",
        tags={"dagster/max_runtime": str(max_seconds), SLOT: OTHER_SLOT},
    )


def audit_job(max_seconds: int) -> UnresolvedAssetJobDefinition:
    """Create the job that runs every check, over all days.

    Args:
        max_seconds: seconds after which Dagster ends a run.
    """
    return dg.define_asset_job(
        AUDIT,
        selection=dg.AssetSelection.all_asset_checks(),
        description="Checks the whole history, every state table and every checkpoint, and changes nothing.",
        tags={"dagster/max_runtime": str(max_seconds), SLOT: UPKEEP_SLOT},
    )


def maintenance_job(max_seconds: int) -> UnresolvedAssetJobDefinition:
    """Create the job that maintains the lake's tables, staging's log and Dagster's records.

    Args:
        max_seconds: seconds after which Dagster ends a run.
    """
    return dg.define_asset_job(
        "maintenance",
        selection=dg.AssetSelection.assets(MAINTENANCE),
        description="Compacts files, expires snapshots, removes orphans, trims the log, deletes old runs.",
        tags={"dagster/max_runtime": str(max_seconds), SLOT: UPKEEP_SLOT, UPKEEP: "one at a time", **_LOW_PRIORITY},
    )


def maintenance_schedule(
    config: Config, job: UnresolvedAssetJobDefinition, snapshot: SchemaSnapshot, open_staging: OpenStaging
) -> dg.ScheduleDefinition:
    """Create the schedule of maintenance: a run for each part that is due.

    A run occupies the pool of the history. One run for all parts would delay flushes until the last table is done. So
    each part has its own run, one runs at a time, and a waiting flush starts before the next one.

    Args:
        config: the project's configuration, with the cron schedule.
        job: the maintenance job.
        snapshot: names the tables.
        open_staging: opens the staging store, which has the marks.
    """

    @dg.schedule(
        name="maintenance",
        job=job,
        cron_schedule=config.maintenance.schedule,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Maintains the parts that have changed; `[maintenance]` in lakesync.toml has the thresholds.",
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
            yield dg.SkipReason("no part has changed since its maintenance, less than a day ago")

    return tidying


def erasure_job(max_seconds: int) -> UnresolvedAssetJobDefinition:
    """Create the job that carries out erasure requests. Its run occupies the pools of all writers.

    Args:
        max_seconds: seconds after which Dagster ends a run.
    """
    return dg.define_asset_job(
        "erasure",
        selection=dg.AssetSelection.assets(ERASURE),
        description="Carries out erasure requests in history, tables, snapshots, destinations and checkpoints.",
        tags={"dagster/max_runtime": str(max_seconds), SLOT: UPKEEP_SLOT},
    )


def poll_job(max_seconds: int) -> UnresolvedAssetJobDefinition:
    """Create the job that polls connectors or, for selected days, replays what landed then.

    Args:
        max_seconds: seconds after which Dagster ends a run.
    """
    return dg.define_asset_job(
        "poll",
        selection=dg.AssetSelection.groups("ingest"),
        description="Polls connectors, or replays what they brought on the chosen days.",
        tags={"dagster/max_runtime": str(max_seconds), SLOT: POLL_SLOT},
    )


def audit_schedule(
    config: Config, job: UnresolvedAssetJobDefinition, snapshot: SchemaSnapshot, open_staging: OpenStaging
) -> dg.ScheduleDefinition:
    """Create the schedule of the audit: every night if an asset has changed, otherwise once a week.

    Args:
        config: the project's configuration.
        job: the audit job.
        snapshot: names the tables.
        open_staging: opens the staging store, which has the marks.
    """

    @dg.schedule(
        name="nightly_audit",
        job=job,
        cron_schedule="10 3 * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Checks everything at 03:10 UTC; the checks of a flush look at its days only.",
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
    """Return the selection of some groups of assets with their checks, except the checks `apart`."""
    return dg.AssetSelection.groups(*groups) - dg.AssetSelection.checks(*apart)


WEEK_MS = 7 * 86_400_000
"""Milliseconds between two audits of an asset that does not change."""
DAY_MS = 86_400_000
"""Milliseconds between two maintenances of a part that does not change: snapshots, files and runs expire by age."""


def parts_to_maintain(config: Config, snapshot: SchemaSnapshot, store: PipelineStore) -> list[str]:
    """Return the partitions of the asset `maintenance` that are due.

    Args:
        config: the project's configuration.
        snapshot: names the tables.
        store: the staging store.

    Raises:
        LakeUnavailableError: the catalogue cannot be read.
    """
    states = _table_states(config, lake_parts(snapshot))
    states |= {LOG: flushed_state(store.backlog()), RUNS: ""}
    marks, now_ms = store.marks(), WallClock(config.clock_offset_file).now_ms()
    return [
        part for part, state in states.items() if is_changed(marks.get(maintenance_mark(part)), state, now_ms, DAY_MS)
    ]


def assets_to_audit(config: Config, snapshot: SchemaSnapshot, store: PipelineStore) -> list[str]:
    """Return the assets, as text, that have changed since an audit last found no fault, or whose audit is a week ago.

    Args:
        config: the project's configuration.
        snapshot: names the tables.
        store: the staging store.

    Raises:
        LakeUnavailableError: the catalogue cannot be read.
    """
    parts = {name: part for name, part in lake_parts(snapshot).items() if part.namespace is not None or name == HISTORY}
    states = {dg.AssetKey.from_user_string(name): state for name, state in _table_states(config, parts).items()}
    marks, now_ms = store.marks(), WallClock(config.clock_offset_file).now_ms()
    states[CHECKPOINT] = checkpoint_state(store.backlog())
    for each in destination_targets(config):
        states[target_key(each.destination, each.target.name)] = destination_state(marks.get(each.mark_name))
    return [
        key.to_user_string()
        for key, state in states.items()
        if is_changed(marks.get(audit_mark(key.to_user_string())), state, now_ms, WEEK_MS)
    ]


def _table_states(config: Config, parts: Mapping[str, LakePart]) -> dict[str, str]:
    """Return part → the id of the newest snapshot of its table, as text."""
    from lakesync.analysis.lake_marks import snapshots  # pyiceberg, which loading the location does without

    own, shared = config.lake.system_namespace, config.lake.namespace
    tables = {
        name: (own if part.namespace is None else part.namespace or shared, part.table) for name, part in parts.items()
    }
    found = snapshots(config, tables.values())
    return {name: str(found[table]) for name, table in tables.items()}

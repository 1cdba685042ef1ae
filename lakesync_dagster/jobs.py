"""Creates the jobs of the code location, and the schedules of maintenance and of audits.

Sensors request the runs of the other jobs. A flush moves the changes that gateways accepted from staging (their
database) into the lake's history, merges them into state tables (current rows), and makes checkpoints, from which new
clients start. A poll reads an external system through a connector. A schedule requests runs for what has changed since
its last maintenance or audit (a *visit*): a mark, a text in staging, has the state then (for a table, the id of its
newest Iceberg snapshot) and the time. Each job's runs have the tag of their slot, a kind of run: Dagster limits how
many runs of a slot are in progress at once. `lakesync_dagster.definitions` calls this module.
"""

from collections.abc import Mapping, Sequence

import dagster as dg

from assets.checks import CHECKPOINT_CHECK
from assets.erasure import ERASURE
from assets.maintenance import HISTORY, LOG, MAINTENANCE, RUNS, LakePart, lake_parts
from assets.names import (
    AUDIT,
    CHECKPOINT,
    ERASURE_JOB,
    FLUSH_JOB,
    FLUSH_SLOT,
    ONE_MAINTENANCE,
    OTHER_SLOT,
    POLL_JOB,
    POLL_SLOT,
    REASON,
    SLOT,
    UPKEEP_SLOT,
    target_key,
)
from assets.partitions import PARTITION
from lakehouse.backends.declared import destination_targets
from lakehouse.marks import audit_mark, maintenance_mark
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.analysis.marks import checkpoint_state, destination_state, flushed_state, is_visit_due
from lakesync.config import Config
from lakesync.model.hlc import OffsetClock
from lakesync.staging.store.pipeline import OpenStaging, PipelineStore
from sensors.backoff import skip_during_outage
from sensors.lags import is_queued_or_running

_HIGH_PRIORITY, _LOW_PRIORITY = {"dagster/priority": "1"}, {"dagster/priority": "-1"}
"""Of runs that wait for the same pool (steps of a pool run one at a time), the one with the greater priority starts
first."""


def job_tags(config: Config, slot: str) -> dict[str, str]:
    """Return the tags of a job's runs: their slot, and the seconds after which Dagster ends a run.

    Args:
        config: the project's configuration, which has the seconds.
        slot: the slot, one of those in `assets.names`.
    """
    return {"dagster/max_runtime": str(config.dagster.max_run_seconds), SLOT: slot}


def pipeline_jobs(
    config: Config, snapshot: SchemaSnapshot, sensor_checks: Sequence[dg.AssetCheckKey]
) -> dg.Definitions:
    """Create the jobs that sensors or people start: flush, merge of state tables, erasure and, with connectors, poll.

    Args:
        config: the project's configuration, which says after how many seconds Dagster ends a run.
        snapshot: the registered tables and connectors.
        sensor_checks: checks that are in none of these jobs, because a sensor reports their results without a run.
    """
    jobs = [
        dg.define_asset_job(
            FLUSH_JOB,
            # `checkpoint_snapshots` publishes the checkpoints, and `CHECKPOINT_CHECK` checks them. The asset
            # `checkpoint` cannot be in the job: its partitions are gateways, the run's are days.
            selection=_groups_without_checks(sensor_checks, "flush", "tables", "checkpoint_snapshots")
            | dg.AssetSelection.checks(CHECKPOINT_CHECK),
            description="Flushes the log into the lake, merges the state tables and publishes checkpoints.",
            tags=job_tags(config, FLUSH_SLOT) | _HIGH_PRIORITY,
        ),
        dg.define_asset_job(
            "tables",
            selection=_groups_without_checks(sensor_checks, "tables"),
            description="Merges the state tables again from the history, for the chosen days of arrival or completely.",
            tags=job_tags(config, OTHER_SLOT),
        ),
        dg.define_asset_job(
            ERASURE_JOB,
            selection=dg.AssetSelection.assets(ERASURE),
            description="Carries out erasure requests in history, tables, snapshots, destinations and checkpoints.",
            tags=job_tags(config, UPKEEP_SLOT),
        ),
    ]
    if snapshot.connectors:
        poll = dg.define_asset_job(
            POLL_JOB,
            selection=dg.AssetSelection.groups("ingest"),
            description="Polls connectors, or replays what they brought on the chosen days.",
            tags=job_tags(config, POLL_SLOT),
        )
        jobs.append(poll)
    return dg.Definitions(jobs=jobs)


def maintenance_job(config: Config, snapshot: SchemaSnapshot, open_staging: OpenStaging) -> dg.Definitions:
    """Create the job of maintenance and its schedule: a run for each part that is due.

    A part is a table of the lake, staging's log, or Dagster's records of runs. A run occupies the pool that flushes
    need too, so one run for all parts would delay flushes until the last table is done. Instead, each part has its own
    run, one runs at a time, and a waiting flush starts before the next one.

    Args:
        config: the project's configuration, with the cron schedule.
        snapshot: the registered tables and connectors.
        open_staging: opens the staging store, which has the marks.
    """
    job = dg.define_asset_job(
        "maintenance",
        selection=dg.AssetSelection.assets(MAINTENANCE),
        description="Compacts files, expires snapshots, removes orphans, trims the log, deletes old runs.",
        # `lakesync up` configures Dagster to limit the runs with the tag ONE_MAINTENANCE to one
        tags=job_tags(config, UPKEEP_SLOT) | {ONE_MAINTENANCE: "one at a time"} | _LOW_PRIORITY,
    )

    @dg.schedule(
        name="maintenance",
        job=job,
        cron_schedule=config.maintenance.schedule,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Maintains the parts that have changed; `[maintenance]` in lakesync.toml has the thresholds.",
    )
    @skip_during_outage
    def request_maintenance(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        with open_staging() as store:
            due = parts_to_maintain(config, snapshot, store)
        if not due:
            return dg.SkipReason("the maintenance of every part is less than a day old, and none has changed since")
        ready = [part for part in due if not is_queued_or_running(context.instance, {PARTITION: part}, job.name)]
        if not ready:
            return dg.SkipReason(f"runs that were requested before have not ended: {', '.join(due)}")
        time = context.scheduled_execution_time.isoformat()
        return [dg.RunRequest(run_key=f"{time} {part}", partition_key=part) for part in ready]

    return dg.Definitions(jobs=[job], schedules=[request_maintenance])


def audit_job(config: Config, snapshot: SchemaSnapshot, open_staging: OpenStaging) -> dg.Definitions:
    """Create the job of audits and its schedule: every night if an asset has changed, otherwise once a week.

    An audit runs every asset check over all data. The checks of a flush cover only the days that it wrote.

    Args:
        config: the project's configuration.
        snapshot: the registered tables and connectors.
        open_staging: opens the staging store, which has the marks.
    """
    job = dg.define_asset_job(
        AUDIT,
        selection=dg.AssetSelection.all_asset_checks(),
        description="Checks the whole history, every state table and every checkpoint, and changes nothing.",
        tags=job_tags(config, UPKEEP_SLOT),
    )

    @dg.schedule(
        name="nightly_audit",
        job=job,
        cron_schedule="10 3 * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Checks everything at 03:10 UTC; the checks of a flush look at its days only.",
    )
    @skip_during_outage
    def request_audit(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        with open_staging() as store:
            due = assets_to_audit(config, snapshot, store)
        if due and is_queued_or_running(context.instance, {}, job.name):
            return dg.SkipReason("the audit that was requested before has not ended")
        if due:
            return dg.RunRequest(
                tags={REASON: f"changed since the last audit, or not audited for a week: {', '.join(due)}"}
            )
        return dg.SkipReason("nothing was written since the last audit, which found nothing")

    return dg.Definitions(jobs=[job], schedules=[request_audit])


DAY_MS = 86_400_000
"""Milliseconds between two maintenances of a part that does not change: snapshots, files and runs expire by age."""
WEEK_MS = 7 * DAY_MS
"""Milliseconds between two audits of an asset that does not change."""


def parts_to_maintain(config: Config, snapshot: SchemaSnapshot, store: PipelineStore) -> list[str]:
    """Return the partitions of the asset `maintenance` that are due.

    Args:
        config: the project's configuration.
        snapshot: the registered tables and connectors.
        store: the staging store.

    Raises:
        StagingUnavailableError: the store cannot be reached.
        LakeUnavailableError: the catalogue cannot be read.
    """
    states = _table_states(config, lake_parts(snapshot))
    states |= {LOG: flushed_state(store.backlog()), RUNS: ""}  # a state that never changes: due once a day
    marks, now_ms = store.marks(), OffsetClock(config.clock_offset_file).now_ms()
    return [
        part for part, state in states.items() if is_visit_due(marks.get(maintenance_mark(part)), state, now_ms, DAY_MS)
    ]


def assets_to_audit(config: Config, snapshot: SchemaSnapshot, store: PipelineStore) -> list[str]:
    """Return the assets to audit: they have changed since the last audit that found no fault, or it is a week old.

    Args:
        config: the project's configuration.
        snapshot: the registered tables and connectors.
        store: the staging store.

    Raises:
        StagingUnavailableError: the store cannot be reached.
        LakeUnavailableError: the catalogue cannot be read.
    """
    # only tables with checks; LOG and RUNS are no tables
    parts = {name: part for name, part in lake_parts(snapshot).items() if part.is_state or name == HISTORY}
    states = {dg.AssetKey.from_user_string(name): state for name, state in _table_states(config, parts).items()}
    marks, now_ms = store.marks(), OffsetClock(config.clock_offset_file).now_ms()
    states[CHECKPOINT] = checkpoint_state(store.backlog())
    for each in destination_targets(config):
        states[target_key(each.destination, each.target.name)] = destination_state(marks.get(each.mark_name))
    return [
        key.to_user_string()
        for key, state in states.items()
        if is_visit_due(marks.get(audit_mark(key.to_user_string())), state, now_ms, WEEK_MS)
    ]


def _groups_without_checks(checks: Sequence[dg.AssetCheckKey], *groups: str) -> dg.AssetSelection:
    """Select some groups of assets with their checks, except `checks`."""
    return dg.AssetSelection.groups(*groups) - dg.AssetSelection.checks(*checks)


def _table_states(config: Config, parts: Mapping[str, LakePart]) -> dict[str, str]:
    """Return part → the id of its table's newest Iceberg snapshot, as text: "None" for a table without one."""
    from lakesync.analysis.lake_marks import snapshots  # imports pyiceberg, without which the location loads faster

    system, shared = config.lake.system_namespace, config.lake.namespace
    tables = {
        name: ((part.namespace or shared) if part.is_state else system, part.table) for name, part in parts.items()
    }
    found = snapshots(config, tables.values())
    return {name: str(found[table]) for name, table in tables.items()}

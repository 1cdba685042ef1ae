"""Creates the sensor of moves: it requests runs of flows, tiers and migrations by their schedules and after failures.

`lakesync_dagster.definitions` calls this module.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import dagster as dg

from assets.asset_metadata import MOVE_SENSOR, REQUESTED_BY, nearest_day, range_tags
from assets.moves import newest_movable_day, partition_key, tier_days
from lakehouse.marks import CopiedDays, days_to_copy
from lakesync.analysis.marks import Lag
from lakesync.config import Config
from lakesync.model.hlc import WallClock
from lakesync.staging.store.pipeline import OpenStaging
from resources.compat_dagster import UnresolvedAssetJobDefinition
from sensors.backoff import Attempts, skip_during_outage
from sensors.lags import PipelineLags, is_under_way

MOVE = "lakesync/move"
"""Run tag: the flow, tiers or migration that the run is for."""


def move_sensor(
    config: Config,
    jobs: Mapping[str, UnresolvedAssetJobDefinition],
    days: dg.TimeWindowPartitionsDefinition,
    open_staging: OpenStaging,
    lags: PipelineLags,
) -> dg.SensorDefinition:
    """Create the sensor of flows, tiers and migrations: one run for each that is due, never two at once.

    A failed or killed run wrote no mark, so it is requested again after a growing pause, before its next schedule.

    Args:
        config: the project's configuration, which declares flows, tiers and migrations.
        jobs: `job_name` → job.
        days: partitions by UTC day of arrival.
        open_staging: opens the staging store, which has the marks.
        lags: the lags of the pipeline's parts, which all sensors share.
    """

    @dg.sensor(
        name=MOVE_SENSOR,
        jobs=list(jobs.values()),
        minimum_interval_seconds=5,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests a run of each flow, pair of tiers and migration that is due by its schedule.",
    )
    @skip_during_outage
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        attempts = Attempts(context.cursor)
        lags.record_requests(MOVE_SENSOR, attempts.by_part)
        now_ms = WallClock(config.clock_offset_file).now_ms()
        with open_staging() as store:
            marks = store.marks()
        behind = [lag for lag in lags.overdue(marks, now_ms) if job_name(lag) in jobs]
        ready, delayed = attempts.ready(behind)
        requests, requested = [], []
        for lag in ready:
            partitions = _partition_tags(config, lag, days, marks, now_ms)
            if partitions and not is_under_way(context.instance, {MOVE: job_name(lag)}):
                tags = {REQUESTED_BY: MOVE_SENSOR, MOVE: job_name(lag), **partitions}
                requests.append(dg.RunRequest(job_name=job_name(lag), tags=tags))
                requested.append(lag)
        if not requested:
            return dg.SkipReason(
                "; ".join(map(str, delayed)) or f"{len(jobs)} flows, tiers and migrations, none of them due"
            )
        others = [lag for lag in behind if lag not in requested]
        return dg.SensorResult(run_requests=requests, cursor=attempts.cursor_after(requested, others))

    return watch


def job_name(lag: Lag) -> str:
    """Return the name of the job of a flow, tiers or migration."""
    return f"{lag.part}s_{lag.name}"


def _partition_tags(
    config: Config, lag: Lag, days: dg.TimeWindowPartitionsDefinition, marks: Mapping[str, str], now_ms: int
) -> Mapping[str, str] | None:
    """Return the tags that select a run's partitions; None if there is nothing to move.

    For a flow these are the days since its last run, for tiers the newest day that is old enough, for a migration the
    days that were not copied.
    """
    if lag.part == "migration":
        declared = config.migrations[lag.name]
        missing = days_to_copy(CopiedDays.of(marks, lag.name), declared, now_ms)
        if missing is None:
            return None
        return range_tags(partition_key(declared.tables[0], missing[0]), partition_key(declared.tables[-1], missing[1]))
    if lag.part == "flow":
        first, last = nearest_day(days, lag.mark or now_ms), nearest_day(days, now_ms)
    else:
        days_by_hlc = tier_days(config, lag.name, days)
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        day = newest_movable_day(now, config.tiers[lag.name].max_age_days, days_by_hlc)
        if day is None:
            return None
        first = last = day
    return range_tags(first, last)

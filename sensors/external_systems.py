"""Creates the sensors that request runs which exchange data with other systems: destinations, transfers and polls.

A delta is a change that a client pushed to a gateway, an app's stream of deltas; the lake's history has all of them.

- A *destination* consists of adapters, each of which writes the deltas to one database or object store. An adapter is
  due if its mark, the newest deltas that it has, is behind the history.
- A *transfer* is a flow (a filtered copy), a pair of tiers (old deltas move to a colder store) or a migration (a copy
  of whole tables) between two backends, databases or object stores. It is due by its schedule, and after a failure.
- A *poll* reads an external system, such as Jira, through a connector. It is due when the connector's interval has
  passed since the last one.

Each of them that is due has a *lag*. The marks, also those of transfers and polls (times of the last runs), are in
staging, the gateways' database. A sensor's cursor has its run requests for each of them; from these, `Attempts`
computes the pauses between retries. The code location (`lakesync_dagster.definitions`) calls this module.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import dagster as dg

from assets.names import (
    CONNECTOR,
    DESTINATION_SENSOR,
    DESTINATIONS_JOB,
    POLL_JOB,
    POLL_SENSOR,
    REQUESTED_BY,
    TRANSFER_SENSOR,
    polled_key,
)
from assets.partitions import nearest_key_at, range_tags
from assets.transfers import newest_movable_day, partition_key, tier_days
from lakehouse.marks import CopiedDays, days_to_copy
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.analysis.lags import Lag
from lakesync.config import Config
from lakesync.model.hlc import OffsetClock
from lakesync.staging.store.pipeline import OpenStaging, PipelineStore
from sensors.backoff import Attempts, skip_during_outage
from sensors.due_times import due_tables
from sensors.lags import PipelineLags, is_queued_or_running

_TRANSFER = "lakesync/move"
"""Run tag: the flow, tiers or migration that the run is for."""
_TARGET = "lakesync/leaf"
"""Run tag: the asset of the adapter that the run writes to."""


def transfer_sensor(
    config: Config,
    jobs: dg.Definitions,
    days: dg.TimeWindowPartitionsDefinition,
    open_staging: OpenStaging,
    lags: PipelineLags,
) -> dg.SensorDefinition:
    """Create the sensor of flows, tiers and migrations: one run for each that is due, never two of one at once.

    A run writes its mark at its end. So a run that failed or was killed is requested again after a growing pause, even
    before its schedule's next time.

    Args:
        config: the project's configuration, which declares flows, tiers and migrations.
        jobs: definitions of only these jobs, each with the result of `_job_name` as its name.
        days: partitions by UTC day of arrival.
        open_staging: opens the staging store, which has the marks.
        lags: reads which parts of the pipeline are behind; all sensors share it.
    """
    transfers = list(jobs.jobs or ())
    names = {job.name for job in transfers}

    @dg.sensor(
        name=TRANSFER_SENSOR,
        jobs=transfers,
        minimum_interval_seconds=5,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests a run of each flow, pair of tiers and migration that is due by its schedule.",
    )
    @skip_during_outage
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        with open_staging() as store:
            marks = store.marks()
        now_ms = OffsetClock(config.clock_offset_file).now_ms()
        overdue = [lag for lag in lags.overdue(marks, now_ms) if _job_name(lag) in names]

        def request(lag: Lag) -> dg.RunRequest | None:
            partitions = _partition_tags(config, lag, days, marks, now_ms)
            if not partitions or is_queued_or_running(context.instance, {_TRANSFER: _job_name(lag)}):
                return None
            tags = {REQUESTED_BY: TRANSFER_SENSOR, _TRANSFER: _job_name(lag), **partitions}
            return dg.RunRequest(job_name=_job_name(lag), tags=tags)

        nothing_due = f"{len(names)} flows, tiers and migrations, none of them due"
        return _request_ready(lags.record_attempts(TRANSFER_SENSOR, context.cursor), overdue, request, nothing_due)

    return watch


def destination_sensor(
    keys: Mapping[str, dg.AssetKey],
    days: dg.TimeWindowPartitionsDefinition,
    open_staging: OpenStaging,
    lags: PipelineLags,
) -> dg.SensorDefinition:
    """Create the sensor of destinations: one run for each adapter that is due, never two of one at once.

    If an adapter fails, runs for it are requested after growing pauses; others continue.

    Args:
        keys: name of an adapter's mark → its asset.
        days: partitions by UTC day of arrival.
        open_staging: opens the staging store, which has the marks.
        lags: reads which parts of the pipeline are behind; all sensors share it.
    """

    @dg.sensor(
        name=DESTINATION_SENSOR,
        job_name=DESTINATIONS_JOB,
        minimum_interval_seconds=5,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests a run for each destination that lacks what was flushed, also after it was unreachable.",
    )
    @skip_during_outage
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        attempts = lags.record_attempts(DESTINATION_SENSOR, context.cursor)

        def lags_of_targets(store: PipelineStore, *, read_again: bool = False) -> list[Lag]:
            all_lags = lags.read(store, lambda: context.instance, read_again=read_again)
            return [lag for lag in all_lags if lag.part == "destination" and lag.name in keys]

        with open_staging() as store:
            behind = lags_of_targets(store)
            ready, delayed = attempts.divide(behind)
            targets = {lag.name for lag in ready}  # an adapter has a lag for each gateway that it follows
            busy = {name for name in targets if is_queued_or_running(context.instance, _target_tags(keys[name]))}
            if targets - busy:  # a run that moves these marks may have ended since they were read
                behind = lags_of_targets(store, read_again=True)
                ready, delayed = attempts.divide(behind)
        # adapters that became ready only in the second reading are left to the next tick: their runs were not checked
        requested = [lag for lag in ready if lag.name in targets - busy]
        if not requested:
            waiting = [f"a run for {name} is under way" for name in sorted(busy)]
            return dg.SkipReason("; ".join([*waiting, *map(str, delayed)]) or "no destination is behind")
        requests = [
            _target_request(keys[name], min(lag.since_ms for lag in requested if lag.name == name), days)
            for name in sorted({lag.name for lag in requested})
        ]
        return dg.SensorResult(run_requests=requests, cursor=attempts.cursor_after(requested, behind))

    return watch


def poll_sensor(
    config: Config,
    snapshot: SchemaSnapshot,
    days: dg.TimeWindowPartitionsDefinition,
    open_staging: OpenStaging,
    lags: PipelineLags,
) -> dg.SensorDefinition:
    """Create the sensor of polls: one run for the due tables of each connector, never two at once.

    A table whose polls fail is due again after growing pauses. A poll that was killed moves no mark, so the sensor
    requests it again after growing pauses too.

    Args:
        config: the project's configuration.
        snapshot: the registered tables and connectors, with their intervals.
        days: partitions by the UTC day on which rows landed.
        open_staging: opens the staging store, which has the marks.
        lags: reads which parts of the pipeline are behind; all sensors share it.
    """
    connectors = {(each.gateway, each.name): each for each in snapshot.connectors}

    @dg.sensor(
        name=POLL_SENSOR,
        job_name=POLL_JOB,
        minimum_interval_seconds=2,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests a poll of every connector whose interval has passed.",
    )
    @skip_during_outage
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        with open_staging() as store:
            marks = store.marks()
        now_ms = OffsetClock(config.clock_offset_file).now_ms()
        overdue = [lag for lag in lags.overdue(marks, now_ms) if lag.part == "poll"]
        today = nearest_key_at(days, now_ms)

        def request(lag: Lag) -> dg.RunRequest | None:
            tags = {REQUESTED_BY: POLL_SENSOR, CONNECTOR: f"{lag.gateway}/{lag.name}"}
            if is_queued_or_running(context.instance, tags):
                return None
            tables = due_tables(connectors[lag.gateway, lag.name], marks, now_ms)
            keys = [polled_key(lag.gateway, lag.name, table) for table in tables]
            return dg.RunRequest(asset_selection=keys, partition_key=today, tags=tags)

        nothing_due = f"{len(connectors)} connectors, none of them due"
        return _request_ready(lags.record_attempts(POLL_SENSOR, context.cursor), overdue, request, nothing_due)

    return watch


def _job_name(lag: Lag) -> str:
    """Return the name of the job of the flow, tiers or migration that is behind."""
    return f"{lag.part}s_{lag.name}"


def _partition_tags(
    config: Config, lag: Lag, days: dg.TimeWindowPartitionsDefinition, marks: Mapping[str, str], now_ms: int
) -> Mapping[str, str] | None:
    """Return the tags that select a run's partitions; None if there is nothing to transfer.

    For a flow these are the days since its last run, for tiers the newest day that is old enough, for a migration the
    days that were not copied, of all its tables.
    """
    if lag.part == "migration":
        declared = config.migrations[lag.name]
        missing = days_to_copy(CopiedDays.of(marks, lag.name), declared, now_ms)
        if missing is None:
            return None
        return range_tags(partition_key(declared.tables[0], missing[0]), partition_key(declared.tables[-1], missing[1]))
    if lag.part == "flow":
        first, last = nearest_key_at(days, lag.mark or now_ms), nearest_key_at(days, now_ms)
    else:
        days_by_hlc = tier_days(config, lag.name, days)  # tiers move deltas by the day of the client's timestamp (hlc)
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        day = newest_movable_day(now, config.tiers[lag.name].max_age_days, days_by_hlc)
        if day is None:
            return None
        first = last = day
    return range_tags(first, last)


def _target_tags(key: dg.AssetKey) -> dict[str, str]:
    """Return the tags by which a run for an adapter's asset is found."""
    return {REQUESTED_BY: DESTINATION_SENSOR, _TARGET: key.to_user_string()}


def _target_request(key: dg.AssetKey, since_ms: int, days: dg.TimeWindowPartitionsDefinition) -> dg.RunRequest:
    """Request a run that writes to an adapter, from the day of the oldest delta that it lacks to the newest day."""
    last = days.get_last_partition_key()
    assert last is not None
    tags = _target_tags(key) | range_tags(nearest_key_at(days, since_ms), last)
    return dg.RunRequest(asset_selection=[key], tags=tags)


def _request_ready(
    attempts: Attempts, overdue: Sequence[Lag], request: Callable[[Lag], dg.RunRequest | None], nothing_due: str
) -> dg.SensorResult | dg.SkipReason:
    """Request a run for each part that is overdue and need not wait after a failure.

    Args:
        attempts: the sensor's earlier requests.
        overdue: the parts that are overdue.
        request: returns the request for a part; None if a run of it is in progress, or it has nothing to do.
        nothing_due: the reason of a skipped tick if no part waits.
    """
    ready, delayed = attempts.divide(overdue)
    found = [(lag, run) for lag in ready if (run := request(lag)) is not None]
    if not found:
        return dg.SkipReason("; ".join(map(str, delayed)) or nothing_due)
    cursor = attempts.cursor_after([lag for lag, _ in found], overdue)
    return dg.SensorResult(run_requests=[run for _, run in found], cursor=cursor)

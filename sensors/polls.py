"""Creates the sensor of polls: it requests a poll of each connector when its interval has passed since the last one.

A connector polls an external system, such as Jira, into a gateway. A mark in staging has the time of its last poll. The
code location (`lakesync_dagster.definitions`) calls this module.
"""

from collections.abc import Sequence

import dagster as dg

from assets.asset_metadata import CONNECTOR, POLL_JOB, POLL_SENSOR, REQUESTED_BY, nearest_day, polled_key
from lakehouse.schema_snapshot import PolledConnector, SchemaSnapshot
from lakesync.config import Config
from lakesync.model.hlc import WallClock
from lakesync.staging.store.pipeline import OpenStaging
from sensors.backoff import Attempts, skip_during_outage
from sensors.lags import PipelineLags, due_tables, is_under_way


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

    @dg.sensor(
        name=POLL_SENSOR,
        job_name=POLL_JOB,
        minimum_interval_seconds=2,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests a poll of every connector whose interval has passed.",
    )
    @skip_during_outage
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        attempts = Attempts(context.cursor)
        lags.record_requests(POLL_SENSOR, attempts.by_part)
        now_ms = WallClock(config.clock_offset_file).now_ms()
        with open_staging() as store:
            marks = store.marks()
        found = {f"{lag.gateway}/{lag.name}": lag for lag in lags.overdue(marks, now_ms) if lag.part == "poll"}
        ready, delayed = attempts.ready(found.values())
        requested = {lag.key for lag in ready if not is_under_way(context.instance, tags(f"{lag.gateway}/{lag.name}"))}
        if not requested:
            nothing_due = f"{len(snapshot.connectors)} connectors, none of them due"
            return dg.SkipReason("; ".join(map(str, delayed)) or nothing_due)
        today = nearest_day(days, now_ms)
        requests = []
        for each in snapshot.connectors:
            lag = found.get(connector_tag(each))
            if lag is not None and lag.key in requested:
                requests.append(_request(each, due_tables(each, marks, now_ms), today))
        cursor = attempts.cursor_after(
            [lag for lag in found.values() if lag.key in requested],
            [lag for lag in found.values() if lag.key not in requested],
        )
        return dg.SensorResult(run_requests=requests, cursor=cursor)

    return watch


def connector_tag(connector: PolledConnector) -> str:
    """Return the value of the tag `CONNECTOR` of a connector's runs: `GATEWAY/NAME`."""
    return f"{connector.gateway}/{connector.name}"


def tags(connector: str) -> dict[str, str]:
    """Return the tags of a connector's runs.

    Args:
        connector: the result of `connector_tag`.
    """
    return {REQUESTED_BY: POLL_SENSOR, CONNECTOR: connector}


def _request(connector: PolledConnector, tables: Sequence[str], day: str) -> dg.RunRequest:
    """Return the request of a run that polls some tables of a connector; `day` is the partition for today."""
    return dg.RunRequest(
        asset_selection=[polled_key(connector.gateway, connector.name, table) for table in tables],
        partition_key=day,
        tags=tags(connector_tag(connector)),
    )

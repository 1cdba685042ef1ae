"""Creates the sensor that reports the asset checks named `fresh`: whether an asset has each day's deltas in time.

A delta is a change that a client pushed, and belongs to the day on which its gateway received it. The sensor reports
the result of a check itself, without a run: when it changes, after a materialisation, and hourly. `assets.freshness`
defines the checks and computes their results. The code location (`lakesync_dagster.definitions`) calls this module.
"""

import json
import time

import dagster as dg

from assets.freshness import days_of_asset, evaluation, fresh_assets
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.config import Config
from lakesync.model.hlc import WallClock
from lakesync.staging.store.pipeline import OpenStaging
from sensors.backoff import skip_during_outage
from sensors.lags import PipelineLags

REPEAT_SECONDS = 3600
"""Seconds after which an unchanged check is reported again."""


def freshness_sensor(
    config: Config, snapshot: SchemaSnapshot, open_staging: OpenStaging, lags: PipelineLags
) -> dg.SensorDefinition:
    """Create the sensor of the checks named `fresh`.

    The sensor's cursor has, for each asset, what it reported last: the late days, the id of the newest materialisation
    (0 if there was none), and the time in seconds since 1970 by the system's clock.

    Args:
        config: the project's configuration, which says after how many seconds a delta is late.
        snapshot: the registered tables and connectors.
        open_staging: opens the staging store.
        lags: reads which parts of the pipeline are behind; all sensors share it.
    """

    @dg.sensor(
        name="freshness_sensor",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports for each day of arrival whether the history, tables and destinations have it in time.",
    )
    @skip_during_outage
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        reported: dict[str, tuple[list[str], int, float]] = json.loads(context.cursor or "{}")
        now = time.time()
        gateway_now_ms = WallClock(config.clock_offset_file).now_ms()  # the clock by which arrivals are stamped
        allowed = config.dagster.late_after_seconds
        events = []
        with open_staging() as store:
            behind = lags.read(store, lambda: context.instance)
            for key in fresh_assets(snapshot, config):
                name = key.to_user_string()
                days = days_of_asset(store, key, behind, allowed_seconds=allowed, now_ms=gateway_now_ms)
                newest = next(iter(context.instance.fetch_materializations(key, limit=1).records), None)
                state = ([day.day for day in days if day.late], newest.storage_id if newest else 0)
                # -1: never reported, so that the first state differs; 0 would be an asset that was never materialised
                last_late_days, last_newest, reported_at = reported.get(name, ([], -1, 0.0))
                if days and (state != (last_late_days, last_newest) or now - reported_at >= REPEAT_SECONDS):
                    events.append(evaluation(key, days, newest))
                    reported[name] = (*state, now)
        if not events:
            return dg.SkipReason("no asset has become late or caught up since the last report")
        return dg.SensorResult(asset_events=events, cursor=json.dumps(reported))

    return watch

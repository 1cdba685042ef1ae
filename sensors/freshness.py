"""Creates the check `fresh` of each asset that clients' deltas must reach, and the sensor that reports its results.

A delta is a change that a client pushed to a gateway, which is one app's stream of deltas. These assets are the lake's
history `deltas`, and what is made from it: state tables (with current rows), checkpoints (from which new clients start)
and the databases of destinations. A delta belongs to the UTC day on which its gateway received it. A day is late if
some of its deltas were acknowledged to the client longer ago than `late_after_seconds` and are not in the asset. The
check passes if no day is late.

The sensor reports a result without a run: when it changes, after a materialisation, and hourly. It computes the result
from the *lags*, which are the parts of the pipeline that lack deltas. Runs of the check's step compute it too. The code
location (`lakesync_dagster.definitions`) calls this module.
"""

import json
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import dagster as dg
import msgspec

from assets.failure_policy import failure_policy
from assets.names import CHECKPOINT, DELTAS, check_step, state_key, target_key
from lakehouse.backends.declared import destination_targets, follower_positions
from lakehouse.schema_snapshot import SchemaSnapshot, merged_tables
from lakesync.analysis.lags import ArrivalDay, Lag, arrival_days
from lakesync.config import Config
from lakesync.model.hlc import OffsetClock
from lakesync.staging.store.pipeline import FlushStore, OpenStaging
from resources.compat_dagster import AssetCheckEvaluationTargetMaterializationData
from resources.stores import StagingResource
from sensors.backoff import skip_during_outage
from sensors.lags import PipelineLags

FRESH = "fresh"
"""Name of the check."""
REPEAT_SECONDS = 3600
"""Seconds after which an unchanged check is reported again."""
_MAX_LISTED_DAYS = 31
"""Number of days, the newest, that a result lists at most."""


def freshness_checks(snapshot: SchemaSnapshot, config: Config) -> list[dg.AssetChecksDefinition]:
    """Create the check `fresh` of each asset of `fresh_assets`. No such check blocks downstream assets.

    Args:
        snapshot: names the state tables.
        config: the project's configuration, which says after how many seconds a delta is late.
    """
    return [_freshness_check(key, snapshot, config) for key in fresh_assets(snapshot, config)]


def fresh_assets(snapshot: SchemaSnapshot, config: Config) -> list[dg.AssetKey]:
    """Return the assets that have the check: the history, the state tables, the checkpoints and the destinations.

    Args:
        snapshot: names the state tables.
        config: the project's configuration, which declares the destinations.
    """
    tables = [state_key(schema.table, namespace) for schema, namespace in snapshot.states]
    return [
        DELTAS,
        *tables,
        CHECKPOINT,
        *(target_key(each.destination, each.target.name) for each in destination_targets(config)),
    ]


def days_of_asset(
    store: FlushStore, key: dg.AssetKey, lags: Sequence[Lag], *, allowed_seconds: int, now_ms: int
) -> list[ArrivalDay]:
    """Return the UTC days of arrival that have deltas, each with whether it is late in the asset.

    Args:
        store: the staging store.
        key: one of `fresh_assets`.
        lags: the parts of the pipeline that lack deltas of the history, each for one gateway.
        allowed_seconds: seconds after which an acknowledged delta that is not in the asset is late.
        now_ms: server wall time in milliseconds since 1970, by the gateways' clock.
    """
    lags_of_asset = [lag for lag in lags if _is_lag_of(key, lag)]
    return arrival_days(store, lags_of_asset, now_ms - allowed_seconds * 1000)


def freshness_sensor(
    config: Config, snapshot: SchemaSnapshot, open_staging: OpenStaging, lags: PipelineLags
) -> dg.SensorDefinition:
    """Create the sensor of the checks named `fresh`.

    The sensor's cursor has, for each asset, what it reported last.

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
        reported = msgspec.json.decode(context.cursor or "{}", type=dict[str, _Reported])  # by name of the asset
        now = time.time()
        gateway_now_ms = OffsetClock(config.clock_offset_file).now_ms()  # the clock by which arrivals are stamped
        allowed = config.dagster.late_after_seconds
        events = []
        with open_staging() as store:
            behind = lags.read(store, lambda: context.instance)
            for key in fresh_assets(snapshot, config):
                name = key.to_user_string()
                days = days_of_asset(store, key, behind, allowed_seconds=allowed, now_ms=gateway_now_ms)
                newest = next(iter(context.instance.fetch_materializations(key, limit=1).records), None)
                report = _Reported([day.day for day in days if day.late], newest.storage_id if newest else 0, now)
                last = reported.get(name)
                is_due = last is None or report.differs(last) or now - last.at >= REPEAT_SECONDS
                # a late check must pass again although all days are erased
                if is_due and (days or (last is not None and last.late_days)):
                    events.append(_evaluation(key, days, newest))
                    reported[name] = report
        if not events:
            return dg.SkipReason("no asset has become late or caught up since the last report")
        return dg.SensorResult(asset_events=events, cursor=json.dumps(reported))

    return watch


def _is_lag_of(key: dg.AssetKey, lag: Lag) -> bool:
    """Return whether a lag is that of an asset. No lag is of the history: `arrival_days` compares it with staging."""
    if lag.part == "table":
        namespace, _, table = lag.name.rpartition(".")  # `NAMESPACE.TABLE`, or `TABLE` in the shared namespace
        return key == state_key(table, namespace)
    if lag.part == "destination":
        return key.path == lag.name.split("/")  # `destinations/DESTINATION/ADAPTER`
    return lag.part == "checkpoint" and key == CHECKPOINT


def _evaluation(
    key: dg.AssetKey, days: Sequence[ArrivalDay], newest: dg.EventLogRecord | None = None
) -> dg.AssetCheckEvaluation:
    """Return the result of an asset's check `fresh`.

    Args:
        key: the asset.
        days: the result of `days_of_asset`.
        newest: record of the asset's newest materialisation, to which the result applies; None within a run, where
            Dagster adds it.
    """
    late = [day.day for day in days if day.late]
    lines = "\n".join(
        f"| {day.day} | {day.acknowledged:,} | {day.flushed:,} | {'**late**' if day.late else 'in time'} |"
        for day in list(days)[-_MAX_LISTED_DAYS:]
    )
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=FRESH,
        passed=not late,
        target_materialization_data=AssetCheckEvaluationTargetMaterializationData(
            storage_id=newest.storage_id, run_id=newest.run_id, timestamp=newest.timestamp
        )
        if newest is not None
        else None,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"late: {', '.join(late)}" if late else None,
        metadata={
            "late_days": len(late),
            "days": dg.MetadataValue.md(f"| day | acknowledged | in the lake | |\n|---|--:|--:|---|\n{lines}"),
        },
    )


def _freshness_check(key: dg.AssetKey, snapshot: SchemaSnapshot, config: Config) -> dg.AssetChecksDefinition:
    """Create the check `fresh` of one asset, as a step for runs."""
    description = "Every day of arrival is in here within `late_after_seconds` of its acknowledgement."

    @dg.multi_asset_check(
        name=check_step(key, FRESH), specs=[dg.AssetCheckSpec(FRESH, asset=key, description=description)]
    )
    def fresh(context: dg.AssetCheckExecutionContext, staging: StagingResource) -> Iterator[dg.AssetCheckResult]:
        from lakesync.analysis.lake_marks import MarkReader

        with failure_policy(context):
            store, now_ms = staging.store, staging.now_ms()
            tables = merged_tables(snapshot, config.namespaces)
            lags = MarkReader(config).lags(store.backlog(), tables, follower_positions(config, store))
            days = days_of_asset(store, key, lags, allowed_seconds=config.dagster.late_after_seconds, now_ms=now_ms)
            result = _evaluation(key, days)
        yield dg.AssetCheckResult(
            passed=result.passed,
            severity=result.severity,
            description=result.description,
            metadata=result.metadata,
        )

    return fresh


class _Reported(NamedTuple):
    """What the sensor reported of an asset; its cursor has the fields as a JSON array."""

    late_days: list[str]
    newest: int
    """Id of the newest materialisation; 0 if there was none."""
    at: float
    """Time of the report, in seconds since 1970 by the system's clock."""

    def differs(self, other: "_Reported") -> bool:
        """Return whether the days or the materialisation differ."""
        return (self.late_days, self.newest) != (other.late_days, other.newest)

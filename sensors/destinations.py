"""Creates the sensor of destinations: it requests a run for each adapter whose mark is behind the history `deltas`.

`lakesync_dagster.definitions` calls this module.
"""

from collections.abc import Mapping

import dagster as dg

from assets.asset_metadata import DESTINATION_SENSOR, REQUESTED_BY, nearest_day, range_tags
from lakesync.analysis.marks import Lag
from lakesync.staging.store.pipeline import OpenStaging, PipelineStore
from resources.compat_dagster import UnresolvedAssetJobDefinition
from sensors.backoff import Attempts, skip_during_outage
from sensors.lags import PipelineLags, is_under_way

TARGET = "lakesync/leaf"
"""Run tag: the asset of the adapter that the run writes to."""


def destination_sensor(
    job: UnresolvedAssetJobDefinition,
    keys: Mapping[str, dg.AssetKey],
    days: dg.TimeWindowPartitionsDefinition,
    open_staging: OpenStaging,
    lags: PipelineLags,
) -> dg.SensorDefinition:
    """Create the sensor of destinations. If an adapter fails, it is retried after growing pauses; others continue.

    Args:
        job: the job that writes to destinations.
        keys: name of an adapter's mark → its asset.
        days: partitions by UTC day of arrival.
        open_staging: opens the staging store, which has the marks.
        lags: the lags of the pipeline's parts, which all sensors share.
    """

    @dg.sensor(
        name=DESTINATION_SENSOR,
        job=job,
        minimum_interval_seconds=5,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests a run for each destination that lacks what was flushed, also after it was unreachable.",
    )
    @skip_during_outage
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        attempts = Attempts(context.cursor)
        lags.record_requests(DESTINATION_SENSOR, attempts.by_part)
        with open_staging() as store:
            behind = destinations(lags, context, store)
            ready, delayed = attempts.ready(behind)
            names = {lag.name for lag in ready}
            busy = {name for name in sorted(names) if is_under_way(context.instance, tags(keys[name]))}
            if names - busy:  # a run that moves these marks may have ended since they were read
                behind = destinations(lags, context, store, anew=True)
                ready, delayed = attempts.ready(behind)
        requested = [lag for lag in ready if lag.name not in busy and lag.name in names]
        if not requested:
            waiting = [f"a run for {name} is under way" for name in sorted(busy)]
            return dg.SkipReason("; ".join([*waiting, *map(str, delayed)]) or "no destination is behind")
        requests = [
            dg.RunRequest(asset_selection=[keys[name]], tags={**tags(keys[name]), **partitions(name, requested)})
            for name in sorted({lag.name for lag in requested})
        ]
        others = [lag for lag in behind if lag not in requested]
        return dg.SensorResult(run_requests=requests, cursor=attempts.cursor_after(requested, others))

    def destinations(
        found: PipelineLags, context: dg.SensorEvaluationContext, store: PipelineStore, *, anew: bool = False
    ) -> list[Lag]:
        lagging = found.read(store, lambda: context.instance, anew=anew)
        return [lag for lag in lagging if lag.part == "destination" and lag.name in keys]

    def partitions(name: str, requested: list[Lag]) -> dict[str, str]:
        """Return the tags that select a run's days: from the oldest delta that the adapter lacks to the newest day.

        Args:
            name: name of the adapter's mark.
            requested: the lags for which runs are requested.
        """
        first = min(lag.since_ms for lag in requested if lag.name == name)
        last = days.get_last_partition_key()
        assert last is not None
        return range_tags(nearest_day(days, first), last)

    def tags(key: dg.AssetKey) -> dict[str, str]:
        return {REQUESTED_BY: DESTINATION_SENSOR, TARGET: key.to_user_string()}

    return watch

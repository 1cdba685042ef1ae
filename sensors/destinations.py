"""The sensor that requests a run for each adapter of a destination whose mark is behind `deltas`."""

from collections.abc import Mapping

import dagster as dg

from assets.asset_metadata import DESTINATION_SENSOR, REQUESTED_BY, nearest_day, range_tags
from lakesync.analysis.marks import Lag
from lakesync.staging.store.pipeline import OpenStaging, PipelineStore
from resources.compat_dagster import UnresolvedAssetJobDefinition
from sensors.backoff import Attempts
from sensors.lags import PipelineLags, is_under_way
from sensors.outages import skip_during_outage

TARGET = "lakesync/leaf"
"""Run tag: the asset of the adapter that the run writes to."""


def destination_sensor(
    job: UnresolvedAssetJobDefinition,
    keys: Mapping[str, dg.AssetKey],
    days: dg.TimeWindowPartitionsDefinition,
    open_staging: OpenStaging,
    lags: PipelineLags,
) -> dg.SensorDefinition:
    """Create the sensor of destinations. A destination that fails is retried after a growing pause; others continue.

    Args:
        job: the job that writes to destinations.
        keys: name of a destination's mark → its asset.
        days: UTC days of arrival.
        open_staging: opens the staging store, which has the marks.
        lags: of destinations.
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
        asked = [lag for lag in ready if lag.name not in busy and lag.name in names]
        if not asked:
            waiting = [f"a run for {name} is under way" for name in sorted(busy)]
            return dg.SkipReason("; ".join([*waiting, *map(str, delayed)]) or "no destination is behind")
        requests = [
            dg.RunRequest(asset_selection=[keys[name]], tags={**tags(keys[name]), **span(name, asked)})
            for name in sorted({lag.name for lag in asked})
        ]
        others = [lag for lag in behind if lag not in asked]
        return dg.SensorResult(run_requests=requests, cursor=attempts.requested(asked, others))

    def destinations(
        found: PipelineLags, context: dg.SensorEvaluationContext, store: PipelineStore, *, anew: bool = False
    ) -> list[Lag]:
        lagging = found.read(store, lambda: context.instance, anew=anew)
        return [lag for lag in lagging if lag.part == "destination" and lag.name in keys]

    def span(name: str, asked: list[Lag]) -> dict[str, str]:
        """Return the tags that name a run's days: from the oldest delta that the adapter lacks to the newest day.

        Args:
            name: name of the adapter's mark.
            asked: the lags for which runs are requested.
        """
        first = min(lag.since_ms for lag in asked if lag.name == name)
        last = days.get_last_partition_key()
        assert last is not None
        return range_tags(nearest_day(days, first), last)

    def tags(key: dg.AssetKey) -> dict[str, str]:
        return {REQUESTED_BY: DESTINATION_SENSOR, TARGET: key.to_user_string()}

    return watch

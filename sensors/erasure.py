"""Asks for an erasure in the lake when staging has erased something."""

import dagster as dg

from assets.labels import REQUESTED_BY
from lakesync.staging.store import OpenStaging
from resources.compat_dagster import UnresolvedAssetJobDefinition
from sensors.pauses import pause

ERASURE_SENSOR = "erasure_sensor"


def erasure_sensor(job: UnresolvedAssetJobDefinition, open_staging: OpenStaging) -> dg.SensorDefinition:
    """The sensor of the erasure job: one run for all requests that are open."""

    @dg.sensor(
        name=ERASURE_SENSOR,
        job=job,
        minimum_interval_seconds=120,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests a run that erases from the lake what was erased from staging.",
    )
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        with open_staging() as store:
            waiting = [
                each
                for gateway in store.gateways()
                for each in store.erasures(gateway)
                if each.done_ms is not None and each.lake_ms is None
            ]
        if not waiting:
            return dg.SkipReason("nothing is to be erased")
        why = pause(context.instance, {REQUESTED_BY: ERASURE_SENSOR}, "an erasure")
        if why is not None:
            return dg.SkipReason(why)
        context.log.info("%d requests of %s", len(waiting), ", ".join(sorted({each.gateway for each in waiting})))
        return dg.SensorResult(run_requests=[dg.RunRequest(tags={REQUESTED_BY: ERASURE_SENSOR})])

    return watch

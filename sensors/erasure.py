"""Creates the sensor of erasures: it requests runs while the lake has not carried out all erasure requests.

A gateway accepts a request to erase a row, or all that a client wrote, and erases it in staging. The lake follows in a
run. The code location (`lakesync_dagster.definitions`) calls this module.
"""

import dagster as dg

from assets.asset_metadata import ERASURE_JOB, REQUESTED_BY
from lakesync.analysis.marks import Lag
from lakesync.staging.store.pipeline import ErasureStore, OpenStaging
from sensors.backoff import Attempts, skip_during_outage
from sensors.lags import PipelineLags, is_under_way

ERASURE_SENSOR = "erasure_sensor"


def erasure_sensor(open_staging: OpenStaging, lags: PipelineLags) -> dg.SensorDefinition:
    """Create the sensor of the erasure job: one run for all open requests.

    Args:
        open_staging: opens the staging store, which has the erasure requests.
        lags: reports the pipeline's lags; the sensor tells it of its run requests.
    """
    tags = {REQUESTED_BY: ERASURE_SENSOR}

    @dg.sensor(
        name=ERASURE_SENSOR,
        job_name=ERASURE_JOB,
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests a run that erases from the lake what was erased from staging.",
    )
    @skip_during_outage
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        attempts = Attempts(context.cursor)
        lags.record_requests(ERASURE_SENSOR, attempts.by_part)
        with open_staging() as store:
            open_lags = open_erasures(store)
        if not open_lags:
            return dg.SkipReason("nothing is to be erased")
        ready, delayed = attempts.ready(open_lags)
        if not ready:
            return dg.SkipReason("; ".join(map(str, delayed)))
        if is_under_way(context.instance, tags):
            return dg.SkipReason("an erasure is under way")
        context.log.info("requests of %s", ", ".join(lag.gateway for lag in open_lags))
        return dg.SensorResult(run_requests=[dg.RunRequest(tags=tags)], cursor=attempts.cursor_after(open_lags))

    return watch


def open_erasures(store: ErasureStore) -> list[Lag]:
    """Return a lag for each gateway with requests that the lake has not carried out.

    Its mark is the number of the last request that the lake has carried out.
    """
    found = []
    for gateway in store.gateways():
        open_requests = [each for each in store.erasures(gateway) if each.done_ms is not None and each.lake_ms is None]
        if open_requests:
            first = min(open_requests, key=lambda each: each.seq)
            found.append(Lag("erasure", "", gateway, first.seq - 1, 0, first.requested_ms))
    return found

"""Creates the sensors that request runs which bring the lake up to date with staging: those of flushes and erasures.

A gateway is one app's stream of deltas (changes). Staging is the gateways' database, with a log of the deltas that they
have accepted from clients. A *flush* moves deltas from the log into the lake, merges them into the state tables
(current rows), and makes checkpoints (files from which new clients start). It is due if the log is too large or too
old, if someone requested it, or if a table or checkpoint is behind (`lakehouse.history.flush_due` decides this). An
*erasure* removes a row, or everything that a client wrote; it is due while staging has carried out a request that the
lake has not.

Nothing depends on the status of earlier runs, except that no run is requested while one is in progress. A *lag* is a
part of the pipeline that is behind, and its *mark* says how far the part is. For a part whose mark stays the same after
its runs, the next run is requested after a growing pause. `Attempts` in `sensors.backoff`, which the sensor's cursor
stores, divides lags into those that are ready and those that are delayed by such a pause. The code location
(`lakesync_dagster.definitions`) calls this module.
"""

import time
from collections.abc import Sequence

import dagster as dg

from assets.names import ERASURE_JOB, FLUSH_JOB, FLUSH_SENSOR, REASON, REQUESTED_BY
from assets.partitions import nearest_key_at, range_tags
from lakehouse.history.flush_due import BacklogReader, describe_backlog, due_flush
from lakesync.analysis.lags import Lag
from lakesync.config import Config
from lakesync.model.errors import LakeUnavailableError
from lakesync.model.hlc import OffsetClock
from lakesync.staging.records import Backlog
from lakesync.staging.store.pipeline import ErasureStore, OpenStaging, PipelineStore
from sensors.backoff import skip_during_outage
from sensors.lags import PipelineLags, is_queued_or_running

WATCH_SECONDS = 4.5
"""How long a tick (one evaluation of the flush sensor) watches staging. Dagster's daemon starts a tick every 5 s."""
CHECK_SECONDS = 0.5
"""Seconds between two checks of staging in a tick."""
ERASURE_SENSOR = "erasure_sensor"
"""Name of the sensor: value of the tag `REQUESTED_BY` of its runs."""
_BY_FLUSH_SENSOR = {REQUESTED_BY: FLUSH_SENSOR}
"""The tags by which the runs of the flush sensor are found."""
_MADE_BY_FLUSH = ("table", "checkpoint")
"""The parts of the pipeline that a flush run brings up to date."""


def flush_sensor(
    config: Config,
    days: dg.TimeWindowPartitionsDefinition,
    open_staging: OpenStaging,
    lags: PipelineLags,
    watch_seconds: float = 0.0,
) -> dg.SensorDefinition:
    """Create the sensor of the flush job: one run for all gateways that are due.

    A tick that keeps watching staging notices that a flush is due within half a second, which costs less than more
    frequent ticks would.

    Args:
        config: the project's configuration, with the thresholds.
        days: partitions by the UTC day on which the gateway accepted the deltas.
        open_staging: opens the staging store.
        lags: reads which parts of the pipeline are behind; all sensors share it.
        watch_seconds: how long a tick watches staging while no flush is due; 0 to look once.
    """
    flush = _FlushRequests(config, days, lags)

    @dg.sensor(
        name=FLUSH_SENSOR,
        job_name=FLUSH_JOB,
        minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests one flush for all gateways with too many or too old unflushed deltas, with a request, or "
        "with a table or checkpoint that is behind.",
    )
    @skip_during_outage
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        ends = time.monotonic() + watch_seconds
        with open_staging() as store:
            while True:
                result = flush.request_if_due(context, store)
                if isinstance(result, dg.SensorResult) or time.monotonic() + CHECK_SECONDS > ends:
                    return result
                time.sleep(CHECK_SECONDS)

    return watch


def erasure_sensor(open_staging: OpenStaging, lags: PipelineLags) -> dg.SensorDefinition:
    """Create the sensor of the erasure job: one run for all open requests.

    Args:
        open_staging: opens the staging store, which has the erasure requests.
        lags: records the open requests and the sensor's run requests for the pipeline's report.
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
        attempts = lags.record_attempts(ERASURE_SENSOR, context.cursor)
        with open_staging() as store:
            open_lags = open_erasures(store)
        lags.erasures = open_lags  # for the pipeline's report
        if not open_lags:
            return dg.SkipReason("nothing is to be erased")
        ready, delayed = attempts.divide(open_lags)
        if not ready:
            return dg.SkipReason("; ".join(map(str, delayed)))
        if is_queued_or_running(context.instance, tags):
            return dg.SkipReason("an erasure is under way")
        context.log.info("requests of %s", ", ".join(lag.gateway for lag in open_lags))
        return dg.SensorResult(run_requests=[dg.RunRequest(tags=tags)], cursor=attempts.cursor_after(open_lags))

    return watch


def open_erasures(store: ErasureStore) -> list[Lag]:
    """Return a lag for each gateway with requests that the lake has not carried out.

    Its mark is the number of the last request that the lake has carried out.

    Args:
        store: the staging store, which has carried out a request if `done_ms` is set; the lake has if `lake_ms` is.
    """
    found = []
    for gateway in store.gateways():
        open_requests = [each for each in store.erasures(gateway) if each.done_ms is not None and each.lake_ms is None]
        if open_requests:
            first = min(open_requests, key=lambda each: each.seq)
            found.append(
                Lag("erasure", name="", gateway=gateway, mark=first.seq - 1, deltas=0, since_ms=first.requested_ms)
            )
    return found


class _FlushRequests:
    """Decides in each tick of the flush sensor whether a flush is due; see `flush_sensor` for the arguments."""

    def __init__(self, config: Config, days: dg.TimeWindowPartitionsDefinition, lags: PipelineLags) -> None:
        self._config = config
        self._days = days
        self._lags = lags
        self._reader = BacklogReader(config.flush)

    def request_if_due(
        self, context: dg.SensorEvaluationContext, store: PipelineStore
    ) -> dg.SensorResult | dg.SkipReason:
        """Return a request of a run if a flush is due; otherwise why none is due."""
        attempts = self._lags.record_attempts(FLUSH_SENSOR, context.cursor)
        backlog = store.backlog()
        now_ms = OffsetClock(self._config.clock_offset_file).now_ms()
        reasons = self._reader.reasons(store, backlog, now_ms)
        wanted = due_flush(backlog, now_ms, reasons)
        # if the backlog alone makes a flush due, the lake, which takes longer to read, is not read
        ready, _ = attempts.divide(wanted.lags if wanted is not None else [])
        is_due_by_backlog = bool(ready)
        if not is_due_by_backlog:
            wanted = due_flush(backlog, now_ms, reasons, self._behind(context, store, backlog))
        if wanted is None:
            return dg.SkipReason(f"nothing is due: {describe_backlog(backlog, now_ms, self._config.flush)}")
        ready, delayed = attempts.divide(wanted.lags)
        if not ready:
            return dg.SkipReason("; ".join(map(str, delayed)))
        if is_queued_or_running(context.instance, _BY_FLUSH_SENSOR):
            return dg.SkipReason("a flush is under way")
        if not is_due_by_backlog:  # a run that moves these marks may have ended since they were read
            wanted = due_flush(backlog, now_ms, reasons, self._behind(context, store, backlog, read_again=True))
            ready, _ = attempts.divide(wanted.lags if wanted is not None else [])
            if wanted is None or not ready:
                return dg.SkipReason(f"nothing is due: {describe_backlog(backlog, now_ms, self._config.flush)}")
        context.log.info("%s: %s", wanted.reason, ", ".join(lag.key for lag in wanted.lags))
        days = range_tags(nearest_key_at(self._days, wanted.first_ms), nearest_key_at(self._days, wanted.last_ms))
        request = dg.RunRequest(tags={**days, REASON: wanted.reason, **_BY_FLUSH_SENSOR})
        # the run is for all lags, so it counts as an attempt at the delayed ones too
        return dg.SensorResult(run_requests=[request], cursor=attempts.cursor_after(wanted.lags))

    def _behind(
        self,
        context: dg.SensorEvaluationContext,
        store: PipelineStore,
        backlog: Sequence[Backlog],
        *,
        read_again: bool = False,
    ) -> list[Lag]:
        """Return the tables and checkpoints that are behind; none if the lake cannot be read, since no run could help.

        Args:
            context: the tick's context.
            store: the staging store.
            backlog: the store's backlog, as read a moment ago.
            read_again: True to read the lake now, instead of using a result that is a few seconds old.
        """
        try:
            found = self._lags.read(store, lambda: context.instance, backlog, read_again=read_again)
        except LakeUnavailableError as error:
            context.log.warning("%s", error)
            return []
        return [lag for lag in found if lag.part in _MADE_BY_FLUSH]

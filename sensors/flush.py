"""Requests a flush when enough waits, has waited long enough, was asked for, or a table or checkpoint is behind.

All of that is computed from marks (`lakesync.analysis.marks`), so whatever a run that was killed, cancelled or failed
left undone is requested again. Runs are looked at only for one that is under way.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import dagster as dg
import msgspec

from assets.asset_metadata import FLUSH_SENSOR, REASON, REQUESTED_BY, nearest_key
from lakesync.analysis.marks import Lag
from lakesync.config import Config
from lakesync.config.sections import FlushSection
from lakesync.model.clock import WallClock
from lakesync.model.errors import LakeUnavailableError
from lakesync.model.hlc import wall_of
from lakesync.staging.records import Backlog
from lakesync.staging.store import OpenStaging, PipelineStore
from resources.compat_dagster import UnresolvedAssetJobDefinition
from sensors.backoff import Attempts
from sensors.lags import PipelineLags, is_under_way
from sensors.outages import skip_during_outage
from sensors.thresholds import Exceeded, Watcher

Reason = Literal["request", "bytes", "wide", "table", "age", "rules", "behind"]

WATCH_SECONDS = 4.5
"""How long a tick watches staging: nearly until Dagster's daemon starts the next."""
LOOK_SECONDS = 0.5
_NOTHING = Exceeded()
_MADE_BY_FLUSH = ("table", "checkpoint")


class Due(msgspec.Struct, frozen=True):
    """A flush that is wanted: it takes all that waits, and brings every table and checkpoint up to it."""

    reason: Reason
    lags: tuple[Lag, ...]
    """The parts that need it."""
    first_ms: int
    last_ms: int
    """Oldest and newest arrival of what these lack, as wall times."""

    @property
    def gateways(self) -> list[str]:
        """The gateways that need it."""
        return sorted({lag.gateway for lag in self.lags})


def due(
    backlog: Sequence[Backlog],
    now_ms: int,
    limits: FlushSection,
    exceeded: Exceeded = _NOTHING,
    behind: Sequence[Lag] = (),
) -> Due | None:
    """Whether a flush is wanted, and why; a request goes before bytes, and bytes before age.

    Args:
        backlog: what waits.
        now_ms: server wall time; what is stamped far after it waits since before the clock was put back.
        limits: the settings.
        exceeded: gateways that hold too much of one kind.
        behind: tables and checkpoints that lack something of `deltas`.
    """
    waiting = [shard for shard in backlog if shard.oldest_ms is not None]
    age_ms = limits.max_age_seconds * 1000
    gateway_bytes: dict[str, int] = {}
    for shard in waiting:
        gateway_bytes[shard.gateway] = gateway_bytes.get(shard.gateway, 0) + shard.bytes
    wanted: dict[Reason, set[str]] = {
        "request": {shard.gateway for shard in waiting if shard.flush_requested_ms is not None},
        "bytes": {gateway for gateway, size in gateway_bytes.items() if size >= limits.max_bytes},
        "wide": set(exceeded.wide),
        "table": set(exceeded.table),
        "age": {shard.gateway for shard in waiting if abs(now_ms - (shard.oldest_ms or 0)) >= age_ms},
    }
    gateways = set().union(*wanted.values())
    lags = [
        Lag("deltas", shard.shard, shard.gateway, shard.flushed_seq, shard.deltas, shard.oldest_ms or 0)
        for shard in waiting
        if shard.gateway in gateways
    ]
    uncut = [
        Lag("checkpoint", "", shard.gateway, shard.cut_arrival or 0, 0, now_ms)
        for shard in backlog
        if shard.uncut_rules is not None
    ]
    found = [*lags, *uncut, *behind]
    if not found:
        return None
    reasons = [reason for reason, names in wanted.items() if names]
    reasons += ["rules"] if uncut else []
    newest = [wall_of(shard.last_arrival) for shard in waiting]
    oldest = [shard.oldest_ms or 0 for shard in waiting]
    return Due(
        reason=next(iter(reasons), "behind"),
        lags=tuple(found),
        # an arrival is taken before its commit, which may be on the day after
        first_ms=min([*oldest, *newest, *(lag.since_ms for lag in behind)], default=now_ms),
        last_ms=max(newest, default=now_ms) if not behind else max([*newest, now_ms]),
    )


def flush_sensor(
    config: Config,
    job: UnresolvedAssetJobDefinition,
    days: dg.TimeWindowPartitionsDefinition,
    open_staging: OpenStaging,
    lags: PipelineLags,
    watch_seconds: float = 0.0,
) -> dg.SensorDefinition:
    """Create the sensor of the flush job: one run for all gateways that are due.

    Dagster's daemon starts a tick every five seconds. A tick that watches staging meanwhile answers a request in half a
    second, and costs less than ticks that are more frequent.

    Args:
        config: the thresholds, and the clock.
        job: the flush job.
        days: the time axis.
        open_staging: opens the staging store.
        lags: of tables and checkpoints.
        watch_seconds: how long a tick watches staging while no flush is due.
    """
    limits = config.flush
    watcher = Watcher(limits)
    tags = {REQUESTED_BY: FLUSH_SENSOR}

    @dg.sensor(
        name=FLUSH_SENSOR,
        job=job,
        minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests one flush for all gateways that hold too much, have waited too long, were asked to, or "
        "whose tables or checkpoint are behind.",
    )
    @skip_during_outage
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        ends = time.monotonic() + watch_seconds
        with open_staging() as store:
            while True:
                found = look(context, store)
                if isinstance(found, dg.SensorResult) or time.monotonic() + LOOK_SECONDS > ends:
                    return found
                time.sleep(LOOK_SECONDS)

    def look(context: dg.SensorEvaluationContext, store: PipelineStore) -> dg.SensorResult | dg.SkipReason:
        attempts = Attempts(context.cursor)
        lags.note(FLUSH_SENSOR, attempts.by_part)
        backlog = store.backlog()
        now_ms = WallClock(config.clock_offset_file).now_ms()
        exceeded = watcher.exceeded(store, backlog)
        wanted = due(backlog, now_ms, limits, exceeded)
        by_staging = wanted is not None and bool(attempts.ready(wanted.lags)[0])
        if not by_staging:
            wanted = due(backlog, now_ms, limits, exceeded, behind(context, store, backlog))
        if wanted is None:
            return dg.SkipReason(f"nothing is due: {standing(backlog, now_ms, limits)}")
        ready, held = attempts.ready(wanted.lags)
        if not ready:
            return dg.SkipReason("; ".join(map(str, held)))
        if is_under_way(context.instance, tags):
            return dg.SkipReason("a flush is under way")
        if not by_staging:  # the run that moves these marks may have ended since they were read
            wanted = due(backlog, now_ms, limits, exceeded, behind(context, store, backlog, anew=True))
            if wanted is None or not attempts.ready(wanted.lags)[0]:
                return dg.SkipReason(f"nothing is due any more: {standing(backlog, now_ms, limits)}")
        first, last = day_range(days, wanted)
        context.log.info("%s: %s", wanted.reason, ", ".join(lag.key for lag in wanted.lags))
        request = dg.RunRequest(
            tags={
                "dagster/asset_partition_range_start": first,
                "dagster/asset_partition_range_end": last,
                REASON: wanted.reason,
                **tags,
            }
        )
        return dg.SensorResult(run_requests=[request], cursor=attempts.requested(wanted.lags))

    def behind(
        context: dg.SensorEvaluationContext, store: PipelineStore, backlog: Sequence[Backlog], *, anew: bool = False
    ) -> list[Lag]:
        """Return the tables and checkpoints that are behind; none where the lake cannot be read: no run could help.

        Args:
            context: the tick's.
            store: the staging store.
            backlog: what the store said a moment ago.
            anew: read the lake now, rather than use a reading of a few seconds ago.
        """
        try:
            found = lags.read(store, lambda: context.instance, backlog, anew=anew)
        except LakeUnavailableError as error:
            context.log.warning("%s", error)
            return []
        return [lag for lag in found if lag.part in _MADE_BY_FLUSH]

    return watch


def standing(backlog: Sequence[Backlog], now_ms: int, limits: FlushSection) -> str:
    """Describe what waits for a flush and at which thresholds it is flushed, for a skipped tick.

    Args:
        backlog: what waits.
        now_ms: server wall time.
        limits: the thresholds.
    """
    waiting = [shard for shard in backlog if shard.oldest_ms is not None]
    if not waiting:
        return "nothing waits"
    deltas, size = (sum(getattr(shard, name) for shard in waiting) for name in ("deltas", "bytes"))
    age = max(abs(now_ms - (shard.oldest_ms or 0)) for shard in waiting) / 1000
    return (
        f"{deltas:,} deltas wait, {size:,} bytes, the oldest for {age:.0f} s; a gateway's are flushed from "
        f"{limits.max_bytes:,} bytes or {limits.max_age_seconds:.0f} s on"
    )


def day_range(days: dg.TimeWindowPartitionsDefinition, wanted: Due) -> tuple[str, str]:
    """Return the first and last partition of a flush.

    Args:
        days: the time axis; a moment outside it counts to its nearest day.
        wanted: the flush.
    """
    return nearest_day(days, wanted.first_ms), nearest_day(days, wanted.last_ms)


def nearest_day(days: dg.TimeWindowPartitionsDefinition, ms: int) -> str:
    """Return the partition of a moment, or the one nearest to it.

    Args:
        days: the time axis.
        ms: milliseconds since 1970.
    """
    keys = days.get_partition_keys()
    return nearest_key(f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d}", keys)

"""Asks for a flush when enough waits, has waited long enough, somebody asked, or rules made the newest cut useless."""

import json
import time
from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime
from typing import Literal

import dagster as dg
import msgspec

from assets.labels import FLUSH_SENSOR, REASON, REQUESTED_BY, SET_ASIDE, days_asked
from lakesync.clock import WallClock
from lakesync.config import Config
from lakesync.config_sections import FlushSection
from lakesync.hlc import wall_of
from lakesync.staging.records import Backlog
from lakesync.staging.store import OpenStaging, PipelineStore
from resources.compat_dagster import UnresolvedAssetJobDefinition
from sensors.pauses import held
from sensors.waiting import Exceeded, Watcher

Reason = Literal["request", "bytes", "wide", "table", "age", "rules", "failure"]

SETTLED_SECONDS = 30
"""Between two looks whether the newest flush failed after it was seen not to: opening Dagster's records costs a tick a
tenth of a second of the processor. Who repeats a flush by hand, and it fails, is waited for that long."""

WATCH_SECONDS = 4.5
"""How long a tick watches staging: nearly until Dagster's daemon starts the next."""
LOOK_SECONDS = 0.5
_NOTHING = Exceeded()


class Due(msgspec.Struct, frozen=True):
    """A flush that is wanted: it takes all that waits."""

    reason: Reason
    gateways: tuple[str, ...]
    """Those for whose sake it is wanted."""
    first_ms: int
    last_ms: int
    """Oldest and newest arrival of what waits, as wall times."""


def due(
    backlog: Sequence[Backlog],
    now_ms: int,
    limits: FlushSection,
    exceeded: Exceeded = _NOTHING,
    uncut: Collection[str] = (),
) -> Due | None:
    """Whether a flush is wanted, and why; a request goes before bytes, and bytes before age.

    Args:
        backlog: what waits.
        now_ms: server wall time; what is stamped far after it waits since before the clock was put back.
        limits: the settings.
        exceeded: gateways that hold too much of one kind.
        uncut: gateways whose newest checkpoint is handed out to nobody, as rules have changed since.
    """
    waiting = [shard for shard in backlog if shard.oldest_ms is not None]
    age_ms = limits.age_seconds * 1000
    gateway_bytes: dict[str, int] = {}
    for shard in waiting:
        gateway_bytes[shard.gateway] = gateway_bytes.get(shard.gateway, 0) + shard.bytes
    wanted: dict[Reason, set[str]] = {
        "request": {shard.gateway for shard in waiting if shard.flush_requested_ms is not None},
        "bytes": {gateway for gateway, size in gateway_bytes.items() if size >= limits.bytes},
        "wide": set(exceeded.wide),
        "table": set(exceeded.table),
        "age": {shard.gateway for shard in waiting if abs(now_ms - (shard.oldest_ms or 0)) >= age_ms},
        "rules": set(uncut),
    }
    gateways = set().union(*wanted.values())
    if not gateways:
        return None
    return Due(
        reason=next(reason for reason, names in wanted.items() if names),
        gateways=tuple(sorted(gateways)),
        # an arrival is taken before its commit, which may be on the day after
        first_ms=min((min(shard.oldest_ms or 0, wall_of(shard.last_arrival)) for shard in waiting), default=now_ms),
        last_ms=max((wall_of(shard.last_arrival) for shard in waiting), default=now_ms),
    )


def cut_short(instance: dg.DagsterInstance, now_ms: int) -> Due | None:
    """What the newest flush left undone when it failed: its batch may be in the lake, and its tables not merged.

    Where a check that blocks failed, doing it again helps nobody, and the next push asks for the next flush.
    """
    newest = instance.get_run_records(dg.RunsFilter(tags={REQUESTED_BY: FLUSH_SENSOR}), limit=1)
    if not newest or newest[0].dagster_run.status is not dg.DagsterRunStatus.FAILURE:
        return None
    run = newest[0].dagster_run
    if SET_ASIDE in run.tags:  # what could be done was, and what waits still is due by itself
        return None
    for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION):
        told = entry.dagster_event.asset_check_evaluation_data if entry.dagster_event is not None else None
        if told is not None and not told.passed and told.severity is dg.AssetCheckSeverity.ERROR:
            return None
    days = days_asked(run.tags)
    return Due("failure", (), _start_ms(days[0]) if days else now_ms, now_ms)


def under_way(instance: dg.DagsterInstance) -> bool:
    """Whether the newest flush has not ended."""
    newest = instance.get_run_records(dg.RunsFilter(tags={REQUESTED_BY: FLUSH_SENSOR}), limit=1)
    return bool(newest) and not newest[0].dagster_run.is_finished


def flush_sensor(
    config: Config,
    job: UnresolvedAssetJobDefinition,
    days: dg.TimeWindowPartitionsDefinition,
    open_staging: OpenStaging,
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
        watch_seconds: how long a tick watches staging while no flush is due.
    """
    limits = config.flush
    watcher = Watcher(limits)
    settled: dict[str | None, float] = {}

    @dg.sensor(
        name=FLUSH_SENSOR,
        job=job,
        minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests one flush for all gateways that hold too much, have waited too long, were asked to, or "
        "need a checkpoint under rules that changed.",
    )
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        ends = time.monotonic() + watch_seconds
        with open_staging() as store:
            while True:
                found = look(context, store)
                if isinstance(found, dg.SensorResult) or time.monotonic() + LOOK_SECONDS > ends:
                    return found
                time.sleep(LOOK_SECONDS)

    def look(context: dg.SensorEvaluationContext, store: PipelineStore) -> dg.SensorResult | dg.SkipReason:
        backlog = store.backlog()
        exceeded = watcher.exceeded(store, backlog)
        now_ms = WallClock(config.clock_offset_file).now_ms()
        rules = {f"{shard.gateway}/{shard.shard}/rules": shard.uncut_rules for shard in backlog if shard.uncut_rules}
        asked = json.loads(context.cursor) if context.cursor else {}
        uncut = {place.partition("/")[0] for place, version in rules.items() if asked.get(place) != version}
        wanted = due(backlog, now_ms, limits, exceeded, uncut)
        if wanted is None and time.monotonic() - settled.get(context.cursor, -SETTLED_SECONDS) >= SETTLED_SECONDS:
            wanted = cut_short(context.instance, now_ms)
            if wanted is None and not under_way(context.instance):
                settled.clear()
                settled[context.cursor] = time.monotonic()
        if wanted is None:
            return dg.SkipReason(f"nothing is due: {standing(backlog, now_ms, limits)}")
        why = hold(context.instance, wanted.gateways)
        if why is not None:
            return dg.SkipReason(why)
        first, last = day_range(days, wanted)
        tags = {
            "dagster/asset_partition_range_start": first,
            "dagster/asset_partition_range_end": last,
            REQUESTED_BY: FLUSH_SENSOR,
            REASON: wanted.reason,
        }
        context.log.info("%s: %s", wanted.reason, ", ".join(wanted.gateways))
        seen = {f"{shard.gateway}/{shard.shard}/{shard.epoch}": shard.last_seq for shard in backlog}
        return dg.SensorResult(run_requests=[dg.RunRequest(tags=tags)], cursor=json.dumps({**seen, **rules}))

    return watch


def standing(backlog: Sequence[Backlog], now_ms: int, limits: FlushSection) -> str:
    """What waits, and until when, in words."""
    waiting = [shard for shard in backlog if shard.oldest_ms is not None]
    if not waiting:
        return "nothing waits"
    deltas, size = (sum(getattr(shard, name) for shard in waiting) for name in ("deltas", "bytes"))
    age = max(abs(now_ms - (shard.oldest_ms or 0)) for shard in waiting) / 1000
    return (
        f"{deltas:,} deltas wait, {size:,} bytes, the oldest for {age:.0f} s; a gateway's are flushed from "
        f"{limits.bytes:,} bytes or {limits.age_seconds:.0f} s on"
    )


def hold(instance: dg.DagsterInstance, gateways: Collection[str]) -> str | None:
    """Why no flush is to be asked for now: one lives, or the last ones failed and the pause after it is not over.

    A flush that failed for some gateways alone holds nothing but what is wanted for the sake of these.
    """

    def counts(run: dg.DagsterRun) -> bool:
        apart = run.tags.get(SET_ASIDE)
        return apart is None or set(gateways) <= set(apart.split(","))

    found = held(instance, {REQUESTED_BY: FLUSH_SENSOR}, counts)
    if found is None:
        return None
    if not found.failed:
        return "a flush is under way"
    return f"{found.failed} flushes in a row failed; the next one is asked for in {found.left:.0f} s"


def day_range(days: dg.TimeWindowPartitionsDefinition, wanted: Due) -> tuple[str, str]:
    """First and last partition of what waits; what lies outside the time axis counts to its nearest day."""
    return nearest_day(days, wanted.first_ms), nearest_day(days, wanted.last_ms)


def nearest_day(days: dg.TimeWindowPartitionsDefinition, ms: int) -> str:
    """The partition of a moment, or the one nearest to it."""
    keys = days.get_partition_keys()
    return min(max(f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d}", keys[0]), keys[-1])


def _start_ms(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000)

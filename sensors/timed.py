"""When polls, flows, tiers and migrations are due, by their marks and schedules. `sensors.lags` calls it."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import dagster as dg

from assets.asset_metadata import ms_of_days
from lakehouse.backends.copied_days import CopiedDays, first_missing_day
from lakehouse.landing.poll_marks import failed_polls, last_poll_ms
from lakehouse.mark_names import move_mark
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.analysis.marks import Lag, Part, Timed
from lakesync.config import Config

_MINUTE = "%Y-%m-%d %H:%M"
"""Dagster's schedules are no finer than minutes."""


def timed_parts(config: Config, snapshot: SchemaSnapshot, marks: Mapping[str, str], now_ms: int) -> list[Timed]:
    """Return when each poll, flow and pair of tiers is due: by its interval or schedule, after its last run.

    A migration with a schedule is due at its first time after the end of the first day that was not copied.

    Args:
        config: declares flows, tiers and migrations.
        snapshot: names the connectors.
        marks: staging's marks.
        now_ms: server wall time in milliseconds. What never ran is due now.
    """
    found = []
    for each in snapshot.connectors:
        mark = last_poll_ms(marks, each.gateway, each.name)
        next_ms = mark + each.interval_ms if mark else now_ms
        found.append(Timed("poll", each.name, each.gateway, mark, next_ms))
    for part, group, name, cron in _moves(config):
        mark = int(marks.get(move_mark(group, name), 0))
        found.append(Timed(part, name, "", mark, next_tick_ms(cron, mark) if mark else now_ms))
    return [*found, *_migrations(config, marks, now_ms)]


def failing_polls(snapshot: SchemaSnapshot, marks: Mapping[str, str]) -> list[tuple[Lag, int]]:
    """Return the connectors whose newest poll failed, each with the number of polls that failed in a row.

    Args:
        snapshot: names the connectors.
        marks: staging's marks.
    """
    found = []
    for each in snapshot.connectors:
        failed = failed_polls(marks, each.gateway, each.name)
        if failed.count:
            mark = last_poll_ms(marks, each.gateway, each.name)
            found.append((Lag("poll", each.name, each.gateway, mark, 0, failed.since_ms), failed.count))
    return found


def next_tick_ms(cron: str, after_ms: int) -> int:
    """Return the next time of a schedule, in milliseconds since 1970.

    Dagster reads the schedule: its times are where time windows of partitions with this schedule begin.

    Args:
        cron: the schedule, in UTC.
        after_ms: the time is later than this one.
    """
    earliest = datetime.fromtimestamp((after_ms + 1) / 1000, UTC)
    windows = dg.TimeWindowPartitionsDefinition(earliest, fmt=_MINUTE, cron_schedule=cron, timezone="UTC")
    following = windows.get_next_partition_window(earliest, respect_bounds=False)
    assert following is not None  # without bounds there is always one
    return round(following.start.timestamp() * 1000)


def _moves(config: Config) -> Iterator[tuple[Part, str, str, str]]:
    for name, flow in config.flows.items():
        yield "flow", "flows", name, flow.schedule
    for name, tiers in config.tiers.items():
        yield "tier", "tiers", name, tiers.schedule


def _migrations(config: Config, marks: Mapping[str, str], now_ms: int) -> Iterator[Timed]:
    for name, declared in config.migrations.items():
        day = first_missing_day(CopiedDays.of(marks, name), declared)
        if declared.schedule is not None and day is not None:
            first_ms, end_ms = ms_of_days([day])
            yield Timed("migration", name, "", min(first_ms, now_ms), next_tick_ms(declared.schedule, end_ms - 1))

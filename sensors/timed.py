"""Parts that are due by the clock, with their marks: polls of connectors, flows, tiers and migrations."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import msgspec

from assets.asset_metadata import failed_polls_mark, move_mark, ms_of_days, poll_mark
from assets.migration import CopiedDays, first_day_left
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.analysis.marks import FailedPolls, Lag, Part, Timed
from lakesync.config import Config
from resources.compat_dagster import get_next_cron_tick


def timed_parts(config: Config, snapshot: SchemaSnapshot, marks: Mapping[str, str], now_ms: int) -> list[Timed]:
    """Return when each poll, flow and pair of tiers is due: by its interval or schedule, after its last run.

    A migration with a schedule is due at the first moment of it after the end of the first day that was not copied.

    Args:
        config: declares flows, tiers and migrations.
        snapshot: names the connectors.
        marks: of staging.
        now_ms: server wall time; one that never ran is due now.
    """
    found = []
    for each in snapshot.connectors:
        mark = _read(marks.get(poll_mark(each.gateway, each.name)))
        next_ms = mark + each.interval_ms if mark else now_ms
        found.append(Timed("poll", each.name, each.gateway, mark, next_ms))
    for part, group, name, cron in _moves(config):
        mark = _read(marks.get(move_mark(group, name)))
        found.append(Timed(part, name, "", mark, next_tick_ms(cron, mark) if mark else now_ms))
    return [*found, *_migrations(config, marks, now_ms)]


def failing_polls(snapshot: SchemaSnapshot, marks: Mapping[str, str]) -> list[tuple[Lag, int]]:
    """Return the connectors whose newest poll ended with an error, and how many polls in a row did.

    Args:
        snapshot: names the connectors.
        marks: of staging.
    """
    found = []
    for each in snapshot.connectors:
        text = marks.get(failed_polls_mark(each.gateway, each.name))
        failed = msgspec.json.decode(text, type=FailedPolls) if text is not None else FailedPolls(0, 0)
        if failed.count:
            mark = _read(marks.get(poll_mark(each.gateway, each.name)))
            found.append((Lag("poll", each.name, each.gateway, mark, 0, failed.since_ms), failed.count))
    return found


def next_tick_ms(cron: str, after_ms: int) -> int:
    """Return the next moment of a schedule, in milliseconds since 1970.

    Args:
        cron: the schedule, in UTC.
        after_ms: the moment that it comes after.
    """
    after = datetime.fromtimestamp((after_ms + 1) / 1000, UTC)  # Dagster counts a moment that the schedule names
    return round(get_next_cron_tick(cron, after, "UTC").timestamp() * 1000)


def _moves(config: Config) -> Iterator[tuple[Part, str, str, str]]:
    for name, flow in config.flows.items():
        yield "flow", "flows", name, flow.schedule
    for name, tiers in config.tiers.items():
        yield "tier", "tiers", name, tiers.schedule


def _migrations(config: Config, marks: Mapping[str, str], now_ms: int) -> Iterator[Timed]:
    for name, declared in config.migrations.items():
        day = first_day_left(CopiedDays.of(marks, name), declared)
        if declared.schedule is not None and day is not None:
            first_ms, end_ms = ms_of_days([day])
            yield Timed("migration", name, "", min(first_ms, now_ms), next_tick_ms(declared.schedule, end_ms - 1))


def _read(text: str | None) -> int:
    return msgspec.json.decode(text, type=int) if text is not None else 0

"""Parts that are due by the clock, with their marks: polls of connectors, flows and tiers."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import msgspec

from assets.labels import move_mark, poll_mark
from lakesync.analysis.marks import Part, Timed
from lakesync.config import Config
from resources.compat_dagster import get_next_cron_tick
from resources.snapshot import SchemaSnapshot


def timed_parts(config: Config, snapshot: SchemaSnapshot, marks: Mapping[str, str], now_ms: int) -> list[Timed]:
    """Return when each poll, flow and pair of tiers is due: by its interval or schedule, after its last run.

    Args:
        config: declares flows and tiers.
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


def _read(text: str | None) -> int:
    return msgspec.json.decode(text, type=int) if text is not None else 0

"""Decides when polls, flows, tiers and migrations are due: by an interval or schedule, or after a pause if they fail.

A connector polls an external system at an interval. A flow (a filtered copy), a pair of tiers (old deltas move to a
colder store) and a migration (a copy of whole tables by day) each run by a schedule. The asset of each writes a mark, a
text in the staging store (the gateways' database): the time of the last run, or the days that a migration has copied.
`Timed.mark` is a time derived from it. A `Lag` says since when a part of the pipeline is behind. Times are milliseconds
of server wall time since 1970. `sensors.lags` calls this module for all of them, and the poll sensor for the tables of
a connector.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import dagster as dg

from assets.partitions import ms_of_days
from lakehouse.marks import CopiedDays, TransferKind, failing_tables, first_missing_day, last_poll_ms, transfer_mark
from lakehouse.schema_snapshot import PolledConnector, SchemaSnapshot
from lakesync.analysis.lags import Lag, Timed
from lakesync.config import Config
from sensors.backoff import pause_after

_MINUTE = "%Y-%m-%d %H:%M"
"""Format of partition keys that are exact to the minute, as Dagster's schedules are."""


def timed_parts(config: Config, snapshot: SchemaSnapshot, marks: Mapping[str, str], now_ms: int) -> list[Timed]:
    """Return when each poll, flow, pair of tiers and migration is due: an interval or a schedule after its last run.

    A migration is due at the first time of its schedule after the end of the first day that was not copied. A part that
    never ran is due now.

    Args:
        config: the project's configuration, which declares flows, tiers and migrations.
        snapshot: the registered tables and connectors.
        marks: name → value of all marks in staging.
        now_ms: server wall time in milliseconds since 1970.
    """
    found = []
    for each in snapshot.connectors:
        times = _poll_times(each, marks, now_ms)
        mark, next_ms = max(poll.mark for poll in times.values()), min(poll.next_ms for poll in times.values())
        found.append(Timed("poll", each.name, each.gateway, mark, next_ms))
    transfers: dict[tuple[TransferKind, str], str] = {}  # kind and name → schedule
    transfers |= {("flow", name): each.schedule for name, each in config.flows.items()}
    transfers |= {("tier", name): each.schedule for name, each in config.tiers.items()}
    for (kind, name), cron in transfers.items():
        mark = int(marks.get(transfer_mark(kind, name), 0))
        is_past = 0 < mark <= now_ms  # a mark in the future means that the clock was set back
        found.append(Timed(kind, name, gateway="", mark=mark, next_ms=next_tick_ms(cron, mark) if is_past else now_ms))
    return [*found, *_migrations(config, marks, now_ms)]


class FailingPoll(NamedTuple):
    """A connector, if the polls of all its tables fail; otherwise one table whose polls fail."""

    lag: Lag
    """The connector or table, and since when its polls fail."""
    polls: int
    """Number of failed polls in a row."""
    next_ms: int
    """When the next poll is due, in milliseconds of server wall time."""


def failing_polls(snapshot: SchemaSnapshot, marks: Mapping[str, str], now_ms: int) -> list[FailingPoll]:
    """Return the connectors and tables whose newest poll failed.

    Args:
        snapshot: the registered tables and connectors.
        marks: name → value of all marks in staging.
        now_ms: server wall time in milliseconds since 1970.
    """
    found = []
    for each in snapshot.connectors:
        times, failing = _poll_times(each, marks, now_ms), failing_tables(marks, each)
        if len(failing) == len(times):  # all tables fail: one entry for the connector
            tables_by_name = {each.name: [*failing]}
        else:
            tables_by_name = {f"{each.name}/{table}": [table] for table in failing}
        for name, tables in tables_by_name.items():
            failed, polls = [failing[table] for table in tables], [times[table] for table in tables]
            mark, since_ms = max(poll.mark for poll in polls), min(table.since_ms for table in failed)
            lag = Lag("poll", name, each.gateway, mark, deltas=0, since_ms=since_ms)
            found.append(FailingPoll(lag, max(table.count for table in failed), min(poll.next_ms for poll in polls)))
    return found


def due_tables(connector: PolledConnector, marks: Mapping[str, str], now_ms: int) -> list[str]:
    """Return the tables of a connector that are due: by its interval or, if their polls fail, after a growing pause.

    A pause is at least as long as the failed poll took, so that a table whose poll hangs leaves half of the time to
    others.

    Args:
        connector: the connector.
        marks: name → value of all marks in staging.
        now_ms: server wall time in milliseconds since 1970.
    """
    times = _poll_times(connector, marks, now_ms)
    # a mark in the future means that the clock was set back
    return [table for table, poll in times.items() if not poll.mark <= now_ms < poll.next_ms]


def next_tick_ms(cron: str, after_ms: int) -> int:
    """Return the next time of a schedule, in milliseconds since 1970.

    Dagster has no public function for this, but it computes the windows of partitions that begin at a schedule's times.

    Args:
        cron: the schedule as a cron expression, in UTC.
        after_ms: the time after which to search, in milliseconds since 1970.
    """
    earliest = datetime.fromtimestamp((after_ms + 1) / 1000, UTC)
    windows = dg.TimeWindowPartitionsDefinition(earliest, fmt=_MINUTE, cron_schedule=cron, timezone="UTC")
    following = windows.get_next_partition_window(earliest, respect_bounds=False)
    assert following is not None  # without bounds there is always one
    return round(following.start.timestamp() * 1000)


class _PollTime(NamedTuple):
    """Times of a connector's table, in milliseconds of server wall time."""

    mark: int
    """When it was polled last; 0 if it never was."""
    next_ms: int
    """When its next poll is due."""


def _poll_times(connector: PolledConnector, marks: Mapping[str, str], now_ms: int) -> dict[str, _PollTime]:
    """Return table → times of its polls. Tables that do not fail are polled together."""
    last_ms, failing = last_poll_ms(marks, connector), failing_tables(marks, connector)
    times = dict.fromkeys(connector.tables, _PollTime(last_ms, last_ms + connector.interval_ms if last_ms else now_ms))
    for table, failed in failing.items():
        pause_ms = max(round(pause_after(failed.count) * 1000), failed.ended_ms - failed.begun_ms)
        times[table] = _PollTime(failed.ended_ms, failed.ended_ms + pause_ms)
    return times


def _migrations(config: Config, marks: Mapping[str, str], now_ms: int) -> Iterator[Timed]:
    """Yield the migrations that have a schedule and a day to copy, with the time at which each is due.

    Its `Timed.mark` is the start of the first day that it has not copied.
    """
    for name, declared in config.migrations.items():
        day = first_missing_day(CopiedDays.of(marks, name), declared)
        if declared.schedule is not None and day is not None:
            first_ms, end_ms = ms_of_days([day])
            # at most now, because a day to come is no sign here that the clock was set back
            yield Timed("migration", name, "", min(first_ms, now_ms), next_tick_ms(declared.schedule, end_ms - 1))

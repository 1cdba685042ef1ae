"""Converts between the daily partitions of assets, UTC days, and times in milliseconds.

Assets, sensors and jobs use it. The key of a daily partition is the text `YYYY-MM-DD`. For most assets it is the day of
arrival, on which the gateway (one app's stream of changes) received the changes. An arrival is its timestamp of a push:
48 bits of milliseconds and a 16-bit counter. For migrations and tiers it is the day of the changes' hlc, the client's
timestamp, and for polls the day on which rows were read.
"""

from collections.abc import Mapping, Sequence
from datetime import date, timedelta

import dagster as dg

from lakehouse.marks import first_ms, utc_day
from lakesync.model.hlc import start_of

PARTITION = "dagster/partition"
"""Dagster's run tag with the key of a run's single partition."""
_RANGE_START, _RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
"""Dagster's run tags with the keys of the first and the last partition of a run with a range of them."""


def range_tags(first: str, last: str) -> dict[str, str]:
    """Return the run tags that select a range of partitions.

    Args:
        first: key of the first partition.
        last: key of the last partition.
    """
    return {_RANGE_START: first, _RANGE_END: last}


def days_in_tags(tags: Mapping[str, str]) -> list[date] | None:
    """Return the UTC days of the partitions that a run's tags select; None if they select none."""
    single = tags.get(PARTITION)
    first, last = tags.get(_RANGE_START, single), tags.get(_RANGE_END, single)
    if first is None or last is None:
        return None
    start, end = date.fromisoformat(first), date.fromisoformat(last)
    return [start + timedelta(days=number) for number in range((end - start).days + 1)]


def days_of(context: dg.AssetExecutionContext) -> list[date]:
    """Return a step's partitions as UTC days."""
    return [date.fromisoformat(key) for key in context.partition_keys]


def nearest_key(day: str, keys: Sequence[str]) -> str:
    """Return the key of a day's partition; for a day before the first or after the last partition, the nearest one.

    Args:
        day: the day, `YYYY-MM-DD`.
        keys: keys of the partitions, ascending; at least one.
    """
    return min(max(day, keys[0]), keys[-1])


def nearest_key_at(days: dg.TimeWindowPartitionsDefinition, ms: int) -> str:
    """Return the key of a time's partition; for a time before the first or after the last one, the nearest.

    Args:
        days: partitions by UTC day; at least one.
        ms: the time in milliseconds since 1970.
    """
    return nearest_key(utc_day(ms).isoformat(), days.get_partition_keys())


def ms_of_days(days: Sequence[date]) -> tuple[int, int]:
    """Return the first millisecond of the UTC days from the earliest to the latest, and the first one after them."""
    return first_ms(min(days)), first_ms(max(days) + timedelta(days=1))


def arrivals_of(days: Sequence[date]) -> tuple[int, int]:
    """Return the first and the last arrival that the UTC days from the earliest to the latest can contain."""
    start_ms, end_ms = ms_of_days(days)
    return start_of(start_ms), start_of(end_ms) - 1

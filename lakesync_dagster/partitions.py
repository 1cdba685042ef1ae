"""The time axis of the pipeline."""

from datetime import UTC, datetime

import dagster as dg

from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.config import Config


def first_day(config: Config, snapshot: SchemaSnapshot) -> str:
    """Return the first day of the partitions: as configured, else that of the first push, and today before it.

    Args:
        config: may name the day.
        snapshot: has the day of the first push.
    """
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    return config.dagster.partitions_start or min(snapshot.first_day or today, today)


def arrival_days(start: str) -> dg.DailyPartitionsDefinition:
    """UTC days of arrival from `start` (`YYYY-MM-DD`) on, today included."""
    return dg.DailyPartitionsDefinition(start_date=start, timezone="UTC", end_offset=1)

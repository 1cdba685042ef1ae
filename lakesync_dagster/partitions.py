"""The time axis of the pipeline."""

import dagster as dg


def arrival_days(start: str) -> dg.DailyPartitionsDefinition:
    """UTC days of arrival from `start` (`YYYY-MM-DD`) on, today included."""
    return dg.DailyPartitionsDefinition(start_date=start, timezone="UTC", end_offset=1)

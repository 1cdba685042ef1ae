"""Tags that keep the snapshots of checkpoints from expiry: each for hours, one a day for days, the newest for ever.

Making a checkpoint and the maintenance of a state table call it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from lakehouse.history.decoding import day_of
from lakehouse.spark_errors import lake_errors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from lakehouse.table_definitions import LakeNames
    from lakesync.config.sections import MaintenanceSection
    from lakesync.staging.records import Checkpoint

HELD = "held-"
"""Prefix of the tag, before the gateway, that keeps the snapshots of its newest checkpoint once their own tag ends."""
_FOR_EVER_DAYS = 36_500


class CheckpointRetention(msgspec.Struct, frozen=True):
    """How long the snapshots of checkpoints are kept. Time travel to any moment works without them."""

    hours: int = 24
    """Of each checkpoint."""
    days: int = 30
    """Of the first checkpoint of each UTC day."""

    @classmethod
    def of(cls, section: MaintenanceSection) -> CheckpointRetention:
        """Return the retention that the settings ask for."""
        return cls(section.checkpoint_retention_hours, section.daily_checkpoint_retention_days)


def retention(newest: Checkpoint | None, arrival: int, kept: CheckpointRetention) -> str:
    """Return how long the tags of a new checkpoint last, as an SQL clause.

    Args:
        newest: the gateway's checkpoint before; None: there is none.
        arrival: the arrival of the new checkpoint.
        kept: the settings.
    """
    is_first = newest is None or day_of(newest.arrival) != day_of(arrival)
    return f"{kept.days} DAYS" if is_first else f"{kept.hours} HOURS"


@lake_errors
def tag_newest(
    spark: SparkSession, names: LakeNames, table: str, checkpoints: Iterable[Checkpoint], kept: CheckpointRetention
) -> int:
    """Tag the snapshots of newest checkpoints whose own tag is about to end, and return how many.

    A checkpoint is served until there is a newer one, and audits compare it with the snapshots that it was made of.

    Args:
        spark: an open Spark session.
        names: catalogue and namespaces of the lake's tables.
        table: the state table.
        checkpoints: the newest checkpoint of each gateway.
        kept: the settings.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    soon_ms = (time.time() - kept.hours * 1800) * 1000
    old = {
        f"{HELD}{checkpoint.gateway}": part.snapshot_id
        for checkpoint in checkpoints
        for part in checkpoint.tables
        if part.table == table and checkpoint.created_ms < soon_ms
    }
    if not old:
        return 0
    name = names.state(table)
    refs = {
        row["name"]: row["snapshot_id"] for row in spark.table(f"{name}.refs").select("name", "snapshot_id").collect()
    }
    there = {row["snapshot_id"] for row in spark.table(f"{name}.snapshots").select("snapshot_id").collect()}
    changed = {tag: snapshot for tag, snapshot in old.items() if refs.get(tag) != snapshot and snapshot in there}
    for tag, snapshot in changed.items():
        spark.sql(
            f"ALTER TABLE {name} CREATE OR REPLACE TAG `{tag}` AS OF VERSION {snapshot} RETAIN {_FOR_EVER_DAYS} DAYS"
        )
    return len(changed)

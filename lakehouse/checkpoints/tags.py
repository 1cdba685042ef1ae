"""Tags the Iceberg snapshots of checkpoints, so that they do not expire.

Each checkpoint's snapshots are kept for hours, those of each day's first one for days, those of the newest for ever.
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
"""Prefix of the tag, before the gateway id, that keeps the newest checkpoint's snapshots when their first tag ends."""
_FOR_EVER_DAYS = 36_500
"""Days for which a tag lasts that is never meant to end."""


class CheckpointRetention(msgspec.Struct, frozen=True):
    """How long the snapshots of checkpoints are kept. Time travel does not need them; it merges the history."""

    hours: int = 24
    """Hours for which those of each checkpoint are kept."""
    days: int = 30
    """Days for which those of the first checkpoint of each UTC day are kept."""

    @classmethod
    def of(cls, section: MaintenanceSection) -> CheckpointRetention:
        """Return the retention of the settings in the section `maintenance`."""
        return cls(section.checkpoint_retention_hours, section.daily_checkpoint_retention_days)


def retention_clause(newest: Checkpoint | None, arrival: int, retention: CheckpointRetention) -> str:
    """Return how long the tags of a new checkpoint last, as an SQL clause.

    Args:
        newest: the gateway's checkpoint before the new one; None if this is its first.
        arrival: the arrival of the new checkpoint.
        retention: how long the tags of checkpoints last.
    """
    is_first = newest is None or day_of(newest.arrival) != day_of(arrival)
    return f"{retention.days} DAYS" if is_first else f"{retention.hours} HOURS"


@lake_errors
def tag_newest(
    spark: SparkSession, names: LakeNames, table: str, checkpoints: Iterable[Checkpoint], retention: CheckpointRetention
) -> int:
    """Tag a state table's snapshots of newest checkpoints whose first tag is about to end, and return their number.

    A checkpoint is served until there is a newer one, and audits compare it with the snapshots that it was made from.

    Args:
        spark: an open Spark session.
        names: catalogue and namespaces of the lake's tables.
        table: the state table's name.
        checkpoints: the newest checkpoint of each gateway.
        retention: how long the tags of checkpoints last.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    soon_ms = (time.time() - retention.hours * 1800) * 1000
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
    existing = {row["snapshot_id"] for row in spark.table(f"{name}.snapshots").select("snapshot_id").collect()}
    changed = {tag: snapshot for tag, snapshot in old.items() if refs.get(tag) != snapshot and snapshot in existing}
    for tag, snapshot in changed.items():
        spark.sql(
            f"ALTER TABLE {name} CREATE OR REPLACE TAG `{tag}` AS OF VERSION {snapshot} RETAIN {_FOR_EVER_DAYS} DAYS"
        )
    return len(changed)

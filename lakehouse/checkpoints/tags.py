"""How long the snapshots of cuts are kept from expiry: each for a while, one a day for longer, the newest for ever."""

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
    from lakesync.staging.records import Cut

HELD = "held-"
"""Begins the tag of a gateway's newest cut that would expire otherwise; the gateway follows."""
_FOR_EVER_DAYS = 36_500


class CutsKept(msgspec.Struct, frozen=True):
    """How long cuts can be read; time travel to any moment works without."""

    hours: int = 24
    """Each cut."""
    days: int = 30
    """The first cut of each UTC day."""


def cuts_kept(section: MaintenanceSection) -> CutsKept:
    """As the settings have it."""
    return CutsKept(section.checkpoint_retention_hours, section.daily_checkpoint_retention_days)


def retention(newest: Cut | None, arrival: int, kept: CutsKept) -> str:
    """Return how long a cut's tags last, as an SQL clause.

    Args:
        newest: the gateway's cut before.
        arrival: of the new cut.
        kept: the settings.
    """
    is_first = newest is None or day_of(newest.arrival) != day_of(arrival)
    return f"{kept.days} DAYS" if is_first else f"{kept.hours} HOURS"


@lake_errors
def hold_newest(spark: SparkSession, names: LakeNames, table: str, cuts: Iterable[Cut], kept: CutsKept) -> int:
    """Tag the snapshots of newest cuts whose own tag is about to end, and return how many.

    A checkpoint is served as long as no newer one is there, and is compared with the snapshots that it was made of.

    Args:
        spark: a session.
        names: the lake's names.
        table: the state table.
        cuts: the newest of each gateway.
        kept: the settings.

    Raises:
        LakeUnavailableError: Spark is gone.
    """
    soon_ms = (time.time() - kept.hours * 1800) * 1000
    old = {
        f"{HELD}{cut.gateway}": part.snapshot_id
        for cut in cuts
        for part in cut.tables
        if part.table == table and cut.created_ms < soon_ms
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

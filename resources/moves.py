"""Moves between places on executors: tiers by age, and migrations by day and table."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lakesync.adapters.base import Marked
from lakesync.adapters.lifecycle import LifecycleAdapter, TierReport
from lakesync.adapters.migrate import (
    MigrationReport,
    ProgressFile,
    ProgressKeeper,
    ProgressMark,
    Scope,
    migrate_adapter,
)
from lakesync.adapters.places import Place, Tiered
from resources.tasks import on_executors, opened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession


class Tiering(msgspec.Struct, frozen=True):
    """What is old goes to the cold tier: copied, compared, and only then removed from the hot one."""

    hot: Place
    cold: Place
    until_ms: int
    """Deltas up to this instant, by their hlc."""

    def run(self) -> Iterator[TierReport]:
        """Move it."""
        with ExitStack() as closing:
            hot, cold = opened([self.hot, self.cold], closing)
            yield LifecycleAdapter(hot, cold, 0).migrate_to_tier(self.until_ms)


class Migration(msgspec.Struct, frozen=True):
    """A day of a table, from one place to another."""

    name: str
    """Of its progress."""
    source: Place
    target: Place
    scope: Scope
    page: int
    folder: str
    """Where progress is kept for a target that keeps no marks."""

    def run(self) -> Iterator[MigrationReport]:
        """Copy and compare; cut short, the next run goes on where it was."""
        with ExitStack() as closing:
            source, target = opened([self.source, self.target], closing)
            progress: ProgressKeeper = (
                ProgressMark(target, self.name)
                if isinstance(target, Marked)
                else ProgressFile(Path(self.folder) / f"{self.name.replace('/', '.')}.json")
            )
            yield migrate_adapter(source, target, self.scope, progress=progress, page=self.page)


def move_to_tier(spark: SparkSession, place: Tiered, until_ms: int) -> TierReport:
    """Move what is older than an instant.

    Raises:
        AdapterError: a tier cannot be reached; what was moved is moved.
        IntegrityError: the cold tier does not hold what it was given; nothing of that was removed.
        ConfigurationError: the hot tier cannot let go of deltas.
        LakeUnavailableError: Spark is gone.
    """
    ((report,),) = on_executors(spark, [Tiering(place.hot, place.cold, until_ms)], TierReport)
    return report


def migrate(spark: SparkSession, migrations: Sequence[Migration]) -> list[MigrationReport]:
    """Copy and compare each in a task of its own.

    Raises:
        AdapterError: one of the two places cannot be reached; a repeat goes on.
        IntegrityError: the two differ at the end.
        LakeUnavailableError: Spark is gone.
    """
    return [report for (report,) in on_executors(spark, migrations, MigrationReport)]

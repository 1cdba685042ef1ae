"""Moves deltas between backends in Spark tasks: tiering and migrations.

A backend is one or more adapters, each of which stores deltas (changes of rows) at a database or an object store.
Tiering moves old deltas from a hot backend to a cold one. A migration copies days of tables to another backend and
verifies the copy; it continues after an interruption, because its progress is stored. A *mark* is such a progress,
stored at an adapter. A large tiering or migration is divided into ranges of hlcs (the clients' timestamps), one task
each. This division is stored, so that a repeat after a crash has the same ranges
(`lakesync.adapters.transfer.migration`). The driver receives only counts and errors. The assets of transfers
(`assets.transfers`) call this module.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from lakehouse.backends.adapter_tasks import one_report_each, open_backends
from lakesync.adapters.arrow_access import fence_writes, max_writers
from lakesync.adapters.backend_config import Backend, TieredBackend
from lakesync.adapters.base import MarkStore
from lakesync.adapters.composite import LifecycleAdapter, TierReport
from lakesync.adapters.transfer.migration import (
    Division,
    MigrationInFile,
    MigrationInMark,
    MigrationReport,
    MigrationScope,
    MigrationStore,
    begin_division,
    end_division,
    migrate_adapter,
)
from lakesync.adapters.transfer.progress import ProgressInFile, ProgressInMark, ProgressStore
from lakesync.model import hlc

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from lakesync.adapters.base import DatabaseAdapter


DELTAS_PER_RANGE = 50_000
"""Deltas in one range of a transfer that is divided among tasks, approximately."""


class Tiering(msgspec.Struct, frozen=True):
    """The task that moves old deltas from the hot backend (tier) to the cold one: copies, compares, then deletes."""

    name: str
    """Name of the task, which differs from those of the other ranges."""
    hot: Backend
    cold: Backend
    since: int
    """The hlc (client's timestamp) after which deltas are moved."""
    until: int | None
    """The last hlc that is moved; None for no limit."""

    def run(self) -> Iterator[TierReport]:
        """Move the deltas, and yield one report."""
        with ExitStack() as closing:
            hot, cold = open_backends([self.hot, self.cold], closing)
            fence_writes(cold, self.name)
            tiers = LifecycleAdapter(hot, cold, max_age_ms=0)  # the age is not used, because the range is given
            yield tiers.move_range(self.since, self.until)


class Migration(msgspec.Struct, frozen=True):
    """The task that copies one day of a table from one backend to another, or one range of that day."""

    name: str
    """Name under which the progress is stored."""
    source: Backend
    target: Backend
    scope: MigrationScope
    """The gateway, table and range of hlcs to copy."""
    page: int
    """Deltas in one page."""
    folder: str
    """Folder of the progress file, which is used if the target does not store marks."""
    division: str = ""
    """Id of the division that this is a range of; empty if the migration is not divided."""

    def run(self) -> Iterator[MigrationReport]:
        """Copy and compare, and yield one report. After an interruption it continues from the last page."""
        with ExitStack() as closing:
            source, target = open_backends([self.source, self.target], closing)
            fence_writes(target, self.name)
            progress: MigrationStore = (
                MigrationInMark(target, self.name, self.division)
                if isinstance(target, MarkStore)
                else MigrationInFile(self._file(""), self.division)
            )
            yield migrate_adapter(source, target, self.scope, progress=progress, page=self.page)

    def division_store(self, target: DatabaseAdapter) -> ProgressStore[Division]:
        """Return the store of the migration's division into ranges.

        Args:
            target: the opened target.
        """
        if isinstance(target, MarkStore):
            return ProgressInMark(target, f"{self.name} ranges", Division)
        return ProgressInFile(self._file(".ranges"), Division)

    def _file(self, suffix: str) -> Path:
        """Return the path of the progress file, or with a suffix that of another file of the migration."""
        return Path(self.folder) / f"{self.name.replace('/', '.')}{suffix}.json"


def move_to_tier(spark: SparkSession, name: str, tiers: TieredBackend, until_ms: int) -> TierReport:
    """Move the deltas up to a time from the hot to the cold tier.

    Args:
        spark: an open Spark session.
        name: name of the pair of tiers; the hot tier stores the ranges of an unfinished transfer under it.
        tiers: the hot and the cold tier.
        until_ms: wall time of the last hlcs that are moved, in milliseconds since 1970.

    Raises:
        AdapterError: a tier cannot be reached; ranges that were moved stay moved.
        IntegrityError: the cold tier lacks deltas that were written to it; they were not deleted from the hot tier.
        ConfigurationError: the hot tier does not support deleting deltas.
        LakeUnavailableError: Spark cannot be reached.
    """
    scope, reports = MigrationScope(until=hlc.encode(until_ms, hlc.MAX_COUNTER)), list[TierReport]()
    with ExitStack() as closing:
        hot, cold = open_backends([tiers.hot, tiers.cold], closing)
        progress = ProgressInMark(hot, f"tiers/{name}", Division) if isinstance(hot, MarkStore) else None
        while True:
            # `any_scope`: if an earlier run left an unfinished transfer, this is its division; it is finished first
            division = begin_division(hot, scope, progress, max_writers(cold), DELTAS_PER_RANGE, any_scope=True)
            tasks = [
                Tiering(f"tiers/{name}#{number}", tiers.hot, tiers.cold, each.since, each.until)
                for number, each in enumerate(division.ranges())
            ]
            reports += one_report_each(spark, tasks, TierReport)
            end_division(division, progress)
            if division.scope == scope:
                return _sum_tier_reports(reports)


def migrate(spark: SparkSession, migrations: Sequence[Migration]) -> list[MigrationReport]:
    """Run migrations at the same time, each in one task, or in several if it is large.

    Args:
        spark: an open Spark session.
        migrations: the migrations; each copies one day of one table.

    Returns:
        A report for each migration, in their order.

    Raises:
        AdapterError: a backend cannot be reached; a retry continues.
        IntegrityError: source and target differ after the copy.
        LakeUnavailableError: Spark cannot be reached.
    """
    opened: dict[bytes, DatabaseAdapter] = {}
    with ExitStack() as closing:

        def open_once(backend: Backend) -> DatabaseAdapter:  # many migrations name the same backend
            key = msgspec.json.encode(backend)
            if key not in opened:
                (opened[key],) = open_backends([backend], closing)
            return opened[key]

        divided = [_DividedMigration.of(each, open_once(each.source), open_once(each.target)) for each in migrations]
        tasks = [task for each in divided for task in each.tasks]
        reports = iter(one_report_each(spark, tasks, MigrationReport))
        reports_by_migration = [_sum_migration_reports(list(islice(reports, len(each.tasks)))) for each in divided]
        for each in divided:
            end_division(each.division, each.progress)
    return reports_by_migration


class _DividedMigration(NamedTuple):
    """A migration as one or more tasks, each of which copies a range of hlcs."""

    tasks: list[Migration]
    division: Division
    progress: ProgressStore[Division]

    @classmethod
    def of(cls, migration: Migration, source: DatabaseAdapter, target: DatabaseAdapter) -> _DividedMigration:
        """Divide a migration, or continue an earlier division of it. A small migration stays one task."""
        progress = migration.division_store(target)
        division = begin_division(source, migration.scope, progress, max_writers(target), DELTAS_PER_RANGE)
        if not division.id:
            return cls([migration], division, progress)
        tasks = [
            replace(
                migration,
                name=f"{migration.name}#{number}",
                scope=replace(migration.scope, since=each.since, until=each.until),
                division=division.id,
            )
            for number, each in enumerate(division.ranges())
        ]
        return cls(tasks, division, progress)


def _sum_tier_reports(reports: Sequence[TierReport]) -> TierReport:
    """Add up the reports of one transfer's ranges."""
    return TierReport(
        sum(each.deltas for each in reports),
        sum(each.id_sum for each in reports) % 2**64,
        sum(each.pages for each in reports),
        max(each.until for each in reports),
    )


def _sum_migration_reports(reports: Sequence[MigrationReport]) -> MigrationReport:
    """Add up the reports of one migration's ranges. The seconds are those of the longest range."""
    return MigrationReport(
        sum(each.deltas for each in reports),
        sum(each.copied for each in reports),
        sum(each.pages for each in reports),
        sum(each.id_sum for each in reports) % 2**64,
        max(each.seconds for each in reports),
        verified=all(each.verified for each in reports),
    )

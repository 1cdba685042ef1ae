"""Moves between places by Spark's tasks: tiers by age, and migrations by day and table.

A large move is divided into ranges of hlc, a task each (`lakesync.adapters.transfer.ranges`). The step plans, and sees
counts, marks and errors alone.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from lakehouse.backends.adapter_tasks import one_report_each, open_backends
from lakesync.adapters.arrow_access import max_writers
from lakesync.adapters.backend_config import Backend, TieredBackend
from lakesync.adapters.base import MarkStore
from lakesync.adapters.compositions.lifecycle import LifecycleAdapter, TierReport
from lakesync.adapters.transfer.migration import (
    MigrationInFile,
    MigrationInMark,
    MigrationReport,
    MigrationScope,
    MigrationStore,
    migrate_adapter,
)
from lakesync.adapters.transfer.progress import ProgressInFile, ProgressInMark, ProgressStore
from lakesync.adapters.transfer.ranges import Division, begin_division, end_division
from lakesync.model import hlc

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from lakesync.adapters.base import DatabaseAdapter


DELTAS_A_RANGE = 50_000
"""A move of more deltas is divided into ranges of about so many."""


class Tiering(msgspec.Struct, frozen=True):
    """Old deltas go to the cold tier: copied, compared, and only then removed from the hot one."""

    hot: Backend
    cold: Backend
    since: int
    """Deltas above this hlc."""
    until: int | None
    """Deltas up to this hlc; None: however young."""

    def run(self) -> Iterator[TierReport]:
        """Move them."""
        with ExitStack() as closing:
            hot, cold = open_backends([self.hot, self.cold], closing)
            yield LifecycleAdapter(hot, cold, 0).move_range(self.since, self.until)


class Migration(msgspec.Struct, frozen=True):
    """A day of a table, from one place to another, or one range of it."""

    name: str
    """Of its progress."""
    source: Backend
    target: Backend
    scope: MigrationScope
    page: int
    folder: str
    """Where progress is kept for a target that keeps no marks."""
    division: str = ""
    """The id of the division, where this is one of its ranges."""

    def run(self) -> Iterator[MigrationReport]:
        """Copy and compare; cut short, the next run goes on where it was."""
        with ExitStack() as closing:
            source, target = open_backends([self.source, self.target], closing)
            progress: MigrationStore = (
                MigrationInMark(target, self.name, self.division)
                if isinstance(target, MarkStore)
                else MigrationInFile(self._file(""), self.division)
            )
            yield migrate_adapter(source, target, self.scope, progress=progress, page=self.page)

    def ranges_kept(self, target: DatabaseAdapter) -> ProgressStore[Division]:
        """Where its division is kept."""
        if isinstance(target, MarkStore):
            return ProgressInMark(target, f"{self.name} ranges", Division)
        return ProgressInFile(self._file(".ranges"), Division)

    def _file(self, what: str) -> Path:
        return Path(self.folder) / f"{self.name.replace('/', '.')}{what}.json"


def move_to_tier(spark: SparkSession, name: str, place: TieredBackend, until_ms: int) -> TierReport:
    """Move what is older than an instant.

    Args:
        spark: a session.
        name: of the pair of tiers, by which the hot one keeps the ranges of a move that has begun.
        place: the tiers.
        until_ms: deltas up to this instant move, by their hlc.

    Raises:
        AdapterError: a tier cannot be reached; what was moved is moved.
        IntegrityError: the cold tier does not hold what it was given; nothing of that was removed.
        ConfigurationError: the hot tier does not support deleting deltas.
        LakeUnavailableError: Spark is gone.
    """
    scope, reports = MigrationScope(until=hlc.encode(until_ms, hlc.MAX_COUNTER)), list[TierReport]()
    with ExitStack() as closing:
        hot, cold = open_backends([place.hot, place.cold], closing)
        kept = ProgressInMark(hot, f"tiers/{name}", Division) if isinstance(hot, MarkStore) else None
        while True:
            division = begin_division(hot, scope, kept, max_writers(cold), DELTAS_A_RANGE, any_scope=True)
            works = [Tiering(place.hot, place.cold, *each) for each in division.ranges()]
            reports += one_report_each(spark, works, TierReport)
            end_division(division, kept)
            if division.scope == scope:  # else a run before this one had begun it, for an earlier instant
                return _moved(reports)


def migrate(spark: SparkSession, migrations: Sequence[Migration]) -> list[MigrationReport]:
    """Copy and compare migrations, each in a task of its own or, where it is large, in several.

    Args:
        spark: a session.
        migrations: a day of a table each.

    Raises:
        AdapterError: one of the two places cannot be reached; a repeat goes on.
        IntegrityError: the two differ at the end.
        LakeUnavailableError: Spark is gone.
    """
    with ExitStack() as closing:
        places = _OpenPlaces(closing)
        divided = [_Divided.of(each, places.open(each.source), places.open(each.target)) for each in migrations]
        works = [work for each in divided for work in each.works]
        reports = iter(one_report_each(spark, works, MigrationReport))
        reports_by_migration = [_copied(list(islice(reports, len(each.works)))) for each in divided]
        for each in divided:
            end_division(each.division, each.kept)
    return reports_by_migration


class _Divided(NamedTuple):
    """A migration in ranges."""

    works: list[Migration]
    division: Division
    kept: ProgressStore[Division]

    @classmethod
    def of(cls, migration: Migration, source: DatabaseAdapter, target: DatabaseAdapter) -> _Divided:
        kept = migration.ranges_kept(target)
        division = begin_division(source, migration.scope, kept, max_writers(target), DELTAS_A_RANGE)
        if not division.id:
            return cls([migration], division, kept)
        found = [
            replace(
                migration,
                name=f"{migration.name}#{number}",
                scope=replace(migration.scope, since=each.since, until=each.until),
                division=division.id,
            )
            for number, each in enumerate(division.ranges())
        ]
        return cls(found, division, kept)


class _OpenPlaces:
    """Places opened once each."""

    def __init__(self, closing: ExitStack) -> None:
        self._closing = closing
        self._opened: dict[bytes, DatabaseAdapter] = {}

    def open(self, place: Backend) -> DatabaseAdapter:
        key = msgspec.json.encode(place)
        if key not in self._opened:
            (self._opened[key],) = open_backends([place], self._closing)
        return self._opened[key]


def _moved(reports: Sequence[TierReport]) -> TierReport:
    return TierReport(
        sum(each.deltas for each in reports),
        sum(each.id_sum for each in reports) % 2**64,
        sum(each.pages for each in reports),
        max(each.until for each in reports),
    )


def _copied(reports: Sequence[MigrationReport]) -> MigrationReport:
    """Of the ranges of one migration; seconds are those of the longest."""
    return MigrationReport(
        sum(each.deltas for each in reports),
        sum(each.copied for each in reports),
        sum(each.pages for each in reports),
        sum(each.id_sum for each in reports) % 2**64,
        max(each.seconds for each in reports),
        verified=all(each.verified for each in reports),
    )

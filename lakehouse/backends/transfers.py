"""Moves deltas between backends in Spark tasks: flows, tiering and migrations.

A backend is one or more adapters, each of which stores deltas (changes of rows) at a database or an object store. A
gateway is one app's stream of deltas. A flow copies deltas that meet a filter from one backend to another, or into the
lake: then it pushes to gateways, whose flushes write the deltas. Tiering moves old deltas from a hot backend to a cold
one. A migration copies days of tables to another backend and verifies the copy; it continues after an interruption,
because its progress is stored. A *mark* is such a progress, stored at an adapter. A large tiering or migration is
divided into ranges of hlcs (the clients' timestamps), one task each. This division is stored, so that a repeat after a
crash has the same ranges (`lakesync.adapters.transfer.migration`). The driver receives only counts and errors. The
assets of transfers (`assets.transfers`) call this module.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from lakehouse.backends.adapter_tasks import on_executors, one_report_each, open_backends
from lakehouse.gateway_connections import MAX_REQUEST_BYTES, Intake, is_rebuilt, open_intake
from lakesync.adapters.arrow import from_arrow
from lakesync.adapters.arrow_access import fence_writes, max_writers
from lakesync.adapters.backend_config import Backend, SingleBackend, TieredBackend, WriteTarget
from lakesync.adapters.base import MarkStore, SuspendsTables
from lakesync.adapters.composite import LifecycleAdapter, TierReport
from lakesync.adapters.deltas import DeltaQuery
from lakesync.adapters.transfer.flow_pages import FlowProgress, RowFilter, filtered_pages, new_pages, written_by
from lakesync.adapters.transfer.flows import FlowStep, replay_flow, run_flow
from lakesync.adapters.transfer.follower import count_by_day
from lakesync.adapters.transfer.loads import LoadBarrier
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
from lakesync.adapters.transfer.progress import ProgressInFile, ProgressInMark, ProgressStore, require_marks
from lakesync.config import Config
from lakesync.model import hlc
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import RejectedError, Rejection
from lakesync.model.schema import TableSchema
from lakesync.model.types import RowDelta, SyncPush
from lakesync.wire.json import encode_push

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from lakesync.adapters.base import DatabaseAdapter

DELTAS_PER_PUSH = 1000
"""Deltas in one push into a gateway, at most."""


class Flow(msgspec.Struct, frozen=True):
    """The Spark task of a flow that writes to one adapter."""

    name: str
    """Name of the mark that says how far the adapter is written."""
    source: Backend
    target: WriteTarget
    row_filter: RowFilter
    schemas: tuple[TableSchema, ...] = ()
    """Schemas of the target's destination tables, which have merged rows; empty to write deltas only."""
    replay_range: tuple[int, int] | None = None
    """A range of arrivals (the gateways' timestamps of commits, in whose order a flow copies) that a backfill copies
    again, after new deltas up to its end: first and last arrival. None to copy new deltas only."""
    followers: tuple[str, ...] = ()
    """Names of the destinations' marks at the source. The flow compares them, to find the deltas that a destination
    has written late: behind the arrival up to which the flow has read."""
    flows: tuple[str, ...] = ()
    """Names of the marks of other flows at the source, for the same purpose."""

    def run(self) -> Iterator[FlowStep]:
        """Copy new deltas, then the range to copy again. Yield a step for each page, and one with suspended tables.

        The source may be a destination that tasks are filling in parallel (a load). A `LoadBarrier` keeps the flow from
        reading deltas before the load is complete.
        """
        with ExitStack() as closing:
            source, target, *cold = open_backends(
                [self.source, SingleBackend(self.target.name, self.target.uri), *self.target.cold], closing
            )
            readable, until = LoadBarrier(source), self.replay_range[1] if self.replay_range else None
            written = partial(written_by, source, self.followers, self.flows)
            yield from run_flow(
                readable, target, self.name, self.row_filter, self.schemas, cold=cold, until=until, written=written
            )
            if self.replay_range:
                yield from replay_flow(
                    readable,
                    target,
                    self.name,
                    self.row_filter,
                    self.schemas,
                    self.replay_range,
                    cold=cold,
                    written=written,
                )
            suspended = target.suspended_tables(self.name) if isinstance(target, SuspendsTables) else []
            if suspended:
                progress = ProgressInMark(require_marks(target), self.name, FlowProgress).read()
                tables = tuple(each.table for each in suspended)
                yield FlowStep(0, 0, progress or FlowProgress(self.row_filter), suspended=tables)


class LakeFlow(NamedTuple):
    """The Spark task of a flow into the lake."""

    source: Backend
    row_filter: RowFilter
    into: str | None
    """The gateway to push to; None for the gateway that each delta came from."""
    config: Config
    """The project's configuration, with which the task connects to the gateways."""
    progress_path: Path
    """The file in which the flow's progress is stored."""
    epochs: dict[str, int]
    """The epochs of the staging store, as `store_epochs` returns them."""
    replay_range: tuple[int, int] | None = None
    """A range of arrivals (the gateways' timestamps of commits) that a backfill pushes again, after new deltas up to
    its end: first and last arrival. None to push new deltas only."""
    followers: tuple[str, ...] = ()
    """As `Flow.followers`."""
    flows: tuple[str, ...] = ()
    """As `Flow.flows`."""

    def run(self) -> Iterator[FlowStep]:
        """Push new deltas page by page, then the range to copy again. Yield a step for each page.

        A row that no longer matches the filter is not pushed, even if it matched before.
        """
        progress_file = ProgressInFile(self.progress_path, FlowProgress)
        progress = progress_file.read()
        if progress is None or progress.row_filter != self.row_filter or is_rebuilt(progress.epochs, self.epochs):
            progress = FlowProgress(self.row_filter)
        progress = replace(progress, epochs=self.epochs)
        with ExitStack() as closing:
            (source,) = open_backends([self.source], closing)
            intake = closing.enter_context(open_intake(self.config))
            readable, until = LoadBarrier(source), self.replay_range[1] if self.replay_range else None
            written = partial(written_by, source, self.followers, self.flows)
            pages = new_pages(readable, progress, self.row_filter, _no_stored_rows, until=until, written=written)
            for page in pages:
                copied, rejected = _push(intake, page.deltas, self.into)
                crash_point("flow.after_push")  # tests kill the process here
                progress = replace(page.progress, deltas=progress.deltas + len(copied))
                progress_file.write(progress)
                if page.scanned:
                    yield FlowStep(page.scanned, len(copied), progress, count_by_day(copied), rejected=rejected)
            if self.replay_range:
                first, last = self.replay_range
                before = written()
                query = DeltaQuery(since=first - 1, until=last, tables=self.row_filter.tables)
                for again in filtered_pages(readable, query, progress, self.row_filter, _no_stored_rows):
                    copied, rejected = _push(intake, again.deltas, self.into)
                    days = count_by_day(copied)
                    yield FlowStep(again.scanned, len(copied), progress, days, is_replay=True, rejected=rejected)
                before.require_readable_until(written())  # no load has begun, which would have hidden deltas


def flow(spark: SparkSession, flows: Sequence[Flow | LakeFlow]) -> list[list[FlowStep]]:
    """Run the tasks of a flow. Tasks of `LakeFlow` push to gateways, whose flushes write the deltas to the lake.

    A repeat of such a push changes nothing, because a gateway recognises a delta by its id. Lost progress costs only
    time.

    Args:
        spark: an open Spark session.
        flows: a task for each adapter that is written, or one for the lake.

    Returns:
        The steps of each task, one for each page that was read, in the order of `flows`.

    Raises:
        AdapterError, IntegrityError, ConfigurationError: as `run_flow`.
        BackpressureError: a gateway has too many unflushed deltas; a retry continues.
        LakeSyncError: a gateway rejects a push as a whole.
        LakeUnavailableError: Spark cannot be reached.
    """
    return on_executors(spark, flows, FlowStep)


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


def _no_stored_rows(*_: object) -> set[str]:
    """Return no row ids, where `filtered_pages` asks which rows the target has: a flow into the lake does not look."""
    return set()


def _push(intake: Intake, deltas: pa.Table, into: str | None) -> tuple[pa.Table, tuple[Rejection, ...]]:
    """Push deltas as the clients that wrote them, to the gateway `into`; with None, to the gateway of each delta.

    Returns:
        The pushed deltas, and those that a gateway rejects.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    rejected: list[Rejection] = []
    by_gateway_and_client: dict[tuple[str, str], list[RowDelta]] = {}
    for each in from_arrow(deltas):
        by_gateway_and_client.setdefault((into or each.gateway, each.delta.client_id), []).append(each.delta)
    for (gateway, client), pushed in by_gateway_and_client.items():
        for start in range(0, len(pushed), DELTAS_PER_PUSH):
            rejected += _push_accepted(intake, gateway, client, pushed[start : start + DELTAS_PER_PUSH])
    rejected_ids = pa.array([each.delta_id for each in rejected], pa.string())
    is_rejected = pc.is_in(deltas.column("delta_id").cast(pa.string()), rejected_ids)
    return deltas.filter(pc.invert(is_rejected)), tuple(rejected)


def _push_accepted(intake: Intake, gateway: str, client: str, deltas: list[RowDelta]) -> Iterator[Rejection]:
    """Push a client's deltas without those that the gateway rejects, and yield these. A large push is divided.

    Raises:
        RejectedError: the gateway rejects the push as a whole.
    """
    while deltas:
        body = encode_push(SyncPush(client, tuple(deltas)))
        if len(body) > MAX_REQUEST_BYTES and len(deltas) > 1:
            half = len(deltas) // 2
            yield from _push_accepted(intake, gateway, client, deltas[:half])
            yield from _push_accepted(intake, gateway, client, deltas[half:])
            return
        try:
            return intake.push(gateway, body)
        except RejectedError as error:
            rejected_ids = {each.delta_id for each in error.rejected}
            accepted = [each for each in deltas if each.delta_id not in rejected_ids]
            if len(accepted) == len(deltas):
                raise
            yield from error.rejected
            deltas = accepted


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

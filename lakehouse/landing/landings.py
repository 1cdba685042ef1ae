"""Polls a connector into the lake's table `landing`. The asset of its tables calls it.

A landing is one commit: the rows that the tasks of one read brought, and the cursors of their tables. Landings are
numbered, and a commit is validated from the snapshot whose newest number was read, so Iceberg refuses one of two polls
of the same connector. A row gets its hlc when it lands, later than all before it, so the deltas that follow from a
landing are always the same.

The table `known` has the rows that result from the landings up to a page. It is updated from time to time; newer
landings are read from `landing` itself.
"""

from __future__ import annotations

import time
import uuid
from contextlib import contextmanager, suppress
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, NamedTuple

import grpc
import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.storagelevel import StorageLevel

from lakehouse.file_systems import data_file_path
from lakehouse.landing.commits import commit
from lakehouse.landing.connector_source import read_poll
from lakehouse.landing.landed_files import LandedFile
from lakehouse.landing.poll_tasks import PollWork, TableResult, TableWork
from lakehouse.landing.reading import LandedTables
from lakehouse.landing.rows import PLACE, REPORT, Constants, ReadPosition
from lakehouse.landing.tables import ConnectorTables, landing_name
from lakehouse.spark_errors import lake_errors
from lakehouse.table_definitions import NAMES, LakeNames
from lakesync.connectors.polling import IngestSettings, PollReport, TableReport
from lakesync.connectors.source import Table, Usage
from lakesync.model import hlc
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import FlushError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lakehouse.landing.poll_tasks import OpenSource
    from lakesync.connectors.base import ConnectorConfig
    from lakesync.connectors.source import Cursor

BUDGETS_A_LANDING = 4
"""A task lands at most this many times `memoryBudgetBytes` at once."""


class Polled(NamedTuple):
    """A connector that is polled."""

    config: ConnectorConfig
    open_source: OpenSource
    tables: Sequence[Table]


class LakeLanding(LandedTables):
    """The landings of one connector, for one poll or one replay."""

    def __init__(
        self, spark: SparkSession, polled: Polled, now_ms: Callable[[], int], names: LakeNames = NAMES
    ) -> None:
        """Read how far the connector's tables are.

        Args:
            spark: a session.
            polled: the connector.
            now_ms: returns milliseconds of the gateways' clock.
            names: the lake's names.

        Raises:
            As `LandedTables`.
        """
        config = polled.config
        super().__init__(ConnectorTables(spark, names, config.gateway, config.name), polled.tables)
        self._polled = polled
        self._now_ms = now_ms
        self._places = lake_errors(_places)(self._files, self._tables, config.type)

    def cursor(self, table: str) -> Cursor | None:
        """Return the cursor of a table's last landed page; None before the first."""
        return self._place(table).cursor

    @lake_errors
    def poll(self, ingest: IngestSettings, wanted: Collection[str] | None = None) -> PollReport:
        """Read the changes at the source into `landing`, in tasks of Spark. Tables fail independently.

        Args:
            ingest: the connector's settings.
            wanted: the tables to read; None: all. The count of one may land rows of another.

        Raises:
            LakeUnavailableError: Spark or the catalogue cannot be reached.
        """
        begun = time.monotonic()
        reports = {table: TableReport(table, cursor=self.cursor(table)) for table in self._tables}
        report = PollReport(list(reports.values()))
        due = self._now_ms() - ingest.census_interval_ms
        never = {table for table in self._tables if self._place(table).counted_ms is None}
        late = {table for table in self._tables if table not in never and (self._place(table).counted_ms or 0) <= due}
        try:
            reading = [table for table in self._tables if wanted is None or table in wanted]
            polled = set(reading)
            while reading and (ingest.max_calls is None or report.usage.calls < ingest.max_calls):
                results = self._step(reading, never, ingest, report)
                more = {result.table for result in results if result.more and result.failure is None}
                reading = [table for table in reading if table in more]
            ready = [self._tables[name] for name in self._tables if name in polled and reports[name].error is None]
            counting = [table.name for table in ready if table.name not in reading]
            counting = [table for table in counting if self._tables[table].counted or table in late]
            if counting:
                for table in counting:
                    reports[table].counted = True
                self._step(list(self._tables), late, ingest, report, counting)
        except FlushError as error:
            for each in report.tables:
                each.error = each.error or error
        report.seconds = time.monotonic() - begun
        return report

    def _step(
        self,
        tables: Sequence[str],
        noted: Collection[str],
        ingest: IngestSettings,
        report: PollReport,
        counting: Collection[str] = (),
    ) -> list[TableResult]:
        """Read tables, or take a census of some, and land the result.

        Args:
            tables: the tables to read; in a census those of which pages may come.
            noted: tables whose rows are all read, which is recorded as a census.
            ingest: the connector's settings.
            report: the poll's report, to which the results are added.
            counting: tables of which a census is taken.

        Raises:
            FlushError: the rows were not committed.
        """
        first = max(hlc.start_of(self._now_ms()), self._newest + 1)
        calls = None if ingest.max_calls is None else ingest.max_calls - report.usage.calls
        work = PollWork(
            self._polled.open_source,
            self._polled.config,
            Constants.of(self._in.gateway, self._in.connector, self._number + 1, first),
            first,
            self._newest,
            self._now_ms(),
            tuple(self._work(table, (table in noted) if not counting else table in counting) for table in tables),
            BUDGETS_A_LANDING * ingest.memory_budget_bytes,
            calls,
            ingest.deleted_share if counting else None,
        )
        with computed_once(self._in.spark, read_poll(self._in.spark, work)) as rows:
            reports = rows.where(sf.col("kind") == REPORT).select("columns").collect()
            results = [msgspec.json.decode(row["columns"], type=TableResult) for row in reports]
            crash_point("poll.read")
            failed = {result.table for result in results if result.failure is not None and not result.whole}
            if any(result.landing for result in results if result.table not in failed):
                self._land(rows, work.constants, failed)
                crash_point("poll.landed")
        _add(report, results, failed)
        return results

    def _work(self, name: str, counted: bool) -> TableWork:
        table = self._tables[name]
        return TableWork(name, table.identity, table.counted, self._place(name), self._landed(name), counted)

    def _land(self, rows: DataFrame, constants: Constants, failed: Collection[str]) -> None:
        """Commit the rows that tasks read, except of tables that they could not read completely."""
        wanted = [sf.col("kind") != REPORT, *(sf.col("table_name") != table for table in sorted(failed))]
        batch = ("landing", self._in.gateway, self._in.connector, str(constants.landing), str(uuid.uuid4()))
        where = self._in.condition(landing=constants.landing)
        name = landing_name(self._in.names)
        commit(self._in, name, rows.where(reduce(and_, wanted)), where, self._landing_snapshot, batch)
        self._plan_landing()
        self._number, self._newest = constants.landing, max(file.hlc for file in self._files)
        self._places = _places(self._files, self._tables, self._polled.config.type)  # a lost task may have read again

    def _place(self, table: str) -> ReadPosition:
        return self._places.get(table) or ReadPosition(self._polled.config.type)


def _add(report: PollReport, results: Sequence[TableResult], failed: Collection[str]) -> None:
    """Add the results of tasks to a poll's report."""
    usage = report.usage
    for each in report.tables:
        mine = [result for result in results if result.table == each.table]
        for result in mine:
            usage = Usage(
                usage.calls + result.calls,
                min((left for left in (usage.left, result.left) if left is not None), default=None),
                result.limit if result.limit is not None else usage.limit,
            )
            each.pages += result.pages
            if result.failure is not None:
                each.error = each.error or result.failure.error()
            if each.table in failed:
                continue
            each.rows += result.rows
            each.deleted += result.deleted
            if result.place is not None:
                each.cursor = result.place.cursor
        each.landings += each.table not in failed and any(result.landing for result in mine)
    report.usage = usage


def _places(files: Sequence[LandedFile], tables: Mapping[str, Table], kind: str) -> dict[str, ReadPosition]:
    """Return the newest read position of each table, if a connector of this type wrote it."""
    found: dict[str, ReadPosition] = {}
    for file in sorted(files, key=lambda each: each.last, reverse=True):
        if not any(table not in found and file.may_have(table) for table in tables):
            continue
        file_system, path = data_file_path(file.path)
        of_file = pq.read_table(
            path,
            columns=["landing", "table_name", "columns"],
            filters=pc.field("kind") == PLACE,
            filesystem=file_system,
        )
        newest = sorted(of_file.to_pylist(), key=lambda row: row["landing"])
        mine = {row["table_name"]: msgspec.json.decode(row["columns"], type=ReadPosition) for row in newest}
        found = {**mine, **found}
    return {table: place for table, place in found.items() if table in tables and place.type == kind}


@contextmanager
def computed_once(spark: SparkSession, rows: DataFrame) -> Iterator[DataFrame]:
    """Cache the rows of a DataFrame on the executors' disks, so that several jobs compute them once.

    A local checkpoint would do the same, but belongs to another session if a process has several.

    Args:
        spark: a session.
        rows: the DataFrame.
    """
    name = f"lakesync_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(name)
    spark.catalog.cacheTable(name, StorageLevel.DISK_ONLY)
    try:
        yield spark.table(name)
    finally:
        with suppress(PySparkException, grpc.RpcError):  # a lost session has neither
            spark.catalog.uncacheTable(name)
            spark.catalog.dropTempView(name)

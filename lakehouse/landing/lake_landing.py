"""Lands the rows of one connector: reads its source in Spark tasks, and commits the rows to the table `landing`.

A connector's source is its external system, such as a Jira site. A *landing* is one commit to the Iceberg table
`landing`: the rows that the tasks of one read returned, and the tables' read positions, from which the next poll
continues. Landings are numbered. Iceberg validates a commit from the snapshot in which the newest number was read, so
of two concurrent polls of one connector it rejects one. A row gets its hlc (timestamp) when it lands, later than all
earlier ones. So the deltas (changes of rows) that are computed from a landing, and pushed to the connector's gateway
(an app's stream of changes), are always the same.

A *census* is a list of all ids at the source. It finds deleted rows, if the source does not report deletions.
`lakehouse.landing.polls` creates a `LakeLanding` for each poll and each replay.
"""

from __future__ import annotations

import time
import uuid
from contextlib import contextmanager, suppress
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

import grpc
import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.storagelevel import StorageLevel

from lakehouse.data_files import parse_iceberg_uri
from lakehouse.landing.connector_source import read_poll
from lakehouse.landing.poll_tasks import PollPlan
from lakehouse.landing.reading import LandedTables
from lakehouse.landing.rows import POSITION, REPORT, Constants, LandedFile, ReadPosition, value_tuples
from lakehouse.landing.tables import ConnectorTables, commit_rows
from lakehouse.landing.task_messages import TablePlan, TableResult
from lakehouse.spark_errors import brief, lake_errors
from lakehouse.table_definitions import LakeNames
from lakesync.analysis.expression_trees import combine
from lakesync.connectors.base import Usage
from lakesync.connectors.polling import PollReport, TableReport
from lakesync.model import hlc
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import CommitConflictError, FlushError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lakehouse.landing.poll_tasks import OpenSource
    from lakesync.connectors.base import ConnectorConfig, Cursor, Table
    from lakesync.connectors.polling import IngestSettings

BUDGETS_PER_LANDING = 4
"""A task stops after about this many times the bytes of the connector's setting `memoryBudgetBytes`."""
_RAISED = "USER_RAISED_EXCEPTION"
"""Condition of the error that Spark's function `raise_error` raises."""


class PolledSource(NamedTuple):
    """The source of a connector that is polled."""

    config: ConnectorConfig
    open_source: OpenSource
    """Opens the source, in the driver or in a task."""
    tables: Sequence[Table]
    """The tables that can be polled."""


class LakeLanding(LandedTables):
    """The landings of one connector, for one poll or one replay.

    A poll calls `poll`, which adds landings. A replay pushes rows again that landed before, and only reads. The base
    class reads `landing` and `known` (the current version of each polled row). It has the connector's part of both
    (`_lake_tables`), the polled tables, the landed files, and the newest landing's number, hlc and snapshot.
    """

    def __init__(
        self,
        spark: SparkSession,
        polled: PolledSource,
        now_ms: Callable[[], int],
        names: LakeNames,
        epochs: Mapping[str, int],
    ) -> None:
        """Read how far each of the connector's tables was read.

        Args:
            spark: an open Spark session.
            polled: the connector's source.
            now_ms: returns the server wall time in milliseconds since 1970, by the gateways' clock.
            names: catalogue and namespaces of the lake's tables.
            epochs: as for `LandedTables`.

        Raises:
            LakeUnavailableError, ConfigurationError: as `LandedTables`.
        """
        config = polled.config
        super().__init__(ConnectorTables(spark, names, config.gateway, config.name), polled.tables, epochs)
        self._polled = polled
        self._now_ms = now_ms
        self._positions = lake_errors(_positions)(self._files, self._tables)

    def cursor(self, table: str) -> Cursor | None:
        """Return the cursor of a table's last landed page; None before the first."""
        return self._position(table).cursor

    @lake_errors
    def poll(self, ingest: IngestSettings, wanted: Collection[str] | None = None) -> PollReport:
        """Read the changes at the source into `landing`, in Spark tasks, and take the censuses that are due.

        Tables fail independently; the report has their errors.

        Args:
            ingest: the connector's settings.
            wanted: names of the tables to read; None for all. The census of one may land rows of another.

        Raises:
            LakeUnavailableError: Spark or the catalogue cannot be reached.
        """
        begun = time.monotonic()
        reports = {table: TableReport(table, cursor=self.cursor(table)) for table in self._tables}
        report = PollReport(list(reports.values()))
        now_ms = self._now_ms()
        # A table may need a census in each poll (`needs_census`); the others need one at intervals. The first reading
        # of all rows is recorded as a census.
        last_census_ms = {table: self._position(table).census_ms for table in self._tables}
        without_census = {table for table, last_ms in last_census_ms.items() if last_ms is None}
        # A census in the future means that the clock was set back.
        census_due = {
            table
            for table, last_ms in last_census_ms.items()
            if last_ms is not None and not now_ms - ingest.census_interval_ms < last_ms <= now_ms
        }
        try:
            polled = [table for table in self._tables if wanted is None or table in wanted]
            unfinished = polled
            while unfinished and (ingest.max_calls is None or report.usage.calls < ingest.max_calls):
                results = self._read_and_land(unfinished, ingest, report, first_reads=without_census)
                has_more = {result.table for result in results if result.has_more and result.failure is None}
                unfinished = [table for table in unfinished if table in has_more]
            read = [table for table in polled if table not in unfinished and reports[table].error is None]
            census_tables = [table for table in read if self._tables[table].needs_census or table in census_due]
            if census_tables:
                for table in census_tables:
                    reports[table].census_taken = True
                self._read_and_land(list(self._tables), ingest, report, census_tables=census_tables)
        except (FlushError, CommitConflictError) as error:
            for each in report.tables:
                each.error = each.error or error
        report.seconds = time.monotonic() - begun
        return report

    def _read_and_land(
        self,
        tables: Sequence[str],
        ingest: IngestSettings,
        report: PollReport,
        *,
        first_reads: Collection[str] = (),
        census_tables: Collection[str] = (),
    ) -> list[TableResult]:
        """Read the changes of tables, or take censuses, and land the result in one commit.

        Args:
            tables: the tables to read; with `census_tables` all tables, since a census may land rows of each.
            ingest: the connector's settings.
            report: the poll's report, to which the results are added.
            first_reads: tables of which all rows are read for the first time, which is recorded as a census.
            census_tables: tables of which a census is taken; empty to read changes.

        Raises:
            FlushError, CommitConflictError: the rows were not committed.
        """
        first = max(hlc.start_of(self._now_ms()), self._newest + 1)
        max_calls = None if ingest.max_calls is None else ingest.max_calls - report.usage.calls
        recorded = census_tables or first_reads
        plan = PollPlan(
            self._polled.open_source,
            self._polled.config,
            Constants.of(self._lake_tables.gateway, self._lake_tables.connector, self._number + 1, first),
            first=first,
            newest=self._newest,
            now_ms=self._now_ms(),
            tables=tuple(self._table_plan(table, records_census=table in recorded) for table in tables),
            max_bytes=BUDGETS_PER_LANDING * ingest.memory_budget_bytes,
            max_calls=max_calls,
            deleted_share=ingest.deleted_share if census_tables else None,
        )
        with _computed_once(self._lake_tables.spark, read_poll(self._lake_tables.spark, plan)) as rows:
            reports = rows.where(sf.col("kind") == REPORT).select("columns").collect()
            results = [msgspec.json.decode(row["columns"], type=TableResult) for row in reports]
            crash_point("poll.read")  # tests kill the process here
            # A large table is divided into parts for several tasks. If a part was not read, nothing of the table lands.
            failed = {result.table for result in results if result.failure is not None and not result.lands_partially}
            if any(result.has_rows_to_land for result in results if result.table not in failed):
                self._land(rows, plan.constants, failed)
                crash_point("poll.landed")
        _add_results(report, results, failed)
        return results

    def _table_plan(self, name: str, *, records_census: bool) -> TablePlan:
        """Return what a poll's tasks need to know of a table."""
        table = self._tables[name]
        return TablePlan(
            name,
            table.identity,
            lands_only_changes=table.needs_census,
            position=self._position(name),
            landed=self._landed(name),
            records_census=records_census,
        )

    def _land(self, rows: DataFrame, constants: Constants, failed: Collection[str]) -> None:
        """Commit the rows that tasks read, except those of failed tables.

        If an executor was lost with its cached rows, Spark reads their part at the source again. If that fails, the
        result is a report with the failure instead of rows. `raise_error` then stops the commit, because a divided
        table must not land without one of its parts.

        Raises:
            FlushError: rows were lost with a Spark executor; nothing was committed.
            CommitConflictError: another poll of the connector landed rows meanwhile; nothing was committed.
        """
        is_failed = combine(or_, [sf.lit(False), *(sf.col("table_name") == table for table in sorted(failed))])
        is_report = sf.col("kind") == REPORT
        cause = sf.get_json_object("columns", "$.failure.message")
        is_lost = is_report & cause.isNotNull() & (sf.get_json_object("columns", "$.lands_partially") == "false")
        lands = sf.when(is_failed, sf.lit(False)).when(is_lost, sf.raise_error(cause)).otherwise(~is_report)
        tables = self._lake_tables
        batch = ("landing", tables.gateway, tables.connector, str(constants.landing), str(uuid.uuid4()))
        where = tables.condition(landing=constants.landing)
        try:
            commit_rows(tables, tables.names.landing, rows.where(lands), where, self._landing_snapshot, batch)
        except PySparkException as error:
            if _RAISED in str(error):
                raise FlushError(
                    f"rows that were read were lost with a Spark executor, and could not be read again "
                    f"({brief(error)}); the next poll reads them"
                ) from error
            raise
        self._read_landing_files()
        self._number, self._newest = constants.landing, max(file.highest_hlc for file in self._files)
        # from the commit, not from the reports: a task that was lost meanwhile may have read other rows
        self._positions = _positions(self._files, self._tables)

    def _position(self, table: str) -> ReadPosition:
        """Return where the last poll of a table stopped; without a cursor before the first.

        If the last poll read another source, the position has no cursor, and a census is due, which finds that source's
        rows.
        """
        own = ReadPosition(self._polled.config.type, self._tables[table].origin)
        last = self._positions.get(table)
        if last is None:
            return own
        if last.type == own.type and last.origin in {own.origin, ""}:  # earlier versions stored no origin
            return msgspec.structs.replace(last, origin=own.origin)
        return msgspec.structs.replace(own, census_ms=0)


def _add_results(report: PollReport, results: Sequence[TableResult], failed: Collection[str]) -> None:
    """Add the results of tasks to a poll's report. Of the `failed` tables, which did not land, only usage and error."""
    usage = report.usage
    for each in report.tables:
        of_table = [result for result in results if result.table == each.table]
        for result in of_table:
            usage = Usage(
                usage.calls + result.calls,
                min(
                    (calls_left for calls_left in (usage.left, result.calls_left) if calls_left is not None),
                    default=None,
                ),
                result.call_limit if result.call_limit is not None else usage.limit,
            )
            each.pages += result.pages
            if result.failure is not None:
                each.error = each.error or result.failure.error()
            if each.table in failed:
                continue
            each.rows += result.rows
            each.deleted += result.deleted
            if result.position is not None:
                each.cursor = result.position.cursor
        each.landings += each.table not in failed and any(result.has_rows_to_land for result in of_table)
    report.usage = usage


def _positions(files: Sequence[LandedFile], tables: Mapping[str, Table]) -> dict[str, ReadPosition]:
    """Return table → its newest read position in `landing`."""
    newest: dict[str, tuple[int, str]] = {}  # table → landing and JSON of its newest position so far
    # After a compaction, a file may have rows of many landings, and another file those of a landing between them.
    for file in sorted(files, key=lambda each: each.landing, reverse=True):
        if not any(newest.get(table, (0, ""))[0] < file.landing and file.may_have(table) for table in tables):
            continue
        file_system, path = parse_iceberg_uri(file.path)
        position_rows = pq.read_table(
            path,
            columns=["landing", "table_name", "columns"],
            filters=pc.field("kind") == POSITION,
            filesystem=file_system,
        )
        for landing, table, position in value_tuples(position_rows, "landing", "table_name", "columns"):
            newest[table] = max((landing, position), newest.get(table, (0, "")))
    return {
        table: msgspec.json.decode(text, type=ReadPosition) for table, (_, text) in newest.items() if table in tables
    }


@contextmanager
def _computed_once(spark: SparkSession, rows: DataFrame) -> Iterator[DataFrame]:
    """Cache a DataFrame's rows on the executors' disks during the block, so that several jobs compute them once.

    `DataFrame.localCheckpoint` would do the same, but it may use another session of the process.
    """
    name = f"lakesync_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(name)
    spark.catalog.cacheTable(name, StorageLevel.DISK_ONLY)
    try:
        yield spark.table(name)
    finally:
        with suppress(PySparkException, grpc.RpcError):  # a lost session has no cache and no view
            spark.catalog.uncacheTable(name)
            spark.catalog.dropTempView(name)

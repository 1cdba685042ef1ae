"""Polls one connector: reads its source, lands the rows in the lake, and pushes the deltas to the gateway.

A connector's source is its external system, such as a Jira site. To land rows is to append them, as the source has
them, to the Iceberg table `landing`; the deltas to push are computed from the landed rows. A failed push therefore
needs no second call to the source, and past days can be replayed. The Dagster assets of the connectors' tables
(`assets.ingest`) call `poll_connector` and `replay_connector`.

A census is a list of all ids at the source. It finds deleted rows, if the source does not report deletions.

A landing is one commit to that table: the rows that the tasks of one read returned, and the cursors of their tables.
Landings are numbered. Iceberg validates a commit from the snapshot in which the newest number was read, so of two
concurrent polls of one connector it rejects one. A row gets its hlc (timestamp) when it lands, later than all earlier
ones, so the deltas that are computed from a landing are always the same.
"""

from __future__ import annotations

import time
import uuid
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

import grpc
import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.storagelevel import StorageLevel

from lakehouse.data_files import data_file_path
from lakehouse.landing.connector_source import read_poll
from lakehouse.landing.delivery import Delivery, DeliveryReport
from lakehouse.landing.poll_tasks import PollPlan, TablePlan, TableResult
from lakehouse.landing.reading import LandedTables
from lakehouse.landing.rows import POSITION, REPORT, Constants, LandedFile, ReadPosition
from lakehouse.landing.tables import ConnectorTables, commit_rows, landing_name
from lakehouse.spark_errors import brief, lake_errors
from lakehouse.table_definitions import NAMES, LakeNames
from lakesync.connectors import Connectors
from lakesync.connectors.base import Table, Usage
from lakesync.connectors.polling import IngestSettings, PollReport, TableReport
from lakesync.model import hlc
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import (
    FlushError,
    LakeSyncError,
    LakeUnavailableError,
    NotFoundError,
    StagingUnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from datetime import date

    from pyspark.sql import DataFrame, SparkSession

    from lakehouse.gateway_connections import OpenIntake
    from lakehouse.landing.poll_tasks import OpenSource
    from lakehouse.table_definitions import LakeNames
    from lakesync.config import Config
    from lakesync.connectors.base import ConnectorConfig, Cursor, Table
    from lakesync.staging.store.pipeline import FlushStore

BUDGETS_PER_LANDING = 4
"""From one task, a landing has at most about this many times the connector's setting `memoryBudgetBytes` of rows."""
_RAISED = "USER_RAISED_EXCEPTION"
"""Spark's error condition of `raise_error`."""


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
    (`_iceberg`), the polled tables, the landed files, and the newest landing's number, hlc and snapshot.
    """

    def __init__(
        self, spark: SparkSession, polled: PolledSource, now_ms: Callable[[], int], names: LakeNames = NAMES
    ) -> None:
        """Read how far each of the connector's tables was read.

        Args:
            spark: an open Spark session.
            polled: the connector's source.
            now_ms: returns the server wall time in milliseconds since 1970, by the gateways' clock.
            names: catalogue and namespaces of the lake's tables.

        Raises:
            LakeUnavailableError, ConfigurationError: as `LandedTables`.
        """
        config = polled.config
        super().__init__(ConnectorTables(spark, names, config.gateway, config.name), polled.tables)
        self._polled = polled
        self._now_ms = now_ms
        self._positions = lake_errors(_positions)(self._files, self._tables, config.type)

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
        due_ms = self._now_ms() - ingest.census_interval_ms
        # A census compares all ids at the source with the known rows. A table whose source does not report deletions
        # needs one in each poll (`needs_census`), the others at intervals. Reading all rows for the first time counts
        # as one.
        last_census_ms = {table: self._position(table).counted_ms for table in self._tables}
        never_counted = {table for table, last_ms in last_census_ms.items() if last_ms is None}
        census_due = {table for table, last_ms in last_census_ms.items() if last_ms is not None and last_ms <= due_ms}
        try:
            polled = [table for table in self._tables if wanted is None or table in wanted]
            unfinished = polled
            while unfinished and (ingest.max_calls is None or report.usage.calls < ingest.max_calls):
                results = self._read_and_land(unfinished, ingest, report, first_reads=never_counted)
                has_more = {result.table for result in results if result.has_more and result.failure is None}
                unfinished = [table for table in unfinished if table in has_more]
            read = [table for table in polled if table not in unfinished and reports[table].error is None]
            counted = [table for table in read if self._tables[table].needs_census or table in census_due]
            if counted:
                for table in counted:
                    reports[table].census_taken = True
                self._read_and_land(list(self._tables), ingest, report, counted=counted)
        except FlushError as error:
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
        counted: Collection[str] = (),
    ) -> list[TableResult]:
        """Read the changes of tables, or take censuses, and land the result in one commit.

        Args:
            tables: the tables to read; with `counted` all tables, since a census may land rows of each.
            ingest: the connector's settings.
            report: the poll's report, to which the results are added.
            first_reads: tables of which all rows are read for the first time, which is recorded as a census.
            counted: tables of which a census is taken; empty to read changes.

        Raises:
            FlushError: the rows were not committed.
        """
        first = max(hlc.start_of(self._now_ms()), self._newest + 1)
        max_calls = None if ingest.max_calls is None else ingest.max_calls - report.usage.calls
        with_census = counted or first_reads
        plan = PollPlan(
            self._polled.open_source,
            self._polled.config,
            Constants.of(self._iceberg.gateway, self._iceberg.connector, self._number + 1, first),
            first=first,
            newest=self._newest,
            now_ms=self._now_ms(),
            tables=tuple(self._table_plan(table, records_census=table in with_census) for table in tables),
            max_bytes=BUDGETS_PER_LANDING * ingest.memory_budget_bytes,
            max_calls=max_calls,
            deleted_share=ingest.deleted_share if counted else None,
        )
        with computed_once(self._iceberg.spark, read_poll(self._iceberg.spark, plan)) as rows:
            reports = rows.where(sf.col("kind") == REPORT).select("columns").collect()
            results = [msgspec.json.decode(row["columns"], type=TableResult) for row in reports]
            crash_point("poll.read")
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
            FlushError: the rows were not committed.
        """
        is_failed = reduce(or_, (sf.col("table_name") == table for table in sorted(failed)), sf.lit(False))
        is_report = sf.col("kind") == REPORT
        cause = sf.get_json_object("columns", "$.failure.message")
        is_lost = is_report & cause.isNotNull() & (sf.get_json_object("columns", "$.lands_partially") == "false")
        lands = sf.when(is_failed, sf.lit(False)).when(is_lost, sf.raise_error(cause)).otherwise(~is_report)
        batch = ("landing", self._iceberg.gateway, self._iceberg.connector, str(constants.landing), str(uuid.uuid4()))
        where = self._iceberg.condition(landing=constants.landing)
        name = landing_name(self._iceberg.names)
        try:
            commit_rows(self._iceberg, name, rows.where(lands), where, self._landing_snapshot, batch)
        except PySparkException as error:
            if _RAISED in str(error):
                raise FlushError(
                    f"rows that were read were lost with a Spark executor, and could not be read again "
                    f"({brief(error)}); the next poll reads them"
                ) from error
            raise
        self._plan_landing()
        self._number, self._newest = constants.landing, max(file.highest_hlc for file in self._files)
        # from the commit, not from the reports: a task that was lost meanwhile may have read other rows
        self._positions = _positions(self._files, self._tables, self._polled.config.type)

    def _position(self, table: str) -> ReadPosition:
        """Return where the last poll of a table stopped; an empty position before the first."""
        return self._positions.get(table) or ReadPosition(self._polled.config.type)


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


def _positions(
    files: Sequence[LandedFile], tables: Mapping[str, Table], connector_type: str
) -> dict[str, ReadPosition]:
    """Return table → its newest read position in `landing`, if a connector of the given type wrote it."""
    found: dict[str, ReadPosition] = {}
    for file in sorted(files, key=lambda each: each.last_page, reverse=True):
        if not any(table not in found and file.may_have(table) for table in tables):
            continue
        file_system, path = data_file_path(file.path)
        position_rows = pq.read_table(
            path,
            columns=["landing", "table_name", "columns"],
            filters=pc.field("kind") == POSITION,
            filesystem=file_system,
        )
        newest = sorted(position_rows.to_pylist(), key=lambda row: row["landing"])
        of_file = {row["table_name"]: msgspec.json.decode(row["columns"], type=ReadPosition) for row in newest}
        found = {**of_file, **found}
    return {table: position for table, position in found.items() if table in tables and position.type == connector_type}


@contextmanager
def computed_once(spark: SparkSession, rows: DataFrame) -> Iterator[DataFrame]:
    """Cache a DataFrame's rows on the executors' disks during the block, so that several jobs compute them once.

    `DataFrame.localCheckpoint` would do the same, but it may use another session of the process.

    Args:
        spark: an open Spark session.
        rows: the DataFrame to cache.
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


class Connection(NamedTuple):
    """The connections of a run that a poll needs."""

    config: Config
    spark: SparkSession
    names: LakeNames
    """Catalogue and namespaces of the lake's tables."""
    store: FlushStore
    now_ms: Callable[[], int]
    """Returns the server wall time in milliseconds since 1970, by the gateways' clock."""
    open_intake: OpenIntake
    """Opens the connection that pushes to the gateway."""


@dataclass
class TablePoll:
    """The result of a poll or replay for one table."""

    table: str
    read: TableReport | None = None
    """What was read from the source; None in a replay."""
    delivered: DeliveryReport = field(default_factory=DeliveryReport)
    """What was pushed to the gateway."""
    error: LakeSyncError | None = None
    """Why the table was not read or pushed completely; None if it was. The next poll continues from there."""


@dataclass
class ConnectorPoll:
    """The result of a poll or replay of a connector."""

    tables: list[TablePoll]
    report: PollReport = field(default_factory=PollReport)
    """What the poll read from the source; empty in a replay."""

    @property
    def errors(self) -> list[LakeSyncError]:
        """The errors of the tables, each message once."""
        found = {str(each.error): each.error for each in self.tables if each.error is not None}
        return list(found.values())


def poll_connector(
    connection: Connection, gateway: str, name: str, tables: Collection[str] | None = None
) -> ConnectorPoll:
    """Read the changes at a connector's source, land them, and push the deltas. Tables fail independently.

    Args:
        connection: the connections of the run.
        gateway: the connector's gateway.
        name: the connector's name.
        tables: names of the tables to poll; None for all.

    Raises:
        NotFoundError: there is no such connector.
        ConfigurationError: its secrets cannot be read.
        LakeUnavailableError, StagingUnavailableError: Spark or the gateway cannot be reached.
    """
    with ExitStack() as stack:
        polled, landing, delivery, ingest = _open(stack, connection, gateway, name)
        report = landing.poll(ingest, tables)
        result = ConnectorPoll([], report)
        for table, read in zip(polled.tables, report.tables, strict=True):
            if tables is None or table.name in tables:
                result.tables.append(_deliver(delivery, table, read))
        return result


def replay_connector(
    connection: Connection, gateway: str, name: str, days: Sequence[date], tables: Collection[str] | None = None
) -> ConnectorPoll:
    """Push the deltas that landed on past days again, without a call to the source.

    Args:
        connection: the connections of the run.
        gateway: the connector's gateway.
        name: the connector's name.
        days: UTC days on which rows landed.
        tables: names of the tables whose deltas are pushed; None for all.

    Raises:
        NotFoundError, ConfigurationError, LakeUnavailableError, StagingUnavailableError: as `poll_connector`.
    """
    with ExitStack() as stack:
        polled, _, delivery, _ = _open(stack, connection, gateway, name)
        result = ConnectorPoll([])
        for table in polled.tables:
            if tables is not None and table.name not in tables:
                continue
            each = TablePoll(table.name)
            result.tables.append(each)
            try:
                each.delivered = delivery.replay(table, days)
            except (LakeUnavailableError, StagingUnavailableError):
                raise
            except LakeSyncError as error:
                each.error = error
        return result


def _open(
    stack: ExitStack, connection: Connection, gateway: str, name: str
) -> tuple[PolledSource, LakeLanding, Delivery, IngestSettings]:
    """Open a registered connector's source, its landed tables and the connection to its gateway.

    Args:
        stack: closes the source at the end.
        connection: the connections of the run.
        gateway: the connector's gateway.
        name: the connector's name.

    Returns:
        The source, what lands its rows, what pushes them, and the connector's `ingest` settings.

    Raises:
        NotFoundError: there is no such connector, or it is not polled.
        ConfigurationError: its secrets cannot be read.
    """
    config, spark, names, store, now_ms, open_intake = connection
    stored = next((each for each in store.connectors(gateway) if each.name == name), None)
    if stored is None or stored.ingest is None:
        raise NotFoundError(f"gateway {gateway!r} has no connector {name!r} that is polled: register it with `ingest`")
    types = Connectors.configured(config)
    opened = types.open(gateway, stored)
    connector_type = types.find(stored.type)
    assert connector_type is not None
    source = stack.enter_context(closing(connector_type.open_source(opened)))
    ingest = IngestSettings.of(stored.ingest)
    polled = PolledSource(opened, connector_type.open_source, source.tables)
    landing = LakeLanding(spark, polled, now_ms, names)
    delivery = Delivery(
        landing,
        open_intake,
        gateway,
        lambda: store.request_flush(gateway),
        chunk=ingest.chunk_size,
    )
    return polled, landing, delivery, ingest


def _deliver(delivery: Delivery, table: Table, read: TableReport) -> TablePoll:
    """Push what has landed of a table. It does so too if reading the table failed after some pages.

    An error of this table is returned in the result, so that the other tables go on.

    Raises:
        LakeUnavailableError, StagingUnavailableError: Spark or the gateway cannot be reached, so no table could go on.
    """
    result = TablePoll(table.name, read, error=read.error)
    try:
        result.delivered = delivery.deliver(table)
    except (LakeUnavailableError, StagingUnavailableError):
        raise
    except LakeSyncError as error:
        result.error = result.error or error
    return result

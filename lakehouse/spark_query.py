"""Runs a SQL query on the lake in Spark: the process behind `lakesync query --engine spark`.

The query reads the lake's tables as if all accepted deltas (changes of rows) were in them. A gateway is one app's
stream of deltas. To the rows of a state table (the current rows of one synced table, of all gateways) it merges the
deltas that the table lacks: newer ones of the history (the table `deltas`), and those that are not flushed to the lake
yet. `lakesync.analysis.plans`, which the other engine (DuckDB, in the process of the command) also uses, plans which
snapshots and deltas to read. Each table of the statement becomes a temporary view.

`python -m lakehouse.spark_query FD` reads `{"sql", "arrival", "snapshot"}` as JSON from stdin: the statement, and to
read a past state the last arrival (timestamp of a push) or the id of an Iceberg snapshot; otherwise both are null. It
writes the result to the file descriptor FD as an Arrow stream, or an error as JSON, `{"code", "error"}`, with exit code
3. FD is not stdout, because libraries may write there.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import pyarrow as pa
import sqlglot
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from sqlglot import exp
from sqlglot.optimizer.scope import traverse_scope

from lakehouse.sessions import session
from lakehouse.spark_errors import brief, is_lost, lake_errors
from lakehouse.table_access import at_snapshot
from lakehouse.table_definitions import DELTAS_FIELDS, LakeNames
from lakehouse.tables.kernel import STORED
from lakehouse.tables.merge_job import merged_frames
from lakehouse.tables.slices import ROWS_PER_SLICE, Slicing
from lakesync.analysis.as_of import AsOf
from lakesync.analysis.catalogue import LakeReader
from lakesync.analysis.expression_trees import combine
from lakesync.analysis.plans import BASE_COLUMNS, INFERRED_TYPE, HistoryPlan, Planner, StatePlan, explain_unknown_column
from lakesync.analysis.statement import Statement, parse_statement
from lakesync.analysis.unflushed import unflushed_table
from lakesync.config import Config, load
from lakesync.model.errors import LakeSyncError, ValidationError
from lakesync.model.hlc import COUNTER_BITS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from lakesync.analysis.plans import SnapshotRows
    from lakesync.analysis.statement import TableReference

LOG_POSITION = ["gateway", "shard", "epoch", "seq", "ordinal"]
"""Columns that identify a delta by its position in staging's log: the log, the push's number in it, and the delta's
position in its push."""
_ERROR_EXIT_CODE = 3
"""Exit code if the response is an error."""


def query(config: Config, sql: str, as_of: AsOf | None = None) -> pa.Table:
    """Run a query on the lake, merged with unflushed deltas, in a Spark session of its own.

    Args:
        config: the project's configuration.
        sql: one statement in Spark's SQL.
        as_of: the time or snapshot to read; None for the present.

    Raises:
        ValidationError: the SQL is invalid, or Spark cannot run it.
        NotFoundError: a table or the snapshot does not exist.
        LakeUnavailableError: Spark cannot be reached.
        StagingUnavailableError: unflushed deltas cannot be read.
    """
    with session(config) as spark:
        return query_in_session(spark, config, sql, as_of)


def query_in_session(spark: SparkSession, config: Config, sql: str, as_of: AsOf | None = None) -> pa.Table:
    """Run a query as `query` does, in an open session. Views of earlier queries are replaced.

    Args:
        spark: an open Spark session.
        config: the project's configuration.
        sql: one statement in Spark's SQL.
        as_of: the time or snapshot to read; None for the present.

    Raises:
        ValidationError, NotFoundError, LakeUnavailableError, StagingUnavailableError: as `query`.
    """
    statement = parse_statement(sql, dialect="spark")
    unflushed = unflushed_table(config)  # before the lake: a delta that is flushed meanwhile is read twice, not missed
    with LakeReader(config) as lake:
        planner = Planner(lake, unflushed, as_of, statement.tables)
        return _run_statement(_Views(spark, config, planner, unflushed), statement)


class _Views:
    """Creates a temporary view for each table in a statement, with its rows at the requested time or snapshot."""

    def __init__(self, spark: SparkSession, config: Config, planner: Planner, unflushed: pa.Table) -> None:
        self.columns: dict[str, list[str]] = {}
        """Table name in the statement → the columns of its view."""
        self._spark = spark
        self._planner = planner
        self._names = LakeNames(config.lake.catalog, config.lake.system_namespace, config.lake.namespace)
        reads_unflushed = unflushed.num_rows and planner.snapshot_ms is None  # None: no snapshot was requested
        self._unflushed = spark.createDataFrame(unflushed) if reads_unflushed else None

    def run(self, statement: Statement) -> pa.Table:
        """Create every view and run the statement.

        Raises:
            NotFoundError: a table does not exist, or did not exist at that time.
        """
        views = {}
        for number, each in enumerate(self._planner.references):
            if self._planner.is_history(each):
                rows = self._history(self._planner.history())
            else:
                rows = self._state(each, self._planner.state(each), statement)
            self.columns.setdefault(each.qualified, rows.columns)
            rows.createOrReplaceTempView(f"__lake_{number}")
            views[each.namespace, each.name] = f"__lake_{number}"
        return self._spark.sql(_with_views(statement.sql, views)).toArrow()

    def _history(self, plan: HistoryPlan) -> DataFrame:
        """Return the history and the unflushed deltas, whose batch id is null."""
        rows = self._spark.createDataFrame([], DELTAS_FIELDS)
        if plan.snapshot is not None:
            rows = at_snapshot(self._spark, self._names.deltas, plan.snapshot)
        if self._unflushed is not None:
            # a delta that was flushed after the log was read is in both
            not_in_lake = self._unflushed.join(rows.select(*LOG_POSITION), LOG_POSITION, "anti")
            day = sf.to_date(sf.timestamp_millis(sf.shiftright("arrival", COUNTER_BITS)))
            rows = rows.unionByName(not_in_lake.withColumn("day", day), allowMissingColumns=True)
        return rows if plan.upto is None else rows.where(sf.col("arrival") <= plan.upto)

    def _state(self, wanted: TableReference, plan: StatePlan, statement: Statement) -> DataFrame:
        """Return a state table's visible rows, merged with newer deltas.

        The frame has the typed columns. Columns without a type in the schema (untyped) have a type inferred from their
        values, which is expensive, so the frame has only those that the statement reads.

        There are three cases: without newer deltas and untyped columns the stored rows are the result; otherwise the
        deltas are merged into them, after a first merge that finds the types of untyped columns if it has to.

        Raises:
            NotFoundError: there is neither a table nor a delta.
        """
        bases = [self._base(plan, base) for base in plan.parts.bases]  # snapshots of the table, each with some gateways
        newer = self._newer_deltas(plan)
        newer_count = newer.count() if newer is not None else 0
        if plan.table is None and not newer_count:
            raise self._planner.unknown_table(wanted)
        stored = [each.select(*STORED.names) for each in bases]  # the columns that a merge reads
        base = combine(lambda first, second: first.unionAll(second), stored) if stored else None
        increment = newer if newer is not None and newer_count else self._spark.createDataFrame([], DELTAS_FIELDS)
        total = newer_count + sum(plan.row_count(each.snapshot) for each in plan.parts.bases)
        slicing = Slicing.of(total, max(1, -(-total // ROWS_PER_SLICE)))  # to bound memory
        untyped: dict[str, str] = {}
        if plan.table is None or statement.reads_others([*BASE_COLUMNS, *plan.typed]):  # it may read untyped columns
            # merged without typed columns, for the values in `_cells`
            merged = merged_frames(increment, base, (), slicing) if newer_count or base is None else base
            inferred = self._inferred_types(merged, plan)
            self.columns[wanted.qualified] = [*BASE_COLUMNS, *plan.typed, *inferred]
            untyped = {name: kind for name, kind in inferred.items() if statement.reads(name)}
        result = [*BASE_COLUMNS, *plan.typed, *untyped]
        are_filled = all(plan.typed.keys() <= plan.fields_of(each.snapshot) for each in plan.parts.bases)
        if bases and are_filled and not newer_count and not untyped:  # nothing to merge: the stored rows are the result
            stored = [each.select(*result, "_gone") for each in bases]
            rows = combine(lambda first, second: first.unionAll(second), stored)
        else:
            rows = merged_frames(increment, base, [*plan.typed.items(), *untyped.items()], slicing)
        return rows.where(~sf.col("_gone")).select(*result)  # `_gone`: the row is deleted

    def _base(self, plan: StatePlan, base: SnapshotRows) -> DataFrame:
        """Return the rows of a snapshot of the state table, of one gateway or of all."""
        name = LakeNames(self._names.catalogue, self._names.system, plan.namespace).state(plan.name)
        rows = at_snapshot(self._spark, name, base.snapshot)
        return rows if base.gateway is None else rows.where(sf.col("_gateway") == base.gateway)

    def _inferred_types(self, rows: DataFrame, plan: StatePlan) -> dict[str, str]:
        """Return column → inferred type, for the untyped columns. The lake has their values only in `_cells`."""
        cells = rows.select(sf.explode("_cells").alias("name", "cell"))
        texts = cells.select("name", sf.col("cell.value").alias("value")).where(~sf.col("name").isin(*plan.typed))
        types = {
            row["name"]: row["kind"]
            for row in texts.groupBy("name").agg(sf.expr(INFERRED_TYPE).alias("kind")).collect()
        }
        return {name: types[name] for name in plan.untyped(types)}

    def _newer_deltas(self, plan: StatePlan) -> DataFrame | None:
        """Return the deltas that are merged onto the base snapshots; None if no delta is newer than these."""
        if plan.parts.newer is None:
            return None
        marks, upto = plan.parts.newer
        deltas = self._planner.deltas
        current = deltas.current_snapshot() if deltas is not None else None
        parts = [self._unflushed] if self._unflushed is not None else []
        if current is not None:
            rows = at_snapshot(self._spark, self._names.deltas, current.snapshot_id)
            parts.append(rows.where(_after_marks(marks)))
        wanted = sf.col("table_name") == plan.name
        if plan.gateways.names:
            of_named_gateways = sf.col("gateway").isin(*plan.gateways.names)
            wanted &= ~of_named_gateways if plan.gateways.all_except else of_named_gateways
        if upto is not None:
            wanted &= sf.col("arrival") <= upto
        if not parts:
            return None
        return reduce(lambda first, second: first.unionByName(second, allowMissingColumns=True), parts).where(wanted)


def _after_marks(marks: Mapping[str, int]) -> Column:
    """Return the condition for deltas that a snapshot of a state table lacks.

    Args:
        marks: gateway → the arrival (the gateway's timestamp of receipt) up to which its deltas are in the snapshot;
            the snapshot lacks all deltas of a gateway that is missing.
    """
    is_lacking = ~sf.col("gateway").isin(*marks) if marks else sf.lit(True)
    newer = [(sf.col("gateway") == gateway) & (sf.col("arrival") > mark) for gateway, mark in marks.items()]
    return combine(or_, [is_lacking, *newer])


def _with_views(sql: str, views: dict[tuple[str | None, str], str]) -> str:
    """Return the query with each table replaced by its view, and `hlc_time` by its definition.

    Args:
        sql: the statement.
        views: (namespace or None, table name) → name of its view.
    """
    tree = sqlglot.parse_one(sql, read="spark")
    sources = [source for scope in traverse_scope(tree) for source in scope.sources.values()]
    for table in (each for each in sources if isinstance(each, exp.Table)):
        view = views.get((table.db or None, table.name))
        if view is not None:
            if not table.alias:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
            table.set("this", exp.to_identifier(view))
            table.set("db", None)
            table.set("catalog", None)
    for column in tree.find_all(exp.Column):
        if column.db and (column.db, column.table) in views:
            column.set("db", None)
            column.set("catalog", None)
    for call in list(tree.find_all(exp.Anonymous)):
        if call.name.lower() == "hlc_time" and len(call.expressions) == 1:
            moment = f"timestamp_millis(shiftright({call.expressions[0].sql(dialect='spark')}, {COUNTER_BITS}))"
            call.replace(sqlglot.parse_one(moment, read="spark"))
    return tree.sql(dialect="spark")


def main() -> int:
    """Run the query that stdin names, write the result to the file descriptor, and return the exit code."""
    request = json.load(sys.stdin)
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # the error has the same text
    with os.fdopen(int(sys.argv[1]), "wb") as response:
        as_of = AsOf(request["arrival"], request["snapshot"]) if request["arrival"] or request["snapshot"] else None
        try:
            result = query(load(), request["sql"], as_of)
        except LakeSyncError as error:
            response.write(json.dumps({"code": error.code, "error": str(error)}).encode())
            return _ERROR_EXIT_CODE
        with pa.ipc.new_stream(response, result.schema) as stream:
            stream.write_table(result)
    return 0


@lake_errors
def _run_statement(views: _Views, statement: Statement) -> pa.Table:
    """Run a statement.

    Raises:
        ValidationError: Spark rejects the statement. Other errors of Spark are LakeUnavailableError.
    """
    try:
        return views.run(statement)
    except PySparkException as error:
        if is_lost(error):
            raise
        name = (error.getMessageParameters() or {}).get("objectName", "")
        message = explain_unknown_column(name.rpartition(".")[2].strip("`"), views.columns) if name else None
        raise ValidationError(message or f"Spark cannot run this: {brief(error)}") from error


if __name__ == "__main__":
    sys.exit(main())

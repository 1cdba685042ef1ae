"""`python -m resources.sql`: a query on Spark, over the same tables and moments as `lakesync query` has on DuckDB.

Reads `{"sql", "arrival", "snapshot"}` as JSON on stdin; writes the answer as an Arrow stream on stdout, or one line of
JSON, `{"code", "error"}`, with exit code 3.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import sqlglot
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from sqlglot import exp

from lakehouse.sessions import session
from lakehouse.spark_errors import brief, is_lost, lake_errors
from lakehouse.table_definitions import LakeNames, at, marks_of, read_version, typed_columns
from lakehouse.tables.merge_job import merged_frames
from lakesync.analysis.moments import AsOf
from lakesync.analysis.statement import Named, read_statement
from lakesync.analysis.unflushed import unflushed
from lakesync.config import Config, load
from lakesync.exceptions import LakeSyncError, NotFoundError, ValidationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PLACE = ["gateway", "shard", "epoch", "seq", "ordinal"]
HISTORY = "deltas"


def query(config: Config, sql: str, as_of: AsOf | None = None) -> pa.Table:
    """Run a query in Spark's SQL.

    Raises:
        ValidationError: the SQL is none, or cannot be run.
        NotFoundError: there is no such table, or no such snapshot.
        LakeUnavailableError: no Spark answers.
        StagingUnavailableError: what is not flushed yet cannot be read.
    """
    statement = read_statement(sql, dialect="spark")
    waiting = unflushed(config)  # before the lake: what moves meanwhile is seen twice rather than never
    with session(config) as spark:
        return _answer(_Views(spark, config, waiting, as_of), statement.tables, sql)


@lake_errors
def _answer(views: _Views, tables: tuple[Named, ...], sql: str) -> pa.Table:
    try:
        return views.run(tables, sql)
    except PySparkException as error:
        if is_lost(error):
            raise
        raise ValidationError(f"Spark cannot run this: {brief(error)}") from error


class _Views:
    """Makes a view of each table at the moment that is asked for."""

    def __init__(self, spark: SparkSession, config: Config, waiting: pa.Table, as_of: AsOf | None) -> None:
        self._spark = spark
        self._names = LakeNames(config.lake.catalog, config.lake.system_namespace, config.lake.namespace)
        self._where = config.namespaces
        self._arrival = as_of.arrival if as_of else None
        self._snapshot = as_of.snapshot if as_of else None
        self._moment: str | None = None
        self._waiting = spark.createDataFrame(waiting) if waiting.num_rows and self._snapshot is None else None

    def run(self, tables: tuple[Named, ...], sql: str) -> pa.Table:
        namespaces = (None, self._names.system, self._names.tables, *self._where.apart)
        mine = [each for each in tables if each.namespace in namespaces]
        if self._snapshot is not None:
            self._moment = self._moment_of([self._full(each) for each in mine], self._snapshot)
        views = {}
        for number, each in enumerate(mine):
            view = f"__lake_{number}"
            make = self._history if self._is_history(each) else self._state
            make(self._full(each)).createOrReplaceTempView(view)
            views[each.namespace, each.name] = view
        return self._spark.sql(_renamed(sql, views)).toArrow()

    def _is_history(self, wanted: Named) -> bool:
        return wanted.name.lower() == HISTORY and wanted.namespace in (None, self._names.system)

    def _full(self, wanted: Named) -> str:
        """Raises: NotFoundError: there is no such table."""
        namespace = wanted.namespace if wanted.namespace in self._where.apart else self._names.tables
        names = msgspec.structs.replace(self._names, tables=namespace)
        name = names.deltas if self._is_history(wanted) else names.state(wanted.name)
        if not self._spark.catalog.tableExists(name):
            known = self._spark.sql(f"SHOW TABLES IN `{names.catalogue}`.`{namespace}`").collect()
            shown = ", ".join(sorted({HISTORY, *(row["tableName"] for row in known)}))
            raise NotFoundError(f"there is no table {wanted.shown!r} in the lake; there are {shown}")
        return name

    def _moment_of(self, tables: list[str], snapshot: int) -> str:
        for name in tables:
            found = self._spark.table(f"{name}.snapshots").where(sf.col("snapshot_id") == snapshot).collect()
            if found:
                return str(found[0]["committed_at"])
        raise NotFoundError(f"no table of the query has snapshot {snapshot}: it may have expired, a time never does")

    def _at_moment(self, name: str) -> DataFrame:
        """A table's snapshot: the one that was asked for, or that of its moment."""
        of_moment = (
            self._spark.table(f"{name}.history")
            .where(f"made_current_at <= TIMESTAMP '{self._moment}'")
            .orderBy(sf.desc("made_current_at"))
        )
        known = self._spark.table(f"{name}.snapshots").where(sf.col("snapshot_id") == sf.lit(self._snapshot))
        if not known.isEmpty() and self._snapshot is not None:
            return at(self._spark, name, self._snapshot)
        first = of_moment.limit(1).collect()
        return at(self._spark, name, first[0]["snapshot_id"]) if first else self._spark.table(name).where("false")

    def _history(self, name: str) -> DataFrame:
        if self._snapshot is not None:
            return self._at_moment(name)
        rows = self._spark.table(name)
        if self._waiting is not None:
            new = self._waiting.join(rows.select(*PLACE), PLACE, "anti")
            day = sf.to_date(sf.timestamp_millis(sf.shiftright("arrival", 16)))
            rows = rows.unionByName(new.withColumn("day", day), allowMissingColumns=True)
        return rows if self._arrival is None else rows.where(sf.col("arrival") <= self._arrival)

    def _state(self, name: str) -> DataFrame:
        columns = list(typed_columns(self._spark, name).items())
        shown = ["_gateway", "_row", "_arrival", *(column for column, _ in columns)]
        if self._snapshot is not None:
            return self._at_moment(name).where(~sf.col("_gone")).select(*shown)
        version = read_version(self._spark, name)
        new = self._spark.table(self._names.deltas).where(self._above(marks_of(version)))
        new = self._of(new, name)
        if self._waiting is not None:
            new = new.unionByName(self._of(self._waiting, name), allowMissingColumns=True)
        whole = self._spark.table(name)
        if self._arrival is None and new.isEmpty():
            return whole.where(~sf.col("_gone")).select(*shown)
        base = whole if self._arrival is None and version.snapshot_id is not None else None
        return merged_frames(new, base, columns).where(~sf.col("_gone")).select(*shown)

    def _above(self, marks: dict[str, int]) -> Column:
        """What a state table has not merged; for a moment in the past, everything up to it."""
        if self._arrival is not None:
            return sf.col("arrival") <= self._arrival
        above = ~sf.col("gateway").isin(*marks) if marks else sf.lit(True)
        for gateway, mark in marks.items():
            above |= (sf.col("gateway") == gateway) & (sf.col("arrival") > mark)
        return above

    def _of(self, deltas: DataFrame, name: str) -> DataFrame:
        namespace, table = name.replace("`", "").split(".")[1:]
        whose = self._where.within(namespace)
        mine = deltas.where(sf.col("table_name") == table)
        if whose.names:
            among = sf.col("gateway").isin(*whose.names)
            mine = mine.where(~among if whose.others else among)
        return mine if self._arrival is None else mine.where(sf.col("arrival") <= self._arrival)


def _renamed(sql: str, views: dict[tuple[str | None, str], str]) -> str:
    """The query with each table's view in its place, called as the table was, and without our own function."""
    tree = sqlglot.parse_one(sql, read="spark")
    hidden = {cte.alias for cte in tree.find_all(exp.CTE)}
    for table in list(tree.find_all(exp.Table)):
        view = views.get((table.db or None, table.name))
        if view is not None and (table.db or table.name not in hidden):
            table.replace(exp.alias_(exp.to_table(view), table.alias or table.name, table=True))
    for call in list(tree.find_all(exp.Anonymous)):
        if call.name.lower() == "hlc_time" and len(call.expressions) == 1:
            moment = f"timestamp_millis(shiftright({call.expressions[0].sql(dialect='spark')}, 16))"
            call.replace(sqlglot.parse_one(moment, read="spark"))
    return tree.sql(dialect="spark")


def main() -> int:
    """Answer one request."""
    asked = json.load(sys.stdin)
    as_of = AsOf(asked["arrival"], asked["snapshot"]) if asked["arrival"] or asked["snapshot"] else None
    try:
        answer = query(load(), asked["sql"], as_of)
    except LakeSyncError as error:
        print(json.dumps({"code": error.code, "error": str(error)}))
        return 3
    with pa.ipc.new_stream(sys.stdout.buffer, answer.schema) as stream:
        stream.write_table(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())

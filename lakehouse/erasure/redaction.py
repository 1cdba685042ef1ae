"""Erases in the history and in state tables: contents of deltas, rows merged from them, and older snapshots.

The steps of the asset `erasure`, and `lakehouse.erasure.requests`, call it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as sf

from lakehouse.erasure.conditions import deltas_of
from lakehouse.erasure.leftovers import remove, unnamed
from lakehouse.maintenance import expire, join_deleted, location_of, rewrite_manifests
from lakehouse.overwrites import overwrite
from lakehouse.spark_errors import lake_errors
from lakehouse.table_definitions import StateTable, at, marks_of, read_version, typed_columns
from lakehouse.tables.merge_job import merged_frames
from lakehouse.tables.rejected import keep_rejected
from lakesync.model.crash_points import crash_point

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, SparkSession

    from lakehouse.table_definitions import LakeNames
    from lakesync.staging.records import Erasure

_EVER = (1 << 63) - 1
_HAS_CONTENT = "(width > 0 OR size(columns) > 0)"


class Rewritten(msgspec.Struct, frozen=True):
    """What an erasure rewrote in a table."""

    rows: int = 0
    """Number of deltas or rows that had erased values."""
    files: tuple[str, ...] = ()
    """The data files that had them, none of which is left."""


@lake_errors
def redact(spark: SparkSession, requests: Sequence[Erasure], names: LakeNames) -> Rewritten:
    """Remove the contents of the deltas of one gateway that requests cover.

    Args:
        spark: a session.
        requests: requests of one gateway.
        names: the lake's names.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    covered = deltas_of(requests).narrowed(_HAS_CONTENT)
    found = covered.select(spark, names.deltas, "shard, _file").groupBy("shard", "_file").count().collect()
    for shard in sorted({row["shard"] for row in found}):
        # a statement a shard: deltas of two shards in one file could keep a flush from overwriting a batch
        emptied = "op = 'UPDATE', width = 0, columns = cast(map() AS map<string, string>)"
        covered.narrowed("shard = {}", shard).execute(spark, f"UPDATE {names.deltas} SET {emptied}")
    crash_point("erasure.history")
    return Rewritten(sum(row["count"] for row in found), tuple(sorted({row["_file"] for row in found})))


@lake_errors
def merge_again(spark: SparkSession, table: str, requests: Sequence[Erasure], names: LakeNames) -> Rewritten:
    """Merge the rows of a state table that have erased values again, from the redacted history.

    The whole table is written, because merge on read would leave the deleted rows in their files.

    Args:
        spark: a session.
        table: the state table.
        requests: requests of one gateway.
        names: the lake's names.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    gateway, name = requests[0].gateway, names.state(table)
    version = read_version(spark, name)
    if version.snapshot_id is None:
        return Rewritten()
    state = at(spark, name, version.snapshot_id)
    stale = state.where((sf.col("_gateway") == gateway) & _covered_rows(requests, table))
    found = stale.groupBy(sf.col("_file").alias("file")).count().collect()
    if found:
        keys = stale.select("_gateway", "_row")
        named = keys.select(sf.col("_gateway").alias("gateway"), sf.col("_row").alias("row_id"))
        mark = marks_of(version).get(gateway, _EVER)
        theirs = (sf.col("gateway") == gateway) & (sf.col("table_name") == table) & (sf.col("arrival") <= mark)
        deltas = spark.table(names.deltas).where(theirs).join(named, ["gateway", "row_id"], "semi")
        again = merged_frames(deltas, None, tuple(typed_columns(spark, name).items()))
        kept = state.join(keys, ["_gateway", "_row"], "anti")
        columns = spark.table(name).columns
        rows = kept.select(*columns).unionByName(again.select(*columns))
        overwrite(rows, name, sf.lit(True), version.snapshot_id)
    crash_point("erasure.state")
    return Rewritten(sum(row["count"] for row in found), tuple(sorted({row["file"] for row in found})))


@lake_errors
def forget_past(spark: SparkSession, name: str, names: LakeNames) -> None:
    """Delete everything of a table except its newest snapshot: tags, branches, other snapshots and deleted rows.

    Args:
        spark: a session.
        name: the table's full, quoted name.
        names: the lake's names.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    if read_version(spark, name).snapshot_id is None:
        return
    join_deleted(spark, names, name)
    for ref in spark.table(f"{name}.refs").where("name <> 'main'").select("name", "type").collect():
        quoted = "`" + ref["name"].replace("`", "``") + "`"
        spark.sql(f"ALTER TABLE {name} DROP {ref['type']} IF EXISTS {quoted}")
    rewrite_manifests(spark, names, name)
    crash_point("erasure.rewritten")
    expire(spark, names, name, datetime.now(UTC))
    crash_point("erasure.expired")


@lake_errors
def clear_table(spark: SparkSession, table: str, requests: Sequence[Erasure], names: LakeNames) -> Rewritten | None:
    """Erase what one gateway's requests cover from a state table, its snapshots and its files.

    Args:
        spark: a session.
        table: the state table.
        requests: requests of one gateway.
        names: the lake's names.

    Returns:
        What was rewritten; None if the requests do not concern the table.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    if not spark.catalog.tableExists(names.state(table)):
        return None
    concerned = deltas_of(requests).select(spark, names.deltas).where(sf.col("table_name") == table)
    if concerned.isEmpty():
        return None
    done = merge_again(spark, table, requests, names)
    if done.rows or has_past(spark, names.state(table)):
        forget_past(spark, names.state(table), names)
    forget_rejected(spark, table, names)
    return done


@lake_errors
def forget_rejected(spark: SparkSession, table: str, names: LakeNames) -> None:
    """Delete the rejected values of a state table that it no longer has.

    Args:
        spark: a session.
        table: the state table.
        names: the lake's names.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    if not spark.catalog.tableExists(names.rejected):
        return
    ever = spark.table(f"{names.rejected}.all_files")
    name = names.state(table)
    version = read_version(spark, name)
    if version.snapshot_id is None or ever.where(sf.col("partition.table_name") == names.called(table)).isEmpty():
        return
    columns = tuple(typed_columns(spark, name).items())
    keep_rejected(
        spark, StateTable(table, name, columns, version.snapshot_id, {}, grown=False), version.snapshot_id, names
    )
    forget_past(spark, names.rejected, names)
    location = location_of(spark, names.rejected)
    left = spark.table(f"{names.rejected}.all_files").select("file_path").collect()
    remove(location, unnamed(location, [row["file_path"] for row in left]))
    crash_point("erasure.rejected")


def has_past(spark: SparkSession, name: str) -> bool:
    """Return whether a table has other snapshots than its newest one.

    Args:
        spark: a session.
        name: the table's full, quoted name.
    """
    return spark.table(f"{name}.snapshots").count() > 1


def _covered_rows(requests: Sequence[Erasure], table: str) -> Column:
    """Return the condition for the rows of a state table that have values which a gateway's requests cover."""
    found = sf.lit(False)
    cells, inserted = sf.map_values("_cells"), sf.col("_inserted")
    for each in requests:
        client, upto = each.client_id, each.hlc
        if client is not None:
            has_covered = sf.exists(cells, _is_covered(client, upto))
            found |= has_covered | ((inserted["client_id"] == client) & (inserted["hlc"] <= upto))
        elif each.table == table:
            has_covered = sf.exists(cells, _is_covered(None, upto))
            found |= (sf.col("_row") == (each.row_id or "")) & (has_covered | (inserted["hlc"] <= upto))
    return found


def _is_covered(client: str | None, upto: int) -> Callable[[Column], Column]:
    """Return the condition for cells that a client, or with None any client, wrote up to an hlc."""

    def is_covered(cell: Column) -> Column:
        early = cell["hlc"] <= upto
        return early if client is None else (cell["client_id"] == client) & early

    return is_covered

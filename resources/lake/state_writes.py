"""How an increment is committed to a state table: the table written anew while it is small, else a MERGE."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as sf

from lakesync.exceptions import FlushError
from resources.lake.tables import StateTable, at, read_version
from transforms.project import REJECTED, project
from transforms.reduce import KEY, STATE_COLUMNS, reduce_deltas

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import Column, DataFrame, Row, SparkSession

SMALL_TABLE = 100_000
"""Rows up to which a table is always written anew, which is as quick as a MERGE and leaves no delete files."""

LARGE_SHARE = 0.2
"""Deltas a row from which writing a table anew is quicker than a MERGE."""

TRIES = 3
"""Commits of one increment while another writer keeps committing in between."""


class Written(msgspec.Struct, frozen=True):
    """What a commit left."""

    snapshot_id: int | None
    rows: int
    tombstones: int
    rejected: int


def write_state(
    spark: SparkSession,
    table: StateTable,
    increment: DataFrame,
    deltas_in: int,
    rebuilt: Collection[str] | None,
) -> Written:
    """Commit an increment, or for the gateways `rebuilt` all of their rows made again from it.

    Where another writer committed in between, it is done again on top: what that one merged is in `deltas` too, and
    merging is idempotent.
    """
    anew = rebuilt is not None or table.grown or _is_large(spark, table, deltas_in)
    snapshot = table.snapshot_id
    for attempt in range(TRIES):
        observed = Observation()
        touched = None if anew or snapshot is None else increment.select(*_key_of_deltas()).distinct()
        try:
            if touched is None or snapshot is None:
                _write_anew(spark, table, snapshot, increment, rebuilt=rebuilt or (), observed=observed)
            else:
                _merge_into(spark, table, snapshot, increment, touched=touched, observed=observed)
        except PySparkException:
            if read_version(spark, table.name).snapshot_id == snapshot or attempt == TRIES - 1:
                raise
        else:
            now = _snapshot(spark, table, read_version(spark, table.name).snapshot_id)
            if touched is None or now["parent_id"] == snapshot:
                # Spark passes on what it observed if it has it within 100 ms.
                counts = observed.get or _counted(spark, table, now["snapshot_id"], touched)
                return Written(now["snapshot_id"], counts["rows"], counts["tombstones"] or 0, counts["rejected"] or 0)
        snapshot = read_version(spark, table.name).snapshot_id
    raise FlushError(f"{table.name} was changed by others during each of {TRIES} merges; merge it when they are done")


def _write_anew(
    spark: SparkSession,
    table: StateTable,
    snapshot: int | None,
    increment: DataFrame,
    *,
    rebuilt: Collection[str],
    observed: Observation,
) -> None:
    """Every row, old and new, in one overwrite that is refused when the table is no longer at `snapshot`."""
    state = None
    if snapshot is not None:
        state = at(spark, table.name, snapshot).where(~sf.col("_gateway").isin(*rebuilt))
    rows = _rows(table, increment, state, observed)
    writer = rows.writeTo(table.name).option("isolation-level", "serializable")
    if snapshot is not None:
        writer = writer.option("validate-from-snapshot-id", str(snapshot))
    writer.overwrite(sf.lit(True))


def _merge_into(
    spark: SparkSession,
    table: StateTable,
    snapshot: int,
    increment: DataFrame,
    *,
    touched: DataFrame,
    observed: Observation,
) -> None:
    """The touched rows alone, merged on read."""
    state = at(spark, table.name, snapshot).join(touched, list(KEY), "semi")
    source = f"merge_{table.table}"
    _rows(table, increment, state, observed).createOrReplaceTempView(source)
    spark.sql(
        f"MERGE INTO {table.name} AS held USING `{source}` AS merged "
        "ON held._gateway = merged._gateway AND held._row = merged._row "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def _rows(table: StateTable, increment: DataFrame, state: DataFrame | None, observed: Observation) -> DataFrame:
    rows = project(reduce_deltas(increment, state), table.columns)
    return rows.observe(observed, *_counts()).drop(REJECTED)


def _counts() -> tuple[Column, ...]:
    return (
        sf.count(sf.lit(1)).alias("rows"),
        sf.sum(sf.col("_gone").cast("long")).alias("tombstones"),
        sf.sum(sf.col(REJECTED).cast("long")).alias("rejected"),
    )


def _counted(spark: SparkSession, table: StateTable, snapshot: int, touched: DataFrame | None) -> dict[str, int]:
    """What `_counts` would have been observed to be, from what was written."""
    rows = at(spark, table.name, snapshot)
    if touched is not None:
        rows = rows.join(touched, list(KEY), "semi")
    return project(rows.select(*STATE_COLUMNS), table.columns).agg(*_counts()).collect()[0].asDict()


def _key_of_deltas() -> tuple[Column, ...]:
    return sf.col("gateway").alias("_gateway"), sf.col("row_id").alias("_row")


def _is_large(spark: SparkSession, table: StateTable, deltas_in: int) -> bool:
    """Whether writing the table anew is the quicker way."""
    if table.snapshot_id is None or deltas_in >= SMALL_TABLE:
        return True
    rows = int(_snapshot(spark, table, table.snapshot_id)["summary"]["total-records"])
    return rows <= SMALL_TABLE or deltas_in > rows * LARGE_SHARE


def _snapshot(spark: SparkSession, table: StateTable, snapshot: int | None) -> Row:
    return spark.table(f"{table.name}.snapshots").where(sf.col("snapshot_id") == sf.lit(snapshot)).collect()[0]

"""How an increment is committed to a state table: a small one by MERGE, a large one by rewriting its buckets."""

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
    from collections.abc import Callable, Collection

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    ByBucket = Callable[[int | None, Collection[str], bool], DataFrame | None]
    """The rows of touched buckets, or of all of them, merged into a snapshot without those of some gateways; None
    where tasks cannot read the files and Spark has to."""

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
    by_bucket: ByBucket | None = None,
) -> Written:
    """Commit an increment, or for the gateways `rebuilt` all of their rows made again from it.

    Args:
        spark: a session.
        table: ready for its schema.
        increment: rows of the history.
        deltas_in: how many.
        rebuilt: gateways of which the increment is everything; None where it is merged.
        by_bucket: the increment as tasks read it by themselves; None where they cannot.

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
                every = rebuilt is not None or table.grown
                rows = by_bucket(snapshot, rebuilt or (), every) if by_bucket is not None else None
                if rows is not None:
                    _rewrite(rows, table, snapshot, every=every, whole_buckets=True, observed=observed)
                else:
                    rows = _all_rows(spark, table, snapshot, increment, rebuilt or ())
                    _rewrite(rows, table, snapshot, every=True, whole_buckets=False, observed=observed)
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


def _all_rows(
    spark: SparkSession, table: StateTable, snapshot: int | None, increment: DataFrame, rebuilt: Collection[str]
) -> DataFrame:
    """Every row, old and new."""
    state = None
    if snapshot is not None:
        state = at(spark, table.name, snapshot).where(~sf.col("_gateway").isin(*rebuilt))
    return project(reduce_deltas(increment, state), table.columns)


def _rewrite(
    rows: DataFrame,
    table: StateTable,
    snapshot: int | None,
    *,
    every: bool,
    whole_buckets: bool,
    observed: Observation,
) -> None:
    """One overwrite of the rows' buckets, or of everything; refused when the table is no longer at `snapshot`."""
    writer = rows.observe(observed, *_counts()).drop(REJECTED).writeTo(table.name)
    writer = writer.option("isolation-level", "serializable")
    if whole_buckets:  # each is one task's, so nothing is sorted or sent about
        writer = writer.option("distribution-mode", "none").option("fanout-enabled", "true")
    if snapshot is not None:
        writer = writer.option("validate-from-snapshot-id", str(snapshot))
    if every:
        writer.overwrite(sf.lit(True))
    else:
        writer.overwritePartitions()


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
    rows = project(reduce_deltas(increment, state), table.columns)
    rows.observe(observed, *_counts()).drop(REJECTED).createOrReplaceTempView(source)
    spark.sql(
        f"MERGE INTO {table.name} AS held USING `{source}` AS merged "
        "ON held._gateway = merged._gateway AND held._row = merged._row "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


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

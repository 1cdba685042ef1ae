"""How an increment is committed to a state table: a small one merged on read, a large one by rewriting its buckets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as sf

from lakehouse.catalogue import iceberg_table
from lakehouse.commits import MovedError
from lakehouse.data_files import UnreadableError
from lakehouse.merge.project import REJECTED, project
from lakehouse.merge.reduce import KEY, STATE_COLUMNS, reduce_deltas
from lakehouse.table_definitions import StateTable, at, read_version
from lakehouse.tables.buckets import merged_rows, state_files
from lakehouse.tables.files import rewrite
from lakesync.crash import crash_point
from lakesync.exceptions import FlushError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from lakehouse.data_files import DataFiles
    from lakehouse.tables.buckets import Extent, Merge

    class MergeOf(Protocol):
        """What tasks do, of the state's files by bucket, without the rows of some gateways."""

        def __call__(self, states: Mapping[int, DataFiles], *, rebuilt: Collection[str], extent: Extent) -> Merge: ...


SMALL_TABLE = 100_000
"""Rows up to which a table is always written anew, which is as quick as a MERGE and leaves no delete files."""

LARGE_SHARE = 0.2
"""Deltas a row from which writing a table anew is quicker than a MERGE."""

REBUILD = "rebuild"
"""The branch on which a table is made anew."""

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
    by_bucket: MergeOf | None = None,
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
        small = not anew and snapshot is not None
        extent: Extent = "rows" if small else "all" if rebuilt is not None or table.grown else "buckets"
        observed = Observation()
        counts: dict[str, int] | None = None
        touched = increment.select(*_key_of_deltas()).distinct() if small else None
        try:
            if by_bucket is not None and rebuilt is None:
                merge = partial(by_bucket, rebuilt=(), extent=extent)
                rewritten = rewrite(spark, table.name, snapshot, merge)
                if rewritten is not None:
                    return Written(*rewritten)
            rows = _merged_rows(spark, table, snapshot, by_bucket, rebuilt or (), extent)
            if touched is not None and snapshot is not None:
                if rows is None:
                    held = at(spark, table.name, snapshot).join(touched, list(KEY), "semi")
                    rows = project(reduce_deltas(increment, held), table.columns)
                counts = _merge_into(spark, table, rows)
            else:
                whole_buckets = rows is not None
                rows = rows if rows is not None else _all_rows(spark, table, snapshot, increment, rebuilt or ())
                every = extent == "all" or not whole_buckets
                if rebuilt is not None and snapshot is not None:
                    _rebuild(spark, rows, table, snapshot, whole_buckets=whole_buckets, observed=observed)
                else:
                    _rewrite(rows, table.name, snapshot, every=every, whole_buckets=whole_buckets, observed=observed)
        except MovedError:
            pass
        except PySparkException:
            if read_version(spark, table.name).snapshot_id == snapshot or attempt == TRIES - 1:
                raise
        else:
            now = _snapshot(spark, table, read_version(spark, table.name).snapshot_id)
            if touched is None or now["parent_id"] == snapshot:
                # Spark passes on what it observed if it has it within 100 ms.
                counts = counts or observed.get or _counted(spark, table, now["snapshot_id"])
                return Written(now["snapshot_id"], counts["rows"], counts["tombstones"] or 0, counts["rejected"] or 0)
        snapshot = read_version(spark, table.name).snapshot_id
    raise FlushError(f"{table.name} was changed by others during each of {TRIES} merges; merge it when they are done")


def _merged_rows(
    spark: SparkSession,
    table: StateTable,
    snapshot: int | None,
    by_bucket: MergeOf | None,
    rebuilt: Collection[str],
    extent: Extent,
) -> DataFrame | None:
    """Rows as tasks merge them, for Spark to write; None where tasks cannot read the files and Spark has to."""
    try:
        states = state_files(spark, table, snapshot)
    except UnreadableError:
        return None
    return (
        merged_rows(spark, table, by_bucket(states, rebuilt=rebuilt, extent=extent)) if by_bucket is not None else None
    )


def _all_rows(
    spark: SparkSession, table: StateTable, snapshot: int | None, increment: DataFrame, rebuilt: Collection[str]
) -> DataFrame:
    """Every row, old and new."""
    state = None
    if snapshot is not None:
        state = at(spark, table.name, snapshot).where(~sf.col("_gateway").isin(*rebuilt))
    return project(reduce_deltas(increment, state), table.columns)


def _rebuild(
    spark: SparkSession,
    rows: DataFrame,
    table: StateTable,
    snapshot: int,
    *,
    whole_buckets: bool,
    observed: Observation,
) -> None:
    """Everything anew, on a branch that takes the table's place where it is whole; a run that dies leaves the old.

    The branch begins at `snapshot`, so it can only take the place of a table that is still there.
    """
    catalogue, _, plain = table.name.replace("`", "").partition(".")
    spark.sql(f"ALTER TABLE {table.name} CREATE OR REPLACE BRANCH {REBUILD} AS OF VERSION {snapshot}")
    branch = f"{table.name}.`branch_{REBUILD}`"
    _rewrite(rows, branch, snapshot, every=True, whole_buckets=whole_buckets, observed=observed)
    crash_point("tables.rebuilt")
    spark.sql(
        f"CALL `{catalogue}`.system.fast_forward(table => '{plain}', branch => 'main', to => '{REBUILD}')"
    ).collect()
    spark.sql(f"ALTER TABLE {table.name} DROP BRANCH IF EXISTS {REBUILD}")


def _rewrite(
    rows: DataFrame,
    name: str,
    snapshot: int | None,
    *,
    every: bool,
    whole_buckets: bool,
    observed: Observation,
) -> None:
    """One overwrite of the rows' buckets, or of everything; refused when the table is no longer at `snapshot`."""
    writer = rows.observe(observed, *_counts()).drop(REJECTED).writeTo(name)
    writer = writer.option("isolation-level", "serializable")
    if whole_buckets:  # each is one task's, so nothing is sorted or sent about
        writer = writer.option("distribution-mode", "none").option("fanout-enabled", "true")
    if snapshot is not None:
        writer = writer.option("validate-from-snapshot-id", str(snapshot))
    if every:
        writer.overwrite(sf.lit(True))
    else:
        writer.overwritePartitions()


def _merge_into(spark: SparkSession, table: StateTable, rows: DataFrame) -> dict[str, int]:
    """The touched rows alone, merged on read; what they are.

    They are fetched first and sent along with the statement: a MERGE may look at its source more than once, and of
    rows at hand it knows how few they are.
    """
    merged = rows.toArrow()
    source = f"merge_{table.table}"
    plain = merged.drop_columns([REJECTED])
    spark.createDataFrame(plain, spark.table(table.name).schema).createOrReplaceTempView(source)
    spark.sql(
        f"MERGE INTO {table.name} AS held USING `{source}` AS merged "
        "ON held._gateway = merged._gateway AND held._row = merged._row "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    return {
        "rows": merged.num_rows,
        "tombstones": pc.sum(merged["_gone"]).as_py() or 0,
        "rejected": pc.sum(merged[REJECTED]).as_py() or 0,
    }


def _counts() -> tuple[Column, ...]:
    return (
        sf.count(sf.lit(1)).alias("rows"),
        sf.sum(sf.col("_gone").cast("long")).alias("tombstones"),
        sf.sum(sf.col(REJECTED).cast("long")).alias("rejected"),
    )


def _counted(spark: SparkSession, table: StateTable, snapshot: int) -> dict[str, int]:
    """What `_counts` would have been observed to be, from what was written."""
    rows = at(spark, table.name, snapshot).select(*STATE_COLUMNS)
    return project(rows, table.columns).agg(*_counts()).collect()[0].asDict()


def _key_of_deltas() -> tuple[Column, ...]:
    return sf.col("gateway").alias("_gateway"), sf.col("row_id").alias("_row")


def _is_large(spark: SparkSession, table: StateTable, deltas_in: int) -> bool:
    """Whether writing the table anew is the quicker way."""
    if table.snapshot_id is None or deltas_in >= SMALL_TABLE:
        return True
    rows = _rows(spark, table, table.snapshot_id)
    return rows <= SMALL_TABLE or deltas_in > rows * LARGE_SHARE


def _rows(spark: SparkSession, table: StateTable, snapshot: int) -> int:
    """How many a snapshot has, deleted ones included."""
    with iceberg_table(spark, table.name) as opened:
        found = opened.snapshot_by_id(snapshot) if opened is not None else None
        summary = found.summary if found is not None else None
    return int((summary or _snapshot(spark, table, snapshot)["summary"])["total-records"] or 0)


def _snapshot(spark: SparkSession, table: StateTable, snapshot: int | None) -> Row:
    return spark.table(f"{table.name}.snapshots").where(sf.col("snapshot_id") == sf.lit(snapshot)).collect()[0]

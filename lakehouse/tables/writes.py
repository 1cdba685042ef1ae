"""Commits an increment to a state table: a small one by merge on read, a large one by rewriting the table.

`lakehouse.tables.increments` calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as sf

from lakehouse.catalogue import current_snapshot, open_table, planned_files
from lakehouse.data_files import DataFile, read_rows, rows_in, shares
from lakehouse.merge.kernel import STORED
from lakehouse.merge.typed import misfits
from lakehouse.overwrites import PARTITION_AFTER_PARTITION, overwrite
from lakehouse.tables.increment import ROWS_A_TASK
from lakehouse.tables.merge_job import (
    CHECKS,
    DIFFERENCE,
    DUPLICATES,
    REJECTED,
    Merge,
    merged_rows,
)
from lakehouse.task_runner import in_tasks
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import FlushError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pyiceberg.table import Table
    from pyspark.sql import Column, DataFrame, SparkSession

    from lakehouse.table_definitions import StateTable
    from lakehouse.tables.history_files import History
    from lakehouse.tables.increment import Increment

SMALL_TABLE = 100_000
"""Rows up to which a table is always rewritten, which is as quick as merge on read and leaves no delete files."""

LARGE_SHARE = 0.2
"""Deltas for each row of the table from which rewriting is quicker than merge on read."""

ROWS_A_BUCKET = 250_000
"""Rows in a bucket from which a rewritten table gets twice as many buckets."""

MOST_BUCKETS = 1024

BRANCH = "merge"
"""Branch on which a small increment is merged before the table's main branch is moved to it."""

TRIES = 3
"""Attempts to commit one increment while another writer commits in between."""


TOUCHED = ("_lakesync_gateway", "_lakesync_row")
"""Columns with an increment's keys, beside the table's columns. No schema may use their names."""

_NAMES = ["rows", "tombstones", "rejected"]
_COUNTED = pa.schema([*(STORED.field(name) for name in ("_gateway", "_row", "_cells")), ("_gone", pa.bool_())])


class Written(msgspec.Struct, frozen=True):
    """The result of a commit."""

    snapshot_id: int | None
    rows: int = 0
    tombstones: int = 0
    rejected: int = 0
    duplicates: int | None = None
    """Number of duplicate keys among the stored rows that were read; None: not known."""
    differences: int | None = None
    """Number of sampled rows that the gateway's own code merges differently; None: not known."""
    difference: str | None = None
    """One of these, as JSON."""


class _State(NamedTuple):
    """A state table at the snapshot that was read."""

    snapshot: int | None
    files: list[DataFile]
    buckets: int

    @classmethod
    def read(cls, table: Table) -> _State:
        snapshot = current_snapshot(table)
        files = [DataFile.of(task) for task in planned_files(table, snapshot)]
        return cls(snapshot, files, buckets_of(table))


def write_state(
    spark: SparkSession, table: StateTable, increment: Increment, history: History, rebuilt: Collection[str] | None
) -> Written:
    """Commit an increment, or for the gateways `rebuilt` all of their rows, merged from it alone.

    If another writer commits in between, it is repeated: what that one merged is in `deltas` too, and merging is
    idempotent.

    Args:
        spark: an open Spark session.
        table: the state table, with the columns of its schema.
        increment: the deltas to merge.
        history: the files that have them.
        rebuilt: gateways whose stored rows are replaced; None: the increment is merged.

    Raises:
        FlushError: others changed the table during each attempt.
        ConfigurationError: tasks cannot open the table's files.
    """
    for attempt in range(TRIES):
        state = _read(spark, table)
        try:
            crash_point("tables.planned")
            if rebuilt is None and not table.grown and _is_small(state, history):
                observed = _merge_on_read(spark, table, state, increment, history)
            else:
                observed = _rewrite(spark, table, state, increment, history, rebuilt or ())
        except PySparkException:
            if attempt == TRIES - 1 or _read(spark, table).snapshot == state.snapshot:
                raise
        else:
            now = _read(spark, table)
            # Spark passes on what it observed if it has it within 100 ms.
            counts = observed.get or _counted(spark, table, {file.path for file in state.files}, now.files)
            return Written(now.snapshot, **counts)
    raise FlushError(f"{table.name} was changed by others during each of {TRIES} merges; merge it when they are done")


def buckets_of(table: Table) -> int:
    """Return the number of buckets of an open state table."""
    from pyiceberg.transforms import BucketTransform

    (found,) = (each.transform for each in table.spec().fields if isinstance(each.transform, BucketTransform))
    return found.num_buckets


def _read(spark: SparkSession, table: StateTable) -> _State:
    with open_table(spark, table.name) as opened:
        return _State.read(opened)


def _is_small(state: _State, history: History) -> bool:
    """Return whether merge on read is quicker."""
    rows = rows_in(state.files)
    return rows > SMALL_TABLE > history.most and history.most <= rows * LARGE_SHARE


def _rewrite(
    spark: SparkSession,
    table: StateTable,
    state: _State,
    increment: Increment,
    history: History,
    rebuilt: Collection[str],
) -> Observation:
    """Replace all rows of the table by all old and new ones. Iceberg refuses it if the table has changed."""
    buckets = _grown(spark, table, state, history)
    merge = Merge.of(increment, history, state.files, table.columns, buckets, rebuilt)
    observed = Observation()
    rows = _observed(spark, table, merge, observed)
    overwrite(rows, table.name, sf.lit(True), state.snapshot, options=PARTITION_AFTER_PARTITION)
    return observed


def _merge_on_read(
    spark: SparkSession, table: StateTable, state: _State, increment: Increment, history: History
) -> Observation:
    """Write the changed rows only: mark the stored ones as deleted and append the merged ones.

    Both commits go to a branch from the snapshot that was read. The table's main branch is moved to it only if it is
    still at that snapshot.
    """
    catalogue, _, plain = table.name.replace("`", "").partition(".")
    branch = f"{table.name}.`branch_{BRANCH}`"
    spark.sql(f"ALTER TABLE {table.name} CREATE OR REPLACE BRANCH {BRANCH} AS OF VERSION {state.snapshot}")
    touched = _touched(spark, increment, history).hint("broadcast")
    is_touched = (sf.col("_gateway") == sf.col(TOUCHED[0])) & (sf.col("_row") == sf.col(TOUCHED[1]))
    touched.mergeInto(branch, is_touched).whenMatched().delete().merge()
    merge = Merge.of(increment, history, state.files, table.columns, state.buckets, touched_only=True)
    observed = Observation()
    _observed(spark, table, merge, observed).writeTo(branch).options(**PARTITION_AFTER_PARTITION).append()
    crash_point("tables.on_branch")
    spark.sql(
        f"CALL `{catalogue}`.system.fast_forward(table => '{plain}', branch => 'main', to => '{BRANCH}')"
    ).collect()
    spark.sql(f"ALTER TABLE {table.name} DROP BRANCH IF EXISTS {BRANCH}")
    return observed


def _touched(spark: SparkSession, increment: Increment, history: History) -> DataFrame:
    """Return the keys of an increment, each once, in the columns `TOUCHED`."""
    parts = shares(history.files, ROWS_A_TASK)

    def part(number: int) -> Iterator[pa.RecordBatch]:
        own = [rows for file in parts[number] for rows in increment.keys(file)]
        if own:
            once = pa.concat_tables(own).group_by(["gateway", "row_id"], use_threads=False).aggregate([])
            yield from once.rename_columns(list(TOUCHED)).combine_chunks().to_batches()

    keys = in_tasks(spark, len(parts), part, ", ".join(f"{name} string" for name in TOUCHED))
    return keys.distinct() if len(parts) > 1 else keys


def _observed(spark: SparkSession, table: StateTable, merge: Merge, observed: Observation) -> DataFrame:
    """Return the rows to write, with an observation that counts them on their way."""
    rows = merged_rows(spark, spark.table(table.name).schema, merge)
    return rows.observe(observed, *_observations()).drop(*CHECKS)


def _observations() -> tuple[Column, ...]:
    return (
        sf.count(sf.lit(1)).alias("rows"),
        _sum(sf.col("_gone").cast("long")).alias("tombstones"),
        _sum(sf.col(REJECTED).cast("long")).alias("rejected"),
        _sum(sf.col(DUPLICATES)).alias("duplicates"),
        sf.count(DIFFERENCE).alias("differences"),
        sf.max(DIFFERENCE).alias("difference"),
    )


def _sum(column: Column) -> Column:
    return sf.coalesce(sf.sum(column), sf.lit(0))


def _counted(spark: SparkSession, table: StateTable, before: Collection[str], now: list[DataFile]) -> dict[str, int]:
    """Return the numbers of rows, deleted rows and misfits in the files that the commit added."""
    parts, columns = shares([file for file in now if file.path not in before], ROWS_A_TASK), table.columns

    def part(number: int) -> Iterator[pa.RecordBatch]:
        for file in parts[number]:
            for rows in read_rows(file, _COUNTED):
                counts = (rows.num_rows, pc.sum(rows["_gone"]).as_py() or 0, misfits(rows, columns).num_rows)
                yield pa.record_batch([pa.array([count], pa.int64()) for count in counts], _NAMES)

    found = in_tasks(spark, len(parts), part, ", ".join(f"{name} bigint" for name in _NAMES)).toArrow()
    return {name: pc.sum(found[name]).as_py() or 0 for name in _NAMES}


def _grown(spark: SparkSession, table: StateTable, state: _State, history: History) -> int:
    """Return the number of buckets from now on, which grows with the table."""
    buckets, rows = state.buckets, rows_in(state.files) + history.most
    while buckets < MOST_BUCKETS and rows > buckets * ROWS_A_BUCKET:
        buckets *= 2
    if buckets != state.buckets:
        old, new = (f"bucket({count}, _row)" for count in (state.buckets, buckets))
        spark.sql(f"ALTER TABLE {table.name} REPLACE PARTITION FIELD {old} WITH {new}")
    return buckets

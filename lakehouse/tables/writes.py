"""Commits merged deltas to a state table, and updates the table `rejected`, the list of values that do not fit.

A state table has the current rows of one synced table, of all gateways (streams of changes, one for each app). It is
partitioned into buckets by a hash of the row id. The deltas (changes) of one merge are its increment. A small increment
is committed by merge on read, a large one by rewriting the table. Merge on read writes only the changed rows, and
delete files that hide their old versions. Reading the table then takes longer, until it is rewritten.

Where a value does not fit the type of its column, the column is null. The value itself stays in the column `_cells` and
in `rejected`, which users can query. `lakehouse.tables.merging` calls this module; erasures call `replace_rejected`.
"""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as sf

from lakehouse.data_files import DataFile, divide_files, read_rows, rows_in
from lakehouse.spark_errors import lake_errors
from lakehouse.table_access import PARTITION_AFTER_PARTITION, open_table, overwrite, planned_files
from lakehouse.table_creation import create_table, set_properties
from lakehouse.table_definitions import REJECTED_PROPERTY, LakeNames
from lakehouse.tables.increment import ROWS_PER_TASK
from lakehouse.tables.kernel import STORED
from lakehouse.tables.merge_job import CHECKS, DIFFERENCE, DUPLICATES, REJECTED, Merge, merged_files
from lakehouse.tables.slices import MAX_TASKS
from lakehouse.tables.typed_columns import MISFITS, misfits
from lakehouse.task_runner import in_tasks
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import CommitConflictError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pyiceberg.table import Table
    from pyspark.sql import Column, DataFrame, SparkSession

    from lakehouse.table_creation import StateTable
    from lakehouse.tables.increment import HistoryFiles, Increment


SMALL_TABLE = 100_000
"""Number of rows up to which a table is always rewritten: it is as quick as merge on read, and leaves no delete files.
From this number of deltas on, a table of any size is rewritten."""

LARGE_SHARE = 0.2
"""Ratio of deltas to rows of the table from which rewriting is quicker than merge on read."""

ROWS_PER_BUCKET = 250_000
"""Average number of rows in a bucket, at most. A rewrite doubles the number of buckets until that is so, or
`MAX_BUCKETS` is reached."""

MAX_BUCKETS = 1024
"""Number of buckets, at most."""

BRANCH = "merge"
"""Prefix of the Iceberg branch on which a merge on read is made, before the main branch is moved to it. A random text
follows, so that each merge has a branch of its own."""

_OWN_BRANCH = re.compile(f"{BRANCH}(_[0-9a-f]{{32}})?")
"""Names of these branches, without the random text in earlier versions. Other branches and tags are the user's."""

ATTEMPTS = 3
"""Attempts to commit one increment, if another writer commits in between."""

TOUCHED = ("_lakesync_gateway", "_lakesync_row")
"""Columns with the keys of the rows that an increment touches. No schema may use their names, because a merge joins
them with the table's columns."""

_COUNTS = pa.schema([(name, pa.int64()) for name in ("rows_merged", "tombstones", "rejected_values")])
"""The counts that `_count_added_rows` returns."""
_COUNTED = pa.schema([*(STORED.field(name) for name in ("_gateway", "_row", "_cells")), ("_gone", pa.bool_())])
"""The columns that `_count_added_rows` reads."""


class WriteResult(msgspec.Struct, frozen=True):
    """The result of a commit to a state table."""

    snapshot_id: int | None
    """The table's snapshot afterwards; None if it is empty."""
    rows_merged: int = 0
    """Rows written: those of the increment, or of the whole table if it was rewritten."""
    tombstones: int = 0
    """Deleted rows among them."""
    rejected_values: int = 0
    """Live values in these rows that do not fit their column's type: null in the typed column, kept in the table's
    column `_cells`, which has all values of a row as JSON."""
    duplicates: int | None = None
    """Number of duplicate keys among the stored rows that were read; None if it is not known."""
    differences: int | None = None
    """Number of sampled rows that the gateway's own code merges differently; None if it is not known."""
    difference: str | None = None
    """One of these rows, with both results, as JSON."""


class _State(NamedTuple):
    """A state table at the snapshot that was read."""

    snapshot: int | None
    """Id of the snapshot; None if the table is empty."""
    files: list[DataFile]
    buckets: int
    """Number of buckets into which the table is partitioned."""


def write_state(
    spark: SparkSession, table: StateTable, increment: Increment, history: HistoryFiles, rebuilt: Collection[str] | None
) -> WriteResult:
    """Merge an increment into a state table and commit it. It is repeated if another writer commits in between.

    Args:
        spark: an open Spark session.
        table: the state table, with the columns of its schema.
        increment: the deltas to merge.
        history: the files that have these deltas.
        rebuilt: gateways whose stored rows are replaced by those that the increment alone results in; None to merge the
            increment into the stored rows.

    Raises:
        CommitConflictError: others changed the table during each attempt.
        ConfigurationError: tasks cannot open the table's files.
    """
    for attempt in range(ATTEMPTS):
        state = _read_state(spark, table)
        try:
            crash_point("tables.planned")  # tests kill the process here
            # a rewrite also fills new columns of rows that the deltas do not touch
            if rebuilt is None and not table.has_new_columns and _suits_merge_on_read(state, history):
                observed = _merge_on_read(spark, table, state, increment, history)
            else:
                observed = _rewrite(spark, table, state, increment, history, rebuilt or ())
        except CommitConflictError:  # others dropped the branch of a merge on read
            continue
        except PySparkException:
            # another attempt only helps if Iceberg rejected the commit because the table had changed
            if attempt == ATTEMPTS - 1 or _read_state(spark, table).snapshot == state.snapshot:
                raise
        else:
            now = _read_state(spark, table)
            # Spark returns observed counts only if it has them within 100 ms
            counts = observed.get or _count_added_rows(spark, table, {file.path for file in state.files}, now.files)
            return WriteResult(now.snapshot, **counts)
    raise CommitConflictError(
        f"{table.name} was changed by others during each of {ATTEMPTS} merges; merge it when they are done"
    )


def buckets_of(table: Table) -> int:
    """Return the number of buckets of an open state table."""
    from pyiceberg.transforms import BucketTransform

    (transform,) = (each.transform for each in table.spec().fields if isinstance(each.transform, BucketTransform))
    return transform.num_buckets


_SEARCHED_ROWS_PER_TASK = 500_000
"""Rows of a state table that one task searches for values that do not fit, approximately."""

_CELLS = pa.schema([STORED.field(name) for name in ("_gateway", "_row", "_cells")])
"""The columns of a state table that are read to find values that do not fit."""
_REJECTED_COLUMNS = (
    "gateway string, table_name string COMMENT 'NAMESPACE.TABLE where it is not the shared one', row_id string, "
    "column_name string, type string COMMENT 'that it does not fit', value string COMMENT 'its JSON text'"
)
"""The columns of `rejected`."""


@lake_errors
def replace_rejected(spark: SparkSession, table: StateTable, snapshot: int, names: LakeNames) -> int:
    """Replace a state table's rows in `rejected` by the values of a snapshot that do not fit, and return their number.

    The number is also stored as a property of the state table.

    Args:
        spark: an open Spark session.
        table: the state table.
        snapshot: id of the state table's snapshot to read.
        names: catalogue and namespaces of the lake's tables.

    Raises:
        LakeUnavailableError: Spark cannot be reached; the next merge that writes the table repeats it.
    """
    qualified_name = names.qualified_name(table.table)
    if not spark.catalog.tableExists(names.rejected):
        create_table(spark, names.rejected, _REJECTED_COLUMNS, "table_name")
    rows = _misfits(spark, table, snapshot).select(
        sf.col("_gateway").alias("gateway"),
        sf.lit(qualified_name).alias("table_name"),
        sf.col("_row").alias("row_id"),
        sf.col("column").alias("column_name"),
        "type",
        "value",
    )
    of_table = sf.col("table_name") == qualified_name
    rows.writeTo(names.rejected).overwrite(of_table)
    count = spark.table(names.rejected).where(of_table).count()
    set_properties(spark, table.name, {REJECTED_PROPERTY: str(count)})
    return count


def _read_state(spark: SparkSession, table: StateTable) -> _State:
    """Return a state table's current snapshot, with its files and its number of buckets."""
    with open_table(spark, table.name) as opened:
        snapshot = opened.metadata.current_snapshot_id
        files = [DataFile.of(scan_task) for scan_task in planned_files(opened, snapshot)]
        return _State(snapshot, files, buckets_of(opened))


def _suits_merge_on_read(state: _State, history: HistoryFiles) -> bool:
    """Return whether the deltas are so few, and the table so large, that merge on read is quicker than a rewrite."""
    rows = rows_in(state.files)
    return rows > SMALL_TABLE > history.max_deltas and history.max_deltas <= rows * LARGE_SHARE


def _rewrite(
    spark: SparkSession,
    table: StateTable,
    state: _State,
    increment: Increment,
    history: HistoryFiles,
    rebuilt: Collection[str],
) -> Observation:
    """Replace all rows of the table by the merged ones. Iceberg rejects that if the table has changed meanwhile."""
    buckets = _grow_buckets(spark, table, state, history)
    merge = Merge.of(increment, history, state.files, table.columns, buckets, rebuilt)
    observed = Observation()
    rows = _observe(spark, table, merge, observed)
    overwrite(rows, table.name, sf.lit(True), state.snapshot, options=PARTITION_AFTER_PARTITION)
    return observed


def _merge_on_read(
    spark: SparkSession, table: StateTable, state: _State, increment: Increment, history: HistoryFiles
) -> Observation:
    """Mark the stored rows that the deltas touch as deleted, and append the merged ones.

    Both commits are made on a branch from the snapshot that was read. Then `main` is moved forward to the branch, which
    Iceberg rejects if `main` is no longer at that snapshot.

    Raises:
        CommitConflictError: others dropped the branch meanwhile. An append to a dropped branch begins it again at
            `main`, where the rows are not marked as deleted.
    """
    catalogue, _, plain = table.name.replace("`", "").partition(".")
    own = f"{BRANCH}_{uuid.uuid4().hex}"
    branch = f"{table.name}.`branch_{own}`"
    spark.sql(f"ALTER TABLE {table.name} CREATE BRANCH `{own}` AS OF VERSION {state.snapshot}")
    touched = _touched_keys(spark, increment, history).hint("broadcast")
    is_touched = (sf.col("_gateway") == sf.col(TOUCHED[0])) & (sf.col("_row") == sf.col(TOUCHED[1]))
    touched.mergeInto(branch, is_touched).whenMatched().delete().merge()
    with open_table(spark, table.name) as opened:
        after_delete = opened.snapshot_by_name(own)
    merge = Merge.of(increment, history, state.files, table.columns, state.buckets, touched_only=True)
    observed = Observation()
    _observe(spark, table, merge, observed).writeTo(branch).options(**PARTITION_AFTER_PARTITION).append()
    crash_point("tables.on_branch")
    with open_table(spark, table.name) as opened:
        after_append = opened.snapshot_by_name(own)
        # Also the branches of killed merges, and of merges at the same time: once `main` has moved, these must repeat.
        branches = [name for name in opened.metadata.refs if _OWN_BRANCH.fullmatch(name)]
    # An intact branch is: the snapshot that was read → the deletion, if it deleted a row → the append.
    is_intact = (
        after_delete is not None
        and after_append is not None
        and state.snapshot in (after_delete.snapshot_id, after_delete.parent_snapshot_id)
        and after_append.parent_snapshot_id == after_delete.snapshot_id
    )
    if is_intact:
        spark.sql(
            f"CALL `{catalogue}`.system.fast_forward(table => '{plain}', branch => 'main', to => '{own}')"
        ).collect()
    for name in branches if is_intact else [own]:
        spark.sql(f"ALTER TABLE {table.name} DROP BRANCH IF EXISTS `{name}`")
    if not is_intact:
        raise CommitConflictError(f"the branch of a merge into {table.name} was dropped meanwhile; merge it again")
    return observed


def _touched_keys(spark: SparkSession, increment: Increment, history: HistoryFiles) -> DataFrame:
    """Return the keys of the rows that an increment touches, each once, in the columns `TOUCHED`."""
    parts = divide_files(history.files, ROWS_PER_TASK)

    def keys_of_part(number: int) -> Iterator[pa.RecordBatch]:
        keys_in_files = [rows for file in parts[number] for rows in increment.keys(file)]
        if keys_in_files:
            distinct_keys = (
                pa.concat_tables(keys_in_files).group_by(["gateway", "row_id"], use_threads=False).aggregate([])
            )
            yield from distinct_keys.rename_columns(list(TOUCHED)).combine_chunks().to_batches()

    keys = in_tasks(spark, len(parts), keys_of_part, ", ".join(f"{name} string" for name in TOUCHED))
    return keys.distinct() if len(parts) > 1 else keys


def _observe(spark: SparkSession, table: StateTable, merge: Merge, observed: Observation) -> DataFrame:
    """Return the merged rows. While Spark writes them, it computes the counts of `WriteResult` as an observation."""
    rows = merged_files(spark, spark.table(table.name).schema, merge)
    counts = (
        sf.count(sf.lit(1)).alias("rows_merged"),
        _sum(sf.col("_gone").cast("long")).alias("tombstones"),
        _sum(sf.col(REJECTED).cast("long")).alias("rejected_values"),
        _sum(sf.col(DUPLICATES)).alias("duplicates"),
        sf.count(DIFFERENCE).alias("differences"),
        sf.max(DIFFERENCE).alias("difference"),
    )
    return rows.observe(observed, *counts).drop(*CHECKS)


def _sum(column: Column) -> Column:
    """Return the sum of a column; 0 without rows."""
    return sf.coalesce(sf.sum(column), sf.lit(0))


def _count_added_rows(
    spark: SparkSession, table: StateTable, paths_before: Collection[str], files: list[DataFile]
) -> dict[str, int]:
    """Count rows, deleted rows and values that do not fit in the files that a commit added to those before it."""
    added = [file for file in files if file.path not in paths_before]
    parts, columns = divide_files(added, ROWS_PER_TASK), table.columns

    def count_part(number: int) -> Iterator[pa.RecordBatch]:
        for file in parts[number]:
            for rows in read_rows(file, _COUNTED):
                counts = (rows.num_rows, pc.sum(rows["_gone"]).as_py() or 0, misfits(rows, columns).num_rows)
                yield pa.record_batch([[count] for count in counts], _COUNTS)

    counted = in_tasks(spark, len(parts), count_part, _COUNTS).toArrow()
    return {name: pc.sum(counted[name]).as_py() or 0 for name in _COUNTS.names}


def _grow_buckets(spark: SparkSession, table: StateTable, state: _State, history: HistoryFiles) -> int:
    """Return the number of buckets that fits the table's size. If it has grown, the partition spec is changed."""
    buckets, rows = state.buckets, rows_in(state.files) + history.max_deltas
    while buckets < MAX_BUCKETS and rows > buckets * ROWS_PER_BUCKET:
        buckets *= 2
    if buckets != state.buckets:
        old, new = (f"bucket({count}, _row)" for count in (state.buckets, buckets))
        spark.sql(f"ALTER TABLE {table.name} REPLACE PARTITION FIELD {old} WITH {new}")
    return buckets


def _misfits(spark: SparkSession, table: StateTable, snapshot: int) -> DataFrame:
    """Return the values of a snapshot that do not fit their columns, in the columns `MISFITS`. Tasks find them."""
    with open_table(spark, table.name) as opened:
        files = [DataFile.of(scan_task) for scan_task in planned_files(opened, snapshot)]
    parts, columns = divide_files(files, max(_SEARCHED_ROWS_PER_TASK, rows_in(files) // MAX_TASKS)), table.columns

    def misfits_of_part(number: int) -> Iterator[pa.RecordBatch]:
        for file in parts[number]:
            for rows in read_rows(file, _CELLS):
                yield from misfits(rows, columns).combine_chunks().to_batches()

    return in_tasks(spark, len(parts), misfits_of_part, MISFITS)

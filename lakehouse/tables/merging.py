"""Merges new deltas of the history into state tables, which have the current rows. A repeat changes nothing.

A delta is a change of a row, a gateway one app's stream of deltas. The *history* is the Iceberg table of all deltas
that are in the lake. A state table has one mark for each gateway: the arrival (the gateway's timestamp of receipt) up
to which its deltas are merged. Days may be merged again in any order. The deltas of a merge are its *increment*. Before
Spark tasks run, the driver finds the files of the history that have them by column bounds, the least and greatest
values of a file's columns in Iceberg's manifests. The assets of state tables (`assets.lake_tables`), and making
checkpoints, call this module.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sf

from lakehouse.data_files import DataFile, divide_files, rows_in
from lakehouse.history.decoding import day_of
from lakehouse.spark_errors import lake_errors
from lakehouse.table_access import open_table, planned_files, read_version
from lakehouse.table_creation import (
    StateTable,
    ensure_deltas,
    ensure_state,
    record_filled,
    set_properties,
    typed_columns,
)
from lakehouse.table_definitions import NAMES, LakeNames
from lakehouse.tables.increment import ROWS_PER_TASK, HistoryFiles, Increment
from lakehouse.tables.writes import WriteResult, replace_rejected, write_state
from lakehouse.task_runner import in_tasks
from lakesync.analysis.catalogue import MARKS_PROPERTY, column_bounds, merge_marks
from lakesync.analysis.scans import all_of, condition
from lakesync.model.crash_points import crash_point

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import date

    from pyiceberg.manifest import DataFile as ManifestFile
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from lakesync.config.pipeline_sections import Contract
    from lakesync.model.schema import TableSchema
    from lakesync.staging.store.pipeline import GatewayStore


class MergeReport(WriteResult, frozen=True, kw_only=True):
    """What one merge did to a state table."""

    table: str
    deltas_in: int = 0
    """Deltas read from the history."""
    marks: dict[str, int]
    """Gateway → the arrival up to which its deltas are merged afterwards."""
    seconds: float
    since: dict[str, int] = msgspec.field(default_factory=dict)
    """Gateway → the arrival after which its deltas were read; all deltas of a gateway that is missing."""


class DayMerge(NamedTuple):
    """Counts of the merged deltas that arrived on one day."""

    deltas: int
    rows: int
    """Number of rows that these deltas belong to."""


@lake_errors
def merge_table(
    spark: SparkSession,
    schema: TableSchema,
    upto: Mapping[str, int],
    *,
    days: Sequence[date] | None = None,
    rebuild: bool = False,
    names: LakeNames = NAMES,
    contract: Contract = "evolve",
) -> MergeReport:
    """Merge a table's deltas up to some arrivals into its state table, which is first created, or gets new columns.

    Without deltas to merge no snapshot is written. Rows of other gateways do not change. Another writer at the same
    time is safe, but a rebuild must be the only writer.

    Args:
        spark: an open Spark session.
        schema: the table's schema.
        upto: gateway → the last arrival to merge.
        days: merge all deltas of these UTC days of arrival, whatever the marks say. The marks move to `upto` only if
            the days leave no gap. None to merge the deltas after the marks, which then move to `upto`.
        rebuild: True to recompute all rows of these gateways from all their deltas, in one commit.
        names: catalogue and namespaces of the lake's tables.
        contract: what happens to columns that the state table lacks: `evolve` adds them, `freeze` raises SchemaError,
            `discard` leaves them out.

    Raises:
        SchemaError: the schema does not fit the lake's table, or the table's contract.
        LakeUnavailableError: Spark cannot be reached.
    """
    started = time.perf_counter()
    history_snapshot = ensure_deltas(spark, names).snapshot_id
    table = ensure_state(spark, schema, names, contract)
    follows_marks = days is None and not rebuild
    is_up_to_date = all(table.marks.get(gateway, 0) >= arrival for gateway, arrival in upto.items())
    if follows_marks and is_up_to_date and not table.has_new_columns:
        seconds = time.perf_counter() - started
        return MergeReport(table.snapshot_id, table=schema.table, marks=table.marks, seconds=seconds)
    since = table.marks if follows_marks else {}
    ranges = {gateway: (since.get(gateway, 0), arrival) for gateway, arrival in upto.items()}
    increment = Increment(schema.table, ranges, None if rebuild else days)
    with open_table(spark, names.deltas) as deltas:
        history = history_files(deltas, history_snapshot, increment)
    written = WriteResult(table.snapshot_id)
    deltas_in = count_deltas(spark, history, increment)
    # earlier rows have null in new columns; `write_state` rewrites them with their values
    must_fill = table.has_new_columns and table.snapshot_id is not None
    if deltas_in or rebuild or must_fill:
        rebuilt_gateways = upto if rebuild else None
        written = write_state(spark, table, increment, history, rebuilt_gateways)
        # the table `rejected` lists the values that do not fit their column
        if written.snapshot_id is not None and (written.rejected_values or table.ever_rejected):
            replace_rejected(spark, table, written.snapshot_id, names)
        if table.has_new_columns:
            record_filled(spark, table)
    crash_point("tables.merged")  # tests kill the process here
    marks = _advance_marks(spark, table, upto, days, exactly=rebuild)
    return MergeReport(
        **msgspec.structs.asdict(written),
        table=schema.table,
        deltas_in=deltas_in,
        marks=marks,
        seconds=time.perf_counter() - started,
        since=dict(since),
    )


@lake_errors
def merged_by_day(
    spark: SparkSession,
    table: str,
    ranges: Mapping[str, tuple[int, int]],
    days: Sequence[date] | None,
    names: LakeNames,
) -> dict[str, DayMerge]:
    """Count a table's deltas in ranges of arrivals, and return UTC day of arrival (`YYYY-MM-DD`) → counts.

    Args:
        spark: an open Spark session.
        table: the state table's name.
        ranges: gateway → the arrival after which its deltas are counted, and the last arrival to count.
        days: UTC days to count; None for all.
        names: catalogue and namespaces of the lake's tables.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    wanted = spark.createDataFrame(
        [(gateway, low, high) for gateway, (low, high) in ranges.items()], "of_gateway string, low bigint, high bigint"
    )
    deltas = spark.table(names.deltas).where(sf.col("table_name") == table)
    if days is not None:
        deltas = deltas.where(sf.col("day").isin(list(days)))
    is_own = (
        (sf.col("gateway") == sf.col("of_gateway"))
        & (sf.col("arrival") > sf.col("low"))
        & (sf.col("arrival") <= sf.col("high"))
    )
    by_day = (
        deltas.join(sf.broadcast(wanted), is_own)
        .groupBy("day")
        .agg(sf.count(sf.lit(1)).alias("deltas"), sf.count_distinct("gateway", "row_id").alias("rows"))
    )
    return {row["day"].isoformat(): DayMerge(row["deltas"], row["rows"]) for row in by_day.collect()}


@lake_errors
def gateways_with_new_columns(
    spark: SparkSession, store: GatewayStore, gateways: Iterable[str], table: str, names: LakeNames
) -> frozenset[str]:
    """Return the gateways whose schema of a table has columns that the state table lacks.

    The asset of a state table calls it if the table's contract rejects new columns. As in `ensure_state`, names that
    differ only in case are the same column.

    Args:
        spark: an open Spark session.
        store: the staging store, which has the schemas.
        gateways: ids of the gateways to compare.
        table: the state table's name.
        names: catalogue and namespaces of the lake's tables.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    stored = {column.lower() for column in typed_columns(spark, names.state(table))}

    def has_new_columns(gateway: str) -> bool:
        registered = store.gateway_config(gateway).schemas.get(table)
        return registered is not None and any(column.lower() not in stored for column in registered.schema.types)

    return frozenset(filter(has_new_columns, gateways))


def forget_marks(spark: SparkSession, table: str, names: LakeNames = NAMES) -> None:
    """Delete a table's marks, so that the next merge reads all of its deltas again, with the same result.

    Tests and examples call it.

    Args:
        spark: an open Spark session.
        table: the state table's name.
        names: catalogue and namespaces of the lake's tables.
    """
    spark.sql(f"ALTER TABLE {names.state(table)} UNSET TBLPROPERTIES IF EXISTS ('{MARKS_PROPERTY}')")


def history_files(table: Table, snapshot: int | None, increment: Increment) -> HistoryFiles:
    """Return the files of a snapshot that may have an increment's deltas, by column bounds.

    Args:
        table: the history, opened by pyiceberg.
        snapshot: id of the snapshot to read; None if nothing was ever flushed.
        increment: the deltas to find.

    Raises:
        ConfigurationError: tasks cannot open a file.
    """
    ranges = increment.ranges.values()
    lowest = min((lowest for lowest, _ in ranges), default=0)
    highest = max((highest for _, highest in ranges), default=0)
    may_have = all_of(
        condition("table_name", "=", increment.table),
        condition("arrival", ">", lowest),
        condition("arrival", "<=", highest),
        condition("day", ">=", day_of(lowest).isoformat()),
    )
    planned = planned_files(table, snapshot, may_have)  # scan tasks of pyiceberg, one for each file
    shares = [(scan_task, _share(table, scan_task.file, increment)) for scan_task in planned]
    files = tuple(DataFile.of(scan_task) for scan_task, share in shares if share != "none")
    # Whether a file may have rows that are not in the increment. Then its row count is not that of the deltas, and
    # `count_deltas` has to read the files.
    is_estimate = increment.days is not None or any(
        share == "part" or scan_task.delete_files for scan_task, share in shares
    )
    return HistoryFiles(files, None if is_estimate and files else rows_in(files))


def count_deltas(spark: SparkSession, history: HistoryFiles, increment: Increment) -> int:
    """Return the number of an increment's deltas. If column bounds do not show it, tasks read the files.

    Args:
        spark: an open Spark session.
        history: the files that may have the deltas.
        increment: the deltas to count.
    """
    if history.delta_count is not None:
        return history.delta_count
    parts = divide_files(history.files, max(ROWS_PER_TASK, rows_in(history.files) // 64))  # about 64 tasks at most

    def count_part(number: int) -> Iterator[pa.RecordBatch]:
        count = sum(rows.num_rows for file in parts[number] for rows in increment.keys(file))
        yield pa.record_batch([pa.array([count], pa.int64())], ["count"])

    return pc.sum(in_tasks(spark, len(parts), count_part, "count bigint").toArrow()["count"]).as_py() or 0


def _advance_marks(
    spark: SparkSession, table: StateTable, upto: Mapping[str, int], days: Sequence[date] | None, *, exactly: bool
) -> dict[str, int]:
    """Move the marks to `upto`, and return all marks of the table.

    A mark does not move back, and it stays if the merged `days` leave out deltas after it. With `exactly` it is set to
    `upto` in any case, also back. Of two writers at the same time, one may undo the other's change; the next merge then
    reads these deltas again, which changes nothing.
    """
    marks = merge_marks(read_version(spark, table.name).properties)
    moved = dict(marks)
    for gateway, arrival in upto.items():
        mark = marks.get(gateway)
        if exactly:
            moved[gateway] = arrival
        elif days is None or (mark is not None and _has_every_day(days, mark, arrival)):
            moved[gateway] = max(arrival, mark or 0)
    if moved != marks:
        set_properties(spark, table.name, {MARKS_PROPERTY: json.dumps(moved, sort_keys=True)})
    return moved


def _has_every_day(days: Sequence[date], mark: int, arrival: int) -> bool:
    """Return whether `days` has every UTC day from a mark to an arrival."""
    first, last = day_of(mark), day_of(arrival)
    needed = {first + timedelta(days=number) for number in range((last - first).days + 1)}
    return needed <= set(days)


def _share(table: Table, file: ManifestFile, increment: Increment) -> Literal["none", "part", "whole"]:
    """Return how much of a file belongs to an increment, by column bounds; "part" if they do not show it."""
    gateway, last_gateway = column_bounds(table, file, "gateway")
    first, last = column_bounds(table, file, "arrival")
    if not (isinstance(gateway, str) and isinstance(first, int) and isinstance(last, int)) or gateway != last_gateway:
        return "part"
    after, until = increment.ranges.get(gateway, (0, 0))  # (0, 0): the increment has no deltas of this gateway
    if last <= after or first > until:
        return "none"
    of_table = column_bounds(table, file, "table_name") == (increment.table, increment.table)
    return "whole" if after < first and last <= until and of_table else "part"

"""From `deltas` to a table's state: idempotent, by arrival, any day again in any order."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as sf

from assets.transforms.decode import day_of
from assets.transforms.project import REJECTED, project
from assets.transforms.reduce import reduce_deltas
from lakesync.crash import crash_point
from resources.lake.connection import lake_errors
from resources.lake.tables import (
    MARKS_PROPERTY,
    NAMES,
    LakeNames,
    StateTable,
    ensure_deltas,
    ensure_state,
    marks_of,
    read_version,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

    from pyspark.sql import DataFrame, Row, SparkSession

    from lakesync.schema import TableSchema

SMALL_TABLE = 100_000
"""Rows up to which a table is always written anew, which is as quick as a MERGE and leaves no delete files."""

LARGE_SHARE = 0.2
"""Deltas a row from which writing a table anew is quicker than a MERGE."""

TRIES = 3
"""Merges of one increment while another writer keeps committing in between."""


class MergeReport(msgspec.Struct, frozen=True):
    """What one merge did to a state table."""

    table: str
    deltas_in: int
    """Deltas read from the history."""
    rows_merged: int
    """Rows written: those of the increment, or the whole table where it was written anew."""
    tombstones: int
    """Rows among them that are not visible."""
    rejected_values: int
    """Live values among them that do not fit their column's type: null in the typed column, kept in `_cells`."""
    snapshot_id: int | None
    """The table's snapshot afterwards; None while it is empty."""
    marks: dict[str, int]
    """Merged marks afterwards, a gateway."""
    seconds: float


@lake_errors
def merge_table(
    spark: SparkSession,
    schema: TableSchema,
    upto: Mapping[str, int],
    *,
    days: Sequence[date] | None = None,
    rebuild: bool = False,
    names: LakeNames = NAMES,
) -> MergeReport:
    """Merge a table's deltas with `arrival <= upto[gateway]` into its state; the table is made or grown first.

    Without `days`: those above the merged mark, which then is `upto`. With `days` (UTC days of arrival): all of
    these days, whatever the marks say; marks move only where the days close the gap to `upto`. With `rebuild`: the rows
    of the gateways in `upto` are made again from all their deltas, in one commit. Gateways outside `upto` stay as they
    are. Writes no snapshot when there is nothing to merge. One writer a table at a time is expected; a second one costs
    time, never data.

    Raises:
        SchemaError: the schema does not fit the lake's table.
        LakeUnavailableError: Spark is gone.
    """
    started = time.perf_counter()
    ensure_deltas(spark, names)
    table = ensure_state(spark, schema, names)
    since = {} if rebuild or days is not None else table.marks
    ranges = {gateway: (since.get(gateway, 0), arrival) for gateway, arrival in upto.items()}
    increment = deltas_between(spark, schema.table, ranges, names, None if rebuild else days)
    deltas_in = increment.count()
    written = _Written(table.snapshot_id, 0, 0, 0)
    if deltas_in or rebuild or (table.grown and table.snapshot_id is not None):
        written = _write(spark, table, increment, deltas_in, upto if rebuild else None)
    crash_point("tables.merged")
    marks = _advance(spark, table, upto, days)
    seconds = time.perf_counter() - started
    return MergeReport(
        schema.table,
        deltas_in,
        written.rows,
        written.tombstones,
        written.rejected,
        written.snapshot_id,
        marks,
        seconds,
    )


@lake_errors
def forget_marks(spark: SparkSession, table: str, names: LakeNames = NAMES) -> None:
    """Drop a table's merged marks: the next merge reads all of its deltas again, with the same result."""
    spark.sql(f"ALTER TABLE {names.state(table)} UNSET TBLPROPERTIES IF EXISTS ('{MARKS_PROPERTY}')")


def deltas_between(
    spark: SparkSession,
    table: str,
    ranges: Mapping[str, tuple[int, int]],
    names: LakeNames,
    days: Sequence[date] | None = None,
) -> DataFrame:
    """A table's rows of the history with `low < arrival <= high` for each gateway's range, on all days or these."""
    of_gateways = sf.lit(False)
    for gateway, (low, high) in ranges.items():
        of_gateways |= (sf.col("gateway") == gateway) & (sf.col("arrival") > low) & (sf.col("arrival") <= high)
    if days is None:
        first = day_of(min((low for low, _ in ranges.values()), default=0))
        last = day_of(max((high for _, high in ranges.values()), default=0))
        in_days = sf.col("day").between(first, last)
    else:
        in_days = sf.col("day").isin(*days)
    return spark.table(names.deltas).where(of_gateways & in_days & (sf.col("table_name") == table))


class _Written(msgspec.Struct, frozen=True):
    snapshot_id: int | None
    rows: int
    tombstones: int
    rejected: int


def _write(
    spark: SparkSession,
    table: StateTable,
    increment: DataFrame,
    deltas_in: int,
    rebuilt: Mapping[str, int] | None,
) -> _Written:
    """Commit the increment, again where another writer committed in between: what it merged is in `deltas` too."""
    snapshot = table.snapshot_id
    anew = rebuilt is not None or table.grown or _is_large(spark, table, deltas_in)
    for attempt in range(TRIES):
        observed = Observation()
        try:
            if anew:
                _write_anew(spark, table, snapshot, increment, rebuilt=rebuilt, observed=observed)
            else:
                _merge_into(spark, table, snapshot, increment, observed)
        except PySparkException:
            now = read_version(spark, table.name).snapshot_id
            if now == snapshot or attempt == TRIES - 1:
                raise
        else:
            now = read_version(spark, table.name).snapshot_id
            if anew or _snapshot(spark, table, now)["parent_id"] == snapshot:
                counts = observed.get
                return _Written(now, counts["rows"], counts["tombstones"] or 0, counts["rejected"] or 0)
        snapshot = now
    raise AssertionError("unreachable: the last attempt raises or returns")


def _write_anew(
    spark: SparkSession,
    table: StateTable,
    snapshot: int | None,
    increment: DataFrame,
    *,
    rebuilt: Mapping[str, int] | None,
    observed: Observation,
) -> None:
    """Every row, old and new, in one overwrite that is refused when the table is no longer at `snapshot`."""
    state = None
    if snapshot is not None:
        state = spark.read.option("snapshot-id", snapshot).table(table.name)
        if rebuilt is not None:
            state = state.where(~sf.col("_gateway").isin(*rebuilt))
    rows = _rows(table, increment, state, observed)
    writer = rows.writeTo(table.name).option("isolation-level", "serializable")
    if snapshot is not None:
        writer = writer.option("validate-from-snapshot-id", str(snapshot))
    writer.overwrite(sf.lit(True))


def _merge_into(
    spark: SparkSession, table: StateTable, snapshot: int | None, increment: DataFrame, observed: Observation
) -> None:
    """The touched rows alone, merged on read."""
    touched = increment.select(sf.col("gateway").alias("_gateway"), sf.col("row_id").alias("_row_id")).distinct()
    held = spark.read.option("snapshot-id", str(snapshot)).table(table.name)
    state = held.join(touched, ["_gateway", "_row_id"], "semi")
    source = f"merge_{table.table}"
    _rows(table, increment, state, observed).createOrReplaceTempView(source)
    spark.sql(
        f"MERGE INTO {table.name} AS held USING `{source}` AS merged "
        "ON held._gateway = merged._gateway AND held._row_id = merged._row_id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def _rows(table: StateTable, increment: DataFrame, state: DataFrame | None, observed: Observation) -> DataFrame:
    rows = project(reduce_deltas(increment, state), table.columns)
    counts = (
        sf.count(sf.lit(1)).alias("rows"),
        sf.sum(sf.col("_deleted").cast("long")).alias("tombstones"),
        sf.sum(sf.col(REJECTED).cast("long")).alias("rejected"),
    )
    return rows.observe(observed, *counts).drop(REJECTED)


def _is_large(spark: SparkSession, table: StateTable, deltas_in: int) -> bool:
    if table.snapshot_id is None or deltas_in >= SMALL_TABLE:
        return True
    summary = (
        spark.table(f"{table.name}.snapshots")
        .where(sf.col("snapshot_id") == sf.lit(table.snapshot_id))
        .select("summary")
    )
    rows = int(summary.collect()[0]["summary"]["total-records"])
    return rows <= SMALL_TABLE or deltas_in > rows * LARGE_SHARE


def _snapshot(spark: SparkSession, table: StateTable, snapshot: int | None) -> Row:
    return spark.table(f"{table.name}.snapshots").where(sf.col("snapshot_id") == sf.lit(snapshot)).collect()[0]


def _advance(
    spark: SparkSession, table: StateTable, upto: Mapping[str, int], days: Sequence[date] | None
) -> dict[str, int]:
    """Raise the marks to `upto`, where nothing below it was left out."""
    marks = marks_of(read_version(spark, table.name))
    raised = dict(marks)
    for gateway, arrival in upto.items():
        held = marks.get(gateway)
        if days is None or (held is not None and _closes(days, held, arrival)):
            raised[gateway] = max(arrival, held or 0)
    if raised != marks:
        text = json.dumps(raised, sort_keys=True)
        spark.sql(f"ALTER TABLE {table.name} SET TBLPROPERTIES ('{MARKS_PROPERTY}' = '{text}')")
    return raised


def _closes(days: Sequence[date], mark: int, arrival: int) -> bool:
    """Whether every day from the mark to the arrival is among `days`."""
    first, last = day_of(mark), day_of(arrival)
    needed = {first + timedelta(days=number) for number in range((last - first).days + 1)}
    return needed <= set(days)

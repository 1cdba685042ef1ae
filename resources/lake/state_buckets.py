"""A state table written bucket by bucket: one task a group of buckets reads, merges and hands Spark whole rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg_core.transform import bucket
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType

from resources.lake.data_files import DataFiles, files_at, read_files
from resources.lake.tables import BUCKETS
from transforms.decode import day_of
from transforms.kernel import DELTAS, STORED, merge
from transforms.project import REJECTED
from transforms.typed import projected

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import date

    from pyspark.sql import DataFrame, SparkSession

    from resources.lake.tables import StateTable

DELTAS_A_TASK = 1_500_000
"""What one task has in memory; each task reads every file of the increment and keeps what is its own."""

Extent = Literal["all", "buckets", "rows"]
"""Every row; those of the buckets that the increment touches; or the touched rows alone."""

_ROWS_A_BATCH = 16_384
_PICKED = pa.schema([*DELTAS, ("table_name", pa.string()), ("day", pa.date32())])


class Increment(NamedTuple):
    """Which deltas are to be merged: of one table, with `low < arrival <= high` of each gateway."""

    table: str
    ranges: Mapping[str, tuple[int, int]]
    days: Sequence[date] | None
    """Only of these days of arrival; None: of all."""

    def pick(self, rows: pa.Table) -> pa.Table:
        """Its own among rows of the history."""
        gateways = pa.array(list(self.ranges), pa.string())
        place = pc.index_in(rows["gateway"], gateways)
        lows = pa.array([low for low, _ in self.ranges.values()], pa.int64()).take(place)
        highs = pa.array([high for _, high in self.ranges.values()], pa.int64()).take(place)
        own = pc.and_(pc.greater(rows["arrival"], lows), pc.less_equal(rows["arrival"], highs))
        own = pc.and_(own, pc.equal(rows["table_name"], self.table))
        if self.days is not None:
            own = pc.and_(own, pc.is_in(rows["day"], pa.array(self.days, pa.date32())))
        return rows.filter(own).select(DELTAS.names)


def delta_files(spark: SparkSession, deltas: str, snapshot: int, increment: Increment) -> DataFiles:
    """The files of the history in which an increment is, by their bounds.

    Raises:
        UnreadableError: as `files_at`.
    """
    bounds = sf.col("readable_metrics")
    low = min((low for low, _ in increment.ranges.values()), default=0)
    high = max((high for _, high in increment.ranges.values()), default=0)
    where = (bounds["arrival"]["upper_bound"] > low) & (bounds["arrival"]["lower_bound"] <= high)
    where &= bounds["table_name"]["lower_bound"] <= increment.table
    where &= bounds["table_name"]["upper_bound"] >= increment.table
    where &= bounds["day"]["upper_bound"] >= sf.lit(day_of(low))
    found = files_at(spark, deltas, snapshot, sf.coalesce(where, sf.lit(True)))
    return found.get(0, DataFiles())


def state_files(spark: SparkSession, table: StateTable, snapshot: int | None) -> dict[int, DataFiles]:
    """The state's files by bucket.

    Raises:
        UnreadableError: as `files_at`.
    """
    if snapshot is None:
        return {}
    return files_at(spark, table.name, snapshot, by=sf.col("partition._row_bucket"))


def merged_buckets(
    spark: SparkSession,
    table: StateTable,
    increment: Increment,
    sources: tuple[DataFiles, Mapping[int, DataFiles]],
    deltas_in: int,
    *,
    rebuilt: Collection[str] = (),
    extent: Extent,
) -> DataFrame:
    """Rows merged with what the increment says of them, with `_rejected`.

    Args:
        spark: a session.
        table: ready for its schema.
        increment: what is merged.
        sources: files of the history and, by bucket, of the state.
        deltas_in: about how many deltas.
        rebuilt: gateways whose stored rows do not count.
        extent: which rows.
    """
    tasks = min(BUCKETS, max(2, -(-deltas_in // DELTAS_A_TASK)))
    groups = [list(range(first, BUCKETS, tasks)) for first in range(tasks)]
    fields = spark.table(table.name).schema
    names = [*fields.names, REJECTED]
    run = _task(increment, sources, table.columns, groups, names, frozenset(rebuilt), extent)
    return spark.range(0, tasks, 1, tasks).mapInArrow(run, fields.add(REJECTED, IntegerType()))


def _task(
    increment: Increment,
    sources: tuple[DataFiles, Mapping[int, DataFiles]],
    columns: Sequence[tuple[str, str]],
    groups: list[list[int]],
    names: list[str],
    rebuilt: frozenset[str],
    extent: Extent,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    history, states = sources

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pa.set_cpu_count(1)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                deltas = _of_buckets(history, increment, groups[number])
                for place in groups[number]:
                    own = deltas.pop(place)
                    if not (extent == "all" or own.num_rows):
                        continue
                    touched = own["row_id"] if extent == "rows" else None
                    merged = merge(own, _stored(states.get(place, DataFiles()), rebuilt, touched))
                    rows = projected(merged, columns, REJECTED).select(names)
                    yield from rows.combine_chunks().to_batches(max_chunksize=_ROWS_A_BATCH)

    return run


def _of_buckets(files: DataFiles, increment: Increment, buckets: Sequence[int]) -> dict[int, pa.Table]:
    """The increment's deltas in each of these buckets."""
    parts: dict[int, list[pa.Table]] = {place: [] for place in buckets}
    for rows in read_files(files, _PICKED):
        picked = increment.pick(rows)
        places = np.asarray(bucket(picked["row_id"].combine_chunks(), BUCKETS))
        for place in buckets:
            parts[place].append(picked.filter(pa.array(places == place)))
    return {place: pa.concat_tables([DELTAS.empty_table(), *tables]) for place, tables in parts.items()}


def _stored(files: DataFiles, rebuilt: frozenset[str], touched: pa.ChunkedArray | None) -> pa.Table:
    """A bucket's rows, or those of the ids `touched`, without those of gateways that are made anew."""
    ids = pc.unique(touched) if touched is not None else None
    parts = [STORED.empty_table()]
    for rows in read_files(files, STORED):
        kept = rows if ids is None else rows.filter(pc.is_in(rows["_row"], ids))
        parts.append(kept.filter(pc.invert(pc.is_in(kept["_gateway"], pa.array(sorted(rebuilt))))) if rebuilt else kept)
    return pa.concat_tables(parts)

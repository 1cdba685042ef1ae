"""A state table written bucket by bucket: one task a group of buckets reads, merges and hands Spark whole rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg_core.transform import bucket as bucket_of
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType

from lakehouse.data_files import DataFiles, Places, files_at, find_rows, read_buckets, read_files
from lakehouse.merge.kernel import DELTAS, STORED, merge
from lakehouse.merge.project import REJECTED
from lakehouse.merge.typed import projected
from lakehouse.table_definitions import BUCKETS
from lakehouse.task_runner import in_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import date

    from pyspark.sql import DataFrame, SparkSession

    from lakehouse.table_definitions import StateTable

DELTAS_A_TASK = 1_500_000
"""What one task has in memory; each task reads every file of the increment and keeps what is its own."""

Extent = Literal["all", "buckets", "rows"]
"""Every row; those of the buckets that the increment touches; or the touched rows alone."""


class Bucket(NamedTuple):
    """What of a bucket is to be written."""

    place: int
    rows: pa.Table
    """Merged, with `_rejected`."""
    old: Sequence[Places] = ()
    """Where the touched rows were, if they alone are written."""


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
        found = rows.select(DELTAS.names)
        return found if pc.all(own).as_py() else found.filter(own)


def state_files(spark: SparkSession, table: StateTable, snapshot: int | None) -> dict[int, DataFiles]:
    """The state's files by bucket.

    Raises:
        UnreadableError: as `files_at`.
    """
    if snapshot is None:
        return {}
    return files_at(spark, table.name, snapshot, by=sf.col("partition._row_bucket"))


class Merge(NamedTuple):
    """What tasks do for a merge, each with a group of buckets; goes to them as a value."""

    increment: Increment
    history: DataFiles
    states: Mapping[int, DataFiles]
    """Of the state, by bucket."""
    columns: Sequence[tuple[str, str]]
    rebuilt: frozenset[str]
    """Gateways whose stored rows do not count."""
    extent: Extent
    tasks: int

    @property
    def rows(self) -> int:
        """What is read for it at most, of history and state."""
        return self.history.rows + sum(files.rows for files in self.states.values())

    def rows_of(self, task: int) -> Iterator[Bucket]:
        """The merged rows of each bucket of a task's; of a bucket that stays as it is nothing."""
        group = range(task, BUCKETS, self.tasks)
        deltas = _of_buckets(self.history, self.increment, group)
        for place in group:
            own = deltas.pop(place)
            if self.extent == "all" or own.num_rows:
                files = self.states.get(place, DataFiles())
                old = list(find_rows(files, STORED, "_row", _ids(own))) if self.extent == "rows" else []
                parts = (each.rows for each in old) if self.extent == "rows" else read_files(files, STORED)
                merged = merge(own, _joined(parts, self.rebuilt))
                yield Bucket(place, projected(merged, self.columns, REJECTED), old)


def tasks_of(deltas: int) -> int:
    """How many tasks merge about so many deltas: each has as many buckets as the others."""
    return min(BUCKETS, max(2, 1 << (-(-deltas // DELTAS_A_TASK) - 1).bit_length()))


def merged_rows(spark: SparkSession, table: StateTable, merge: Merge) -> DataFrame:
    """The merged rows, with `_rejected`, for Spark to write.

    Args:
        spark: a session.
        table: ready for its schema.
        merge: what is done.
    """
    fields = spark.table(table.name).schema
    names = [*fields.names, REJECTED]

    def part(task: int) -> Iterator[pa.RecordBatch]:
        for bucket in merge.rows_of(task):
            yield from bucket.rows.select(names).combine_chunks().to_batches(max_chunksize=_ROWS_A_BATCH)

    return in_tasks(spark, merge.tasks, part, fields.add(REJECTED, IntegerType()))


def _of_buckets(files: DataFiles, increment: Increment, buckets: Sequence[int]) -> dict[int, pa.Table]:
    """The increment's deltas in each of these buckets."""
    parts: dict[int, list[pa.Table]] = {place: [] for place in buckets}
    for known, rows in read_buckets(files, _PICKED, buckets):
        picked = increment.pick(rows)
        if known is not None:
            parts[known].append(picked)
            continue
        places = np.asarray(bucket_of(picked["row_id"].combine_chunks(), BUCKETS))
        for place in buckets:
            parts[place].append(picked.filter(pa.array(places == place)))
    return {place: pa.concat_tables([DELTAS.empty_table(), *tables]) for place, tables in parts.items()}


def _ids(deltas: pa.Table) -> pa.Array:
    return pc.unique(deltas["row_id"])


def _joined(parts: Iterable[pa.Table], rebuilt: frozenset[str]) -> pa.Table:
    """Stored rows without those of gateways that are made anew."""
    gone = pa.array(sorted(rebuilt), pa.string())
    kept = (rows.filter(pc.invert(pc.is_in(rows["_gateway"], gone))) if rebuilt else rows for rows in parts)
    return pa.concat_tables([STORED.empty_table(), *kept])

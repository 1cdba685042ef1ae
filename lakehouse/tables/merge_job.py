"""Merges deltas of the history into the rows of a state table, as one Spark job in two stages.

The history is the Iceberg table of all deltas (changes of rows), a state table has the merged rows of one synced table.
A row belongs to a gateway, one app's stream of deltas. The tasks of the first stage read files or DataFrames, and
divide the rows among *slices* of the table's keys (`lakehouse.tables.slices`). Spark shuffles them to the tasks of the
second stage. Each merges one slice at a time, so it never has all its rows in memory.

Merges and checkpoints, which know the files to read, call `merged_files`; `lakehouse.tables.writes` commits the result
of a merge. Erasures and queries, which have DataFrames, call `merged_frames`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from lakehouse.data_files import DataFile, divide_files, read_rows, rows_in
from lakehouse.table_definitions import SPARK_TYPES, STATE_FIELDS
from lakehouse.tables.increment import ROWS_PER_TASK, Increment
from lakehouse.tables.kernel import DELTAS, STORED, merge
from lakehouse.tables.slices import (
    MAX_TASKS,
    SHUFFLED,
    Slicing,
    bucket_numbers,
    deltas_and_stored,
    fits_one_slice,
    group_by_slice,
)
from lakehouse.tables.typed_columns import with_typed_columns
from lakehouse.tables.verification import count_duplicates, sampled_row_difference
from lakehouse.task_runner import column_ddl, cores, in_tasks, prepare_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lakehouse.tables.increment import HistoryFiles

SEARCHED_ROWS_PER_TASK = 1_000_000
"""Stored rows that one task searches for rows with new deltas. It reads mostly their ids."""

REJECTED, DUPLICATES, DIFFERENCE = "_lakesync_rejected", "_lakesync_duplicates", "_lakesync_difference"
"""Columns of check results in merged rows. No schema may use these names.

The first is the number of a row's values that do not fit their columns. The other two are in the first row of each
slice: the number of surplus stored rows, which have the key of another one; and as text a sampled row whose values
differ from what the gateway's merge function computes, or null."""

CHECKS = (REJECTED, DUPLICATES, DIFFERENCE)
"""The columns of check results, which are not written to the table."""
STATE_NAMES = ("_gateway", "_row", "_cells", "_tombstone", "_inserted", "_gone", "_arrival")
"""The columns that every state table has: the row's gateway and id, its values as JSON, the stamps of its newest DELETE
and INSERT, whether it is deleted, and its newest arrival. The typed columns, those of the table's schema, follow."""

_ROWS_PER_BATCH = 16_384
"""Rows of a batch of the result, at most."""


class Merge(NamedTuple):
    """The plan of a merge: which deltas are merged into which stored rows. It is sent to the tasks."""

    increment: Increment
    """Selects the deltas among the rows of `history`."""
    history: tuple[DataFile, ...]
    """The files with the deltas."""
    state: tuple[DataFile, ...]
    """The files with the stored rows."""
    columns: tuple[tuple[str, str], ...]
    """Name and schema type of each typed column."""
    slicing: Slicing
    is_small: bool
    """Whether one task can read and merge everything at once."""
    rebuilt: frozenset[str] = frozenset()
    """Gateways whose stored rows are ignored, because their rows are rebuilt from the whole history."""
    touched_only: bool = False
    """Whether the result has only the rows that the deltas touch, not all rows of the table."""

    @classmethod
    def of(
        cls,
        increment: Increment,
        history: HistoryFiles,
        state: Sequence[DataFile],
        columns: Sequence[tuple[str, str]],
        buckets: int,
        rebuilt: Iterable[str] = (),
        *,
        touched_only: bool = False,
    ) -> Merge:
        """Return the merge of an increment, with its division among slices and tasks.

        Args:
            increment: the deltas to merge.
            history: the files with these deltas.
            state: the files of the state table.
            columns: name and type of each typed column.
            buckets: number of the state table's buckets.
            rebuilt: gateways whose rows are rebuilt from their deltas only. The increment must have all their deltas.
            touched_only: whether the result has only the rows that the deltas touch.
        """
        # each delta touches at most one stored row
        stored = min(history.max_deltas, rows_in(state)) if touched_only else rows_in(state)
        rows = 2 * history.max_deltas if touched_only else history.max_deltas + stored
        size = sum(file.bytes for file in history.files)
        size += sum(file.bytes for file in state) * stored // max(1, rows_in(state))
        return cls(
            increment,
            history.files,
            tuple(state),
            tuple(columns),
            Slicing.of(rows, buckets, size),
            fits_one_slice(rows, size) and rows_in(state) <= SEARCHED_ROWS_PER_TASK,
            frozenset(rebuilt),
            touched_only,
        )

    def merge_at_once(self) -> pa.Table:
        """Read and merge everything in the calling task, and return the rows ordered by bucket."""
        deltas, stored = list(self._deltas(self.history)), list(self._stored(self.state))
        rows = self.merge_slice(
            pa.concat_tables([DELTAS.empty_table(), *deltas]), pa.concat_tables([STORED.empty_table(), *stored])
        )
        buckets = bucket_numbers(rows["_row"].combine_chunks(), self.slicing.buckets)
        return rows.take(np.argsort(buckets, kind="stable"))

    def first_stage(self) -> list[Callable[[], Iterator[pa.RecordBatch]]]:
        """Return a function for each task of the first stage: it reads some files, and yields batches of `SHUFFLED`."""
        history = _divide_among_tasks(self.history, ROWS_PER_TASK)
        state = _divide_among_tasks(self.state, SEARCHED_ROWS_PER_TASK if self.touched_only else ROWS_PER_TASK)
        return [
            *(lambda files=files: self._split(self._deltas(files), is_deltas=True) for files in history),
            *(lambda files=files: self._split(self._stored(files), is_deltas=False) for files in state),
        ]

    def merge_slice(self, deltas: pa.Table, stored: pa.Table) -> pa.Table:
        """Merge a slice, and return its rows with typed columns and `CHECKS`. Tasks of the second stage call it.

        Args:
            deltas: the slice's deltas.
            stored: the slice's stored rows.
        """
        if self.touched_only:
            stored = stored.filter(pc.is_in(_keys(stored, "_gateway", "_row"), _keys(deltas, "gateway", "row_id")))
        return _merge_and_check(deltas, stored, self.columns)

    def _split(self, tables: Iterable[pa.Table], *, is_deltas: bool) -> Iterator[pa.RecordBatch]:
        """Yield the rows of tables, divided among slices."""
        return (self.slicing.split(rows, is_deltas=is_deltas) for rows in tables)

    def _deltas(self, files: Iterable[DataFile]) -> Iterator[pa.Table]:
        """Yield the increment's deltas in files of the history."""
        for file in files:
            yield from self.increment.deltas(file)

    def _stored(self, files: Iterable[DataFile]) -> Iterator[pa.Table]:
        """Yield the stored rows that are merged: none of `rebuilt` gateways; if `touched_only`, only touched ones."""
        wanted = self._touched_ids() if self.touched_only else None
        rebuilt = pa.array(sorted(self.rebuilt), pa.string())
        for file in files:
            for rows in read_rows(file, STORED, key="_row", wanted=wanted):
                kept = rows.filter(pc.invert(pc.is_in(rows["_gateway"], rebuilt))) if self.rebuilt else rows
                if kept.num_rows:
                    yield kept

    def _touched_ids(self) -> pa.Array:
        """Return the row ids of the increment's deltas."""
        parts = [rows["row_id"].combine_chunks() for file in self.history for rows in self.increment.keys(file)]
        return pc.unique(pa.chunked_array(parts, pa.string()))


def merged_files(spark: SparkSession, fields: StructType, merge: Merge) -> DataFrame:
    """Run a merge, and return the merged rows, ordered by bucket, with the columns `CHECKS`.

    Args:
        spark: an open Spark session.
        fields: the state table's fields, in the order of the result.
        merge: the plan of the merge.
    """
    names, schema = _with_checks(fields)
    if merge.is_small:
        return in_tasks(spark, 1, lambda _: _batches(merge.merge_at_once(), names), schema)
    if available := cores(spark):  # more tasks than cores would only take more memory
        merge = merge._replace(slicing=merge.slicing._replace(tasks=min(merge.slicing.tasks, available)))
    readers = merge.first_stage()
    shuffled = in_tasks(spark, len(readers), lambda number: readers[number](), SHUFFLED)
    return _second_stage(shuffled, names, schema, merge.slicing, merge.merge_slice)


def merged_frames(
    deltas: DataFrame,
    state: DataFrame | None,
    columns: Sequence[tuple[str, str]],
    slicing: Slicing = Slicing(buckets=8, slices=16, tasks=8),  # noqa: B008 immutable
) -> DataFrame:
    """Merge DataFrames of deltas and stored rows. `merged_files` does the same for whole files, and is faster.

    Args:
        deltas: rows of the history, of one table.
        state: rows of the state table; None for an empty one.
        columns: name and schema type of each typed column.
        slicing: how the keys are divided.

    Returns:
        The columns of a state table, `columns` last, without `CHECKS`.
    """
    typed = (f"`{name}` {SPARK_TYPES[kind]}" for name, kind in columns)
    schema = ", ".join([STATE_FIELDS, *typed, f"{REJECTED} int, {DUPLICATES} bigint, {DIFFERENCE} string"])
    names = [*STATE_NAMES, *(name for name, _ in columns), *CHECKS]
    shuffled = _split_frame(deltas, slicing, is_deltas=True)
    if state is not None:
        shuffled = shuffled.unionAll(_split_frame(state, slicing, is_deltas=False))
    merged = _second_stage(shuffled, names, schema, slicing, partial(_merge_and_check, columns=tuple(columns)))
    return merged.drop(*CHECKS)


def _split_frame(frame: DataFrame, slicing: Slicing, *, is_deltas: bool) -> DataFrame:
    """Divide the rows of a DataFrame among slices, in tasks of the first stage."""
    schema = DELTAS if is_deltas else STORED

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for batch in batches:
            if batch.num_rows:
                rows = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
                yield slicing.split(rows, is_deltas=is_deltas)

    return frame.select(*schema.names).mapInArrow(run, column_ddl(SHUFFLED))


def _second_stage(
    shuffled: DataFrame,
    names: Sequence[str],
    schema: StructType | str,
    slicing: Slicing,
    merge_slice: Callable[[pa.Table, pa.Table], pa.Table],
) -> DataFrame:
    """Shuffle rows to the tasks of the second stage, which merge slice after slice.

    Args:
        shuffled: the result of the first stage, in the columns `SHUFFLED`.
        names: names of the result's columns.
        schema: the result's schema.
        slicing: how the keys are divided.
        merge_slice: merges the deltas and the stored rows of one slice.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for of_slice in group_by_slice(batches):
            yield from _batches(merge_slice(*deltas_and_stored(of_slice)), names)

    owned = shuffled.repartitionById(slicing.tasks, "task").sortWithinPartitions("bucket", "slice")
    return owned.mapInArrow(run, schema)


def _merge_and_check(deltas: pa.Table, stored: pa.Table, columns: Sequence[tuple[str, str]]) -> pa.Table:
    """Merge deltas into stored rows in memory, and return the rows with typed columns and `CHECKS`.

    Args:
        deltas: rows of the history.
        stored: rows of the state table.
        columns: name and type of each typed column.
    """
    rows = with_typed_columns(merge(deltas, stored), columns, REJECTED)

    def in_first_row(result: int | str | None, arrow_type: pa.DataType) -> pa.Array:
        return pa.array([result, *[None] * rows.num_rows][: rows.num_rows], arrow_type)

    difference = sampled_row_difference(deltas, stored, rows)
    rows = rows.append_column(DUPLICATES, in_first_row(count_duplicates(stored), pa.int64()))
    return rows.append_column(DIFFERENCE, in_first_row(difference, pa.string()))


def _divide_among_tasks(files: Sequence[DataFile], rows: int) -> list[list[DataFile]]:
    """Divide files among tasks, of about `rows` rows each, or more if there would be too many tasks."""
    return divide_files(files, max(rows, rows_in(files) // MAX_TASKS))


def _with_checks(fields: StructType) -> tuple[list[str], StructType]:
    """Return the names and the schema of a state table's fields and `CHECKS`."""
    schema = StructType([*fields.fields])
    for name, spark_type in zip(CHECKS, (IntegerType(), LongType(), StringType()), strict=True):
        schema = schema.add(name, spark_type)
    return schema.names, schema


def _batches(rows: pa.Table, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield some columns of rows, in batches that a task returns to Spark."""
    yield from rows.select(list(names)).combine_chunks().to_batches(max_chunksize=_ROWS_PER_BATCH)


def _keys(rows: pa.Table, gateway: str, row: str) -> pa.ChunkedArray:
    """Return each row's gateway and row id as one text. Gateway ids contain no line break, so the text is unique."""
    return pc.binary_join_element_wise(rows[gateway], rows[row], "\n")

"""Merges deltas of the history into the rows of a state table, as one Spark job in two stages.

The history is the Iceberg table of all deltas (changes of rows), a state table has the merged rows of one synced table.
A row belongs to a gateway, one app's stream of deltas. Iceberg divides the rows among buckets by a hash of the row id;
here each bucket is divided further, into slices. The tasks of the first stage read files, and divide their rows into
chunks: compressed Arrow batches with rows of one slice. Spark shuffles the chunks to the tasks that own their buckets,
and sorts them there. A task of the second stage merges one slice at a time, so it never has a whole bucket in memory.

Merges and checkpoints, which know the files to read, call `merged_rows`; `lakehouse.tables.writes` commits the result
of a merge. Erasures and queries, which have DataFrames, call `merged_frames`.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from lakehouse.data_files import DataFile, divide_files, read_rows, rows_in
from lakehouse.table_definitions import SPARK_TYPES, STATE_FIELDS
from lakehouse.tables.increment import ROWS_PER_TASK, Increment
from lakehouse.tables.kernel import DELTAS, STORED, merge
from lakehouse.tables.typed_columns import with_typed_columns
from lakehouse.tables.verification import count_duplicates, sampled_row_difference
from lakehouse.task_runner import column_ddl, cores, in_tasks, prepare_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt
    from pyspark.sql import DataFrame, SparkSession

    from lakehouse.tables.increment import HistoryFiles

ROWS_PER_SLICE = 50_000
"""Approximate number of deltas and stored rows that are merged at once: 25 MB with a task's copies. Each merge takes at
least 5 ms."""
BYTES_PER_SLICE = 32 << 20
"""Approximate bytes of a slice, compressed as in its files, if its rows are wide."""

ROWS_PER_MERGE_TASK = 1_000_000
"""Approximate number of deltas and stored rows of one task of the second stage."""

MAX_TASKS = 256
"""Number of tasks of a stage, at most."""
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
_CODEC = "lz4_raw"
"""Compression of chunks. The JVM copies a chunk about eight times in a shuffle, which costs more than compression. A
delta shrinks from 174 to 120 bytes in 0.25 µs, decompression included; zstd takes twice as long for 77 bytes."""
_CHUNKS = pa.schema(
    [
        ("task", pa.int32()),
        ("bucket", pa.int32()),
        ("slice", pa.int32()),
        ("is_deltas", pa.bool_()),
        ("size", pa.int32()),
        ("rows", pa.binary()),
    ]
)
"""Columns of the result of the first stage: a row for each chunk, with the number of the task that merges it."""


class _Chunk(NamedTuple):
    """Rows of one slice, from one batch of a file."""

    bucket: int
    slice: int
    is_deltas: bool
    """Whether the rows are deltas; otherwise they are stored rows."""
    size: int
    """Bytes of `rows` before compression."""
    rows: pa.Buffer
    """A compressed record batch in Arrow's IPC format, without its schema."""

    def table(self) -> pa.Table:
        """Return the decompressed rows."""
        decompressed = pa.decompress(self.rows, self.size, _CODEC)
        schema = DELTAS if self.is_deltas else STORED
        return pa.Table.from_batches([pa.ipc.read_record_batch(decompressed, schema)])


class Division(NamedTuple):
    """How row keys are divided among buckets, slices and tasks."""

    buckets: int
    """Number of the table's buckets. Each belongs to one task."""
    slices: int
    """Number of slices of a bucket."""
    tasks: int
    """Number of tasks of the second stage."""

    @classmethod
    def of(cls, rows: int, buckets: int, size: int = 0) -> Division:
        """Return the division of a merge.

        Args:
            rows: approximate number of its deltas and stored rows.
            buckets: number of the state table's buckets.
            size: approximate bytes of these deltas and rows, compressed; 0 if it is not known.
        """
        tasks = min(buckets, MAX_TASKS, max(2, -(-rows // ROWS_PER_MERGE_TASK)))
        slices = max(1, -(-rows // (ROWS_PER_SLICE * buckets)), -(-size // (BYTES_PER_SLICE * buckets)))
        return cls(buckets, slices, tasks)

    def split(self, rows: pa.Table, ids: str, *, is_deltas: bool) -> pa.RecordBatch:
        """Divide rows into chunks, one for each slice that has rows, in the columns `_CHUNKS`.

        Args:
            rows: deltas or stored rows.
            ids: name of the column with the row ids.
            is_deltas: True for deltas, False for stored rows.
        """
        (batch,) = rows.combine_chunks().to_batches()
        # The hash modulo `buckets * slices` is the number of a slice; that modulo `buckets` is the table's bucket.
        slices = _buckets(batch[ids], self.buckets * self.slices)
        sizes = np.bincount(slices)
        filled = np.flatnonzero(sizes)
        ends = np.cumsum(sizes[filled])
        by_slice = batch.take(pa.array(np.argsort(slices, kind="stable")))
        chunks = [
            by_slice.slice(end - size, size).serialize()
            for end, size in zip(ends.tolist(), sizes[filled].tolist(), strict=True)
        ]
        buckets = filled % self.buckets
        return pa.record_batch(
            [
                pa.array(buckets % self.tasks, pa.int32()),
                pa.array(buckets, pa.int32()),
                pa.array(filled // self.buckets, pa.int32()),
                pa.repeat(is_deltas, len(filled)),
                pa.array([chunk.size for chunk in chunks], pa.int32()),
                pa.array([pa.compress(chunk, _CODEC, asbytes=True) for chunk in chunks], pa.binary()),
            ],
            schema=_CHUNKS,
        )


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
    rows: int
    """Approximate number of deltas and stored rows."""
    size: int
    """Approximate bytes of these, compressed as in the files."""
    division: Division
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
        """Return the merge of an increment, with its division into slices.

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
            rows,
            size,
            Division.of(rows, buckets, size),
            frozenset(rebuilt),
            touched_only,
        )

    @property
    def is_one_slice(self) -> bool:
        """Whether one task can read and merge everything."""
        is_small = self.rows <= ROWS_PER_SLICE and self.size <= BYTES_PER_SLICE
        return is_small and rows_in(self.state) <= SEARCHED_ROWS_PER_TASK

    def whole(self) -> pa.Table:
        """Read and merge everything in the calling task, and return the rows ordered by bucket."""
        deltas = [rows for file in self.history for rows in self.increment.deltas(file)]
        stored = list(self._stored(self.state))
        rows = self.merged(
            pa.concat_tables([DELTAS.empty_table(), *deltas]), pa.concat_tables([STORED.empty_table(), *stored])
        )
        return rows.take(np.argsort(_buckets(rows["_row"].combine_chunks(), self.division.buckets), kind="stable"))

    def parts(self) -> list[Callable[[], Iterator[pa.RecordBatch]]]:
        """Return a function for each task of the first stage, which reads some of the files and yields chunks."""
        stored_rows_per_task = SEARCHED_ROWS_PER_TASK if self.touched_only else ROWS_PER_TASK
        history = self._shares(self.history, ROWS_PER_TASK)
        state = self._shares(self.state, stored_rows_per_task)
        return [
            *(lambda files=files: self._split_deltas(files) for files in history),
            *(lambda files=files: self._split_stored(files) for files in state),
        ]

    def merged(self, deltas: pa.Table, stored: pa.Table) -> pa.Table:
        """Merge a slice, and return its rows with typed columns and `CHECKS`. Tasks of the second stage call it.

        Args:
            deltas: the slice's deltas.
            stored: the slice's stored rows.
        """
        if self.touched_only:
            stored = stored.filter(pc.is_in(_keys(stored, "_gateway", "_row"), _keys(deltas, "gateway", "row_id")))
        return merged_slice(deltas, stored, self.columns)

    def _shares(self, files: Sequence[DataFile], rows: int) -> list[list[DataFile]]:
        """Divide files among tasks, of about `rows` rows each, or more if there would be too many tasks."""
        return divide_files(files, max(rows, rows_in(files) // MAX_TASKS))

    def _split_deltas(self, files: Iterable[DataFile]) -> Iterator[pa.RecordBatch]:
        """Yield the deltas of files, divided into chunks by slice."""
        for file in files:
            for rows in self.increment.deltas(file):
                yield self.division.split(rows, "row_id", is_deltas=True)

    def _split_stored(self, files: Iterable[DataFile]) -> Iterator[pa.RecordBatch]:
        """Yield the stored rows of files, divided into chunks by slice."""
        for rows in self._stored(files):
            yield self.division.split(rows, "_row", is_deltas=False)

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


def merged_rows(spark: SparkSession, fields: StructType, merge: Merge) -> DataFrame:
    """Run a merge, and return the merged rows, ordered by bucket, with the columns `CHECKS`.

    Args:
        spark: an open Spark session.
        fields: the state table's fields, in the order of the result.
        merge: the plan of the merge.
    """
    names, schema = _with_checks(fields)
    if merge.is_one_slice:
        return in_tasks(spark, 1, lambda _: _batches(merge.whole(), names), schema)
    if available := cores(spark):  # more tasks than cores would only take more memory
        merge = merge._replace(division=merge.division._replace(tasks=min(merge.division.tasks, available)))
    parts = merge.parts()
    chunks = in_tasks(spark, len(parts), lambda number: parts[number](), _CHUNKS)
    return _merged_chunks(chunks, names, schema, merge.division, merge.merged)


def merged_frames(
    deltas: DataFrame,
    state: DataFrame | None,
    columns: Sequence[tuple[str, str]],
    division: Division = Division(buckets=8, slices=16, tasks=8),  # noqa: B008 immutable
) -> DataFrame:
    """Merge DataFrames of deltas and stored rows. `merged_rows` does the same for whole files, and is faster.

    Args:
        deltas: rows of the history, of one table.
        state: rows of the state table; None for an empty one.
        columns: name and schema type of each typed column.
        division: how the keys are divided.

    Returns:
        The columns of a state table, `columns` last, without `CHECKS`.
    """
    typed = (f"`{name}` {SPARK_TYPES[kind]}" for name, kind in columns)
    schema = ", ".join([STATE_FIELDS, *typed, f"{REJECTED} int, {DUPLICATES} bigint, {DIFFERENCE} string"])
    names = [*STATE_NAMES, *(name for name, _ in columns), *CHECKS]

    def split(schema: pa.Schema, ids: str, *, is_deltas: bool) -> Callable[..., Iterator[pa.RecordBatch]]:
        """Return the function by which tasks of the first stage divide rows into chunks."""

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            prepare_worker()
            for batch in batches:
                if batch.num_rows:
                    rows = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
                    yield division.split(rows, ids, is_deltas=is_deltas)

        return run

    chunks = deltas.select(*DELTAS.names).mapInArrow(split(DELTAS, "row_id", is_deltas=True), column_ddl(_CHUNKS))
    if state is not None:
        stored = state.select(*STORED.names).mapInArrow(split(STORED, "_row", is_deltas=False), column_ddl(_CHUNKS))
        chunks = chunks.unionAll(stored)
    merged = _merged_chunks(chunks, names, schema, division, partial(merged_slice, columns=tuple(columns)))
    return merged.drop(*CHECKS)


def merged_slice(deltas: pa.Table, stored: pa.Table, columns: Sequence[tuple[str, str]]) -> pa.Table:
    """Merge deltas into stored rows in memory, and return the rows with typed columns and `CHECKS`. Tasks call it.

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


def _merged_chunks(
    chunks: DataFrame,
    names: Sequence[str],
    schema: StructType | str,
    division: Division,
    merge_slice: Callable[[pa.Table, pa.Table], pa.Table],
) -> DataFrame:
    """Shuffle chunks to the tasks of the second stage, which merge slice after slice.

    Args:
        chunks: the result of the first stage, in the columns `_CHUNKS`.
        names: names of the result's columns.
        schema: the result's schema.
        division: how the keys are divided.
        merge_slice: merges the deltas and the stored rows of one slice.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        chunks = (chunk for batch in batches for chunk in _chunks(batch))
        for _, chunks_of_slice in groupby(chunks, lambda chunk: (chunk.bucket, chunk.slice)):
            yield from _batches(merge_slice(*_tables(chunks_of_slice)), names)

    owned = chunks.repartitionById(division.tasks, "task").sortWithinPartitions("bucket", "slice")
    return owned.mapInArrow(run, schema)


def _buckets(ids: pa.Array, count: int) -> npt.NDArray[np.unsignedinteger]:
    """Return the bucket of each row id among `count` buckets, by Iceberg's bucket transform.

    The integers are short, because numpy sorts 16-bit integers by radix, ten times as fast as longer ones.
    """
    from pyiceberg_core.transform import bucket  # takes 10 MB, so only tasks import it

    return np.asarray(bucket(ids, count)).astype(np.min_scalar_type(count))


def _with_checks(fields: StructType) -> tuple[list[str], StructType]:
    """Return the names and the schema of a state table's fields and `CHECKS`."""
    schema = StructType([*fields.fields])
    for name, spark_type in zip(CHECKS, (IntegerType(), LongType(), StringType()), strict=True):
        schema = schema.add(name, spark_type)
    return schema.names, schema


def _batches(rows: pa.Table, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield some columns of rows, in batches that a task returns to Spark."""
    yield from rows.select(list(names)).combine_chunks().to_batches(max_chunksize=_ROWS_PER_BATCH)


def _chunks(batch: pa.RecordBatch) -> Iterator[_Chunk]:
    """Yield the chunks in a batch of the shuffled result of the first stage."""
    buckets, slices, are_deltas, sizes = (batch[name].to_pylist() for name in ("bucket", "slice", "is_deltas", "size"))
    for number, fields in enumerate(zip(buckets, slices, are_deltas, sizes, strict=True)):
        yield _Chunk(*fields, batch["rows"][number].as_buffer())


def _tables(chunks: Iterable[_Chunk]) -> tuple[pa.Table, pa.Table]:
    """Return the deltas and the stored rows of one slice."""
    deltas, stored = [DELTAS.empty_table()], [STORED.empty_table()]
    for chunk in chunks:
        (deltas if chunk.is_deltas else stored).append(chunk.table())
    return pa.concat_tables(deltas), pa.concat_tables(stored)


def _keys(rows: pa.Table, gateway: str, row: str) -> pa.ChunkedArray:
    """Return each row's gateway and row id as one text. Gateway ids contain no line break, so the text is unique."""
    return pc.binary_join_element_wise(rows[gateway], rows[row], "\n")

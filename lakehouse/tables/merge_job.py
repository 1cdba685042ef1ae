"""The merge of a table as one Spark job: tasks read files and cut their rows by key, others merge slice by slice.

The first tasks cut what they read into slices of the key range, as bytes of Arrow. Spark shuffles the slices to the
tasks that own their buckets and sorts them there. So a task merges one slice at a time and never holds a bucket whole.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from lakehouse.data_files import DataFile, read_rows, rows_in, shares
from lakehouse.merge.kernel import DELTAS, STORED, merge
from lakehouse.merge.typed import projected
from lakehouse.table_definitions import SPARK_TYPES, STATE_FIELDS
from lakehouse.tables.increment import ROWS_A_TASK, Increment
from lakehouse.tables.verification import difference, repeated
from lakehouse.task_runner import cores, in_tasks, prepare_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt
    from pyspark.sql import DataFrame, SparkSession

    from lakehouse.tables.history_files import History

ROWS_A_SLICE = 50_000
"""Deltas and stored rows that are merged together, about: 25 MB with a task's copies. The calls of a merge take 5 ms,
however few its rows are."""

ROWS_A_MERGE_TASK = 1_000_000
"""Deltas and stored rows of a task that merges, about; slice by slice."""

MOST_TASKS = 256
SEARCHED_ROWS_A_TASK = 1_000_000
"""Stored rows among which one task looks for touched ones: mostly their ids alone are read."""

REJECTED, DUPLICATES, DIFFERENCE = "_lakesync_rejected", "_lakesync_duplicates", "_lakesync_difference"
"""Further columns of merged rows, whose names no schema may use.

How many values do not fit their column; in a slice's first row how many stored rows there were beyond the first of
their key, and how a sampled row differs from what the gateway's own code makes of it."""

CHECKS = (REJECTED, DUPLICATES, DIFFERENCE)
STATE_NAMES = ("_gateway", "_row", "_cells", "_tombstone", "_inserted", "_gone", "_arrival")
"""A state table's own columns."""

_ROWS_A_BATCH = 16_384
_CODEC = "lz4_raw"
"""Of chunks. The JVM copies a chunk about eight times on its way through a shuffle, which costs more than to compress
it: a delta shrinks from 174 to 120 bytes. There and back it takes 0.25 µs; zstd takes twice that for 77 bytes."""
_CHUNKS = "task int, bucket int, slice int, is_deltas boolean, size int, rows binary"
_ARROW_CHUNKS = pa.schema(
    [
        ("task", pa.int32()),
        ("bucket", pa.int32()),
        ("slice", pa.int32()),
        ("is_deltas", pa.bool_()),
        ("size", pa.int32()),
        ("rows", pa.binary()),
    ]
)


class _Chunk(NamedTuple):
    """Some rows of a slice."""

    bucket: int
    slice: int
    is_deltas: bool
    size: int
    """Bytes of the rows before they were compressed."""
    rows: pa.Buffer
    """A record batch in Arrow's IPC format without its schema, compressed."""

    def table(self) -> pa.Table:
        """Its rows."""
        whole = pa.decompress(self.rows, self.size, _CODEC)
        schema = DELTAS if self.is_deltas else STORED
        return pa.Table.from_batches([pa.ipc.read_record_batch(whole, schema)])


class Division(NamedTuple):
    """How keys are divided."""

    buckets: int
    """Of the table: each is one task's."""
    slices: int
    """Of a bucket."""
    tasks: int

    @classmethod
    def of(cls, rows: int, buckets: int) -> Division:
        """Return the division of a merge.

        Args:
            rows: about how many deltas and stored rows it has.
            buckets: of the state table.
        """
        tasks = min(buckets, MOST_TASKS, max(2, -(-rows // ROWS_A_MERGE_TASK)))
        return cls(buckets, max(1, -(-rows // (ROWS_A_SLICE * buckets))), tasks)

    def cut(self, rows: pa.Table, ids: str, *, is_deltas: bool) -> pa.RecordBatch:
        """Rows as chunks, one a slice. Args: ids: the column of row ids."""
        (batch,) = rows.combine_chunks().to_batches()
        places = _buckets(batch[ids], self.buckets * self.slices)
        sizes = np.bincount(places)
        found = np.flatnonzero(sizes)
        ends = np.cumsum(sizes[found])
        whole = batch.take(pa.array(np.argsort(places, kind="stable")))
        chunks = [
            whole.slice(end - size, size).serialize()
            for end, size in zip(ends.tolist(), sizes[found].tolist(), strict=True)
        ]
        buckets = found % self.buckets
        return pa.record_batch(
            [
                pa.array(buckets % self.tasks, pa.int32()),
                pa.array(buckets, pa.int32()),
                pa.array(found // self.buckets, pa.int32()),
                pa.repeat(is_deltas, len(found)),
                pa.array([chunk.size for chunk in chunks], pa.int32()),
                pa.array([pa.compress(chunk, _CODEC, asbytes=True) for chunk in chunks], pa.binary()),
            ],
            schema=_ARROW_CHUNKS,
        )


class Merge(NamedTuple):
    """What is merged into what; goes to tasks as a value."""

    increment: Increment
    history: tuple[DataFile, ...]
    state: tuple[DataFile, ...]
    columns: tuple[tuple[str, str], ...]
    """Typed columns with their schema types."""
    rows: int
    """Deltas and stored rows that are merged, about."""
    division: Division
    rebuilt: frozenset[str] = frozenset()
    """Gateways whose stored rows do not count."""
    touched_only: bool = False
    """Rows that no delta touches are left out."""

    @classmethod
    def of(
        cls,
        increment: Increment,
        history: History,
        state: Sequence[DataFile],
        columns: Sequence[tuple[str, str]],
        buckets: int,
        rebuilt: Iterable[str] = (),
        *,
        touched_only: bool = False,
    ) -> Merge:
        """Return the merge of an increment, with its division into slices.

        Args:
            increment: which deltas are merged.
            history: the files that have them.
            state: the files of the state table.
            columns: name and type of each typed column.
            buckets: of the state table.
            rebuilt: gateways whose rows are made from their deltas alone.
            touched_only: whether only rows that the deltas touch are written.
        """
        rows = 2 * history.most if touched_only else history.most + rows_in(state)
        return cls(
            increment,
            history.files,
            tuple(state),
            tuple(columns),
            rows,
            Division.of(rows, buckets),
            frozenset(rebuilt),
            touched_only,
        )

    @property
    def is_one_slice(self) -> bool:
        """Whether the task that reads it can merge it at once."""
        return self.rows <= ROWS_A_SLICE and rows_in(self.state) <= SEARCHED_ROWS_A_TASK

    def whole(self) -> pa.Table:
        """All of it in the order of its buckets, merged by the task that reads it."""
        deltas = [rows for file in self.history for rows in self.increment.deltas(file)]
        stored = list(self._stored(self.state))
        rows = self.merged(
            pa.concat_tables([DELTAS.empty_table(), *deltas]), pa.concat_tables([STORED.empty_table(), *stored])
        )
        return rows.take(np.argsort(_buckets(rows["_row"].combine_chunks(), self.division.buckets), kind="stable"))

    def parts(self) -> list[Callable[[], Iterator[pa.RecordBatch]]]:
        """What each task does that reads: chunks."""
        rows = SEARCHED_ROWS_A_TASK if self.touched_only else ROWS_A_TASK
        own = self._shares(self.history, ROWS_A_TASK)
        stored = self._shares(self.state, rows)
        return [
            *(lambda files=files: self._cut_deltas(files) for files in own),
            *(lambda files=files: self._cut_stored(files) for files in stored),
        ]

    def merged(self, deltas: pa.Table, stored: pa.Table) -> pa.Table:
        """Return the states of a slice, with typed columns and `CHECKS`.

        Args:
            deltas: of the slice.
            stored: its rows of the state table.
        """
        if self.touched_only:
            stored = stored.filter(pc.is_in(_keys(stored, "_gateway", "_row"), _keys(deltas, "gateway", "row_id")))
        return merged_slice(deltas, stored, self.columns)

    def _shares(self, files: Sequence[DataFile], rows: int) -> list[list[DataFile]]:
        return shares(files, max(rows, rows_in(files) // MOST_TASKS))

    def _cut_deltas(self, files: Iterable[DataFile]) -> Iterator[pa.RecordBatch]:
        for file in files:
            for rows in self.increment.deltas(file):
                yield self.division.cut(rows, "row_id", is_deltas=True)

    def _cut_stored(self, files: Iterable[DataFile]) -> Iterator[pa.RecordBatch]:
        for rows in self._stored(files):
            yield self.division.cut(rows, "_row", is_deltas=False)

    def _stored(self, files: Iterable[DataFile]) -> Iterator[pa.Table]:
        """Stored rows that count."""
        wanted = self._touched() if self.touched_only else None
        gone = pa.array(sorted(self.rebuilt), pa.string())
        for file in files:
            for rows in read_rows(file, STORED, key="_row", wanted=wanted):
                own = rows.filter(pc.invert(pc.is_in(rows["_gateway"], gone))) if self.rebuilt else rows
                if own.num_rows:
                    yield own

    def _touched(self) -> pa.Array:
        """Row ids of the increment."""
        parts = [rows["row_id"].combine_chunks() for file in self.history for rows in self.increment.keys(file)]
        return pc.unique(pa.chunked_array(parts, pa.string()))


def merged_rows(spark: SparkSession, fields: StructType, merge: Merge) -> DataFrame:
    """The merged rows of a table in the order of their buckets, with `CHECKS`.

    Args:
        spark: a session.
        fields: of the table, in the order in which they are wanted.
        merge: what is done.
    """
    names, schema = _with_checks(fields)
    if merge.is_one_slice:
        return in_tasks(spark, 1, lambda _: _batches(merge.whole(), names), schema)
    if own := cores(spark):  # more tasks than these would only hold more memory at the same time
        merge = merge._replace(division=merge.division._replace(tasks=min(merge.division.tasks, own)))
    parts = merge.parts()
    chunks = in_tasks(spark, len(parts), lambda number: parts[number](), _CHUNKS)
    return _merged_chunks(chunks, names, schema, merge.division, merge.merged)


def merged_frames(
    deltas: DataFrame,
    state: DataFrame | None,
    columns: Sequence[tuple[str, str]],
    division: Division = Division(8, 16, 8),  # noqa: B008 immutable
) -> DataFrame:
    """The same of rows of the history and of a state table that are not in files of their own.

    Args:
        deltas: rows of one table of the history.
        state: rows of its state table; None: none are stored.
        columns: typed columns with their schema types.
        division: of the keys.

    Returns:
        The columns of a state table, `columns` last, without `CHECKS`.
    """
    typed = (f"`{name}` {SPARK_TYPES[kind]}" for name, kind in columns)
    schema = ", ".join([STATE_FIELDS, *typed, f"{REJECTED} int, {DUPLICATES} bigint, {DIFFERENCE} string"])
    names = [*STATE_NAMES, *(name for name, _ in columns), *CHECKS]

    def cut(schema: pa.Schema, ids: str, *, is_deltas: bool) -> Callable[..., Iterator[pa.RecordBatch]]:
        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            prepare_worker()
            for batch in batches:
                if batch.num_rows:
                    rows = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
                    yield division.cut(rows, ids, is_deltas=is_deltas)

        return run

    chunks = deltas.select(*DELTAS.names).mapInArrow(cut(DELTAS, "row_id", is_deltas=True), _CHUNKS)
    if state is not None:
        stored = state.select(*STORED.names).mapInArrow(cut(STORED, "_row", is_deltas=False), _CHUNKS)
        chunks = chunks.unionAll(stored)
    known = tuple(columns)
    merged = _merged_chunks(chunks, names, schema, division, lambda new, old: merged_slice(new, old, known))
    return merged.drop(*CHECKS)


def merged_slice(deltas: pa.Table, stored: pa.Table, columns: Sequence[tuple[str, str]]) -> pa.Table:
    """Return the states of some deltas and stored rows, with typed columns and `CHECKS`.

    Args:
        deltas: of the history.
        stored: rows of the state table.
        columns: name and type of each typed column.
    """
    states = merge(deltas, stored)
    rows = projected(states, columns, REJECTED)
    if not rows.num_rows:
        return rows.append_column(DUPLICATES, pa.nulls(0, pa.int64())).append_column(
            DIFFERENCE, pa.nulls(0, pa.string())
        )
    others = [None] * (rows.num_rows - 1)
    rows = rows.append_column(DUPLICATES, pa.array([repeated(stored), *others], pa.int64()))
    return rows.append_column(DIFFERENCE, pa.array([difference(deltas, stored, rows), *others], pa.string()))


def _merged_chunks(
    chunks: DataFrame,
    names: Sequence[str],
    schema: StructType | str,
    division: Division,
    merged: Callable[[pa.Table, pa.Table], pa.Table],
) -> DataFrame:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        chunks = (chunk for batch in batches for chunk in _chunks(batch))
        for _, own in groupby(chunks, lambda chunk: (chunk.bucket, chunk.slice)):
            yield from _batches(merged(*_tables(own)), names)

    owned = chunks.repartitionById(division.tasks, "task").sortWithinPartitions("bucket", "slice")
    return owned.mapInArrow(run, schema)


def _buckets(ids: pa.Array, count: int) -> npt.NDArray[np.unsignedinteger]:
    """The bucket of each row id among `count`, as Iceberg's transform has it.

    As short numbers: numpy sorts those of 16 bits by radix, ten times as quickly as longer ones.
    """
    from pyiceberg_core.transform import bucket  # 10 MB, which tasks alone need

    return np.asarray(bucket(ids, count)).astype(np.min_scalar_type(count))


def _with_checks(fields: StructType) -> tuple[list[str], StructType]:
    schema = StructType([*fields.fields])
    for name, kind in zip(CHECKS, (IntegerType(), LongType(), StringType()), strict=True):
        schema = schema.add(name, kind)
    return schema.names, schema


def _batches(rows: pa.Table, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    yield from rows.select(list(names)).combine_chunks().to_batches(max_chunksize=_ROWS_A_BATCH)


def _chunks(batch: pa.RecordBatch) -> Iterator[_Chunk]:
    buckets, slices, kinds, sizes = (batch[name].to_pylist() for name in ("bucket", "slice", "is_deltas", "size"))
    for number, place in enumerate(zip(buckets, slices, kinds, sizes, strict=True)):
        yield _Chunk(*place, batch["rows"][number].as_buffer())


def _tables(chunks: Iterable[_Chunk]) -> tuple[pa.Table, pa.Table]:
    """Deltas and stored rows of one slice."""
    deltas, stored = [DELTAS.empty_table()], [STORED.empty_table()]
    for chunk in chunks:
        (deltas if chunk.is_deltas else stored).append(chunk.table())
    return pa.concat_tables(deltas), pa.concat_tables(stored)


def _keys(rows: pa.Table, gateway: str, row: str) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(rows[gateway], rows[row], "\n")

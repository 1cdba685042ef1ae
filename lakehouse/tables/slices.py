"""Slices: the parts of a state table's keys that a Spark task merges one after another, so that it needs little memory.

Iceberg divides a state table's rows among buckets by a hash of the row id; here each bucket is divided further, into
slices. `lakehouse.tables.merge_job` calls `Slicing.split` in the tasks that read rows. Spark shuffles the result to the
tasks that merge, and sorts it there by bucket and slice. These tasks call `group_by_slice` and `deltas_and_stored`.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from lakehouse.tables.kernel import DELTAS, STORED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

ROWS_PER_SLICE = 50_000
"""Approximate number of deltas and stored rows that are merged at once: 25 MB with a task's copies. Each merge takes at
least 5 ms."""
BYTES_PER_SLICE = 32 << 20
"""Approximate bytes of a slice, compressed as in its files, if its rows are wide."""

ROWS_PER_MERGE_TASK = 1_000_000
"""Approximate number of deltas and stored rows that one task merges."""
MAX_TASKS = 256
"""Number of tasks of a stage, at most."""

_CODEC = "lz4_raw"
"""Compression of shuffled rows. The JVM copies them about eight times in a shuffle, which costs more than compression.
A delta shrinks from 174 to 120 bytes in 0.25 µs, decompression included; zstd takes twice as long for 77 bytes."""
SHUFFLED = pa.schema(
    [
        ("task", pa.int32()),
        ("bucket", pa.int32()),
        ("slice", pa.int32()),
        ("is_deltas", pa.bool_()),
        ("size", pa.int32()),
        ("rows", pa.binary()),
    ]
)
"""Columns of what Spark shuffles: the number of the task that merges it, and the fields of `SliceRows`."""


class SliceRows(NamedTuple):
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


class Slicing(NamedTuple):
    """How row keys are divided among buckets, slices and tasks."""

    buckets: int
    """Number of the table's buckets. Each belongs to one task."""
    slices: int
    """Number of slices of a bucket."""
    tasks: int
    """Number of tasks that merge."""

    @classmethod
    def of(cls, rows: int, buckets: int, size: int = 0) -> Slicing:
        """Return the slicing of a merge.

        Args:
            rows: approximate number of its deltas and stored rows.
            buckets: number of the state table's buckets.
            size: approximate bytes of these deltas and rows, compressed; 0 if it is not known.
        """
        tasks = min(buckets, MAX_TASKS, max(2, -(-rows // ROWS_PER_MERGE_TASK)))
        slices = max(1, -(-rows // (ROWS_PER_SLICE * buckets)), -(-size // (BYTES_PER_SLICE * buckets)))
        return cls(buckets, slices, tasks)

    def split(self, rows: pa.Table, *, is_deltas: bool) -> pa.RecordBatch:
        """Divide rows among slices, and return a `SliceRows` for each slice that has some, in the columns `SHUFFLED`.

        Args:
            rows: deltas or stored rows.
            is_deltas: True for deltas, False for stored rows.
        """
        (batch,) = rows.combine_chunks().to_batches()
        # The hash modulo `buckets * slices` is the number of a slice; that modulo `buckets` is the table's bucket.
        slices = bucket_numbers(batch["row_id" if is_deltas else "_row"], self.buckets * self.slices)
        counts = np.bincount(slices)
        filled = np.flatnonzero(counts)
        ends = np.cumsum(counts[filled])
        by_slice = batch.take(pa.array(np.argsort(slices, kind="stable")))
        serialized = [
            by_slice.slice(end - count, count).serialize()
            for end, count in zip(ends.tolist(), counts[filled].tolist(), strict=True)
        ]
        buckets = filled % self.buckets
        return pa.record_batch(
            [
                pa.array(buckets % self.tasks, pa.int32()),
                pa.array(buckets, pa.int32()),
                pa.array(filled // self.buckets, pa.int32()),
                pa.repeat(is_deltas, len(filled)),
                pa.array([each.size for each in serialized], pa.int32()),
                pa.array([pa.compress(each, _CODEC, asbytes=True) for each in serialized], pa.binary()),
            ],
            schema=SHUFFLED,
        )


def fits_one_slice(rows: int, size: int) -> bool:
    """Return whether everything can be merged at once.

    Args:
        rows: number of deltas and stored rows.
        size: bytes of these, compressed as in their files.
    """
    return rows <= ROWS_PER_SLICE and size <= BYTES_PER_SLICE


def group_by_slice(batches: Iterable[pa.RecordBatch]) -> Iterator[Iterator[SliceRows]]:
    """Yield the rows of one slice after another, from batches of `SHUFFLED` that are sorted by bucket and slice."""
    every = (rows for batch in batches for rows in _slice_rows(batch))
    for _, of_slice in groupby(every, lambda rows: (rows.bucket, rows.slice)):
        yield of_slice


def deltas_and_stored(slice_rows: Iterable[SliceRows]) -> tuple[pa.Table, pa.Table]:
    """Return the deltas and the stored rows of one slice."""
    deltas, stored = [DELTAS.empty_table()], [STORED.empty_table()]
    for rows in slice_rows:
        (deltas if rows.is_deltas else stored).append(rows.table())
    return pa.concat_tables(deltas), pa.concat_tables(stored)


def bucket_numbers(ids: pa.Array, count: int) -> npt.NDArray[np.unsignedinteger]:
    """Return the bucket of each row id among `count` buckets, by Iceberg's bucket transform.

    The integers are short, because numpy sorts 16-bit integers by radix, ten times as fast as longer ones.
    """
    from pyiceberg_core.transform import bucket  # takes 10 MB, so only tasks import it

    return np.asarray(bucket(ids, count)).astype(np.min_scalar_type(count))


def _slice_rows(batch: pa.RecordBatch) -> Iterator[SliceRows]:
    """Decode a batch with the columns `SHUFFLED`."""
    buckets, slices, are_deltas, sizes = (batch[name].to_pylist() for name in ("bucket", "slice", "is_deltas", "size"))
    for number, fields in enumerate(zip(buckets, slices, are_deltas, sizes, strict=True)):
        yield SliceRows(*fields, batch["rows"][number].as_buffer())

"""Checkpoint frame files, written by Spark's tasks: whole under their name, or not there."""

from __future__ import annotations

import posixpath
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as pafs
from pyspark import TaskContext

from lakesync.wire.frame_places import s3
from transforms.frames import frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

WRITTEN_SCHEMA = "uri string, rows bigint, bytes bigint, highest_arrival bigint"
"""One row a task: `uri` is empty where it had no visible row."""


def write_frames(
    directory_uri: str, table: str, arrival: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a task does with its share of a table's state rows: one file of frames, and a row about it."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        yield write_file(batches, f"{directory_uri}/{partition:05}.frames", table, arrival)

    return write


def write_file(batches: Iterable[pa.RecordBatch], uri: str, table: str, arrival: int) -> pa.RecordBatch:
    """Write one file, whole under its name or not at all; its `WRITTEN_SCHEMA` row.

    On a disk that is by a temporary name; an object of S3 is there when its last part is. Nothing is written for no
    visible row.
    """
    on_s3 = uri.startswith("s3://")
    file_system, path = (s3(), uri.removeprefix("s3://")) if on_s3 else pafs.FileSystem.from_uri(uri)
    seen = _Seen()
    made = iter(frames(seen.watch(batches), table, arrival))
    first = next(made, None)
    if first is None:
        return _written("", 0, 0, seen.highest_arrival)
    temporary = path if on_s3 else f"{path}.{uuid.uuid4().hex}.tmp"
    if not on_s3:
        file_system.create_dir(posixpath.dirname(path), recursive=True)
    rows, size = first.rows, len(first.data)
    with file_system.open_output_stream(temporary) as file:
        file.write(first.data)
        for frame in made:
            file.write(frame.data)
            rows += frame.rows
            size += len(frame.data)
    if not on_s3:
        file_system.move(temporary, path)
    return _written(uri, rows, size, seen.highest_arrival)


class _Seen:
    """Watches rows pass, invisible ones too."""

    def __init__(self) -> None:
        self.highest_arrival = 0

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches."""
        for batch in batches:
            arrivals = batch.column("_arrival").to_pylist()
            self.highest_arrival = max(self.highest_arrival, max(arrivals, default=0))
            yield batch


def _written(uri: str, rows: int, size: int, highest_arrival: int) -> pa.RecordBatch:
    columns = {"uri": [uri], "rows": [rows], "bytes": [size], "highest_arrival": [highest_arrival]}
    return pa.RecordBatch.from_pydict(columns)

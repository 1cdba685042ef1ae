"""Checkpoint frame files, written by Spark's tasks: whole under their name, or not there."""

from __future__ import annotations

import posixpath
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.checkpoints.frames import frames
from lakehouse.data_files import DataFile, read_rows, shares
from lakehouse.file_systems import on_s3, place
from lakehouse.merge.kernel import STORED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

WRITTEN_SCHEMA = "uri string, rows bigint, bytes bigint, highest_arrival bigint"
WRITTEN = pa.schema(
    [("uri", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64()), ("highest_arrival", pa.int64())]
)
"""One row a task: `uri` is empty where it had no visible row."""

_READ = pa.schema([*STORED, ("_gone", pa.bool_())])
_ROWS_AT_ONCE = 20_000


ROWS_A_FILE = 200_000
"""About as many as one task reads and writes, where there are so many."""


def frame_parts(
    files: Sequence[DataFile], gateway: str, directory_uri: str, table: str, arrival: int
) -> tuple[int, Callable[[int], Iterator[pa.RecordBatch]]]:
    """In how many parts a table's frames are written, and what the part of a number does, in a task.

    Args:
        files: of the table, that may hold rows of the gateway.
        gateway: whose rows are written.
        directory_uri: into which folder.
        table: its name.
        arrival: of the cut.
    """
    groups = shares(files, ROWS_A_FILE)

    def part(number: int) -> Iterator[pa.RecordBatch]:
        rows = _rows_of(gateway, groups[number])
        yield write_file(rows, f"{directory_uri}/{number:05}.frames", table, arrival)

    return len(groups), part


def _rows_of(gateway: str, files: Iterable[DataFile]) -> Iterator[pa.RecordBatch]:
    for file in files:
        for rows in read_rows(file, _READ, batch_rows=_ROWS_AT_ONCE):
            yield from rows.filter(pc.equal(rows["_gateway"], gateway)).combine_chunks().to_batches()


def write_file(batches: Iterable[pa.RecordBatch], uri: str, table: str, arrival: int) -> pa.RecordBatch:
    """Write one file, whole under its name or not at all, and return its `WRITTEN_SCHEMA` row.

    On a disk that is by a temporary name; an object of S3 is there when its last part is. Nothing is written for no
    visible row.

    Args:
        batches: state rows.
        uri: of the file.
        table: the table's name.
        arrival: of the checkpoint.
    """
    whole = on_s3(uri)
    file_system, path = place(uri)
    seen = _Seen()
    made = iter(frames(seen.watch(batches), table, arrival))
    first = next(made, None)
    if first is None:
        return _written("", 0, 0, seen.highest_arrival)
    temporary = path if whole else f"{path}.{uuid.uuid4().hex}.tmp"
    if not whole:
        file_system.create_dir(posixpath.dirname(path), recursive=True)
    rows, size = first.rows, len(first.data)
    try:
        with file_system.open_output_stream(temporary) as file:
            file.write(first.data)
            for frame in made:
                file.write(frame.data)
                rows += frame.rows
                size += len(frame.data)
    except BaseException:
        if not whole:  # or runs that fail for a full disk fill it
            Path(temporary).unlink(missing_ok=True)
        raise
    if not whole:
        file_system.move(temporary, path)
    return _written(uri, rows, size, seen.highest_arrival)


def link_frames(uris: Sequence[str], directory_uri: str) -> tuple[str, ...] | None:
    """Put the same files into another folder without reading their bytes: as links, or as copies that S3 makes.

    What is removed in one place stays in the other. None where a file is gone or its disk knows no links.

    Args:
        uris: of the files.
        directory_uri: the other folder.
    """
    linked = []
    for uri in uris:
        target = f"{directory_uri}/{uri.rpartition('/')[2]}"
        file_system, path = place(target)
        source = place(uri)[1]
        try:
            if on_s3(uri):
                file_system.copy_file(source, path)
            else:
                file_system.create_dir(posixpath.dirname(path), recursive=True)
                Path(path).unlink(missing_ok=True)
                Path(path).hardlink_to(source)
        except OSError:
            return None
        linked.append(target)
    return tuple(linked)


class _Seen:
    """Watches rows pass, invisible ones too."""

    def __init__(self) -> None:
        self.highest_arrival = 0

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches."""
        for batch in batches:
            self.highest_arrival = max(self.highest_arrival, pc.max(batch["_arrival"]).as_py() or 0)
            yield batch


def _written(uri: str, rows: int, size: int, highest_arrival: int) -> pa.RecordBatch:
    columns = {"uri": [uri], "rows": [rows], "bytes": [size], "highest_arrival": [highest_arrival]}
    return pa.RecordBatch.from_pydict(columns, WRITTEN)

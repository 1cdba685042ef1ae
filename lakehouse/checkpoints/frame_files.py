"""Writes the files of a checkpoint in Spark tasks: rows of state tables as frames.

A checkpoint has all rows of a gateway (one app's stream of changes) as of one arrival, the gateway's timestamp of
receipt; new clients start from it. A frame is a `SyncResponse`, the protobuf message of a pull, with its length before
it. A file has many frames, so that the gateway and clients can process it piece by piece.
`lakehouse.checkpoints.checkpoint` calls this module.
"""

from __future__ import annotations

import posixpath
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.checkpoints.row_messages import row_messages
from lakehouse.data_files import DataFile, divide_files, on_s3, parse_uri, read_rows
from lakehouse.tables.kernel import STORED
from lakesync.model.types import SyncResponse
from lakesync.wire.frames import encode_checkpoint_frame
from lakesync.wire.protobuf import encode_response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


WRITTEN = pa.schema(
    [("uri", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64()), ("highest_arrival", pa.int64())]
)
"""What a task reports about its file, as one row; `uri` is empty if all of its rows are deleted ones."""

_READ = pa.schema([*STORED, ("_gone", pa.bool_())])
"""The columns of a state table that are read; `_gone` marks deleted rows."""
_ROWS_AT_ONCE = 20_000
"""Rows that are decoded at once."""

FRAME_BYTES = 16_000_000
"""The most bytes of a message: 16 MB. The largest row that pushes allow is smaller. Readers accept 16 MiB, because
checkpoints of earlier versions have such messages."""

ROWS_PER_FILE = 200_000
"""Number of rows that one task reads and writes, approximately."""


def frame_parts(
    files: Sequence[DataFile], gateway: str, directory_uri: str, table: str, arrival: int
) -> tuple[int, Callable[[int], Iterator[pa.RecordBatch]]]:
    """Return the number of tasks that write a table's frames, and the function that a task calls with its number.

    Args:
        files: data files of the state table that may have rows of the gateway.
        gateway: the gateway whose rows are written.
        directory_uri: URI of the folder to write to.
        table: the table's name.
        arrival: the arrival of the checkpoint.
    """
    groups = divide_files(files, ROWS_PER_FILE)

    def write_part(number: int) -> Iterator[pa.RecordBatch]:
        rows = _rows_of(gateway, groups[number])
        yield write_file(rows, f"{directory_uri}/{number:05}.frames", table, arrival)

    return len(groups), write_part


def write_file(batches: Iterable[pa.RecordBatch], uri: str, table: str, arrival: int) -> pa.RecordBatch:
    """Write one file of frames atomically, and return its row in the columns `WRITTEN`.

    Nothing is written if all rows are deleted ones. On a disk the file is written under a temporary name and renamed;
    an object on S3 appears only when it is complete.

    Args:
        batches: rows of the state table, deleted ones included.
        uri: the file's URI.
        table: the table's name.
        arrival: the arrival of the checkpoint.
    """
    is_atomic = on_s3(uri)
    file_system, path = parse_uri(uri)
    highest = 0  # highest arrival of the rows, deleted ones included

    def with_highest() -> Iterator[pa.RecordBatch]:
        """Yield the batches, and record the highest arrival of their rows."""
        nonlocal highest
        for batch in batches:
            highest = max(highest, pc.max(batch["_arrival"]).as_py() or 0)
            yield batch

    remaining = frames(with_highest(), table, arrival)
    first = next(remaining, None)
    if first is None:
        return _written("", 0, 0, highest)
    temporary = path if is_atomic else f"{path}.{uuid.uuid4().hex}.tmp"
    if not is_atomic:
        file_system.create_dir(posixpath.dirname(path), recursive=True)
    rows, size = first.rows, len(first.data)
    try:
        with file_system.open_output_stream(temporary) as file:
            file.write(first.data)
            for frame in remaining:
                file.write(frame.data)
                rows += frame.rows
                size += len(frame.data)
    except BaseException:
        if not is_atomic:  # otherwise runs that fail because the disk is full would fill it further
            Path(temporary).unlink(missing_ok=True)
        raise
    if not is_atomic:
        file_system.move(temporary, path)
    return _written(uri, rows, size, highest)


def link_frames(uris: Sequence[str], directory_uri: str) -> tuple[str, ...] | None:
    """Put existing files into another folder without reading them: by hard links, or by copies that S3 makes.

    Args:
        uris: URIs of the files.
        directory_uri: URI of the other folder.

    Returns:
        The new URIs; None if a file is missing, or cannot be linked or copied.
    """
    linked = []
    for uri in uris:
        target = f"{directory_uri}/{uri.rpartition('/')[2]}"
        file_system, path = parse_uri(target)
        source = parse_uri(uri)[1]
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


class Frame(NamedTuple):
    """One message with its length before it."""

    data: bytes
    rows: int
    """Number of rows in the message."""


def frames(batches: Iterable[pa.RecordBatch], table: str, arrival: int, limit: int = FRAME_BYTES) -> Iterator[Frame]:
    """Encode rows, without deleted ones, in their order, as frames of a bounded size.

    Each row is encoded as a message of its own. Concatenated, they are one message: protobuf appends repeated fields.

    Args:
        batches: rows of the state table, with the columns of `_READ`.
        table: the table's name.
        arrival: the arrival of the checkpoint.
        limit: bytes of a message, at most.

    Raises:
        ValueError: one row is larger than a frame may be.
    """
    last_fields = encode_response(SyncResponse((), arrival))  # the fields of a message after its rows
    parts: list[memoryview | bytes] = []  # encoded rows of the next frame
    rows, size = 0, len(last_fields)
    for batch in batches:
        messages = row_messages(batch, table)
        ends = messages.ends
        first_row = begin_byte = 0
        while first_row < len(ends):
            # number of rows, from `first_row` on, that still fit into the frame
            count = int(np.searchsorted(ends[first_row:], begin_byte + limit - size, side="right"))
            if not count and rows:  # the frame is full
                yield Frame(encode_checkpoint_frame(b"".join([*parts, last_fields])), rows)
                parts, rows, size = [], 0, len(last_fields)
                continue
            end_row = first_row + max(1, count)  # `encode_checkpoint_frame` rejects a row that is larger than a frame
            end_byte = int(ends[end_row - 1])
            parts.append(messages.data[begin_byte:end_byte])
            rows += end_row - first_row
            size += end_byte - begin_byte
            first_row, begin_byte = end_row, end_byte
    if rows:
        yield Frame(encode_checkpoint_frame(b"".join([*parts, last_fields])), rows)


def _rows_of(gateway: str, files: Iterable[DataFile]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a gateway in data files, deleted ones included."""
    for file in files:
        for rows in read_rows(file, _READ, batch_rows=_ROWS_AT_ONCE):
            yield from rows.filter(pc.equal(rows["_gateway"], gateway)).combine_chunks().to_batches()


def _written(uri: str, rows: int, size: int, highest_arrival: int) -> pa.RecordBatch:
    """Return the row that a task reports, in the columns `WRITTEN`."""
    return pa.record_batch([[uri], [rows], [size], [highest_arrival]], WRITTEN)

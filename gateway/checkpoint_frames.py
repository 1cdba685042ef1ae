"""Reduces the frames of a checkpoint to the rows that a client may see.

A checkpoint is all rows of a gateway (one app's stream of changes) at some time, in files of frames. A frame is a
length-prefixed protobuf message with rows of one table, each as one or more *deltas* (changes of the row). The route of
the checkpoint streams the frames to new clients.

The sync rules define buckets: a bucket shows a client the rows of some tables that pass its filters. These compare
columns with constants, or with the *claims* (fields) of the client's token. Decoding every row for every client would
be slow. If a bucket has a filter by equality, such as `owner = the client`, each row that it shows has one of the
filter's few values in that column. So each frame is searched for the encoded forms of these values (`_required_bytes`),
and only rows that contain one are decoded and tested.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from google.protobuf.internal.encoder import _VarintBytes as varint  # type: ignore[attr-defined]

from lakesync.model.delta import jcs
from lakesync.model.errors import ValidationError
from lakesync.model.types import Claims
from lakesync.rules.model import Bucket, SyncRules, matches, operands_of
from lakesync.staging.records import Checkpoint
from lakesync.wire import protobuf
from lakesync.wire.frame_storage import FrameFile
from lakesync.wire.frames import encode_checkpoint_frame, read_checkpoint
from lakesync.wire.lakesync_pb2 import RowDelta, SyncResponse

_DELTAS, _COLUMN, _VALUE = 0x0A, b"\x0a", b"\x12"
"""Field tags of `lakesync.proto`: deltas of a response, name and value of a column."""
_INSERT = b"\x08\x01"
"""The encoded `op` INSERT, with which the first delta of each row begins."""


def frame_files(checkpoint: Checkpoint, rules: SyncRules | None = None) -> list[FrameFile]:
    """Return the files of a checkpoint, without those of tables that no bucket contains.

    Args:
        checkpoint: the published checkpoint.
        rules: the active sync rules; None if clients see all rows.

    Raises:
        ConfigurationError: a file is neither on a local disk nor on S3.
        FileNotFoundError: a file is missing.
    """
    files = [
        FrameFile(uri)
        for table in checkpoint.tables
        if rules is None or rules.covers(table.table)
        for uri in table.frames
    ]
    for file in files:
        file.check()
    return files


def visible_frames(files: Iterable[FrameFile], rules: SyncRules | None, claims: Claims) -> Iterator[bytes]:
    """Yield each frame, with its length, reduced to the rows that the rules show to a client.

    One frame is in memory at a time. Frames without visible rows are skipped.

    Args:
        files: the result of `frame_files`.
        rules: the active sync rules; None if clients see all rows.
        claims: the claims of the client's token.

    Raises:
        ValidationError: a file ends within a frame, or a frame is above 16 MiB.
    """
    for file in files:
        with file.open() as stream:
            for message in read_checkpoint(stream):
                visible = visible_rows(message, rules, claims) if rules is not None and rules.buckets else message
                if visible:
                    yield encode_checkpoint_frame(visible)


def visible_rows(message: bytes, rules: SyncRules, claims: Claims) -> bytes:
    """Return a frame's message with only the rows that the rules show to a client; empty if they show none.

    Args:
        message: the frame's message, whose rows are all of one table.
        rules: the active sync rules.
        claims: the claims of the client's token.

    Raises:
        ValidationError: the message is not that of a frame.
    """
    starts, tail = _row_offsets(message)  # `tail`: where the rows end
    if not starts:
        return b""
    first_row = message[starts[0] : starts[1] if len(starts) > 1 else tail]
    table = protobuf.parse(SyncResponse(), first_row).deltas[0].table
    buckets = [bucket for bucket in rules.buckets if bucket.covers(table)]
    columns = {condition.column for bucket in buckets for condition in bucket.filters}
    kept = []
    for row in _candidates(message, starts, tail, _required_bytes(buckets, claims)):
        page = protobuf.parse(SyncResponse(), row)
        if matches(rules, table, _column_values(page.deltas, columns), claims):
            kept.append(row)
    return b"".join([*kept, message[tail:]]) if kept else b""


def _row_offsets(message: bytes) -> tuple[list[int], int]:
    """Return the byte offset of each row in a message, and the offset after the last row.

    A row is one or more deltas, of which the first is an INSERT. It reads each delta's tag and varint length only.
    """
    starts: list[int] = []
    offset, size = 0, len(message)
    while offset < size and message[offset] == _DELTAS:
        length = shift = 0
        head = offset + 1
        while True:  # decode the length: 7 bits in each byte, whose highest bit says that another byte follows
            byte = message[head] if head < size else 0  # 0 ends the length of a truncated message
            head += 1
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        if not starts or message.startswith(_INSERT, head):
            starts.append(offset)
        offset = head + length
    return starts, offset


def _candidates(message: bytes, starts: list[int], tail: int, required_bytes: set[bytes] | None) -> Iterator[bytes]:
    """Yield the rows that may be visible, in order: those with one of `required_bytes`, or all rows if that is None."""
    indexes: Iterable[int] = range(len(starts))
    if required_bytes is not None:
        never = b"(?!)"  # the regular expression that matches nothing
        pattern = re.compile(b"|".join(map(re.escape, sorted(required_bytes))) or never)
        indexes = sorted({bisect_right(starts, found.start()) - 1 for found in pattern.finditer(message, 0, tail)})
    ends = [*starts[1:], tail]
    for index in indexes:
        yield message[starts[index] : ends[index]]


def _required_bytes(buckets: Iterable[Bucket], claims: Claims) -> set[bytes] | None:
    """Return byte strings of which each visible row contains at least one; None if any row may be visible."""
    required_bytes: set[bytes] = set()
    for bucket in buckets:
        found = _required_bytes_of(bucket, claims)
        if found is None:
            return None
        required_bytes |= found
    return required_bytes


def _required_bytes_of(bucket: Bucket, claims: Claims) -> set[bytes] | None:
    """Return the encoded column and value, for each value that a bucket's first filter by equality accepts.

    Returns:
        None if the bucket has no such filter.
    """
    for condition in bucket.filters:
        if condition.op in ("eq", "in"):
            column = condition.column.encode()
            encoded_column = _COLUMN + varint(len(column)) + column + _VALUE
            values = [form for text in operands_of(condition, claims) for form in _encoded_forms(text)]
            return {encoded_column + varint(len(value)) + value for value in values}
    return None


def _encoded_forms(text: str) -> tuple[bytes, ...]:
    """Return the JSON texts of the values that equal `text` by the rules: a string (`"5"`), and the bare text (`5`)."""
    try:
        return jcs(text).encode(), text.encode()
    except ValidationError:  # the text is not Unicode, so no value equals it
        return ()


def _column_values(deltas: Iterable[RowDelta], columns: set[str]) -> dict[str, Any]:
    """Return column → value of a row, for some columns. The row is stored as one or more deltas."""
    return {
        cell.column: msgspec.json.decode(cell.value)
        for delta in deltas
        for cell in delta.columns
        if cell.column in columns
    }

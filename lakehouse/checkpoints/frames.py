"""State rows to checkpoint frames: length-prefixed `SyncResponse` messages, a row's deltas always in one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lakehouse.checkpoints.row_messages import row_messages
from lakesync.model.types import SyncResponse
from lakesync.wire.frames import MAX_FRAME_BYTES, encode_checkpoint_frame
from lakesync.wire.protobuf import encode_response

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa


class Frame(NamedTuple):
    """One message with its length before it."""

    data: bytes
    rows: int


def frames(
    batches: Iterable[pa.RecordBatch], table: str, arrival: int, limit: int = MAX_FRAME_BYTES
) -> Iterator[Frame]:
    """Yield the visible rows among state rows, in their order, in messages of a bounded size.

    A message is put together from its rows' own messages: protobuf reads a concatenation as one message.

    Args:
        batches: state rows in `FRAME_COLUMNS`.
        table: their table.
        arrival: of the checkpoint.
        limit: the most bytes of a message.

    Raises:
        ValueError: one row alone is larger than a frame may be.
    """
    ending = encode_response(SyncResponse((), arrival))
    parts: list[memoryview | bytes] = []
    rows, size = 0, len(ending)
    for batch in batches:
        messages = row_messages(batch, table)
        ends = messages.ends
        first = begin = 0
        while first < len(ends):
            count = int(np.searchsorted(ends[first:], begin + limit - size, side="right"))
            if not count and rows:
                yield Frame(encode_checkpoint_frame(b"".join([*parts, ending])), rows)
                parts, rows, size = [], 0, len(ending)
                continue
            last = first + max(1, count)
            end = int(ends[last - 1])
            parts.append(messages.data[begin:end])
            rows += last - first
            size += end - begin
            first, begin = last, end
    if rows:
        yield Frame(encode_checkpoint_frame(b"".join([*parts, ending])), rows)

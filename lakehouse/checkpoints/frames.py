"""State rows to checkpoint frames: length-prefixed `SyncResponse` messages, a row's deltas always in one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Raw

from lakehouse.checkpoints.row_messages import row_messages
from lakesync.model.merge import LiveDelta, RowState
from lakesync.model.types import SyncResponse
from lakesync.staging.records import StoredRow
from lakesync.wire.frames import MAX_FRAME_BYTES, encode_checkpoint_frame
from lakesync.wire.protobuf import encode_response

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

FRAME_COLUMNS = ("_row", "_cells", "_tombstone", "_inserted", "_gone", "_arrival")
"""What `frames` reads of a state table."""


class Frame(NamedTuple):
    """One message with its length before it."""

    data: bytes
    rows: int


def frames(
    batches: Iterable[pa.RecordBatch], table: str, arrival: int, limit: int = MAX_FRAME_BYTES
) -> Iterator[Frame]:
    """The visible rows among state rows, in the order they come, in messages of at most `limit` bytes.

    A message is put together from its rows' own messages: protobuf reads a concatenation as one message.

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


def stored_row(table: str, row: dict[str, Any]) -> StoredRow:
    """A state row, as Arrow gives it, in the form that the engine renders."""
    live: dict[tuple[int, str, str, int], LiveDelta] = {}
    for column, cell in row["_cells"]:
        identity = (cell["hlc"], cell["client_id"], cell["delta_id"], cell["width"])
        owner = live.get(identity)
        if owner is None:
            owner = live[identity] = LiveDelta(*identity[:3], {}, cell["width"])
        owner.columns[column] = Raw(cell["value"].encode())
    ordered = [live[identity] for identity in sorted(live)]
    state = RowState.of(ordered, _stamp(row["_tombstone"]), _stamp(row["_inserted"]))
    return StoredRow(table, row["_row"], row["_arrival"], state)


def _stamp(stamp: dict[str, Any] | None) -> tuple[int, str] | None:
    return None if stamp is None else (stamp["hlc"], stamp["client_id"])

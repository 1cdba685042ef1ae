"""The frames of a published cut, read one at a time and cut down to what one client may see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import msgspec

from lakesync.rules.evaluation import matches
from lakesync.rules.model import SyncRules
from lakesync.staging.records import Cut
from lakesync.types import Claims
from lakesync.wire import protobuf
from lakesync.wire.frame_places import FramePlace
from lakesync.wire.frames import encode_checkpoint_frame, read_checkpoint
from lakesync.wire.lakesync_pb2 import RowDelta, SyncResponse


def frame_files(cut: Cut, rules: SyncRules | None = None) -> list[FramePlace]:
    """The files of those of the cut's tables of which rules show anything to anybody, in order.

    Raises:
        ConfigurationError: a frame is neither on a local disk nor on S3.
        FileNotFoundError: a frame is gone.
    """
    files = [FramePlace(uri) for table in cut.tables if _named(rules, table.table) for uri in table.frames]
    for file in files:
        file.check()
    return files


def visible_frames(files: Iterable[FramePlace], rules: SyncRules | None, claims: Claims) -> Iterator[bytes]:
    """Length and message of each frame, with only the rows that the rules show to these claims.

    Memory is bounded by one frame.

    Raises:
        ValidationError: a file ends within a frame, or a frame is above 16 MB.
    """
    for file in files:
        with file.open() as stream:
            for message in read_checkpoint(stream):
                visible = _visible(message, rules, claims) if rules is not None and rules.buckets else message
                if visible:
                    yield encode_checkpoint_frame(visible)


def _named(rules: SyncRules | None, table: str) -> bool:
    if rules is None or not rules.buckets:
        return True
    return any(not bucket.tables or table in bucket.tables for bucket in rules.buckets)


def _visible(message: bytes, rules: SyncRules, claims: Claims) -> bytes:
    """The frame without the rows that are not to be seen; what stays keeps its very bytes."""
    page = protobuf.parse(SyncResponse(), message)
    kept: list[RowDelta] = []
    for (table, _), parts in groupby(page.deltas, key=lambda delta: (delta.table, delta.row_id)):
        deltas = list(parts)
        if matches(rules, table, _merged(deltas), claims):
            kept += deltas
    if not kept:
        return b""
    return SyncResponse(deltas=kept, server_hlc=page.server_hlc, has_more=page.has_more).SerializeToString()


def _merged(deltas: list[RowDelta]) -> dict[str, Any]:
    """The row's values: of a row's deltas, which stand in order of stamp, each column is in one."""
    return {cell.column: msgspec.json.decode(cell.value) for delta in deltas for cell in delta.columns}

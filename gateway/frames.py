"""The frames of a published cut, read one at a time and cut down to what one client may see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.frame_rows import visible
from lakesync.model.types import Claims
from lakesync.rules.model import SyncRules
from lakesync.staging.records import Cut
from lakesync.wire.frame_places import FramePlace
from lakesync.wire.frames import encode_checkpoint_frame, read_checkpoint


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
                shown = visible(message, rules, claims) if rules is not None and rules.buckets else message
                if shown:
                    yield encode_checkpoint_frame(shown)


def _named(rules: SyncRules | None, table: str) -> bool:
    if rules is None or not rules.buckets:
        return True
    return any(not bucket.tables or table in bucket.tables for bucket in rules.buckets)

"""The largest row that the limits of pushes permit fits into one frame of a checkpoint."""

from __future__ import annotations

import msgspec

from lakehouse.checkpoints.frame_files import FRAME_BYTES
from lakesync.engine.checks import check_row_sizes
from lakesync.feed.push_rows import LARGE_BYTES, by_row
from lakesync.model.merge import RowState
from lakesync.model.types import ColumnValue, RowDelta, SyncResponse
from lakesync.model.validation import MAX_ID_CHARS, MAX_ROW_BYTES, MAX_ROW_COLUMNS, check_shape
from lakesync.staging.records import StoredRow
from lakesync.wire.encoded import row_deltas
from lakesync.wire.protobuf import encode_response


def longest(text: str) -> str:
    """The text, repeated to the longest valid id."""
    return text.rjust(MAX_ID_CHARS, "\U0001f600")


def test_the_largest_row_fits_into_a_frame_of_a_checkpoint() -> None:
    row = StoredRow(("t" * 64, longest("row")), arrival=0, state=RowState())
    large = MAX_ROW_BYTES // (1 << 20)
    sizes = [1 << 20] * large + [LARGE_BYTES - 1] * (MAX_ROW_COLUMNS - large)
    for number, size in enumerate(sizes):
        cell = ColumnValue(f"c{number}_".ljust(64, "x"), msgspec.Raw(b'"%b"' % (b"a" * (size - 2))))
        delta = RowDelta("UPDATE", *row.key, longest("client"), (cell,), number, longest(str(number)))
        assert check_shape(delta) is None
        check_row_sizes({row.key: row}, by_row([delta]))
        row.state.merge(delta)
    assert len(encode_response(SyncResponse(tuple(row_deltas(*row.key, row.state)), 1))) <= FRAME_BYTES

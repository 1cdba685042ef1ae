"""The audit's reading of a checkpoint's frames."""

import pytest

from lakehouse.checkpoints.audit import _rows_of_file
from lakesync.model.types import SyncResponse
from lakesync.wire.frames import encode_checkpoint_frame
from lakesync.wire.protobuf import encode_response


@pytest.mark.parametrize(("arrival", "faults"), [(5, 0), (7, 0), (8, 1)])
def test_frames_may_be_of_an_earlier_checkpoint_but_not_of_a_later_one(tmp_path, arrival, faults):
    """Frames of a table that did not change are linked into the next checkpoint."""
    file = tmp_path / "00000.frames"
    file.write_bytes(encode_checkpoint_frame(encode_response(SyncResponse((), arrival))))
    (rows,) = _rows_of_file(file.as_uri(), 7)
    assert len(rows) == faults

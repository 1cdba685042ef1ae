"""A row that is spelled in one go is what its deltas, spelled one by one, would be."""

from __future__ import annotations

from hypothesis import given, settings

from lakesync.model.merge import RowState
from lakesync.testing import strategies
from lakesync.wire.encoded import encode_row, row_deltas
from lakesync.wire.json import decode_deltas, encode_deltas


@settings(max_examples=25)
@given(strategies.histories(max_size=8))
def test_an_encoded_row_equals_its_encoded_deltas(deltas):
    state = RowState()
    for delta in deltas:
        state.merge(delta)
    for row_id in ("r", 'a "quoted" \\ row\n\x01 ü'):
        text, count = encode_row("t", row_id, state)
        expected = row_deltas("t", row_id, state)
        assert count == len(expected)
        assert encode_deltas(decode_deltas(b"[" + text + b"]")) == encode_deltas(expected)

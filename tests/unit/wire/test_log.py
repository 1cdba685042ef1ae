import pytest
import zstandard

from lakesync.model.delta import dedup_key, id_numbers
from lakesync.model.errors import ValidationError
from lakesync.model.types import ColumnValue, RowDelta
from lakesync.wire import log

DELTAS = [
    RowDelta("INSERT", "t", "r", "é", (ColumnValue.of("a", {"b": [1.5, None]}),), 2**63 - 1, "a" * 64),
    RowDelta("DELETE", "t", "r", "c", (), 0, "not a hash"),
]


def test_an_encoded_push_is_decoded_unchanged():
    body = log.encode_body(DELTAS)
    assert body[0] == log.BODY_VERSION
    assert log.decode_body(body) == DELTAS
    assert log.decode_body(log.encode_body([])) == []


def test_ids_have_the_documented_layout():
    ids = log.pack_ids(DELTAS)
    assert ids[:16] == (2**63 - 1).to_bytes(8, "little") + bytes(8)
    keys = [dedup_key(delta.delta_id) for delta in DELTAS]
    assert ids[16:] == b"\xaa" * 8 + id_numbers(["not a hash"]) + b"".join(keys) + b"\x01"
    assert log.unpack_ids(ids) == [(2**63 - 1, keys[0]), (0, keys[1])]
    assert log.unpack_ids(b"") == []
    with pytest.raises(ValidationError):
        log.unpack_ids(ids[:-2])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x01",
        b"\x02" + log.encode_body(DELTAS)[1:],
        log.encode_body(DELTAS)[:-3],
        b"\x01" + zstandard.compress(b"{}"),
        b"\x01" + zstandard.compress(b"[1]"),
        b"\x01" + zstandard.ZstdCompressor(write_content_size=False).compress(b"[]"),
    ],
    ids=["empty", "version alone", "another version", "cut short", "an object", "no delta", "no size"],
)
def test_a_damaged_body_is_rejected(body):
    with pytest.raises(ValidationError):
        log.decode_body(body)

"""The FlushEnvelope has the reference's fields, in its order."""

from __future__ import annotations

import json

import pytest

from lakesync.adapters import StoredDelta
from lakesync.adapters.deltas import DeltaBatch
from lakesync.adapters.object_store.delta_files import decode_envelope, encode_envelope
from lakesync.adapters.object_store.deltas import ObjectDeltas
from lakesync.adapters.object_store.local import LocalDisk
from lakesync.model.errors import IntegrityError
from tests.conformance.book import make_delta

DELTAS = [
    StoredDelta("shop", 256, make_delta("c", 2**62 + 1, "r1", x=1.5, y=None)),
    StoredDelta("shop", 512, make_delta("c", 7, "r1")),
]


def test_an_envelope_has_the_documented_format():
    text = encode_envelope("shop", DELTAS, 1_700_000_000_123)
    found = json.loads(text)
    assert list(found) == ["version", "gatewayId", "createdAt", "hlcRange", "deltaCount", "byteSize", "deltas"]
    assert found["version"] == 1
    assert found["gatewayId"] == "shop"
    assert found["createdAt"] == "2023-11-14T22:13:20.123Z"
    assert found["hlcRange"] == {"min": "7", "max": str(2**62 + 1)}
    assert found["deltaCount"] == 2
    assert found["byteSize"] == len(json.dumps(found["deltas"], separators=(",", ":")))
    assert list(found["deltas"][0]) == ["op", "table", "rowId", "clientId", "columns", "hlc", "deltaId"]
    assert found["deltas"][0]["hlc"] == str(2**62 + 1)
    assert found["deltas"][0]["columns"] == [{"column": "x", "value": 1.5}, {"column": "y", "value": None}]


@pytest.mark.parametrize("flush_format", ["parquet", "json"])
def test_a_batch_with_an_id_of_any_length_is_stored(flush_format, tmp_path):
    adapter = ObjectDeltas(LocalDisk(tmp_path), flush_format)
    for chars in (1, 64, 170, 179, 180, 300):
        for name in ("a" * chars, "b" * chars):
            deltas = [StoredDelta("g" * 64, 2**62, make_delta("c", 2**62, name, "t" * 64, x=1))]
            for _ in range(2):
                assert adapter.insert_deltas(DeltaBatch(name, "g" * 64, tuple(deltas))).deltas == 1
    assert len(adapter.objects.list_objects().objects) == 12


def test_an_envelope_can_be_read_back():
    envelope = decode_envelope(encode_envelope("shop", DELTAS, 5))
    assert list(envelope.deltas) == [stored.delta for stored in DELTAS]
    assert (envelope.hlc_range.min, envelope.hlc_range.max) == (7, 2**62 + 1)


def test_damaged_data_is_rejected():
    whole = encode_envelope("shop", DELTAS, 5)
    later = whole.replace(b'"version":1', b'"version":2')
    short = whole.replace(b'"deltaCount":2', b'"deltaCount":3')
    for damaged in (b"", b"\xff", whole[:-1], later, short, b"{}"):
        with pytest.raises(IntegrityError, match="FlushEnvelope"):
            decode_envelope(damaged)

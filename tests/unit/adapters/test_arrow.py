"""Deltas as Parquet have the columns of the lake's table of deltas."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse.history.decoding import DELTAS_ARROW
from lakesync.adapters import BatchChecksum, StoredDelta
from lakesync.adapters.arrow import (
    DELTA_COLUMNS,
    columns_as_text,
    decode_parquet,
    encode_parquet,
    from_arrow,
    hashes_of,
    ids_checksum,
    parquet_checksum,
    to_arrow,
)
from lakesync.adapters.deltas import checksum_of as held_of
from lakesync.model.delta import id_number
from lakesync.model.errors import IntegrityError
from tests.conformance.book import make_delta

DELTAS = [
    StoredDelta("g", 256, make_delta("c", 5, "r1", x=1, y={"b": [1.50, None], "a": "é"})),
    StoredDelta("g", 512, make_delta("c", 6, "r1")),
]


def test_columns_have_the_names_and_types_of_the_lake():
    table = to_arrow(DELTAS)
    assert table.schema.names == list(DELTA_COLUMNS)
    for field in table.schema:
        assert field.type == DELTAS_ARROW.field(field.name).type
    assert to_arrow([]).num_rows == 0


def test_other_tools_can_read_the_parquet_file(tmp_path):
    file = tmp_path / "deltas.parquet"
    file.write_bytes(encode_parquet(to_arrow(DELTAS), {"lakesync.batch_id": "b"}))
    found = duckdb.sql(f"SELECT op, hlc, columns['x'] AS x FROM '{file}' ORDER BY hlc").fetchall()
    assert found == [("INSERT", 5, "1"), ("DELETE", 6, None)]
    assert pq.read_metadata(file).metadata[b"lakesync.batch_id"] == b"b"


def test_a_slice_converts_to_text_like_the_whole_table():
    many = to_arrow(
        [StoredDelta("g", n, make_delta("c", n, f"r{n}", **{"x": n, "y": [n]} if n % 3 else {})) for n in range(20)]
    )
    for part in (many.slice(5, 9), many.slice(0, 4), many.slice(19), pa.Table.from_batches(many.to_batches(6)[1:])):
        assert from_arrow(columns_as_text(part)) == from_arrow(part)


def test_table_checksum_equals_the_checksum_of_its_deltas():
    assert parquet_checksum(encode_parquet(to_arrow(DELTAS), {})) == held_of(DELTAS)


@pytest.mark.parametrize("odd", [None, "AB" * 32, "ab" * 31 + "zz", "é" * 32, "ab", " " * 64])
def test_text_and_hash_ids_have_the_same_checksum(odd):
    ids = [hashlib.sha256(bytes([n])).hexdigest() for n in range(5)] + ([odd] if odd else [])
    checksum_of = ids_checksum(pa.chunked_array([ids[:2], ids[2:]], pa.string()))
    assert checksum_of == BatchChecksum(len(ids), sum(map(id_number, ids)) % 2**64)
    hashes = hashes_of(pa.array(["", *ids], pa.string())[1:])  # a slice of a longer table
    assert (hashes is None) == (odd is not None)
    if hashes is not None:
        assert ids_checksum(pa.chunked_array([hashes[:2], hashes[2:]])) == checksum_of


def test_damaged_data_is_rejected():
    whole = encode_parquet(to_arrow(DELTAS), {})
    other = io.BytesIO()
    pq.write_table(pa.table({"x": [1]}), other)
    for damaged in (b"", whole[:-9], b"PAR1" + b"x" * 100 + b"PAR1", other.getvalue()):
        for read in (decode_parquet, parquet_checksum):
            with pytest.raises(IntegrityError, match="not a Parquet file"):
                read(damaged)


def test_a_missing_pyarrow_is_reported_with_its_remedy(tmp_path):
    script = (
        "import sys; sys.modules['pyarrow'] = sys.modules['pyarrow.parquet'] = None\n"
        "from lakesync.adapters import LocalDisk, ObjectDeltas\n"
        "ObjectDeltas(LocalDisk(sys.argv[1]), 'json')\n"
        "try: ObjectDeltas(LocalDisk(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    process = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    expected = "ConfigurationError Parquet needs pyarrow (the flush format json does not): pip install"
    assert process.stdout.startswith(expected)

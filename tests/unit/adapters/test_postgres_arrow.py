"""The encoder of Postgres' binary COPY format."""

import pyarrow as pa
import pytest

from lakesync.adapters.backends.postgres_arrow import encode_binary

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64())])
START, END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"


@pytest.mark.parametrize(
    ("rows", "encoded"),
    [
        ([], b""),
        ([("é", 7)], b"\0\2" + b"\0\0\0\2\xc3\xa9" + b"\0\0\0\x08" + bytes(7) + b"\7"),
        ([(None, 7)], b"\0\2" + b"\xff\xff\xff\xff" + b"\0\0\0\x08" + bytes(7) + b"\7"),
        ([(None, None)] * 2, (b"\0\2" + b"\xff" * 8) * 2),
    ],
    ids=["no rows", "values", "a null column", "only null columns"],
)
def test_a_chunk_is_encoded_as_postgres_reads_it(rows, encoded):
    chunk = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)
    assert b"".join(encode_binary(iter([chunk]))) == START + encoded + END

"""Bulk transfer over Postgres' wire protocol, column by column, because each row handled in Python costs microseconds.

Writes with COPY, in binary format if all columns are text or 64-bit integers. Reads one value per column. The Postgres
adapter calls it.
"""

from __future__ import annotations

import io
import select
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

_BEGIN = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"


def encode_binary(rows: Iterator[pa.Table]) -> Iterator[memoryview | bytes]:
    """Encode rows for `COPY … (FORMAT binary)`; each chunk is encoded while the previous one is sent.

    Args:
        rows: chunks of strings and 64-bit integers; integers must not be null.
    """

    def ready() -> memoryview | None:
        part = next(rows, None)
        return None if part is None else _rows_of(part)

    with ThreadPoolExecutor(1) as ahead:
        coming = ahead.submit(ready)
        yield _BEGIN
        while (part := coming.result()) is not None:
            coming = ahead.submit(ready)
            yield part
        yield _END


def _rows_of(rows: pa.Table) -> memoryview:
    """Return the bytes of some rows: the number of fields, then length and content of each."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(rows)
    fields: list[Any] = [pa.scalar(rows.num_columns.to_bytes(2, "big"), pa.binary())]
    for column in rows.columns:
        if column.null_count == count:
            fields.append(pa.scalar(_NULL, pa.binary()))
        elif pa.types.is_integer(column.type):
            numbers = np.empty((count, 12), np.uint8)
            numbers[:, :4] = (0, 0, 0, 8)
            numbers[:, 4:] = column.to_numpy().astype(">i8").view(np.uint8).reshape(count, 8)
            fields.append(_fixed(numbers, 12))
        else:
            values = column.combine_chunks().cast(pa.string())
            lengths = pc.fill_null(pc.binary_length(values), -1).to_numpy(zero_copy_only=False).astype(">i4")
            fields += [_fixed(lengths, 4), pc.fill_null(values, "").cast(pa.binary())]
    joined = pc.binary_join_element_wise(*fields, b"")
    _, offsets, data = joined.buffers()
    ends = np.frombuffer(offsets, np.int32)
    return memoryview(data)[ends[joined.offset] : ends[joined.offset + count]]


def _fixed(values: Any, width: int) -> pa.Array:
    import pyarrow as pa

    buffers = [None, pa.py_buffer(values)]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(values), buffers).cast(pa.binary())


def encode_csv(rows: pa.Table) -> memoryview:
    """Encode rows with columns of any type for `COPY … (FORMAT csv)`."""
    from pyarrow import csv

    file = io.BytesIO()
    csv.write_csv(rows, file, csv.WriteOptions(include_header=False))
    return file.getbuffer()


def read_columns(
    connection: psycopg.Connection[Any], statement: bytes, values: Sequence[object], schema: pa.Schema
) -> pa.Table:
    """Return a query's result with each column aggregated by the server into one value and its lengths: Arrow's layout.

    Rows fetched one by one would cost microseconds each in Python.

    Args:
        connection: an open connection.
        statement: the query.
        values: its parameters.
        schema: the result's columns: strings and 64-bit integers.
    """
    import numpy as np
    import pyarrow as pa

    asked = []
    for field in schema:
        name = f'"{field.name}"'
        if pa.types.is_integer(field.type):
            asked.append(f"string_agg(int8send({name}), ''::bytea)")
        else:
            asked += [f"string_agg(int4send(octet_length({name})), ''::bytea)", f"string_agg({name}, '')"]
    query = f"SELECT count(*), {', '.join(asked)} FROM (".encode() + statement + b") AS page"
    with connection.cursor(binary=True) as cursor:
        result = cursor.execute(query, list(values)).pgresult
        assert result is not None
        first, *parts = [result.get_value(0, place) for place in range(1 + len(asked))]
    count = int.from_bytes(first or b"", "big")
    if not count:
        return schema.empty_table()
    left = iter(parts)
    arrays = []
    for field in schema:
        if pa.types.is_integer(field.type):
            arrays.append(pa.array(np.frombuffer(next(left) or b"", ">i8").astype(np.int64)))
            continue
        ends = np.cumsum(np.frombuffer(next(left) or b"", ">i4"), dtype=np.int64)
        offsets = pa.py_buffer(np.concatenate([[0], ends]).astype(np.int32))
        arrays.append(pa.StringArray.from_buffers(count, offsets, pa.py_buffer(next(left) or b"")))
    return pa.Table.from_arrays(arrays, schema=schema)


def copy_out(connection: psycopg.Connection[Any], statement: bytes) -> bytes:
    """Run a `COPY … TO STDOUT` statement and return its bytes. psycopg's own reader polls before each row: slow."""
    from psycopg import errors, pq

    pgconn = connection.pgconn
    parts: list[bytes | memoryview] = []
    result = pgconn.exec_(statement)
    if result.status == pq.ExecStatus.COPY_OUT:
        while True:
            size, data = pgconn.get_copy_data(1)
            if size > 0:
                parts.append(data)
            elif size == 0:
                select.select([pgconn.socket], [], [])  # releases the GIL while waiting
                pgconn.consume_input()
            else:
                break
        while (ended := pgconn.get_result()) is not None:
            result = ended
    if result.status != pq.ExecStatus.COMMAND_OK:
        raise errors.error_from_result(result, encoding="utf-8")
    return b"".join(parts)


def read_csv(text: bytes, schema: pa.Schema) -> pa.Table:
    """Decode the output of a COPY in CSV format."""
    from pyarrow import csv

    if not text:
        return schema.empty_table()
    return csv.read_csv(
        io.BytesIO(text),
        csv.ReadOptions(column_names=schema.names, block_size=max(1 << 20, min(len(text), 2**31 - 1))),
        csv.ParseOptions(newlines_in_values=True),
        csv.ConvertOptions(
            column_types=schema, strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
        ),
    )

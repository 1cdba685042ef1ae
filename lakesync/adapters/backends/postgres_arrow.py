"""Encodes Arrow tables for Postgres' COPY, and decodes query results to Arrow tables, column by column.

`PostgresAdapter` (`postgres.py`) writes and reads large amounts of rows with these functions. They handle whole columns
because a Python loop needs microseconds for each row.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""The header of COPY's binary format: signature, no flags, no extension."""
_TRAILER = b"\xff\xff"
"""The end of COPY's binary format."""
_NULL = b"\xff\xff\xff\xff"
"""The length -1 of a field, which means null."""
_LENGTH_BYTES = 4
_INT64_BYTES = 8


def encode_binary(rows: Iterator[pa.Table]) -> Iterator[memoryview | bytes]:
    """Encode rows for `COPY … (FORMAT binary)`, and yield the bytes to send.

    A thread encodes each chunk while the caller sends the previous one.

    Args:
        rows: chunks of strings and 64-bit integers; integers must not be null.
    """

    def encode_next() -> memoryview | None:
        chunk = next(rows, None)
        return None if chunk is None else _encode_chunk(chunk)

    with ThreadPoolExecutor(1) as executor:
        next_chunk = executor.submit(encode_next)
        yield _HEADER
        while (encoded := next_chunk.result()) is not None:
            next_chunk = executor.submit(encode_next)
            yield encoded
        yield _TRAILER


def encode_csv(rows: pa.Table) -> memoryview:
    """Encode rows with columns of any type for `COPY … (FORMAT csv)`."""
    from pyarrow import csv

    file = io.BytesIO()
    csv.write_csv(rows, file, csv.WriteOptions(include_header=False))
    return file.getbuffer()


def read_columns(
    connection: psycopg.Connection[Any], statement: bytes, values: Sequence[object], schema: pa.Schema
) -> pa.Table:
    """Return a query's result as an Arrow table.

    The server joins the values of each column into one text or bytes, and their lengths into another. Arrow's own
    layout is the same, so no value is decoded by itself. The aggregates have no ORDER BY of their own: all of them read
    the rows of the query in one pass, in the order in which it returns them.

    Args:
        connection: an open connection with the client encoding UTF-8.
        statement: the query.
        values: its parameters.
        schema: the result's columns: strings and 64-bit integers, without nulls, which `string_agg` would leave out.
    """
    import numpy as np
    import pyarrow as pa

    expressions = []
    for field in schema:
        name = f'"{field.name}"'
        if pa.types.is_integer(field.type):
            expressions.append(f"string_agg(int8send({name}), ''::bytea)")
        else:
            length = f"octet_length(convert_to({name}, 'UTF8'))"  # the database may have another encoding
            expressions += [f"string_agg(int4send({length}), ''::bytea)", f"string_agg({name}, '')"]
    query = f"SELECT count(*), {', '.join(expressions)} FROM (".encode() + statement + b") AS page"
    with connection.cursor(binary=True) as cursor:
        result = cursor.execute(query, list(values)).pgresult
        assert result is not None
        row_count, *parts = [result.get_value(0, index) for index in range(1 + len(expressions))]
    count = int.from_bytes(row_count or b"", "big")
    if not count:
        return schema.empty_table()
    values_of_columns = iter(parts)
    arrays = []
    for field in schema:
        if pa.types.is_integer(field.type):
            arrays.append(pa.array(np.frombuffer(next(values_of_columns) or b"", ">i8").astype(np.int64)))
            continue
        ends = np.cumsum(np.frombuffer(next(values_of_columns) or b"", ">i4"), dtype=np.int64)
        offsets = pa.py_buffer(np.concatenate([[0], ends]).astype(np.int32))
        arrays.append(pa.StringArray.from_buffers(count, offsets, pa.py_buffer(next(values_of_columns) or b"")))
    return pa.Table.from_arrays(arrays, schema=schema)


def _encode_chunk(rows: pa.Table) -> memoryview:
    """Return rows in COPY's binary format: for each row the number of fields, then length and content of each field."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(rows)
    if not count:
        return memoryview(b"")
    # an array and no scalar, because a join of scalars alone would be a scalar, and all columns may be null
    fields: list[Any] = [pa.repeat(pa.scalar(rows.num_columns.to_bytes(2, "big"), pa.binary()), count)]
    for column in rows.columns:
        if column.null_count == count:
            fields.append(pa.scalar(_NULL, pa.binary()))
        elif pa.types.is_integer(column.type):
            numbers = np.empty((count, _LENGTH_BYTES + _INT64_BYTES), np.uint8)
            numbers[:, :_LENGTH_BYTES] = (0, 0, 0, _INT64_BYTES)
            numbers[:, _LENGTH_BYTES:] = column.to_numpy().astype(">i8").view(np.uint8).reshape(count, _INT64_BYTES)
            fields.append(_binary_array(numbers, _LENGTH_BYTES + _INT64_BYTES))
        else:
            values = column.combine_chunks().cast(pa.string())
            lengths = pc.fill_null(pc.binary_length(values), -1).to_numpy(zero_copy_only=False).astype(">i4")
            fields += [_binary_array(lengths, _LENGTH_BYTES), pc.fill_null(values, "").cast(pa.binary())]
    joined = pc.binary_join_element_wise(*fields, b"")
    _, offsets, data = joined.buffers()
    ends = np.frombuffer(offsets, np.int32)
    return memoryview(data)[ends[joined.offset] : ends[joined.offset + count]]


def _binary_array(values: Any, width: int) -> pa.Array:
    """Return a numpy array's bytes as one binary value of `width` bytes per row."""
    import pyarrow as pa

    buffers = [None, pa.py_buffer(values)]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(values), buffers).cast(pa.binary())

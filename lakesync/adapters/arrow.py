"""Deltas as Arrow tables and Parquet files, with the column names and types of the lake's table `deltas`.

A delta is a change of some columns of one row. Its own columns are stored in the Arrow column `columns`, which has two
forms: a **map** from column name to the value's JSON text, as in the lake and in Parquet files; or **text**, one JSON
object, as in SQL databases. `columns_as_map` and `columns_as_text` convert between them. Functions that take a table of
deltas accept both forms. Adapters, transfers between adapters and the pipeline call them.

Copies of deltas are compared by checksums, which add up a number for each delta (`id_number`): the first 8 bytes of its
id, which is a SHA-256, or of the id's SHA-256 if a client chose another id.

Needs pyarrow and numpy: `pip install 'lakesync[parquet]'`.
"""

from __future__ import annotations

import binascii
import io
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Raw

from lakesync.adapters.deltas import BatchChecksum, Order, StoredDelta
from lakesync.model.delta import id_number, jcs_raw
from lakesync.model.errors import IntegrityError, extra
from lakesync.model.types import ColumnValue, RowDelta

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

DELTA_COLUMNS = ("gateway", "arrival", "table_name", "row_id", "op", "client_id", "hlc", "delta_id", "columns")
"""The columns of a table of deltas. `gateway` names one app's stream of deltas, `arrival` is its timestamp for the push
(a hybrid logical clock), `hlc` the client's timestamp."""

HASH_BYTES = 32
"""Bytes of a delta id that is a SHA-256 hash. Its text has twice as many hexadecimal digits."""
_ID_NUMBER_BYTES = 8
"""The first bytes of a hash are its `id_number`."""
_HEX_DIGITS = b"0123456789abcdef"
_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode


def require_pyarrow() -> None:
    """Check that Parquet can be written, so that a missing package is reported before the first flush.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    with extra("parquet", "Parquet needs pyarrow (the flush format json does not)"):
        import pyarrow.parquet  # noqa: F401


@cache
def arrow_schema() -> pa.Schema:
    """Return the schema of deltas with `columns` as a map. Its values are canonical JSON texts (RFC 8785)."""
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    types = (text, number, text, text, text, text, number, text, pa.map_(text, text))
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in zip(DELTA_COLUMNS, types, strict=True)])


def to_arrow(deltas: Sequence[StoredDelta]) -> pa.Table:
    """Return deltas as an Arrow table, in their order."""
    import pyarrow as pa

    columns = {
        "gateway": [each.gateway for each in deltas],
        "arrival": [each.arrival for each in deltas],
        "table_name": [each.delta.table for each in deltas],
        "row_id": [each.delta.row_id for each in deltas],
        "op": [each.delta.op for each in deltas],
        "client_id": [each.delta.client_id for each in deltas],
        "hlc": [each.delta.hlc for each in deltas],
        "delta_id": [each.delta.delta_id for each in deltas],
        "columns": [[(cell.column, jcs_raw(cell.value)) for cell in each.delta.columns] for each in deltas],
    }
    return pa.table(columns, arrow_schema())


def from_arrow(table: pa.Table) -> list[StoredDelta]:
    """Return the deltas of an Arrow table, in its order."""
    decode = _columns_from_text if has_text_columns(table) else _columns_from_map
    rows = zip(*(table.column(name).to_pylist() for name in DELTA_COLUMNS), strict=True)
    return [
        StoredDelta(gateway, arrival, RowDelta(op, name, row_id, client_id, decode(cells), hlc, delta_id))
        for gateway, arrival, name, row_id, op, client_id, hlc, delta_id, cells in rows
    ]


def has_text_columns(table: pa.Table) -> bool:
    """Return whether a table of deltas has `columns` as JSON text."""
    import pyarrow as pa

    kind = table.schema.field("columns").type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def columns_as_text(table: pa.Table) -> pa.Table:
    """Return a table of deltas with `columns` as JSON objects."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if has_text_columns(table):
        return table
    index = table.schema.get_field_index("columns")
    chunks = []
    for chunk in table.column(index).chunks:
        first, last = chunk.offsets[0].as_py(), chunk.offsets[-1].as_py()
        offsets = pc.subtract(chunk.offsets, first)  # a slice's `keys` and `items` are those of the unsliced array
        keys, items = chunk.keys.slice(first, last - first), chunk.items.slice(first, last - first)
        cells = pc.binary_join_element_wise('"', keys, '":', items, "")
        joined = pc.binary_join(pa.ListArray.from_arrays(offsets, cells), ",")
        chunks.append(pc.binary_join_element_wise("{", joined, "}", ""))
    return table.set_column(index, "columns", pa.chunked_array(chunks, pa.string()))


def columns_as_map(table: pa.Table) -> pa.Table:
    """Return a table of deltas with `columns` as maps."""
    import pyarrow as pa

    if not has_text_columns(table):
        return table
    index = table.schema.get_field_index("columns")
    cells = [
        [(name, bytes(raw).decode()) for name, raw in _decode_object(text).items()]
        for text in table.column(index).to_pylist()
    ]
    field = arrow_schema().field("columns")
    return table.set_column(index, field, pa.array(cells, field.type))


def split_by_table(deltas: pa.Table) -> Iterator[tuple[str, str, pa.Table]]:
    """Yield `(gateway, table name, its deltas)` for each synced table among deltas."""
    import pyarrow.compute as pc

    groups = deltas.group_by(["gateway", "table_name"]).aggregate([])
    names = (groups.column(name).to_pylist() for name in ("gateway", "table_name"))
    for gateway, table in zip(*names, strict=True):
        is_in_table = pc.and_(pc.equal(deltas.column("gateway"), gateway), pc.equal(deltas.column("table_name"), table))
        yield gateway, table, deltas.filter(is_in_table)


class ValueRange(NamedTuple):
    """The lowest and the highest arrival or hlc of some deltas."""

    low: int
    high: int


def value_range(deltas: pa.Table, name: Order) -> ValueRange:
    """Return the range of a column.

    Args:
        deltas: deltas as an Arrow table.
        name: `arrival` or `hlc`.
    """
    import pyarrow.compute as pc

    bounds = pc.min_max(deltas.column(name)).as_py()
    return ValueRange(bounds["min"], bounds["max"])


def table_checksum(table: pa.Table) -> BatchChecksum:
    """Return the number of a table's deltas and the sum of their id numbers, which shows whether two copies are equal.

    Args:
        table: a table of deltas in either form.
    """
    return ids_checksum(table.column("delta_id"))


def ids_checksum(delta_ids: pa.ChunkedArray) -> BatchChecksum:
    """Return the number of delta ids and the sum of their id numbers, modulo 2**64.

    Args:
        delta_ids: texts, or results of `hashes_of`.
    """
    return BatchChecksum(len(delta_ids), sum(int(id_numbers(chunk).sum()) for chunk in delta_ids.chunks) % 2**64)


def id_numbers(delta_ids: pa.Array) -> npt.NDArray[np.uint64]:
    """Return each id's number (see the module's docstring), computed for the whole array at once. No id may be null.

    Args:
        delta_ids: texts, or a result of `hashes_of`.
    """
    import numpy as np
    import pyarrow as pa

    hashes = delta_ids if pa.types.is_fixed_size_binary(delta_ids.type) else hashes_of(delta_ids.cast(pa.string()))
    if hashes is None:
        return np.array([id_number(each) for each in delta_ids.to_pylist()], np.uint64)
    rows = np.frombuffer(hashes.buffers()[1], np.uint8).reshape(-1, HASH_BYTES)[
        hashes.offset : hashes.offset + len(hashes)
    ]
    return np.ascontiguousarray(rows[:, :_ID_NUMBER_BYTES]).view(">u8").ravel().astype(np.uint64)


def hashes_of(delta_ids: pa.Array) -> pa.FixedSizeBinaryArray | None:
    """Decode ids of 64 lower-case hexadecimal digits to 32 bytes each; return None if any id has another form."""
    import numpy as np
    import pyarrow.compute as pc

    count = len(delta_ids)
    if not count or set(pc.unique(pc.binary_length(delta_ids)).to_pylist()) != {2 * HASH_BYTES}:
        return None
    # All texts have one length, and Arrow stores them one after another: decode them as one text.
    offset, data = delta_ids.offset, delta_ids.buffers()[2]
    begin = np.frombuffer(delta_ids.buffers()[1], np.int32)[offset]
    digits = np.frombuffer(data, np.uint8)[begin : begin + count * 2 * HASH_BYTES].tobytes()
    return None if digits.translate(None, _HEX_DIGITS) else hashes_from_bytes(binascii.unhexlify(digits))


def hashes_from_bytes(joined: bytes) -> pa.FixedSizeBinaryArray:
    """Split concatenated hashes of 32 bytes into an array."""
    import pyarrow as pa

    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(HASH_BYTES), len(joined) // HASH_BYTES, [None, pa.py_buffer(joined)]
    )


def encode_parquet(deltas: pa.Table, about: dict[str, str]) -> bytes:
    """Encode deltas as a Parquet file.

    Args:
        deltas: a table of deltas in either form; the file has the same order.
        about: the file's key-value metadata; the keys start with `lakesync.`.
    """
    import pyarrow.parquet as pq

    file = io.BytesIO()
    table = columns_as_map(deltas).select(list(DELTA_COLUMNS)).cast(arrow_schema()).replace_schema_metadata(about)
    pq.write_table(table, file, compression="zstd")
    return file.getvalue()


def decode_parquet(data: bytes) -> pa.Table:
    """Decode the deltas of a Parquet file.

    Raises:
        IntegrityError: the file is damaged, or does not contain deltas.
    """
    return _read_columns(data, DELTA_COLUMNS)


def parquet_metadata(data: bytes) -> dict[str, str]:
    """Return the metadata that `encode_parquet` wrote to a file, without Arrow's own metadata."""
    import pyarrow.parquet as pq

    metadata = pq.read_schema(io.BytesIO(data)).metadata or {}
    return {name.decode(): value.decode() for name, value in metadata.items() if name.startswith(b"lakesync.")}


def parquet_checksum(data: bytes) -> BatchChecksum:
    """Return the `table_checksum` of the deltas in a Parquet file. Reads only the column `delta_id`.

    Raises:
        IntegrityError: as `decode_parquet`.
    """
    return table_checksum(_read_columns(data, ("delta_id",)))


def _read_columns(data: bytes, columns: Sequence[str]) -> pa.Table:
    """Read some columns of a Parquet file of deltas; raises IntegrityError for another file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Not `pq.read_table`: threads of Arrow may still refer to `data` when it returns, and if the interpreter ends
        # before they do, the process aborts (Python before 3.14).
        table = pq.ParquetFile(io.BytesIO(data)).read(columns=list(columns), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise IntegrityError(f"not a Parquet file of deltas: {error}") from error
    if missing := set(columns) - set(table.column_names):
        raise IntegrityError(f"not a Parquet file of deltas: it has no column {min(missing)!r}")
    return table


def _columns_from_text(text: str) -> tuple[ColumnValue, ...]:
    return tuple(ColumnValue(column, Raw(bytes(raw))) for column, raw in _decode_object(text).items())


def _columns_from_map(cells: Iterable[tuple[str, str]]) -> tuple[ColumnValue, ...]:
    return tuple(ColumnValue(column, Raw(text.encode())) for column, text in cells)

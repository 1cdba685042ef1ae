"""Deltas as Arrow and Parquet, with the names and types that the lake's own table `deltas` has.

The column `columns` comes in two forms: **mapped**, column name to the value's JSON text, as the lake and Parquet
files have it, and **spelled**, one JSON object in a text, as SQL databases have it. `mapped` and `spelled` change one
into the other; what takes tables of deltas takes both.

Needs pyarrow and numpy: `pip install 'lakesync[parquet]'`.
"""

from __future__ import annotations

import binascii
import io
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from lakesync.adapters.base import Held, StoredDelta
from lakesync.adapters.flat import COLUMNS, FlatDelta, flat, unflat
from lakesync.model.delta import id_number, jcs_raw
from lakesync.model.errors import ConfigurationError, IntegrityError
from lakesync.model.types import ColumnValue, RowDelta

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

HASH = 32
"""Bytes of a delta id that is a hash; it is spelled in as many pairs of hexadecimal digits."""
_NUMBER = 8
"""Of these, those that are its number."""
_HEX_DIGITS = b"0123456789abcdef"
_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode


def require_pyarrow() -> None:
    """Find out now, rather than at the first flush, whether Parquet can be written.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            "Parquet needs pyarrow: pip install 'lakesync[parquet]', or choose the flush format json"
        ) from error


@cache
def arrow_schema() -> pa.Schema:
    """The columns of deltas; values are their RFC 8785 texts."""
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    types = (text, number, text, text, text, text, number, text, pa.map_(text, text))
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in zip(COLUMNS, types, strict=True)])


def to_arrow(deltas: Sequence[StoredDelta]) -> pa.Table:
    """Deltas as an Arrow table, in their order."""
    import pyarrow as pa

    rows = [flat(stored, _cells(stored.delta)) for stored in deltas]
    columns = zip(*rows, strict=True) if rows else [()] * len(COLUMNS)
    schema = arrow_schema()
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def from_arrow(table: pa.Table) -> list[StoredDelta]:
    """What `to_arrow` made a table of, in either form."""
    rows: Iterable[FlatDelta[Any]] = zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True)
    read = _columns_of_text if is_spelled(table) else _columns
    return [unflat((*row[:-1], read(row[-1]))) for row in rows]


def is_spelled(table: pa.Table) -> bool:
    """Whether a table of deltas has its `columns` as text."""
    import pyarrow as pa

    kind = table.schema.field("columns").type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def spelled(table: pa.Table) -> pa.Table:
    """A table of deltas with its `columns` as JSON objects."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_spelled(table):
        return table
    place = table.schema.get_field_index("columns")
    chunks = []
    for chunk in table.column(place).chunks:
        first, last = chunk.offsets[0].as_py(), chunk.offsets[-1].as_py()
        offsets = pc.subtract(chunk.offsets, first)  # `keys` and `items` of a slice are those of the whole
        keys, items = chunk.keys.slice(first, last - first), chunk.items.slice(first, last - first)
        cells = pc.binary_join_element_wise('"', keys, '":', items, "")
        joined = pc.binary_join(pa.ListArray.from_arrays(offsets, cells), ",")
        chunks.append(pc.binary_join_element_wise("{", joined, "}", ""))
    return table.set_column(place, "columns", pa.chunked_array(chunks, pa.string()))


def mapped(table: pa.Table) -> pa.Table:
    """A table of deltas with its `columns` as maps."""
    import pyarrow as pa

    if not is_spelled(table):
        return table
    place = table.schema.get_field_index("columns")
    cells = [
        [(name, bytes(raw).decode()) for name, raw in _decode_object(text).items()]
        for text in table.column(place).to_pylist()
    ]
    field = arrow_schema().field("columns")
    return table.set_column(place, field, pa.array(cells, field.type))


def chosen(
    deltas: pa.Table, tables: Sequence[str] = (), without: Sequence[str] = (), gateways: Sequence[str] = ()
) -> pa.Table:
    """Return the deltas of some tables and gateways.

    Args:
        deltas: in either form.
        tables: names; empty for every table.
        without: names of tables that are left out.
        gateways: ids; empty for every gateway.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for name, values, keep in (
        ("table_name", tables, True),
        ("table_name", without, False),
        ("gateway", gateways, True),
    ):
        if values:
            among = pc.is_in(deltas.column(name), pa.array(values, pa.string()))
            deltas = deltas.filter(among if keep else pc.invert(among))
    return deltas


def held_in_table(table: pa.Table) -> Held:
    """How many deltas a table has, and the sum of their ids."""
    return held_of_ids(table.column("delta_id"))


def held_of_ids(delta_ids: pa.ChunkedArray) -> Held:
    """How many deltas, and the sum of their ids, which are texts or, all of them, `hashes_of` texts."""
    return Held(len(delta_ids), sum(int(id_numbers(chunk).sum()) for chunk in delta_ids.chunks) % 2**64)


def id_numbers(delta_ids: pa.Array) -> npt.NDArray[np.uint64]:
    """The `lakesync.model.delta.id_number` of each, none null."""
    import numpy as np
    import pyarrow as pa

    hashes = delta_ids if pa.types.is_fixed_size_binary(delta_ids.type) else hashes_of(delta_ids.cast(pa.string()))
    if hashes is None:
        return np.array([id_number(each) for each in delta_ids.to_pylist()], np.uint64)
    rows = np.frombuffer(hashes.buffers()[1], np.uint8).reshape(-1, HASH)[hashes.offset : hashes.offset + len(hashes)]
    return np.ascontiguousarray(rows[:, :_NUMBER]).view(">u8").ravel().astype(np.uint64)


def hashes_of(delta_ids: pa.Array) -> pa.FixedSizeBinaryArray | None:
    """What ids of 64 hexadecimal digits say, 32 bytes each; None where one is no such id."""
    import numpy as np
    import pyarrow.compute as pc

    count = len(delta_ids)
    if not count or set(pc.unique(pc.binary_length(delta_ids)).to_pylist()) != {2 * HASH}:
        return None
    offset, data = delta_ids.offset, delta_ids.buffers()[2]
    begin = np.frombuffer(delta_ids.buffers()[1], np.int32)[offset]
    letters = np.frombuffer(data, np.uint8)[begin : begin + count * 2 * HASH].tobytes()
    return None if letters.translate(None, _HEX_DIGITS) else hashes_in(binascii.unhexlify(letters))


def hashes_in(joined: bytes) -> pa.FixedSizeBinaryArray:
    """Hashes of 32 bytes that come joined."""
    import pyarrow as pa

    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(HASH), len(joined) // HASH, [None, pa.py_buffer(joined)])


def encode_parquet(deltas: pa.Table, about: dict[str, str]) -> bytes:
    """A Parquet file of deltas.

    Args:
        deltas: in order, in either form.
        about: kept in the file's metadata.
    """
    import pyarrow.parquet as pq

    file = io.BytesIO()
    table = mapped(deltas).select(list(COLUMNS)).cast(arrow_schema()).replace_schema_metadata(about)
    pq.write_table(table, file, compression="zstd")
    return file.getvalue()


def decode_parquet(data: bytes) -> pa.Table:
    """The deltas of a Parquet file.

    Raises:
        IntegrityError: the file is damaged, or is not one of deltas.
    """
    return _table(data, COLUMNS)


def about_parquet(data: bytes) -> dict[str, str]:
    """What `encode_parquet` was told to keep in a file's metadata."""
    import pyarrow.parquet as pq

    found = pq.read_schema(io.BytesIO(data)).metadata or {}
    return {name.decode(): value.decode() for name, value in found.items() if name.startswith(b"lakesync.")}


def held_in_parquet(data: bytes) -> Held:
    """How many deltas a Parquet file has, and the sum of their ids; nothing else of them is read.

    Raises:
        IntegrityError: as `decode_parquet`.
    """
    return held_in_table(_table(data, ("delta_id",)))


def _table(data: bytes, columns: Sequence[str]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(data), columns=list(columns))
    except (pa.ArrowException, OSError) as error:
        raise IntegrityError(f"not a Parquet file of deltas: {error}") from error
    if missing := set(columns) - set(table.column_names):
        raise IntegrityError(f"not a Parquet file of deltas: it has no column {min(missing)!r}")
    return table


def _cells(delta: RowDelta) -> list[tuple[str, str]]:
    return [(cell.column, jcs_raw(cell.value)) for cell in delta.columns]


def _columns_of_text(text: str) -> tuple[ColumnValue, ...]:
    return tuple(ColumnValue(column, Raw(bytes(raw))) for column, raw in _decode_object(text).items())


def _columns(cells: Iterable[tuple[str, str]]) -> tuple[ColumnValue, ...]:
    return tuple(ColumnValue(column, Raw(text.encode())) for column, text in cells)

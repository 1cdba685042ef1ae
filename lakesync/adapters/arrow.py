"""Deltas as Arrow and Parquet, with the names and types that the lake's own table `deltas` has.

Needs pyarrow: `pip install 'lakesync[parquet]'`.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from lakesync.adapters.base import Held, StoredDelta
from lakesync.adapters.flat import COLUMNS, FlatDelta, flat, unflat
from lakesync.delta import id_number, jcs_raw
from lakesync.exceptions import ConfigurationError, IntegrityError
from lakesync.types import ColumnValue, RowDelta

if TYPE_CHECKING:
    import pyarrow as pa


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
    """What `to_arrow` made a table of."""
    rows: Iterable[FlatDelta[Any]] = zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True)
    return [unflat((*row[:-1], _columns(row[-1]))) for row in rows]


def encode_parquet(deltas: Sequence[StoredDelta], about: dict[str, str]) -> bytes:
    """A Parquet file of deltas.

    Args:
        deltas: in order.
        about: kept in the file's metadata.
    """
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(to_arrow(deltas).replace_schema_metadata(about), file, compression="zstd")
    return file.getvalue()


def decode_parquet(data: bytes) -> list[StoredDelta]:
    """The deltas of a Parquet file.

    Raises:
        IntegrityError: the file is damaged, or is not one of deltas.
    """
    return from_arrow(_table(data, COLUMNS))


def held_in_parquet(data: bytes) -> Held:
    """How many deltas a Parquet file has, and the sum of their ids; nothing else of them is read.

    Raises:
        IntegrityError: as `decode_parquet`.
    """
    ids = _table(data, ("delta_id",)).column("delta_id").to_pylist()
    return Held(len(ids), sum(id_number(delta_id) for delta_id in ids) % 2**64)


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


def _columns(cells: Iterable[tuple[str, str]]) -> tuple[ColumnValue, ...]:
    return tuple(ColumnValue(column, Raw(text.encode())) for column, text in cells)

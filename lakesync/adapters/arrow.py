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
from lakesync.delta import id_number, jcs_raw
from lakesync.exceptions import ConfigurationError, IntegrityError
from lakesync.types import ColumnValue, RowDelta

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("gateway", "arrival", "table_name", "row_id", "op", "client_id", "hlc", "delta_id", "columns")


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

    rows = [_row(stored) for stored in deltas]
    columns = zip(*rows, strict=True) if rows else [()] * len(COLUMNS)
    schema = arrow_schema()
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def from_arrow(table: pa.Table) -> list[StoredDelta]:
    """What `to_arrow` made a table of."""
    rows: Iterable[tuple[Any, ...]] = zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True)
    return [
        StoredDelta(
            gateway,
            arrival,
            RowDelta(
                op,
                name,
                row_id,
                client_id,
                tuple(ColumnValue(column, Raw(text.encode())) for column, text in columns),
                hlc,
                delta_id,
            ),
        )
        for gateway, arrival, name, row_id, op, client_id, hlc, delta_id, columns in rows
    ]


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


def _row(stored: StoredDelta) -> tuple[Any, ...]:
    delta = stored.delta
    columns = [(cell.column, jcs_raw(cell.value)) for cell in delta.columns]
    return (
        stored.gateway,
        stored.arrival,
        delta.table,
        delta.row_id,
        delta.op,
        delta.client_id,
        delta.hlc,
        delta.delta_id,
        columns,
    )

"""The least and the greatest value of a column in a data file, as the table's metadata have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table


def bounds_of(table: Table, file: DataFile, column: str) -> tuple[str | int | None, str | int | None]:
    """Of a column of strings or integers; None where nobody noted it.

    Long strings may be cut, unless the table's property `write.metadata.metrics.column.COLUMN` is `full`.
    """
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import PrimitiveType

    field = table.schema().find_field(column)
    low, high = ((bounds or {}).get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
    kind = field.field_type
    assert isinstance(kind, PrimitiveType)
    return (None if low is None else from_bytes(kind, low), None if high is None else from_bytes(kind, high))

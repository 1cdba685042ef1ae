"""The bounds of a column in a data file. `lakehouse` uses them to select files.

pyiceberg is imported when bounds are read, so that Spark's tasks can import this module without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table


def column_bounds(table: Table, file: DataFile, column: str) -> tuple[str | int | None, str | int | None]:
    """Return the lower and upper bound of a column in a data file, as its manifest records them.

    Args:
        table: the file's table.
        file: a data file.
        column: a column of strings or integers. Bounds of long strings may be truncated, unless the table's property
            `write.metadata.metrics.column.COLUMN` is `full`.

    Returns:
        The bounds; None for a bound that was not recorded.
    """
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import PrimitiveType

    field = table.schema().find_field(column)
    low, high = ((bounds or {}).get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
    kind = field.field_type
    assert isinstance(kind, PrimitiveType)
    return (None if low is None else from_bytes(kind, low), None if high is None else from_bytes(kind, high))

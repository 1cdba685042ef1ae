"""How a table's schema grows."""

from __future__ import annotations

from msgspec.structs import replace

from lakesync.exceptions import SchemaError
from lakesync.schema import TableSchema


def grown(old: TableSchema, new: TableSchema) -> TableSchema:
    """The new schema, and after its columns those that the table has besides: a column is never taken away.

    Raises:
        SchemaError: a column has another type now.
    """
    columns = {column.name: column for column in new.columns}
    for column in old.columns:
        now = columns.get(column.name)
        if now is not None and now.type != column.type:
            raise SchemaError(
                f"column {column.name!r} of table {old.table!r} is {column.type} in this database and cannot become "
                f"{now.type}: add a column under another name"
            )
    added = tuple(column for column in old.columns if column.name not in columns)
    return replace(new, columns=new.columns + added)

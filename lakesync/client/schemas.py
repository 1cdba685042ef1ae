"""How a table's schema grows."""

from __future__ import annotations

from msgspec.structs import replace

from lakesync.model.errors import SchemaError
from lakesync.model.schema import TableSchema


def grown(old: TableSchema, new: TableSchema) -> TableSchema:
    """The new schema, and after its columns those that the table has besides: a column is never taken away.

    Raises:
        SchemaError: a column has another type now, or is spelled otherwise.
    """
    columns = {column.name.lower(): column for column in new.columns}
    for column in old.columns:
        now = columns.get(column.name.lower(), column)
        if now.name != column.name:
            raise SchemaError(
                f"column {column.name!r} of table {old.table!r} in this database differs only in case from "
                f"{now.name!r}, and SQLite ignores case: spell both alike, in the app's schema and at the gateway"
            )
        if now.type != column.type:
            raise SchemaError(
                f"column {column.name!r} of table {old.table!r} is {column.type} in this database and cannot become "
                f"{now.type}: add a column under another name"
            )
    added = tuple(column for column in old.columns if column.name.lower() not in columns)
    return replace(new, columns=new.columns + added)

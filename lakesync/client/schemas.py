"""How a table of the app and its schema grow."""

from __future__ import annotations

from msgspec.structs import replace

from lakesync.exceptions import ConfigurationError, SchemaError
from lakesync.schema import TableSchema

_OWN = ("_lakesync", "sqlite_")


def check_names(schema: TableSchema) -> None:
    """Refuse names that mean something in the app's database.

    Raises:
        ConfigurationError: which, and what to do.
    """
    if schema.table.lower().startswith(_OWN):
        raise ConfigurationError(f"table {schema.table!r} has a name of SQLite's or LakeSync's own: choose another")
    for column in schema.columns:
        if column.name.lower() == "row_id":
            raise ConfigurationError(
                f"table {schema.table!r} has the row's id in row_id by itself: leave that column out of its schema"
            )


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

"""Table schemas: their parser, their evolution, and the check of pushed values against them.

A schema names the columns of a synced table and their types. A *delta* is a change of some columns of one row. The
*lake* has an Iceberg table with the current rows of each synced table. Gateways parse a schema when it is registered
(`parse_schema`, `evolve`), and check each push against it (`check_delta`); clients, connectors and the lake use the
same classes.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Literal, get_args

import msgspec

from lakesync.model.errors import SchemaError
from lakesync.model.types import RowDelta

ColumnType = Literal["string", "number", "boolean", "json", "null"]
"""The types of columns. `json` accepts any value; every type accepts null."""

RESERVED_COLUMNS = frozenset(
    {
        *("_gateway", "_row", "_cells", "_tombstone", "_inserted", "_gone", "_arrival"),
        "_row_bucket",  # Iceberg's name for the partitions of a state table
        # Iceberg's metadata columns: a table with one of these names cannot be read
        *("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"),
        *("_change_type", "_change_ordinal", "_commit_snapshot_id"),
    }
)
"""Names that no column may have: columns that the lake's state tables (Iceberg tables with the current rows) add, their
partition field, and Iceberg's metadata columns."""

RESERVED_TABLES = frozenset(
    f"lakesync_{name}" for name in ("deltas", "marks", "dead_letters", "incoming", "rows", "keys", "letters")
)
"""Tables that LakeSync adds to destinations (databases that copy the lake). A synced table with such a name would be
mixed with them."""

_LAKESYNC_PREFIX = "_lakesync"
"""Prefix of the tables and columns that the client adds to the app's database."""
_SQLITE_PREFIX = "sqlite_"
"""Prefix of table names that SQLite reserves."""

_IDENTIFIER = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}")
"""The form of table and column names."""
IDENTIFIER_FORM = "letters, digits and _, at most 64, no digit first"
"""The same for people, in error messages after "use"."""
_FIRST_BYTES: dict[str, frozenset[int]] = {
    "string": frozenset(b'"n'),
    "number": frozenset(b"-0123456789n"),
    "boolean": frozenset(b"tfn"),
    "null": frozenset(b"n"),
}
"""Column type → the first bytes of JSON values that fit it; `n` begins null, which fits every type."""


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """One column of a synced table."""

    name: str
    type: ColumnType
    references: str | None = None
    """`table.column` that its values point to, for lineage and joins; not enforced."""


class Reference(msgspec.Struct, frozen=True):
    """The column that another column points to, as clients of the TypeScript LakeSync give it.

    `parse_schema` converts it to `table.column`, the form of `Column.references`.
    """

    table: str
    column: str


class TableSchema(msgspec.Struct, frozen=True, rename="camel", cache_hash=True):
    """A synced table. Create it with `parse_schema`, which checks it."""

    table: str
    columns: tuple[Column, ...]
    source_table: str | None = None
    """The name of the table in destinations (databases that copy the lake); None if it is the same."""
    primary_key: tuple[str, ...] = ("row_id",)
    """The columns that identify a row for people, or `row_id`, the row's id. Destinations index these columns, but not
    as unique: two offline devices may use one key."""
    soft_delete: bool = True
    """Whether destinations mark deleted rows instead of deleting them."""
    external_id_column: str | None = None
    """The column with the row's id in an external system, which destinations index; None without one."""

    @property
    def types(self) -> dict[str, ColumnType]:
        """Each column's type."""
        return {column.name: column.type for column in self.columns}


@lru_cache(maxsize=4096)
def is_identifier(name: str) -> bool:
    """Return whether a name has the form of a table's or column's name: 1 to 64 of A-Z a-z 0-9 _, no digit first."""
    return _IDENTIFIER.fullmatch(name) is not None


def is_reserved_column(name: str) -> bool:
    """Return whether the lake, Iceberg or LakeSync uses this name for a column of its own, except `row_id`."""
    return name.lower() in RESERVED_COLUMNS or name.lower().startswith(_LAKESYNC_PREFIX)


def parse_schema(obj: Any) -> TableSchema:
    """Parse and check a schema.

    Args:
        obj: a decoded JSON object; a `TableSchema` is returned unchanged.

    Raises:
        SchemaError: it does not have the documented form; the message names the column.
    """
    if isinstance(obj, TableSchema):
        return obj
    try:
        schema = msgspec.convert(_references_as_text(obj), TableSchema)
    except msgspec.ValidationError as error:
        types = f"; a column's type is one of {', '.join(get_args(ColumnType))}" if "enum" in str(error) else ""
        raise SchemaError(f"the table schema is not of the documented form: {error}{types}") from None
    check_schema(schema)
    return schema


def check_schema(schema: TableSchema) -> None:
    """Check that names are allowed, and that keys are columns.

    Raises:
        SchemaError: the message names the table or the column.
    """
    _check_names(schema)
    _check_keys(schema)


def evolve(old: TableSchema, new: TableSchema) -> TableSchema:
    """Return the new version of a registered schema, which may only add columns. Old columns keep their order.

    Args:
        old: the registered schema.
        new: the schema to register.

    Raises:
        SchemaError: it changes anything else; the message names the column.
    """
    remaining = {column.name: column for column in new.columns}
    for column in old.columns:
        replacement = remaining.pop(column.name, None)
        if replacement is None:
            raise SchemaError(
                f"column {column.name!r} of table {old.table!r} is missing: a column cannot be removed. Keep it; to"
                " rename it, add a column under the new name."
            )
        if replacement.type != column.type:
            raise SchemaError(
                f"column {column.name!r} of table {old.table!r} is {column.type} and cannot become "
                f"{replacement.type}: add a column under another name"
            )
        if replacement.references != column.references:
            raise SchemaError(f"column {column.name!r} of table {old.table!r} cannot change what it references")
    for field in msgspec.structs.fields(TableSchema):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before != after and field.name != "columns":
            hint = (
                " (it decides which rows are the same)" if field.name in ("primary_key", "external_id_column") else ""
            )
            raise SchemaError(
                f"{field.encode_name} of table {old.table!r} is {before!r} and cannot become {after!r}{hint}: "
                "a registered schema only grows columns"
            )
    return msgspec.structs.replace(new, columns=(*old.columns, *remaining.values()))


def check_delta(schema: TableSchema, delta: RowDelta) -> str | None:
    """Return what is wrong with a delta by its table's schema, as an error message; None if it fits.

    Args:
        schema: the schema of the delta's table.
        delta: the delta. Its values must be valid JSON, because their types are read from their first bytes.
    """
    if delta.op == "DELETE":
        return None
    types = _types(schema)
    for cell in delta.columns:
        expected = types.get(cell.column)
        if expected is None:
            return (
                f"column {cell.column!r} of table {schema.table!r} is not in its schema: register it first or drop it"
            )
        if expected == "json":
            continue
        first = memoryview(cell.value)[0]
        if first not in _FIRST_BYTES[expected]:
            return (
                f"column {cell.column!r} of table {schema.table!r} is {expected}, the value is {_kind(first)}: "
                "send a value of that type or null"
            )
    return None


def _is_reference(text: str) -> bool:
    """Return whether a text has the form `table.column`."""
    table, _, column = text.partition(".")
    return is_identifier(table) and is_identifier(column)


def _references_as_text(obj: Any) -> Any:
    """Return the schema with references as `table.column`, if they are given as objects."""
    columns = obj.get("columns") if isinstance(obj, dict) else None
    if not isinstance(columns, list):
        return obj
    return obj | {"columns": [_reference_as_text(column) for column in columns]}


def _reference_as_text(column: Any) -> Any:
    """Return a column with its reference as `table.column`, if it is given as an object; raises SchemaError."""
    if not isinstance(column, dict) or not isinstance(column.get("references"), dict):
        return column
    try:
        reference = msgspec.convert(column["references"], Reference)
    except msgspec.ValidationError as error:
        what = f"references of column {column.get('name')!r}"
        raise SchemaError(f"{what} is neither 'table.column' nor an object of both: {error}") from None
    return column | {"references": f"{reference.table}.{reference.column}"}


def _check_names(schema: TableSchema) -> None:
    """Check the names of a schema's table and columns; raises SchemaError."""
    if not is_identifier(schema.table):
        raise SchemaError(f"table {schema.table!r} is no identifier: use {IDENTIFIER_FORM}")
    if schema.source_table is not None and not is_identifier(schema.source_table):
        raise SchemaError(f"sourceTable {schema.source_table!r} is no identifier: use {IDENTIFIER_FORM}")
    for key, name in (("table", schema.table), ("sourceTable", schema.source_table or schema.table)):
        if name.lower() in RESERVED_TABLES:
            raise SchemaError(f"{key} {name!r} is reserved for tables of destinations: choose another name")
        if name.lower().startswith((_LAKESYNC_PREFIX, _SQLITE_PREFIX)):
            raise SchemaError(f"{key} {name!r} is reserved for tables of SQLite or LakeSync: choose another name")
    if not schema.columns:
        raise SchemaError(f"table {schema.table!r} has no columns: name at least one")
    seen: dict[str, str] = {}
    for column in schema.columns:
        name = column.name
        what = f"column {name!r} of table {schema.table!r}"
        if not is_identifier(name):
            raise SchemaError(f"{what} is no identifier: use {IDENTIFIER_FORM}")
        if name.lower() == "row_id":
            raise SchemaError(f"{what} is reserved: every row has its id in row_id, leave the column out")
        if name.lower().startswith(_LAKESYNC_PREFIX):
            raise SchemaError(f"{what} is reserved for columns that LakeSync adds: choose another name")
        if name.lower() in RESERVED_COLUMNS:
            raise SchemaError(f"{what} is reserved for a column of the lake: choose another name")
        if column.references is not None and not _is_reference(column.references):
            raise SchemaError(
                f"references of column {name!r} is {column.references!r}, which is no 'table.column': "
                f"use {IDENTIFIER_FORM}, in each of the two names"
            )
        other = seen.get(name.lower())
        if other is not None:
            raise SchemaError(
                f"columns {other!r} and {name!r} of table {schema.table!r} "
                + ("are the same" if other == name else "differ only in case")
                + ": rename one"
            )
        seen[name.lower()] = name


def _check_keys(schema: TableSchema) -> None:
    """Check that a schema's keys are among its columns; raises SchemaError."""
    names = {column.name for column in schema.columns}
    what = f"primaryKey of table {schema.table!r}"
    if not schema.primary_key:
        raise SchemaError(f"{what} is empty: leave it out for row_id")
    if len(set(schema.primary_key)) != len(schema.primary_key):
        raise SchemaError(f"{what} names a column twice: {list(schema.primary_key)!r}; name each once")
    for name in schema.primary_key:
        if name != "row_id" and name not in names:
            raise SchemaError(f"{what} names {name!r}, which is no column of it")
    external = schema.external_id_column
    if external is not None and external not in names:
        raise SchemaError(f"externalIdColumn of table {schema.table!r} is {external!r}, which is no column of it")


def _kind(first: int) -> str:
    """Return what kind of JSON value begins with this byte, for an error message."""
    kinds = {'"': "a string", "t": "a boolean", "f": "a boolean", "n": "null", "{": "json", "[": "json"}
    return kinds.get(chr(first), "a number")


@lru_cache(maxsize=1024)
def _types(schema: TableSchema) -> dict[str, ColumnType]:
    """Return `TableSchema.types`, computed once for each schema, because every pushed delta needs it."""
    return schema.types

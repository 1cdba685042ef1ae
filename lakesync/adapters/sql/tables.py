"""Tables of rows in a SQL database: each row as its deltas say, beside what belongs to the user.

`props` is the user's: it gets its default when a row is made, and no statement here names it afterwards. A row is
`(gateway, row_id)`. The user's primary key and external id have indexes that are not unique, and bound no length: two
devices may use one key offline, so no key decides which row is which.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from lakesync.adapters.buckets import BUCKETS, bucket_of
from lakesync.adapters.contents import NOTHING, RowContent, RowId
from lakesync.adapters.dead_letters import WHOLE_ROW, DeadLetter
from lakesync.adapters.sql.dialect import Column, Dialect
from lakesync.adapters.sql.executor import Connection
from lakesync.adapters.sql.keys import KEYS, load_keys
from lakesync.adapters.sql.letters import replace_letters
from lakesync.adapters.sql.rows import own_column, rows_of, shown_columns
from lakesync.model.errors import SchemaError
from lakesync.model.hlc import wall_clock
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

_SCRATCH = "lakesync_rows"
_SAVEPOINTS = count(1)
"""Numbers for their names: in MySQL a second savepoint of one name removes the first."""


def destination(schema: TableSchema) -> str:
    """The name of the destination's table."""
    return schema.source_table or schema.table


def locks_of(dialect: Dialect, schema: TableSchema, rows: Iterable[RowId] | None = None) -> list[str]:
    """Return the names of the locks that a writer of a table of rows takes, in the order in which it takes them.

    Args:
        dialect: says whether writers of different rows need to wait for each other.
        schema: the table's.
        rows: the rows to write; None: any row.
    """
    name = f"table {destination(schema)}"
    if not dialect.concurrent:
        return [name]
    buckets = range(BUCKETS) if rows is None else sorted({bucket_of(row_id) for _, row_id in rows})
    return [f"{name} {bucket:02d}" for bucket in buckets]


@contextmanager
def savepoint(connection: Connection, dialect: Dialect) -> Iterator[None]:
    """Undo the statements within if one fails, and leave the transaction as it was before them."""
    if not dialect.transactions:
        yield
        return
    name = f"lakesync_part_{next(_SAVEPOINTS)}"
    connection.execute(f"SAVEPOINT {name}")
    try:
        yield
    except BaseException as error:
        if connection.refusal(error) is None:
            raise  # the connection may be lost: the transaction is undone as a whole
        connection.execute(f"ROLLBACK TO SAVEPOINT {name}")
        with suppress(Exception):
            connection.execute(f"RELEASE SAVEPOINT {name}")
        raise
    connection.execute(f"RELEASE SAVEPOINT {name}")


def ensure_table(connection: Connection, dialect: Dialect, schema: TableSchema) -> None:
    """Make the table, or add the columns that it lacks.

    Raises:
        SchemaError: the table is somebody else's, or the schema came to have a column where it has one of its own.
    """
    name, quote = dialect.quote(destination(schema)), dialect.quote
    present = set(connection.columns(destination(schema)))
    wanted = [column._replace(name=quote(column.name)) for column in table_columns(schema)]
    if not present:
        props = Column(quote(own_column(schema, "props")), "json", default="'{}'")
        key = [quote(column) for column in key_of(schema)]
        statements = [*dialect.table(name, [*wanted, props], key), *_indexes(dialect, schema, ())]
        with connection.transaction():
            for statement in statements:
                connection.execute(statement)
        return
    if "row_id" not in present:
        raise SchemaError(
            f"the destination has a table {destination(schema)!r} already, which LakeSync did not make, as it has no "
            "row_id: rename it, or give the schema another sourceTable"
        )
    if {own_column(schema, "gateway"), own_column(schema, "last_arrival")} - present:
        raise SchemaError(
            f"the destination's table {destination(schema)!r} was made by an earlier version, which did not tell rows "
            "of two gateways apart: rename it, and it is made and filled again"
        )
    _check_own(schema, present)
    for column in wanted:
        if column.name not in {quote(one) for one in present}:
            connection.execute(f"ALTER TABLE {name} ADD COLUMN {dialect.define(column._replace(required=False))}")
    for statement in _indexes(dialect, schema, present):
        connection.execute(statement)


def key_of(schema: TableSchema) -> tuple[str, str]:
    """The columns by which a table of rows is unique."""
    return (own_column(schema, "gateway"), "row_id")


def _indexes(dialect: Dialect, schema: TableSchema, present: Collection[str]) -> Iterator[str]:
    """Statements that make the indexes of the user's keys, each of one column, but of columns that are there."""
    named = dict.fromkeys((*schema.primary_key, *filter(None, [schema.external_id_column])))
    columns = {column.name: column for column in table_columns(schema)}
    for name in named:
        if name == "row_id" or name in present:
            continue
        text = f"{destination(schema)}.{name}"
        index = f"lakesync_key_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        column = columns[name]
        yield from dialect.lookup(
            index, dialect.quote(destination(schema)), column._replace(name=dialect.quote(column.name))
        )


def _check_own(schema: TableSchema, present: Collection[str]) -> None:
    """Nothing of the app's is written where the table keeps what is its own, or its users'."""
    name = destination(schema)
    for own in ("props", "synced_at", "last_arrival", "checksum", *(("deleted_at",) if schema.soft_delete else ())):
        elsewhere = own_column(schema, own)
        if elsewhere != own and own in present and elsewhere not in present:
            raise SchemaError(
                f"the schema of {schema.table!r} has got a column {own!r}, which the destination's table {name!r} has "
                f"as its own: ALTER TABLE {name} RENAME COLUMN {own} TO {elsewhere}, and it goes on"
            )


def write_contents(
    connection: Connection, dialect: Dialect, schema: TableSchema, contents: Mapping[RowId, RowContent]
) -> None:
    """Bring rows in line with their contents, and the dead letters about them, within the caller's transaction."""
    if not contents:
        return
    rows = rows_of(schema, contents, wall_clock(), dialect.json_depth)
    letters = [*rows.letters, *_bring_fitting(connection, dialect, schema, rows.shown)]
    remove_rows(connection, dialect, schema, rows.gone)
    replace_letters(connection, dialect, schema.table, contents, letters)


def remove_rows(connection: Connection, dialect: Dialect, schema: TableSchema, rows: Collection[RowId]) -> None:
    """Remove rows from the table, within the caller's transaction."""
    if not rows:
        return
    load_keys(connection, dialect, rows)
    name = dialect.quote(destination(schema))
    same = " AND ".join(
        f"k.{key} = {name}.{dialect.quote(column)}"
        for key, column in zip(("gateway", "row_id"), key_of(schema), strict=True)
    )
    connection.execute(f"DELETE FROM {name} WHERE EXISTS (SELECT 1 FROM {KEYS} k WHERE {same})")


def make_again(
    connection: Connection,
    dialect: Dialect,
    schema: TableSchema,
    rows: Sequence[RowId],
    contents: Mapping[RowId, RowContent],
) -> None:
    """Rows as their contents say, and nothing of what they were, within the caller's transaction.

    What is not visible is removed before it is written, `props` with it.
    """
    gone = [row for row in rows if row not in contents or not contents[row].state.visible]
    remove_rows(connection, dialect, schema, gone)
    write_contents(connection, dialect, schema, {row: contents.get(row, NOTHING) for row in rows})


def load_rows(connection: Connection, dialect: Dialect, schema: TableSchema, rows: pa.Table) -> str:
    """Rows, as a table that `rows_schema` describes, into a scratch table; its name."""
    columns = [column._replace(name=dialect.quote(column.name), required=False) for column in _loaded(schema)]
    for statement in dialect.scratch(_SCRATCH, columns, [dialect.quote(column) for column in key_of(schema)]):
        connection.execute(statement)
    connection.load(_SCRATCH, rows)
    return _SCRATCH


def bring_rows(connection: Connection, dialect: Dialect, schema: TableSchema, scratch: str) -> None:
    """Loaded rows into the table, each with the checksum of its cells as the database has them."""
    columns = [dialect.quote(column.name) for column in table_columns(schema)]
    key = [dialect.quote(column) for column in key_of(schema)]
    update = [column for column in columns if column not in key]
    checksum = f"{checksum_of(dialect, schema)} AS {dialect.quote(own_column(schema, 'checksum'))}"
    source = f"(SELECT {scratch}.*, {checksum} FROM {scratch})"
    connection.execute(dialect.merge(dialect.quote(destination(schema)), source, columns, key, update))


def checksum_of(dialect: Dialect, schema: TableSchema) -> str:
    """The checksum of a row's cells, as SQL over its columns."""
    cells = [column._replace(name=dialect.quote(column.name)) for column in _cells(schema)]
    parts = [f"COALESCE('=' || {dialect.text(cell)}, '-')" for cell in cells]
    if schema.soft_delete:
        parts.append(f"CASE WHEN {dialect.quote(own_column(schema, 'deleted_at'))} IS NULL THEN '-' ELSE '+' END")
    return dialect.checksum(" || '|' || ".join(parts))


def _bring_fitting(
    connection: Connection, dialect: Dialect, schema: TableSchema, rows: pa.Table
) -> Iterator[DeadLetter]:
    """Rows into the table, without the values that the database refuses, which are found by halving."""
    if not len(rows) or _refused(connection, dialect, schema, rows) is None:
        return
    if len(rows) == 1:
        yield from _bring_cells(connection, dialect, schema, rows)
        return
    half = len(rows) // 2
    yield from _bring_fitting(connection, dialect, schema, rows.slice(0, half))
    yield from _bring_fitting(connection, dialect, schema, rows.slice(half))


def _bring_cells(connection: Connection, dialect: Dialect, schema: TableSchema, row: pa.Table) -> Iterator[DeadLetter]:
    """One row that the database refuses, with those of its values that it takes."""
    import pyarrow as pa

    gateway, row_id = (row.column(place)[0].as_py() for place in range(2))
    columns = [column for column in shown_columns(schema) if row.column(column.name).null_count == 0]
    places = {column.name: row.schema.get_field_index(column.name) for column in columns}
    taken = row
    for place in places.values():
        taken = taken.set_column(place, row.schema.field(place), pa.nulls(1, row.schema.field(place).type))
    refused = _refused(connection, dialect, schema, taken)
    if refused is not None:  # a rule of the user's, which the row meets with no value
        yield DeadLetter(gateway, schema.table, row_id, WHOLE_ROW, "null", refused)
        return
    for column in columns:
        place = places[column.name]
        fuller = taken.set_column(place, row.schema.field(place), row.column(place))
        refused = _refused(connection, dialect, schema, fuller)
        if refused is None:
            taken = fuller
        else:
            value = row.column(place)[0].as_py()
            text = value if column.type in ("number", "json") else msgspec.json.encode(value).decode()
            yield DeadLetter(gateway, schema.table, row_id, column.name, text, refused)


def _refused(connection: Connection, dialect: Dialect, schema: TableSchema, rows: pa.Table) -> str | None:
    """Write rows, all or none; return why the database refuses one of their values, if it does."""
    try:
        with savepoint(connection, dialect):
            bring_rows(connection, dialect, schema, load_rows(connection, dialect, schema, rows))
    except Exception as error:
        refusal = connection.refusal(error)
        if refusal is None or not refusal.of_values:
            raise
        return refusal.reason
    return None


def table_columns(schema: TableSchema) -> list[Column]:
    """The columns of a table of rows but `props`, those of `rows_schema` first."""
    return [*_loaded(schema), Column(own_column(schema, "checksum"), "integer", required=False)]


def _loaded(schema: TableSchema) -> list[Column]:
    gateway, row_id = key_of(schema)
    columns = [Column(gateway, "name"), Column(row_id, "id"), *_cells(schema)]
    columns += [
        Column(own_column(schema, "synced_at"), "time", required=False),
        Column(own_column(schema, "last_arrival"), "integer", required=False),
    ]
    if schema.soft_delete:
        columns.append(Column(own_column(schema, "deleted_at"), "time", required=False))
    return columns


def _cells(schema: TableSchema) -> list[Column]:
    return [
        Column(column.name, "string" if column.type == "null" else column.type, required=False)
        for column in shown_columns(schema)
    ]


__all__ = [
    "bring_rows",
    "checksum_of",
    "destination",
    "ensure_table",
    "key_of",
    "load_rows",
    "locks_of",
    "make_again",
    "remove_rows",
    "savepoint",
    "table_columns",
    "write_contents",
]

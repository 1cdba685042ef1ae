"""Tables of rows in a SQL database: each row as its merged state says, beside what belongs to the user.

`props` is the user's: it gets its default when a row is made, and no statement here names it afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lakesync.adapters.buckets import BUCKETS, bucket_of
from lakesync.adapters.sql.dialect import Column, Dialect
from lakesync.adapters.sql.executor import Connection
from lakesync.adapters.sql.rows import own_column, rows_schema, rows_table, shown_columns
from lakesync.exceptions import SchemaError
from lakesync.hlc import wall_clock
from lakesync.lww import RowState
from lakesync.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

_SCRATCH = "lakesync_rows"
_GONE = "lakesync_gone"


def destination(schema: TableSchema) -> str:
    """The name of the destination's table."""
    return schema.source_table or schema.table


def locks_of(dialect: Dialect, schema: TableSchema, rows: Iterable[str] | None = None) -> list[str]:
    """Return the names of the locks that a writer of a table of rows takes, in the order in which it takes them.

    Args:
        dialect: says whether writers of different rows need to wait for each other.
        schema: the table's.
        rows: ids of the rows to write; None: any row.
    """
    name = f"table {destination(schema)}"
    if not dialect.concurrent:
        return [name]
    buckets = range(BUCKETS) if rows is None else sorted(set(map(bucket_of, rows)))
    return [f"{name} {bucket:02d}" for bucket in buckets]


def ensure_table(connection: Connection, dialect: Dialect, schema: TableSchema) -> None:
    """Make the table, or add the columns that it lacks; `row_id` is always one, and unique.

    Raises:
        SchemaError: the table is somebody else's, or the schema came to have a column where it has one of its own.
    """
    name, quote = dialect.quote(destination(schema)), dialect.quote
    present = set(connection.columns(destination(schema)))
    wanted = [
        column._replace(name=quote(column.name), required=column.required or column.name in schema.primary_key)
        for column in _columns(schema)
    ]
    if not present:
        props = Column(quote(own_column(schema, "props")), "json", default="'{}'")
        uniques = [quote(one) for one in dict.fromkeys(("row_id", schema.external_id_column)) if one is not None]
        key = [quote(one) for one in schema.primary_key]
        statements = dialect.table(name, [*wanted, props], key, [column for column in uniques if [column] != key])
        with connection.transaction():
            for statement in statements:
                connection.execute(statement)
        return
    if "row_id" not in present:
        raise SchemaError(
            f"the destination has a table {destination(schema)!r} already, which LakeSync did not make, as it has no "
            "row_id: rename it, or give the schema another sourceTable"
        )
    _check_own(schema, present)
    for column in wanted:
        if column.name not in {quote(one) for one in present}:
            connection.execute(f"ALTER TABLE {name} ADD COLUMN {dialect.define(column._replace(required=False))}")


def _check_own(schema: TableSchema, present: Collection[str]) -> None:
    """Nothing of the app's is written where the table keeps what is its own, or its users'."""
    name = destination(schema)
    for own in ("props", "synced_at", *(("deleted_at",) if schema.soft_delete else ())):
        elsewhere = own_column(schema, own)
        if elsewhere != own and own in present and elsewhere not in present:
            raise SchemaError(
                f"the schema of {schema.table!r} has got a column {own!r}, which the destination's table {name!r} has "
                f"as its own: ALTER TABLE {name} RENAME COLUMN {own} TO {elsewhere}, and it goes on"
            )


def write_states(connection: Connection, dialect: Dialect, schema: TableSchema, states: Mapping[str, RowState]) -> None:
    """Bring rows in line with their states, within the caller's transaction."""
    now = wall_clock()
    visible = {row_id: state for row_id, state in states.items() if state.visible}
    if visible:
        rows = _keyed(schema, rows_table(schema, visible, now))
        bring_rows(connection, dialect, schema, load_rows(connection, dialect, schema, rows))
    gone = [row_id for row_id, state in states.items() if not state.visible]
    if gone:
        _remove(connection, dialect, schema, gone, now)


def make_again(
    connection: Connection, dialect: Dialect, schema: TableSchema, rows: Sequence[str], states: Mapping[str, RowState]
) -> None:
    """Rows as their states say, and nothing of what they were, within the caller's transaction.

    What is not shown, or has no whole key, is removed, with soft delete too.
    """
    now = wall_clock()
    visible = {row_id: states[row_id] for row_id in rows if row_id in states and states[row_id].visible}
    shown = _keyed(schema, rows_table(schema, visible, now))
    gone = sorted(set(rows) - set(shown.column("row_id").to_pylist()))
    if gone:
        _remove(connection, dialect, replace(schema, soft_delete=False), gone, now)
    if len(shown):
        bring_rows(connection, dialect, schema, load_rows(connection, dialect, schema, shown))


def load_rows(connection: Connection, dialect: Dialect, schema: TableSchema, rows: pa.Table) -> str:
    """Visible rows, as a table that `rows_schema` describes, into a scratch table; its name."""
    columns = [column._replace(name=dialect.quote(column.name), required=False) for column in _columns(schema)]
    for statement in dialect.scratch(_SCRATCH, columns, [dialect.quote("row_id")]):
        connection.execute(statement)
    connection.load(_SCRATCH, rows)
    return _SCRATCH


def bring_rows(connection: Connection, dialect: Dialect, schema: TableSchema, scratch: str) -> None:
    """Loaded rows into the table: each to the row of its id, else to that of its key, else to a new one."""
    _adopt(connection, dialect, schema, scratch)
    columns = [dialect.quote(column.name) for column in _columns(schema)]
    row_id = dialect.quote("row_id")
    update = [column for column in columns if column != row_id]
    connection.execute(dialect.merge(dialect.quote(destination(schema)), scratch, columns, [row_id], update))


def _keyed(schema: TableSchema, rows: pa.Table) -> pa.Table:
    """Without the rows whose key is not whole: such a row is not shown until it is."""
    import pyarrow.compute as pc

    for name in schema.primary_key:
        rows = rows.filter(pc.is_valid(rows.column(name)))
    return rows


def _adopt(connection: Connection, dialect: Dialect, schema: TableSchema, scratch: str) -> None:
    """Rows that have a loaded row's key, or its external id, under another row id get the loaded one's."""
    key = (schema.external_id_column,) if schema.external_id_column is not None else schema.primary_key
    if key == ("row_id",):
        return
    name, row_id = dialect.quote(destination(schema)), dialect.quote("row_id")
    same = " AND ".join(f"s.{dialect.quote(column)} = d.{dialect.quote(column)}" for column in key)
    found = connection.rows(
        f"SELECT d.{row_id}, s.{row_id} FROM {scratch} s JOIN {name} d ON {same} WHERE d.{row_id} <> s.{row_id}"
    )
    for old, new in found:
        if not connection.rows(f"SELECT 1 FROM {name} WHERE {row_id} = ?", [new]):
            connection.execute(f"UPDATE {name} SET {row_id} = ? WHERE {row_id} = ?", [new, old])


def _remove(connection: Connection, dialect: Dialect, schema: TableSchema, gone: Sequence[str], now_ms: int) -> None:
    import pyarrow as pa

    columns = [Column("row_id", "id"), Column("gone_at", "time")]
    for statement in dialect.scratch(_GONE, columns, ["row_id"]):
        connection.execute(statement)
    instants = pa.array([now_ms] * len(gone), pa.timestamp("ms", "UTC"))
    connection.load(_GONE, pa.table({"row_id": pa.array(gone, pa.string()), "gone_at": instants}))
    name, row_id = dialect.quote(destination(schema)), dialect.quote("row_id")
    chosen = f"{row_id} IN (SELECT g.row_id FROM {_GONE} g)"
    if not schema.soft_delete:
        connection.execute(f"DELETE FROM {name} WHERE {chosen}")
        return
    ((instant,),) = connection.rows(f"SELECT gone_at FROM {_GONE} LIMIT 1")  # as this database spells it
    deleted, synced = (dialect.quote(own_column(schema, name)) for name in ("deleted_at", "synced_at"))
    connection.execute(
        f"UPDATE {name} SET {deleted} = ?, {synced} = ? WHERE {deleted} IS NULL AND {chosen}", [instant, instant]
    )


def _columns(schema: TableSchema) -> list[Column]:
    """What is written of a row, in the order of `rows_schema`."""
    columns = [Column("row_id", "id")]
    for column in shown_columns(schema):
        in_key = column.name in schema.primary_key or column.name == schema.external_id_column
        kind = "id" if in_key and column.type == "string" else "string" if column.type == "null" else column.type
        columns.append(Column(column.name, kind, required=False))
    columns.append(Column(own_column(schema, "synced_at"), "time"))
    if schema.soft_delete:
        columns.append(Column(own_column(schema, "deleted_at"), "time", required=False))
    return columns


__all__ = [
    "bring_rows",
    "destination",
    "ensure_table",
    "load_rows",
    "locks_of",
    "make_again",
    "rows_schema",
    "write_states",
]

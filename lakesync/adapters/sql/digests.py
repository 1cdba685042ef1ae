"""Digests of a SQL database: the tables of deltas and of rows, added up by queries of its own."""

from __future__ import annotations

from msgspec.structs import replace

from lakesync.adapters.digests import DAY, MODULUS, Digest, Scope, ranges
from lakesync.adapters.sql.dialect import Dialect
from lakesync.adapters.sql.executor import Connection, Value
from lakesync.adapters.sql.rows import own_column
from lakesync.adapters.sql.stored import DELTAS, TRUE_ID
from lakesync.adapters.sql.tables import checksum_of, destination, key_of, table_columns
from lakesync.model.schema import TableSchema


def digests(connection: Connection, dialect: Dialect, scope: Scope) -> list[Digest]:
    """The figures of the deltas of each table and day, and of the rows of each table of rows and day.

    A table that is somebody else's has no rows of ours. Cells are compared once the table has all of the schema's
    columns, which the follower adds.
    """
    found = _of_deltas(connection, dialect, scope)
    for schema in scope.schemas:
        present = set(connection.columns(destination(schema)))
        if {own.name for own in table_columns(schema)} <= present:
            found += _of_rows(connection, dialect, scope, schema, checksum_of(dialect, schema))
        elif {*key_of(schema), own_column(schema, "last_arrival"), own_column(schema, "checksum")} <= present:
            found += _of_rows(connection, dialect, scope, schema, dialect.quote(own_column(schema, "checksum")))
    return found


def remove_unknown(connection: Connection, dialect: Dialect, scope: Scope, schema: TableSchema) -> int:
    """Remove rows of the scope's days, or of none, of which no delta is held; how many."""
    name = destination(schema)
    if not {*key_of(schema), own_column(schema, "last_arrival")} <= set(connection.columns(name)):
        return 0
    table = dialect.quote(name)
    gateway, row_id = (f"{table}.{dialect.quote(column)}" for column in key_of(schema))
    arrival = f"COALESCE({dialect.quote(own_column(schema, 'last_arrival'))}, 0)"
    where, values = _chosen(replace(scope, days=(0, *scope.days)), gateway, arrival)
    held = f"SELECT 1 FROM {DELTAS} d WHERE d.row_id = {row_id} AND d.table_name = ? AND d.gateway = {gateway}"
    return connection.execute(f"DELETE FROM {table} WHERE {where} AND NOT EXISTS ({held})", [*values, schema.table])


def _of_deltas(connection: Connection, dialect: Dialect, scope: Scope) -> list[Digest]:
    day = dialect.divided("arrival", DAY)
    summed = dialect.checksum(f"{TRUE_ID} || '|' || op || '|' || columns")
    where, values = _chosen(scope, "gateway", "arrival")
    for names, negated in ((scope.tables, ""), (scope.without, "NOT ")):
        if names:
            where += f" AND table_name {negated}IN ({', '.join('?' * len(names))})"
            values += names
    rows = connection.rows(
        f"SELECT table_name, {day}, COUNT(*), SUM({summed}) FROM {DELTAS} WHERE {where} GROUP BY table_name, {day}",
        values,
    )
    return [Digest(table, int(number), int(count), int(total)) for table, number, count, total in rows]


def _of_rows(
    connection: Connection, dialect: Dialect, scope: Scope, schema: TableSchema, checksum: str
) -> list[Digest]:
    quote = dialect.quote
    gateway, row_id = (quote(name) for name in key_of(schema))
    arrival = f"COALESCE({quote(own_column(schema, 'last_arrival'))}, 0)"
    day, rest = dialect.divided(arrival, DAY), f"({arrival} - {dialect.divided(arrival, MODULUS)} * {MODULUS})"
    is_deleted = f"{quote(own_column(schema, 'deleted_at'))} IS NOT NULL" if schema.soft_delete else "1 = 0"
    is_intact = f"{quote(own_column(schema, 'checksum'))} = {checksum}"
    where, values = _chosen(scope, gateway, arrival)
    row_sum = dialect.checksum(f"{gateway} || '/' || {row_id}")
    rows = connection.rows(
        f"SELECT {day}, COUNT(*), SUM(CASE WHEN {is_deleted} THEN 1 ELSE 0 END), SUM({row_sum}), SUM({rest}),"
        f" SUM(CASE WHEN {is_intact} THEN 0 ELSE 1 END)"
        f" FROM {quote(destination(schema))} WHERE {where} GROUP BY {day}",
        values,
    )
    return [
        Digest(
            schema.table,
            int(number),
            rows=int(count),
            deleted=int(deleted),
            row_sum=int(ids),
            arrival_sum=int(arrivals),
            altered=int(altered),
        )
        for number, count, deleted, ids, arrivals, altered in rows
    ]


def _chosen(scope: Scope, gateway: str, arrival: str) -> tuple[str, list[Value]]:
    """A condition on gateways and days, and its values."""
    where, values = "1 = 1", list[Value]()
    if scope.gateways:
        where += f" AND {gateway} IN ({', '.join('?' * len(scope.gateways))})"
        values += scope.gateways
    if scope.days:
        spans = ranges(scope.days)
        where += f" AND ({' OR '.join([f'({arrival} >= ? AND {arrival} < ?)'] * len(spans))})"
        values += [bound for span in spans for bound in span]
    return where, values

"""Digests of a SQL destination: its deltas and rows, summed by queries. `SqlAdapter` calls it.

A digest has a number and a sum of checksums of one table and day. The same digests are computed of the lake's history,
so a comparison of both finds deltas that the destination lacks and rows that others have changed, without reading them.
"""

from __future__ import annotations

from msgspec.structs import replace

from lakesync.adapters.digests import ARRIVAL_MODULUS, ARRIVALS_PER_DAY, Digest, DigestScope, arrival_ranges
from lakesync.adapters.sql.backend import Connection, Dialect, Value
from lakesync.adapters.sql.delta_table import DELTAS_TABLE, ID_EXPRESSION
from lakesync.adapters.sql.row_tables import checksum_of, key_of, table_columns, table_name
from lakesync.adapters.sql.row_values import system_column
from lakesync.model.schema import TableSchema


def digests(connection: Connection, dialect: Dialect, scope: DigestScope) -> list[Digest]:
    """Return the digests of deltas and of destination rows by table and day.

    A table that LakeSync did not create is skipped. `altered` is always 0 while the table lacks columns of the schema,
    which the follower adds in its next run.

    Args:
        connection: an open connection.
        dialect: the database's dialect.
        scope: tables, gateways and days.
    """
    found = _delta_digests(connection, dialect, scope)
    for schema in scope.schemas:
        present = set(connection.column_names(table_name(schema)))
        if {own.name for own in table_columns(schema)} <= present:
            found += _row_digests(connection, dialect, scope, schema, checksum_of(dialect, schema))
        elif {*key_of(schema), system_column(schema, "last_arrival"), system_column(schema, "checksum")} <= present:
            found += _row_digests(connection, dialect, scope, schema, dialect.quote(system_column(schema, "checksum")))
    return found


def delete_orphan_rows(connection: Connection, dialect: Dialect, scope: DigestScope, schema: TableSchema) -> int:
    """Delete destination rows for which no delta is stored, and return their number.

    Only rows whose last arrival is on one of the scope's days, or is unknown.

    Args:
        connection: an open connection.
        dialect: the database's dialect.
        scope: gateways and days.
        schema: the table's schema.
    """
    name = table_name(schema)
    if not {*key_of(schema), system_column(schema, "last_arrival")} <= set(connection.column_names(name)):
        return 0
    table = dialect.quote(name)
    gateway, row_id = (f"{table}.{dialect.quote(column)}" for column in key_of(schema))
    arrival = f"COALESCE({dialect.quote(system_column(schema, 'last_arrival'))}, 0)"
    where, values = _scope_condition(replace(scope, days=(0, *scope.days)), gateway, arrival)  # day 0: unknown arrival
    stored = f"SELECT 1 FROM {DELTAS_TABLE} d WHERE d.row_id = {row_id} AND d.table_name = ? AND d.gateway = {gateway}"
    return connection.execute(f"DELETE FROM {table} WHERE {where} AND NOT EXISTS ({stored})", [*values, schema.table])


def _delta_digests(connection: Connection, dialect: Dialect, scope: DigestScope) -> list[Digest]:
    """Return the digests of the stored deltas by table and day of arrival."""
    day = dialect.integer_division("arrival", ARRIVALS_PER_DAY)
    checksum = dialect.checksum_expression(f"{ID_EXPRESSION} || '|' || op || '|' || columns")
    where, values = _scope_condition(scope, "gateway", "arrival")
    for names, negated in ((scope.tables, ""), (scope.without, "NOT ")):
        if names:
            where += f" AND table_name {negated}IN ({', '.join('?' * len(names))})"
            values += names
    rows = connection.query(
        f"SELECT table_name, {day}, COUNT(*), SUM({checksum}) FROM {DELTAS_TABLE} WHERE {where}"
        f" GROUP BY table_name, {day}",
        values,
    )
    return [Digest(table, int(number), int(count), int(total)) for table, number, count, total in rows]


def _row_digests(
    connection: Connection, dialect: Dialect, scope: DigestScope, schema: TableSchema, checksum: str
) -> list[Digest]:
    """Return the digests of a destination table; `checksum` is the SQL expression that an unaltered row equals."""
    quote = dialect.quote
    gateway, row_id = (quote(name) for name in key_of(schema))
    arrival = f"COALESCE({quote(system_column(schema, 'last_arrival'))}, 0)"
    day = dialect.integer_division(arrival, ARRIVALS_PER_DAY)
    remainder = f"({arrival} - {dialect.integer_division(arrival, ARRIVAL_MODULUS)} * {ARRIVAL_MODULUS})"
    is_deleted = f"{quote(system_column(schema, 'deleted_at'))} IS NOT NULL" if schema.soft_delete else "1 = 0"
    is_intact = f"{quote(system_column(schema, 'checksum'))} = {checksum}"
    where, values = _scope_condition(scope, gateway, arrival)
    row_sum = dialect.checksum_expression(f"{gateway} || '/' || {row_id}")
    rows = connection.query(
        f"SELECT {day}, COUNT(*), SUM(CASE WHEN {is_deleted} THEN 1 ELSE 0 END), SUM({row_sum}), SUM({remainder}),"
        f" SUM(CASE WHEN {is_intact} THEN 0 ELSE 1 END)"
        f" FROM {quote(table_name(schema))} WHERE {where} GROUP BY {day}",
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


def _scope_condition(scope: DigestScope, gateway: str, arrival: str) -> tuple[str, list[Value]]:
    """Return a condition on gateways and days, and its values."""
    where, values = "1 = 1", list[Value]()
    if scope.gateways:
        where += f" AND {gateway} IN ({', '.join('?' * len(scope.gateways))})"
        values += scope.gateways
    if scope.days:
        ranges = arrival_ranges(scope.days)
        where += f" AND ({' OR '.join([f'({arrival} >= ? AND {arrival} < ?)'] * len(ranges))})"
        values += [bound for span in ranges for bound in span]
    return where, values

"""Reads of a SQL adapter's tables: pages of deltas, merged rows, and digests. `SqlAdapter` calls this module.

A *delta* is a change of a row; a *gateway* is one app's stream of deltas. A query returns deltas by *arrival* (the
gateway's timestamp of receipt) or by *hlc* (the client's timestamp). A *position* is a place in that order; the next
page starts there. A *destination table* has the current rows of a synced table.

A *digest* of one table and one day has the number of deltas and rows, and sums of their checksums. The pipeline
computes the same digests of the lake, which has all deltas. A comparison shows on which days the destination lacks
deltas, or has rows that other programs have changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import astuple, replace

from lakesync.adapters.arrow import DELTA_COLUMNS, arrow_schema, from_arrow
from lakesync.adapters.deltas import (
    ArrowPage,
    DeltaQuery,
    Order,
    RowContent,
    RowId,
    contents_of,
    position_of,
    queries_of_rows,
    states_of,
)
from lakesync.adapters.digests import ARRIVAL_MODULUS, ARRIVALS_PER_DAY, Digest, DigestScope, arrival_ranges
from lakesync.adapters.file_scan import MAX_PAGE_BYTES, last_position, sort_unique
from lakesync.adapters.sql.backend import Connection, Dialect, Value
from lakesync.adapters.sql.delta_table import DELTAS_TABLE, ID_EXPRESSION
from lakesync.adapters.sql.row_tables import row_checksum, stored_schema, table_columns, table_name
from lakesync.adapters.sql.row_values import key_of, system_column
from lakesync.model.merge import RowState
from lakesync.model.schema import TableSchema
from lakesync.model.types import Position

if TYPE_CHECKING:
    import pyarrow as pa

SORT_COLUMNS = {
    "arrival": ("arrival", "hlc", "client_id", ID_EXPRESSION, "gateway"),
    "hlc": ("hlc", "client_id", ID_EXPRESSION, "gateway"),
}
"""The query's order → the columns by which deltas are ordered, most significant first: the fields of a `Position`."""


_SELECT = ", ".join(f"{ID_EXPRESSION} AS delta_id" if name == "delta_id" else name for name in DELTA_COLUMNS)
"""The columns of a delta in SQL, in the order of `DELTA_COLUMNS`."""
_MAX_EQUAL_VALUES = 10_001
"""Deltas with the same arrival, or hlc, that are sorted in memory: more than a push contains by default."""


def read_page(connection: Connection, query: DeltaQuery) -> ArrowPage:
    """Return a page, using the index for the query's order.

    An index-only query finds the arrival or hlc at which the page ends. A second query reads all deltas up to that
    value, in the order of arrival or hlc. Several deltas may have the same value: this function sorts them, or the
    database if there are too many. A page of large deltas has fewer than the query's limit.
    """
    where, values = _conditions(query)
    order = query.order
    last = connection.query(
        f"SELECT {order} FROM {DELTAS_TABLE} WHERE {where} ORDER BY {order} LIMIT 1 OFFSET {query.limit}", values
    )
    if last:
        where, values = _conditions(replace(query, until=last[0][0]))
    statement = f"SELECT {_SELECT} FROM {DELTAS_TABLE} WHERE {where} ORDER BY"
    max_rows = query.limit + _MAX_EQUAL_VALUES
    found = connection.query_arrow(f"{statement} {order} LIMIT {max_rows}", values, _schema())
    most = min(query.limit, len(found))
    if found.nbytes > MAX_PAGE_BYTES and most > 1:  # read it again, with fewer deltas
        return read_page(connection, replace(query, limit=max(1, most * MAX_PAGE_BYTES // found.nbytes)))
    if len(found) == max_rows:
        sort_columns = ", ".join(SORT_COLUMNS[order])
        found = connection.query_arrow(f"{statement} {sort_columns} LIMIT {query.limit + 1}", values, _schema())
    found = sort_unique(found, order)
    page = found.slice(0, query.limit)
    return ArrowPage(page, last_position(page, order) if len(found) > query.limit else None)


def split_points(connection: Connection, query: DeltaQuery, size: int) -> list[int]:
    """Return where to divide a query into ranges of `size` deltas: the last arrival or hlc of each but the last range.

    Args:
        connection: an open connection.
        query: the query to divide.
        size: deltas per range.
    """
    order, points = query.order, list[int]()
    while True:
        where, values = _conditions(query)
        statement = f"SELECT {order} FROM {DELTAS_TABLE} WHERE {where} ORDER BY {order} LIMIT 1 OFFSET {size}"
        found = connection.query(statement, values)
        if not found:
            return points
        points.append(int(found[0][0]))
        query = replace(query, since=points[-1])


def read_states(connection: Connection, gateway: str | None, table: str, row_ids: Sequence[str]) -> dict[str, RowState]:
    """Return the merged state of each row, see `DatabaseAdapter.get_latest_state`.

    Args:
        connection: an open connection.
        gateway: None merges the deltas of every gateway as if they were one gateway's.
        table: the rows' table.
        row_ids: the rows to read.
    """
    found: dict[str, RowState] = {}
    for query in queries_of_rows(table, ((gateway, row_id) for row_id in row_ids)):
        found |= states_of(stored.delta for stored in from_arrow(_all_deltas(connection, query)))
    return found


def read_contents(connection: Connection, table: str, rows: Sequence[RowId]) -> dict[RowId, RowContent]:
    """Return the merged content of rows of one table. Rows without deltas are absent.

    Args:
        connection: an open connection.
        table: the rows' table.
        rows: the rows to read, of any gateways.
    """
    found: dict[RowId, RowContent] = {}
    for query in queries_of_rows(table, rows):
        found |= contents_of(from_arrow(_all_deltas(connection, query)))
    return found


def newest_position(connection: Connection, gateway: str | None) -> Position | None:
    """Return the position of the last delta in arrival order; None if there is no delta.

    Args:
        connection: an open connection.
        gateway: the gateway id; None for the last delta of all gateways.
    """
    where, values = _conditions(DeltaQuery(gateway=gateway))
    last = connection.query(f"SELECT arrival FROM {DELTAS_TABLE} WHERE {where} ORDER BY arrival DESC LIMIT 1", values)
    if not last:
        return None
    found = connection.query_arrow(
        f"SELECT {_SELECT} FROM {DELTAS_TABLE} WHERE {where} AND arrival = ?", [*values, last[0][0]], _schema()
    )
    return max(position_of(stored, "arrival") for stored in from_arrow(found))


def digests(connection: Connection, dialect: Dialect, scope: DigestScope) -> list[Digest]:
    """Return the digests of deltas and of destination rows by table and day.

    A table that LakeSync did not create is skipped. `Digest.altered`, the number of rows that other programs have
    changed, is always 0 while the table lacks columns of the schema, which the pipeline adds in its next run.

    Args:
        connection: an open connection.
        dialect: the database's dialect.
        scope: tables, gateways and days.
    """
    found = _delta_digests(connection, dialect, scope)
    for schema in scope.schemas:
        present = set(connection.column_names(table_name(schema)))
        stored = stored_schema(dialect, schema)
        if {dialect.folded(column.name) for column in table_columns(stored)} <= set(map(dialect.folded, present)):
            found += _row_digests(connection, dialect, scope, schema, row_checksum(dialect, stored))
        elif {*key_of(schema), system_column(schema, "last_arrival"), system_column(schema, "checksum")} <= present:
            # the stored checksum is compared with itself, because it cannot be computed without all columns
            found += _row_digests(connection, dialect, scope, schema, dialect.quote(system_column(schema, "checksum")))
    return found


def is_destination_table(connection: Connection, schema: TableSchema) -> bool:
    """Return whether a table exists under the name of a schema's destination table, with the columns of one.

    Args:
        connection: an open connection.
        schema: the table's schema.
    """
    names = set(connection.column_names(table_name(schema)))
    return {*key_of(schema), system_column(schema, "last_arrival")} <= names


def delete_orphan_rows(connection: Connection, dialect: Dialect, scope: DigestScope, schema: TableSchema) -> int:
    """Delete rows of a destination table of which no delta is stored, and return their number.

    Only rows are deleted whose last arrival is on one of the scope's days, or is unknown.

    Args:
        connection: an open connection.
        dialect: the database's dialect.
        scope: gateways and days.
        schema: the table's schema.
    """
    if not is_destination_table(connection, schema):
        return 0
    table = dialect.quote(table_name(schema))
    gateway, row_id = (f"{table}.{dialect.quote(column)}" for column in key_of(schema))
    arrival = f"COALESCE({dialect.quote(system_column(schema, 'last_arrival'))}, 0)"
    where, values = _scope_condition(replace(scope, days=(0, *scope.days)), gateway, arrival)  # day 0: unknown arrival
    stored = f"SELECT 1 FROM {DELTAS_TABLE} WHERE {DELTAS_TABLE}.row_id = {row_id} AND table_name = ?"
    stored += f" AND {DELTAS_TABLE}.gateway = {gateway}"
    return connection.execute(f"DELETE FROM {table} WHERE {where} AND NOT EXISTS ({stored})", [*values, schema.table])


def _conditions(query: DeltaQuery) -> tuple[str, list[Value]]:
    """Return the WHERE condition of a query and its values, ignoring the limit."""
    where, values = list[str](), list[Value]()
    if query.since >= 0:  # an always-true condition could make the planner scan the whole index
        where.append(f"{query.order} > ?")
        values.append(query.since)
    if query.until is not None:
        where.append(f"{query.order} <= ?")
        values.append(query.until)
    if query.after is not None:
        where.append(f"{query.order} >= ?")  # redundant, but lets the index be used
        values.append(query.after.value)
        condition, bounds = _after_condition(query.order, query.after)
        where.append(condition)
        values += bounds
    if query.gateway is not None:
        where.append("gateway = ?")
        values.append(query.gateway)
    for column, selected in (("table_name", query.tables), ("row_id", query.rows)):
        if selected:
            where.append(f"{column} IN ({', '.join('?' * len(selected))})")
            values += selected
    return " AND ".join(where) or "1 = 1", values


def _after_condition(order: Order, after: Position) -> tuple[str, list[Value]]:
    """Return the condition for deltas after a position.

    It compares column by column, because not every database compares tuples, or uses an index for that.
    """
    names = SORT_COLUMNS[order]
    # in hlc order, the first one is not used
    bounds: dict[str, Value] = dict(zip(SORT_COLUMNS["arrival"], astuple(after), strict=True))
    condition, values = f"{names[-1]} > ?", [bounds[names[-1]]]
    for name in reversed(names[:-1]):
        condition = f"({name} > ? OR ({name} = ? AND {condition}))"
        values = [bounds[name], bounds[name], *values]
    return condition, values


def _all_deltas(connection: Connection, query: DeltaQuery) -> pa.Table:
    """Return all deltas that a query selects, in any order, ignoring the limit."""
    where, values = _conditions(query)
    return connection.query_arrow(f"SELECT {_SELECT} FROM {DELTAS_TABLE} WHERE {where}", values, _schema())


def _schema() -> pa.Schema:
    """Return the schema of deltas with `columns` as text."""
    import pyarrow as pa

    schema = arrow_schema()
    return schema.set(schema.get_field_index("columns"), pa.field("columns", pa.string()))


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
    """Return the digests of a destination table.

    A row is altered if its stored checksum differs from the value of the SQL expression `checksum`.
    """
    quote = dialect.quote
    gateway, row_id = (quote(name) for name in key_of(schema))
    arrival = f"COALESCE({quote(system_column(schema, 'last_arrival'))}, 0)"
    day = dialect.integer_division(arrival, ARRIVALS_PER_DAY)
    # summed instead of arrivals, whose sum would overflow
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

"""Builds conditions for scans of Iceberg tables by pyiceberg, and loads the result of a scan into DuckDB.

A scan reads the rows of a table that meet a condition. It skips files in which no row can meet it, by the least and
greatest values of columns in Iceberg's manifests. `lakesync.analysis.query` calls this module. The package's other
readers and `lakehouse` use the conditions, and `statement` makes the `Predicate`s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date
from typing import TYPE_CHECKING, NamedTuple

from pyiceberg import expressions as ice
from pyiceberg.types import BooleanType, DateType, DoubleType, IntegerType, LongType, StringType

from lakesync.analysis.expression_trees import combine

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

Constant = str | float | int | bool | date
"""The value of a constant in a SQL statement."""

_OPERATORS: dict[str, Callable[..., BooleanExpression]] = {
    "=": ice.EqualTo,
    "!=": ice.NotEqualTo,
    ">": ice.GreaterThan,
    ">=": ice.GreaterThanOrEqual,
    "<": ice.LessThan,
    "<=": ice.LessThanOrEqual,
    "in": ice.In,
    "not in": ice.NotIn,
}


class Predicate(NamedTuple):
    """`column op value`: a condition on the rows of a table. The SQL statement uses only rows that meet it."""

    column: str
    op: str
    """`=`, `!=`, `>`, `>=`, `<`, `<=` or `in`."""
    value: Constant | tuple[Constant, ...]


def condition(column: str, op: str, value: object) -> BooleanExpression:
    """Return `column op value` for a scan.

    Args:
        column: name of the column.
        op: `=`, `!=`, `>`, `>=`, `<`, `<=`, `in` or `not in`.
        value: the value; a set of values for `in` and `not in`.
    """
    return _OPERATORS[op](column, value)


def all_of(*conditions: BooleanExpression) -> BooleanExpression:
    """Return the conjunction of conditions; without any, a condition that every row meets."""
    return combine(ice.And, [ice.AlwaysTrue(), *conditions])


def any_of(conditions: Iterable[BooleanExpression]) -> BooleanExpression:
    """Return the disjunction of conditions; without any, a condition that no row meets."""
    return combine(ice.Or, [ice.AlwaysFalse(), *conditions])


def scan_condition(
    predicates: Iterable[Predicate], schema: Schema, renamed: Mapping[str, str] | None = None
) -> BooleanExpression:
    """Return the conjunction of the predicates that a scan can evaluate: those whose values have their columns' types.

    DuckDB evaluates all predicates again, so a predicate that is left out costs time only.

    Args:
        predicates: the predicates on one table of a statement.
        schema: the scanned table's schema.
        renamed: column in the statement → scanned column, both in lower case; predicates on others are left out. None
            if columns have the same names.
    """
    fields = {field.name.lower(): field for field in schema.fields}
    conditions = []
    for column, op, value in predicates:
        name = column.lower() if renamed is None else renamed.get(column.lower())
        field = fields.get(name) if name else None
        values = value if isinstance(value, tuple) else (value,)
        if field is not None and all(_has_type(each, field.field_type) for each in values):
            conditions.append(condition(field.name, op, _as_ice(value)))
    return all_of(*conditions)


def scan_into(
    database: duckdb.DuckDBPyConnection,
    target: str,
    table: Table,
    columns: Collection[str],
    row_filter: BooleanExpression,
    *,
    snapshot: int | None = None,
    select: str = "SELECT *",
    where: str = "true",
    values: Mapping[str, object] | None = None,
    create: bool = False,
) -> None:
    """Insert the result of a scan into a DuckDB table, a batch at a time.

    If the table has no snapshot, nothing is read or created.

    Args:
        database: the DuckDB database.
        target: name of the table, followed by ` BY NAME` if columns are matched by name instead of position.
        table: the Iceberg table.
        columns: the columns to read.
        row_filter: the condition on rows that the scan evaluates.
        snapshot: id of the snapshot to read; None for the current one.
        select: SELECT clause over the scanned rows, which are the table `scanned`.
        where: further condition on these rows, in DuckDB's SQL.
        values: the parameters of `select`, by name.
        create: create the table instead of inserting into it.
    """
    if snapshot is None and table.current_snapshot() is None:
        return
    scan = table.scan(row_filter=row_filter, selected_fields=tuple(columns), snapshot_id=snapshot)
    database.register("scanned", scan.to_arrow_batch_reader())
    into = f"CREATE TABLE {target} AS" if create else f"INSERT INTO {target}"
    database.execute(f"{into} {select} FROM scanned WHERE {where}", values or None)
    database.unregister("scanned")


def _has_type(value: Constant, iceberg_type: object) -> bool:
    """Return whether a scan can compare a value with a column of an Iceberg type."""
    match iceberg_type:
        case StringType():
            return isinstance(value, str)
        case BooleanType():
            return isinstance(value, bool)
        case DoubleType():
            return isinstance(value, int | float) and not isinstance(value, bool)
        case LongType() | IntegerType():
            bits = 63 if isinstance(iceberg_type, LongType) else 31
            return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << bits
        case DateType():
            return isinstance(value, date) or (isinstance(value, str) and _is_date(value))
    return False


def _is_date(text: str) -> bool:
    """Return whether a text is a date, `YYYY-MM-DD`."""
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _as_ice(value: Constant | tuple[Constant, ...]) -> object:
    """Return a value in the form that pyiceberg's expressions accept."""
    if isinstance(value, tuple):
        return {_as_ice(each) for each in value}
    return value.isoformat() if isinstance(value, date) else value

"""Scans of Iceberg tables into DuckDB: the columns and rows that are wanted, as pyiceberg prunes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date
from typing import TYPE_CHECKING

from pyiceberg import expressions as ice
from pyiceberg.types import BooleanType, DateType, DoubleType, IntegerType, LongType, StringType

from lakesync.analysis.predicate import Literal, Predicate

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

_OPS: dict[str, Callable[..., BooleanExpression]] = {
    "=": ice.EqualTo,
    "!=": ice.NotEqualTo,
    ">": ice.GreaterThan,
    ">=": ice.GreaterThanOrEqual,
    "<": ice.LessThan,
    "<=": ice.LessThanOrEqual,
    "in": ice.In,
    "not in": ice.NotIn,
}


def scan_into(
    database: duckdb.DuckDBPyConnection,
    target: str,
    table: Table,
    columns: Collection[str],
    wanted: BooleanExpression,
    *,
    snapshot: int | None = None,
    select: str = "SELECT *",
    where: str = "true",
    values: Mapping[str, object] | None = None,
    create: bool = False,
) -> None:
    """Insert into a DuckDB table what a scan gives, a batch at a time.

    Args:
        target: the table, and how columns meet: `name` by place, `name BY NAME`.
        select, where: over what is read, which is called `scanned`.
        values: the parameters of `select`, by name.
        create: whether the table is made of it.
    """
    if snapshot is None and table.current_snapshot() is None:
        return
    scan = table.scan(row_filter=wanted, selected_fields=tuple(columns), snapshot_id=snapshot)
    database.register("scanned", scan.to_arrow_batch_reader())
    into = f"CREATE TABLE {target} AS" if create else f"INSERT INTO {target}"
    database.execute(f"{into} {select} FROM scanned WHERE {where}", values or None)
    database.unregister("scanned")


def holds(column: str, op: str, value: object) -> BooleanExpression:
    """`column op value`; a set of values for `in` and `not in`."""
    return _OPS[op](column, value)


def both(*parts: BooleanExpression) -> BooleanExpression:
    """All of them."""
    wanted: BooleanExpression = ice.AlwaysTrue()
    for part in parts:
        wanted = ice.And(wanted, part)
    return wanted


def either(parts: Iterable[BooleanExpression]) -> BooleanExpression:
    """Any of them; of none, nothing."""
    wanted: BooleanExpression = ice.AlwaysFalse()
    for part in parts:
        wanted = ice.Or(wanted, part)
    return wanted


def pushed(
    predicates: Iterable[Predicate], schema: Schema, renamed: Mapping[str, str] | None = None
) -> BooleanExpression:
    """Those predicates that a scan can take, values being of their columns' types; the rest is DuckDB's.

    Args:
        predicates: of one table.
        schema: of what is scanned.
        renamed: the table's column → the one that is scanned; only these are pushed. None: all, as they are.
    """
    kinds = {field.name.lower(): field for field in schema.fields}
    parts = []
    for column, op, value in predicates:
        name = column.lower() if renamed is None else renamed.get(column.lower())
        field = kinds.get(name) if name else None
        values = value if isinstance(value, tuple) else (value,)
        if field is not None and all(_fits(each, field.field_type) for each in values):
            parts.append(holds(field.name, op, _spelled(value)))
    return both(*parts)


def _fits(value: Literal, kind: object) -> bool:
    match kind:
        case StringType():
            return isinstance(value, str)
        case BooleanType():
            return isinstance(value, bool)
        case DoubleType():
            return isinstance(value, int | float) and not isinstance(value, bool)
        case LongType() | IntegerType():
            bits = 63 if isinstance(kind, LongType) else 31
            return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << bits
        case DateType():
            return isinstance(value, date) or (isinstance(value, str) and _is_date(value))
    return False


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _spelled(value: Literal | tuple[Literal, ...]) -> object:
    if isinstance(value, tuple):
        return {_spelled(each) for each in value}
    return value.isoformat() if isinstance(value, date) else value

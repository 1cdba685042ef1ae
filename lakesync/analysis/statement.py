"""Finds out what a SQL statement needs of the lake: its tables, the columns it may read, and predicates on their rows.

So only these columns and rows are loaded, before an engine runs the statement. Too many columns or rows are harmless;
a missing one would make the result wrong. So in doubt the functions return all columns, and no predicate. `lakesync
query` calls this module, for DuckDB and for Spark.
"""

from __future__ import annotations

from collections import Counter
from datetime import date
from typing import TYPE_CHECKING, NamedTuple

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from lakesync.analysis.scans import Constant, Predicate
from lakesync.model.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Iterable

_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
}
_MIRRORED = {"=": "=", "!=": "!=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}
"""Operator → the operator of the same comparison with its sides exchanged."""


class TableReference(NamedTuple):
    """A table that a statement names."""

    namespace: str | None
    """The namespace that the statement names; None without one."""
    name: str
    predicates: tuple[Predicate, ...]
    """The statement uses only rows of the table that meet all of these. Empty if it may use every row."""

    @property
    def qualified(self) -> str:
        """The name as the statement has it, with its namespace."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name


class Statement(NamedTuple):
    """A parsed query."""

    sql: str
    tables: tuple[TableReference, ...]
    """Each table once."""
    columns: frozenset[str] | None
    """Every column that the query may read, in lower case, and possibly other names; None for all columns."""

    def reads(self, column: str) -> bool:
        """Return whether the query may read a column."""
        return self.columns is None or column.lower() in self.columns

    def reads_others(self, columns: Iterable[str]) -> bool:
        """Return whether the query may read a column that is not in `columns`."""
        return self.columns is None or bool(self.columns - {column.lower() for column in columns})


def parse_statement(sql: str, dialect: str = "duckdb") -> Statement:
    """Parse a query.

    Args:
        sql: the query.
        dialect: `duckdb` or `spark`.

    Raises:
        ValidationError: the text is not SQL, has several statements, or is not a query.
    """
    try:
        statements = [each for each in sqlglot.parse(sql, read=dialect) if each is not None]
    except SqlglotError as error:
        raise ValidationError(f"the SQL cannot be parsed: {_message(error)}") from error
    if len(statements) != 1:
        raise ValidationError(f"the SQL has {len(statements)} statements; write one query")
    tree = statements[0]
    if not isinstance(tree, exp.Query):
        raise ValidationError(f"{sql.strip()[:80]!r} is not a query, and the lake is read-only here; write a SELECT")
    uses_by_table: dict[tuple[str | None, str], list[tuple[Predicate, ...]]] = {}  # a use: its predicates
    for scope in traverse_scope(tree):
        for alias, source in scope.sources.items():
            if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier):
                uses_by_table.setdefault((source.db or None, source.name), []).append(_predicates(scope, alias))
    # Only a table that is used once has predicates. `a.t` and `t`, or `T` and `t`, may be the same table.
    tables_of_name = Counter(name.lower() for _, name in uses_by_table)
    tables = tuple(
        TableReference(namespace, name, uses[0] if len(uses) == 1 and tables_of_name[name.lower()] == 1 else ())
        for (namespace, name), uses in uses_by_table.items()
    )
    return Statement(sql, tables, _columns(tree))


def _columns(tree: exp.Expr) -> frozenset[str] | None:
    """Return the columns that a query may read, as `Statement.columns`.

    These are all identifiers in it that do not name a table or define an alias. A query may read all columns if it can
    read one without its name: by `*`, a pivot, a position, a NATURAL join, other names for a table's columns, or a
    whole row as a value.
    """
    tables = list(tree.find_all(exp.Table))
    names = {table.alias_or_name.lower() for table in tables}
    namespaces = {table.db.lower() for table in tables}
    sources = names | {alias.name.lower() for alias in tree.find_all(exp.TableAlias)}
    if any(True for _ in tree.find_all(exp.Pivot, exp.Columns, exp.PositionalColumn)):
        return None
    if any(not isinstance(star.parent, exp.Count) for star in tree.find_all(exp.Star)):
        return None
    if any(join.method == "NATURAL" for join in tree.find_all(exp.Join)):
        return None
    if any(table.alias_column_names for table in tables):
        return None  # columns are renamed by position
    columns: set[str] = set()
    for identifier in tree.find_all(exp.Identifier):
        parent, name = identifier.parent, identifier.name.lower()
        if isinstance(parent, exp.Column) and name in sources and identifier.arg_key != "this":
            continue  # the table of a column
        if isinstance(parent, exp.Column) and name in names and parent.table.lower() not in sources - namespaces:
            return None  # a whole row as a value, such as `orders` or `namespace.orders`
        if isinstance(parent, exp.Table | exp.TableAlias) or (
            isinstance(parent, exp.Alias) and identifier.arg_key == "alias"
        ):
            continue
        columns.add(name)
    return frozenset(columns)


def _predicates(scope: Scope, alias: str) -> tuple[Predicate, ...]:
    """Return the conditions, joined by AND in WHERE, that compare a column of one source with constants.

    In a subquery, a column that the source lacks may belong to an outer SELECT; scans leave out predicates on it. There
    are no predicates if the SELECT takes a sample or has an ASOF or POSITIONAL join: WHERE is applied after the sample
    is taken, and after such a join has chosen the partner of each row.

    Args:
        scope: a SELECT.
        alias: the name of the source in it, a table or a subquery.
    """
    where = scope.expression.args.get("where")
    if where is None or scope.expression.find(exp.TableSample) is not None:
        return ()
    if any(join.method in ("ASOF", "POSITIONAL") for join in scope.expression.find_all(exp.Join)):
        return ()
    is_only_source = len(scope.sources) == 1
    parts = where.this.flatten() if isinstance(where.this, exp.And) else [where.this]
    found = (_predicate(part.unnest(), alias, is_only_source=is_only_source) for part in parts)
    return tuple(each for each in found if each is not None)


def _predicate(part: exp.Expr, alias: str, *, is_only_source: bool) -> Predicate | None:
    """Return a part of a WHERE clause as a predicate on the source `alias`; None if it is not one."""
    if isinstance(part, exp.In) and part.expressions:
        column = _column(part.this, alias, is_only_source=is_only_source)
        values = tuple(_constant(each) for each in part.expressions)
        if column is None or any(value is None for value in values):
            return None
        return Predicate(column, "in", tuple(value for value in values if value is not None))
    op = _COMPARISONS.get(type(part))
    if op is None:
        return None
    column, value = _column(part.this, alias, is_only_source=is_only_source), _constant(part.expression)
    if column is None:
        column, value, op = (
            _column(part.expression, alias, is_only_source=is_only_source),
            _constant(part.this),
            _MIRRORED[op],
        )
    return Predicate(column, op, value) if column is not None and value is not None else None


def _column(node: exp.Expr, alias: str, *, is_only_source: bool) -> str | None:
    """Return the name of an expression that is a column of the source `alias`, in the statement's case.

    None for any other expression.
    """
    if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
        return None
    is_of_source = node.table.lower() == alias.lower() if node.table else is_only_source
    return str(node.name) if is_of_source else None


def _constant(node: exp.Expr) -> Constant | None:
    """Return the value of an expression that is a constant; None for any other expression, and for null."""
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.Neg):
        inner = _constant(node.this)
        return -inner if isinstance(inner, int | float) and not isinstance(inner, bool) else None
    if isinstance(node, exp.Cast) and node.to.is_type("date") and isinstance(node.this, exp.Literal):
        try:
            return date.fromisoformat(node.this.name)
        except ValueError:
            return None
    if not isinstance(node, exp.Literal):
        return None
    if node.is_string:
        return str(node.name)
    return int(node.name) if node.is_int else float(node.name)


def _message(error: SqlglotError) -> str:
    """Return the first line of the parser's message, without terminal colours."""
    return str(error).replace("\x1b[4m", "").replace("\x1b[0m", "").partition("\n")[0].strip()

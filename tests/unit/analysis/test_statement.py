"""The tables, columns and predicates found in a statement are complete, and seldom more than necessary."""

from datetime import date

import duckdb
import pytest

from lakesync.analysis.scans import Predicate
from lakesync.analysis.statement import parse_statement
from lakesync.model.errors import ValidationError


def named(sql):
    return {each.qualified for each in parse_statement(sql).tables}


def predicates(sql):
    return {each.qualified: set(each.predicates) for each in parse_statement(sql).tables if each.predicates}


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT a FROM orders", {"orders"}),
        ("FROM orders", {"orders"}),
        ("SELECT * FROM tables.orders o JOIN lines USING (id)", {"tables.orders", "lines"}),
        ("WITH orders AS (SELECT 1 AS a), b AS (FROM lines) SELECT * FROM orders, b", {"lines"}),
        ("SELECT (SELECT max(a) FROM x) FROM y WHERE EXISTS (FROM z) UNION ALL SELECT a FROM w", set("wxyz")),
        ("SELECT * FROM range(3)", set()),
        ("SELECT 1", set()),
    ],
)
def test_all_tables_of_a_statement_are_found(sql, tables):
    assert named(sql) == tables


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ('SELECT a, count(*) FROM t WHERE "B" > 1 GROUP BY a', {"a", "b"}),
        ("SELECT count(*) FROM t", set()),
        ("SELECT a FROM t JOIN u USING (id)", {"a", "id"}),
        ("SELECT * FROM t", None),
        ("SELECT u.* FROM t, u", None),
        ("SELECT x FROM t AS x", None),
        ("SELECT ns.t FROM ns.t", None),
        ("SELECT NS.T FROM ns.t", None),
        ("SELECT lake.ns.t FROM lake.ns.t", None),
        ("SELECT t.t FROM t.t", None),
        ("SELECT main.t FROM t", None),
        ("SELECT u.t FROM ns.t JOIN ns.u USING (id)", {"t", "id"}),
        ("SELECT x FROM t AS s(x)", None),
        ("SELECT #1 FROM t", None),
        ("SELECT s.a AS n FROM (SELECT a FROM t) s WHERE s.b ORDER BY a", {"a", "b"}),
        ("SELECT a FROM t NATURAL JOIN u", None),
        ("FROM t", None),
    ],
)
def test_every_column_that_a_statement_may_read_is_found(sql, columns):
    assert parse_statement(sql).columns == columns


def test_pushed_down_predicates_are_true_for_every_used_row():
    assert predicates(
        "SELECT a FROM t WHERE a = 'x' AND (b >= -3) AND 2 < c AND d IN (1, 2) AND e = DATE '2026-01-02'"
    ) == {
        "t": {
            Predicate("a", "=", "x"),
            Predicate("b", ">=", -3),
            Predicate("c", ">", 2),
            Predicate("d", "in", (1, 2)),
            Predicate("e", "=", date(2026, 1, 2)),
        }
    }
    assert predicates("SELECT * FROM t LEFT JOIN u ON t.id = u.id WHERE t.a = 1 AND u.b = 'k' AND c = 2") == {
        "t": {Predicate("a", "=", 1)},
        "u": {Predicate("b", "=", "k")},
    }


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a FROM t WHERE a = 'x' OR b = 1",
        "SELECT a FROM t WHERE NOT a = 'x'",
        "SELECT a FROM t WHERE a = b",
        "SELECT a FROM t WHERE a IS NULL",
        "SELECT a FROM t WHERE lower(a) = 'x'",
        "SELECT a FROM t WHERE a = 1 UNION SELECT a FROM T WHERE a = 2",
        "SELECT a FROM t GROUP BY a HAVING a = 1",
        "SELECT a FROM t, u WHERE a = 1",
        "SELECT a FROM t TABLESAMPLE (10 ROWS) WHERE a = 1",
        "SELECT a FROM t WHERE a = 1 USING SAMPLE 10 ROWS",
        "SELECT t.a FROM t ASOF JOIN u ON t.a >= u.a WHERE u.b = 1",
        "SELECT t.a FROM (t ASOF LEFT JOIN u ON t.a >= u.a) JOIN w ON t.a = w.a WHERE t.a = 1",
        "SELECT t.a FROM t POSITIONAL JOIN u WHERE u.b = 1",
    ],
)
def test_conditions_that_are_false_for_some_used_rows_are_not_pushed_down(sql):
    assert predicates(sql) == {}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM t JOIN u ON t.a = u.a WHERE u.b = 1 AND t.b > 0",
        "SELECT * FROM t FULL JOIN u ON t.a = u.a WHERE u.b = 1",
        "SELECT * FROM t LEFT JOIN u ON t.a = u.a WHERE t.b = 1",
        "SELECT * FROM t ASOF JOIN u ON t.a >= u.a WHERE u.b = 1",
        "SELECT * FROM t ASOF LEFT JOIN u ON t.a >= u.a WHERE u.b <= 1",
        "SELECT * FROM t POSITIONAL JOIN u WHERE t.b = 1",
        "SELECT * FROM (SELECT * FROM t WHERE b = 1) s POSITIONAL JOIN u",
    ],
)
def test_a_statement_returns_the_same_rows_with_predicates_pushed_down(sql):
    rows = {"t": [(1, 1), (3, 0), (5, 1), (7, 2)], "u": [(1, 1), (2, 0), (3, 1), (4, 2), (6, 0)]}

    def result(*, pushed):
        with duckdb.connect() as connection:
            for table in parse_statement(sql).tables:
                connection.execute(f"CREATE TABLE {table.name} (a INTEGER, b INTEGER)")
                connection.executemany(f"INSERT INTO {table.name} VALUES (?, ?)", rows[table.name])
                for each in table.predicates if pushed else ():
                    connection.execute(f"DELETE FROM {table.name} WHERE NOT {each.column} {each.op} {each.value}")
            return sorted(connection.execute(sql).fetchall(), key=repr)

    assert result(pushed=False)
    assert result(pushed=True) == result(pushed=False)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT FROM WHERE", "cannot be parsed"),
        ("", "0 statements"),
        ("SELECT 1; SELECT 2", "2 statements"),
        ("DROP TABLE orders", "'DROP TABLE orders' is not a query"),
        ("INSERT INTO orders VALUES (1)", "is not a query"),
    ],
)
def test_other_statements_are_rejected(sql, why):
    with pytest.raises(ValidationError, match=why):
        parse_statement(sql)

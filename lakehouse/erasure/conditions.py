"""Builds the WHERE conditions for the rows that erasure requests cover, in Spark's SQL with parameters.

A request covers the deltas of one row, or of one client, up to an hlc. A row id may be any text, so values are passed
as parameters and never become part of the SQL. The other modules of `lakehouse.erasure` call this module.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lakesync.staging.records import Erasure


_CONNECTOR = "connector:"
"""Prefix of the client ids under which connectors push."""
_IS_ROW = "table_name = {} AND row_id = {}"
"""Condition for one row, with `{}` in place of its table and its id."""


class Condition(NamedTuple):
    """A condition in Spark's SQL, with its parameters."""

    sql: str = ""
    """With `:p0`, `:p1` and so on in place of values; empty for a condition that was not narrowed yet."""
    parameters: Mapping[str, str | int] = MappingProxyType({})
    """Parameter name without the colon → value."""

    def narrowed(self, sql: str, *values: str | int) -> Condition:
        """Return this condition AND another one.

        Args:
            sql: the other condition, with `{}` in place of each value.
            values: the values, in order.
        """
        first = len(self.parameters)
        added = {f"p{first + number}": value for number, value in enumerate(values)}
        further = sql.format(*(f":{name}" for name in added))
        return Condition(f"{self.sql} AND {further}" if self.sql else further, {**self.parameters, **added})

    def select(self, spark: SparkSession, table: str, columns: str = "*") -> DataFrame:
        """Return the rows of a table that meet the condition.

        Args:
            spark: an open Spark session.
            table: the table's full, quoted name.
            columns: the SELECT list, in Spark's SQL.
        """
        return spark.sql(f"SELECT {columns} FROM {table} WHERE {self.sql}", args=dict(self.parameters))

    def execute(self, spark: SparkSession, statement: str) -> None:
        """Run an UPDATE or DELETE on the rows that meet the condition.

        Args:
            spark: an open Spark session.
            statement: `UPDATE … SET …` or `DELETE FROM …`, without WHERE.
        """
        spark.sql(f"{statement} WHERE {self.sql}", args=dict(self.parameters))


def deltas_of(requests: Sequence[Erasure]) -> Condition:
    """Return the condition for the deltas in the history that any of the requests covers.

    Args:
        requests: at least one, all of the same gateway. A request that names no shards covers all of them.
    """
    covered: list[str] = []
    values: list[str | int] = []
    for each in requests:
        if each.client_id is None:
            named, own = _IS_ROW, [*each.row]
        else:
            named, own = "client_id = {}", [each.client_id]
        of_shards = f" AND shard IN ({', '.join(['{}'] * len(each.shards))})" if each.shards else ""
        covered.append(f"({named} AND hlc <= {{}}{of_shards})")
        values += [*own, each.hlc, *each.shards]
    return Condition().narrowed("gateway = {}", requests[0].gateway).narrowed(f"({' OR '.join(covered)})", *values)


def landed_by(request: Erasure, connector: str | None) -> Condition | None:
    """Return the condition for the polled rows that a request covers.

    It is for the tables `landing` (polled rows as received) and `known` (the last version of each polled row). It does
    not limit the time: rows of `known` have none, and the caller limits those of `landing` by their hlc. A row that a
    poll puts into `known` again is pushed again with a later hlc, which the request does not cover.

    Args:
        request: an erasure of a row or of a client.
        connector: name of the connector whose rows are erased; None for all connectors.

    Returns:
        The condition; None for a client that is not a connector, and so has no polled rows.
    """
    found = Condition().narrowed("gateway = {}", request.gateway)
    if request.client_id is None:
        found = found.narrowed(_IS_ROW, *request.row)
    elif request.client_id.startswith(_CONNECTOR):
        found = found.narrowed("connector = {}", request.client_id.removeprefix(_CONNECTOR))
    else:
        return None
    return found if connector is None else found.narrowed("connector = {}", connector)

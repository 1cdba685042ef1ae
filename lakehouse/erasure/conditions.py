"""Conditions of erasures in Spark's SQL, with values as parameters: a row id may be any text, and never becomes SQL."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lakesync.staging.records import Erasure


_CONNECTOR = "connector:"
"""Prefix of the client id of a connector."""


class Condition(NamedTuple):
    """A condition in Spark's SQL, with its parameters."""

    sql: str = ""
    parameters: Mapping[str, str | int] = MappingProxyType({})

    def narrowed(self, sql: str, *values: str | int) -> Condition:
        """Return the condition with a further one.

        Args:
            sql: the further condition, with `{}` in place of each value.
            values: the values.
        """
        first = len(self.parameters)
        added = {f"p{first + place}": value for place, value in enumerate(values)}
        further = sql.format(*(f":{name}" for name in added))
        return Condition(f"{self.sql} AND {further}" if self.sql else further, {**self.parameters, **added})

    def select(self, spark: SparkSession, table: str, columns: str = "*") -> DataFrame:
        """Return the rows that meet the condition.

        Args:
            spark: a session.
            table: the table's full, quoted name.
            columns: columns of the result, in Spark's SQL.
        """
        return spark.sql(f"SELECT {columns} FROM {table} WHERE {self.sql}", args=dict(self.parameters))

    def execute(self, spark: SparkSession, statement: str) -> None:
        """Run a statement for the rows that meet the condition.

        Args:
            spark: a session.
            statement: `UPDATE … SET …` or `DELETE FROM …`.
        """
        spark.sql(f"{statement} WHERE {self.sql}", args=dict(self.parameters))


def deltas_of(requests: Sequence[Erasure]) -> Condition:
    """Return the condition for the deltas of the history that requests of one gateway cover. There is at least one."""
    covered: list[str] = []
    values: list[str | int] = []
    for each in requests:
        if each.client_id is None:
            named, own = "table_name = {} AND row_id = {}", [each.table or "", each.row_id or ""]
        else:
            named, own = "client_id = {}", [each.client_id]
        of_shards = f" AND shard IN ({', '.join(['{}'] * len(each.shards))})" if each.shards else ""
        covered.append(f"({named} AND hlc <= {{}}{of_shards})")
        values += [*own, each.hlc, *each.shards]
    return Condition().narrowed("gateway = {}", requests[0].gateway).narrowed(f"({' OR '.join(covered)})", *values)


def landed_by(request: Erasure, connector: str | None) -> Condition | None:
    """Return the condition for the rows of `landing` and `known` that a request covers; None if it covers none.

    Args:
        request: an erasure of a row, or of a client, which may be a connector.
        connector: only rows of this connector; None: of all.
    """
    found = Condition().narrowed("gateway = {}", request.gateway)
    if request.client_id is None:
        found = found.narrowed("table_name = {} AND row_id = {}", request.table or "", request.row_id or "")
    elif request.client_id.startswith(_CONNECTOR):
        found = found.narrowed("connector = {}", request.client_id.removeprefix(_CONNECTOR))
    else:
        return None
    return found if connector is None else found.narrowed("connector = {}", connector)

"""Conditions whose values travel as parameters of a statement: a row's id may be any text, and is never SQL."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lakesync.staging.records import Erasure


_CONNECTOR = "connector:"
"""How the id of a connector as a client begins."""


class Condition(NamedTuple):
    """A condition in Spark's SQL, with its parameters."""

    sql: str = ""
    parameters: Mapping[str, str | int] = MappingProxyType({})

    def narrowed(self, sql: str, *values: str | int) -> Condition:
        """Return the condition with a further one.

        Args:
            sql: with `{}` where a value belongs.
            values: what belongs there.
        """
        first = len(self.parameters)
        added = {f"p{first + place}": value for place, value in enumerate(values)}
        further = sql.format(*(f":{name}" for name in added))
        return Condition(f"{self.sql} AND {further}" if self.sql else further, {**self.parameters, **added})

    def select(self, spark: SparkSession, table: str, columns: str = "*") -> DataFrame:
        """Return the rows that meet the condition.

        Args:
            spark: a session.
            table: its full name, quoted.
            columns: of the result, in Spark's SQL.
        """
        return spark.sql(f"SELECT {columns} FROM {table} WHERE {self.sql}", args=dict(self.parameters))

    def execute(self, spark: SparkSession, statement: str) -> None:
        """Run a statement with this condition at its end.

        Args:
            spark: a session.
            statement: `UPDATE … SET …` or `DELETE FROM …`.
        """
        spark.sql(f"{statement} WHERE {self.sql}", args=dict(self.parameters))


def deltas_of(requests: Sequence[Erasure]) -> Condition:
    """Return the condition over the history for the deltas that requests of one gateway, one at least, cover."""
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
    """Return the condition over `landing` and `known` for what a request covers; None where it covers nothing there.

    Args:
        request: of a row, or of a client, which may be a connector.
        connector: only its rows.
    """
    found = Condition().narrowed("gateway = {}", request.gateway)
    if request.client_id is None:
        found = found.narrowed("table_name = {} AND row_id = {}", request.table or "", request.row_id or "")
    elif request.client_id.startswith(_CONNECTOR):
        found = found.narrowed("connector = {}", request.client_id.removeprefix(_CONNECTOR))
    else:
        return None
    return found if connector is None else found.narrowed("connector = {}", connector)

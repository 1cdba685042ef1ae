"""Conditions whose values travel as parameters of a statement: a row's id may be any text, and is never SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lakesync.staging.records import Erasure


_CONNECTOR = "connector:"
"""How the id of a connector as a client begins."""


class Condition:
    """A condition in Spark's SQL, with its parameters."""

    def __init__(self) -> None:
        self.sql = ""
        self.parameters: dict[str, str | int] = {}

    def marker(self, value: str | int) -> str:
        """Add a parameter; return the marker that stands for it."""
        name = f"p{len(self.parameters)}"
        self.parameters[name] = value
        return f":{name}"

    def select(self, spark: SparkSession, table: str, columns: str = "*") -> DataFrame:
        """Return the rows that meet the condition.

        Args:
            spark: a session.
            table: its full name, quoted.
            columns: of the result, in Spark's SQL.
        """
        return spark.sql(f"SELECT {columns} FROM {table} WHERE {self.sql}", args=self.parameters)

    def execute(self, spark: SparkSession, statement: str) -> None:
        """Run a statement that ends where the condition begins: `UPDATE … SET …` or `DELETE FROM …`."""
        spark.sql(f"{statement} WHERE {self.sql}", args=self.parameters)


def deltas_of(requests: Sequence[Erasure], *, shard: str | None = None, more: str = "") -> Condition:
    """Return the condition over the history for the deltas that one gateway's requests cover.

    Args:
        requests: of one gateway.
        shard: only deltas of this one.
        more: a further condition, without values.
    """
    found = Condition()
    parts = []
    for each in requests:
        if each.client_id is None:
            named = f"table_name = {found.marker(each.table or '')} AND row_id = {found.marker(each.row_id or '')}"
        else:
            named = f"client_id = {found.marker(each.client_id)}"
        of_shards = f" AND shard IN ({', '.join(map(found.marker, each.shards))})" if each.shards else ""
        parts.append(f"({named} AND hlc <= {found.marker(each.hlc)}{of_shards})")
    found.sql = f"gateway = {found.marker(requests[0].gateway)} AND ({' OR '.join(parts)})"
    if shard is not None:
        found.sql += f" AND shard = {found.marker(shard)}"
    if more:
        found.sql += f" AND {more}"
    return found


def landed_by(request: Erasure, connector: str | None) -> Condition | None:
    """Return the condition over `landing` and `known` for what a request covers; None where it covers nothing there.

    Args:
        request: of a row, or of a client, which may be a connector.
        connector: only its rows.
    """
    found = Condition()
    found.sql = f"gateway = {found.marker(request.gateway)}"
    if request.client_id is None:
        row = f"table_name = {found.marker(request.table or '')} AND row_id = {found.marker(request.row_id or '')}"
        found.sql += f" AND {row}"
    elif request.client_id.startswith(_CONNECTOR):
        found.sql += f" AND connector = {found.marker(request.client_id.removeprefix(_CONNECTOR))}"
    else:
        return None
    if connector is not None:
        found.sql += f" AND connector = {found.marker(connector)}"
    return found

"""Compares a sample of a state table's rows with their deltas, merged by the gateway's own code.

The check `state_equals_merge` of state tables calls it.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as sf

from lakehouse.spark_errors import lake_errors
from lakehouse.table_definitions import NAMES, LakeNames, ensure_deltas, marks_of, read_version
from lakehouse.tables.stored_rows import FRAME_COLUMNS, stored_row
from lakehouse.tables.verification import MOST_DELTAS, row_delta
from lakesync.model.merge import RowState, encode_state

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import date

    from pyspark.sql import DataFrame, SparkSession

SAMPLE = 100
"""Number of rows to compare."""

_KEY = ("gateway", "row_id")
_DELTA = (*_KEY, "table_name", "op", "client_id", "delta_id", "hlc", "arrival", "columns")
"""The columns of the history that are read."""


class StateDifference(msgspec.Struct, frozen=True):
    """A row whose state is not the merge of its deltas."""

    gateway: str
    row: str
    held: str
    """The row in the state table, as JSON."""
    merged: str
    """The merge of its deltas, as JSON."""


@lake_errors
def rows_unlike_merge(
    spark: SparkSession,
    table: str,
    names: LakeNames = NAMES,
    *,
    gateways: Collection[str] | None = None,
    days: Collection[date] | None = None,
    seed: int = 0,
    sample: int = SAMPLE,
) -> list[StateDifference]:
    """Return sampled rows of a state table that are not the merge of their deltas; empty if all are.

    Without `days` all deltas of each row are merged, and the result must equal the row. With `days` only deltas that
    arrived on these days are read. They are merged into the row, which must not change, because merging is idempotent.
    Deltas after the table's mark are ignored.

    Args:
        spark: an open Spark session.
        table: the state table's name.
        names: catalogue and namespaces of the lake's tables.
        gateways: ids of the gateways whose rows the table has; None for all.
        days: UTC days of arrival whose deltas are read; None for all.
        seed: chooses the rows.
        sample: number of rows to compare.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    ensure_deltas(spark, names)
    keys, history = _sampled(spark, table, names, gateways, days, seed, sample)
    version = read_version(spark, names.state(table))
    row_ids = sorted({row for _, row in keys})
    held = _states(spark.table(names.state(table)).where(sf.col("_row").isin(row_ids)), table)
    rows = sorted((row for row in history if itemgetter(*_KEY)(row) in keys), key=itemgetter(*_KEY))
    marks = marks_of(version)
    found = []
    for (gateway, row), deltas in groupby(rows, key=itemgetter(*_KEY)):
        arrival, state = held.get((gateway, row), (0, RowState()))
        mark = max(marks.get(gateway, 0), arrival)
        merged = state.copy() if days is not None else RowState()
        for delta in deltas:
            if delta["arrival"] <= mark:
                merged.merge(row_delta(delta))
        if merged != state:
            found.append(StateDifference(gateway, row, _text(state), _text(merged)))
    return found


def _sampled(
    spark: SparkSession,
    table: str,
    names: LakeNames,
    gateways: Collection[str] | None,
    days: Collection[date] | None,
    seed: int,
    sample: int,
) -> tuple[set[tuple[str, str]], list[dict[str, Any]]]:
    """Return the sampled keys, and the deltas of their rows. Other gateways' rows with the same ids are included."""
    deltas = spark.table(names.deltas).where(sf.col("table_name") == table)
    if gateways is not None:
        deltas = deltas.where(sf.col("gateway").isin(*gateways))
    if days is not None:
        deltas = deltas.where(sf.col("day").isin(*days))
    chosen = (
        deltas.groupBy(*_KEY)
        .count()
        .where(sf.col("count") <= MOST_DELTAS)
        .orderBy(sf.xxhash64(*_KEY, sf.lit(seed)))
        .limit(sample)
        .collect()
    )
    keys = {(row["gateway"], row["row_id"]) for row in chosen}
    of_rows = deltas.where(sf.col("row_id").isin(sorted({row for _, row in keys})))
    return keys, of_rows.select(*_DELTA).toArrow().to_pylist()


def _states(states: DataFrame, table: str) -> dict[tuple[str, str], tuple[int, RowState]]:
    """Return `(latest arrival, state)` of state rows, by gateway and row id."""
    rows = states.select("_gateway", *FRAME_COLUMNS).toArrow().to_pylist()
    return {(row["_gateway"], row["_row"]): (row["_arrival"], stored_row(table, row).state) for row in rows}


def _text(state: RowState) -> str:
    return encode_state(state).decode()

"""Compares state tables with their history: sampled rows by the gateway's own code, whole tables in Spark's SQL.

The history has all deltas (changes of rows) of all gateways (streams of changes, one for each app). The rows of a state
table must be the merge of its deltas, which the kernel (`lakehouse.tables.kernel`) has computed. A whole table is
compared by counts and hashes for each gateway and day. For that the merge is implemented a second time, in SQL, so that
the check does not share a fault with the kernel. A *stamp* is a delta's `hlc` (a timestamp by the clock of the client
that wrote it) and client id. A column has the value with the greatest `(hlc, client id, JSON text)` after the row's
newest DELETE (the tombstone), and a typed column has that value if it fits the column's type. The checks
`state_equals_merge` and `state_equals_history` of state tables (`assets.lake_checks`) call this module.
"""

from __future__ import annotations

from itertools import groupby
from operator import add, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from pyspark.sql import functions as sf

from lakehouse.faults import Fault
from lakehouse.spark_errors import lake_errors
from lakehouse.table_access import at_snapshot, read_version
from lakehouse.table_creation import ensure_deltas, typed_columns
from lakehouse.table_definitions import LakeNames
from lakehouse.tables.verification import MAX_SAMPLED_DELTAS, ROW_COLUMNS, stored_row
from lakesync.adapters.digests import ARRIVALS_PER_DAY
from lakesync.analysis.catalogue import merge_marks, unfilled_columns
from lakesync.analysis.expression_trees import combine
from lakesync.model.merge import RowState, encode_state
from lakesync.wire.history import delta_of_row

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import date

    from pyspark.sql import Column, DataFrame, SparkSession


SAMPLE = 100
"""Number of rows to compare."""

_KEY = ("gateway", "row_id")
"""The columns of the history that identify a row of a table."""
_DELTA = (*_KEY, "table_name", "op", "client_id", "delta_id", "hlc", "arrival", "columns")
"""The columns of the history that are read."""


class RowDifference(Fault, frozen=True):
    """A row whose state is not the merge of its deltas."""

    row: str
    stored: str
    """The row in the state table, as JSON."""
    merged: str
    """The merge of its deltas, as JSON."""


@lake_errors
def rows_unlike_merge(
    spark: SparkSession,
    table: str,
    names: LakeNames,
    *,
    gateways: Collection[str] | None = None,
    days: Collection[date] | None = None,
    seed: int = 0,
) -> list[RowDifference]:
    """Return sampled rows of a state table that are not the merge of their deltas; empty if all are.

    Without `days` all deltas of each row are merged, and the result must equal the row. With `days` only deltas that
    arrived on these days are read. They are merged into the row, which must not change, because merging is idempotent.
    Deltas after the table's mark, the arrival (timestamp of receipt) up to which it is merged, are ignored.

    Args:
        spark: an open Spark session.
        table: the state table's name.
        names: catalogue and namespaces of the lake's tables.
        gateways: ids of the gateways whose rows the table has; None for all.
        days: UTC days of arrival whose deltas are read; None for all.
        seed: chooses the rows.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    ensure_deltas(spark, names)
    keys, history = _sample(spark, table, names, gateways, days, seed)
    version = read_version(spark, names.state(table))
    row_ids = sorted({row for _, row in keys})
    state = at_snapshot(spark, names.state(table), version.snapshot_id)
    stored = _states(state.where(sf.col("_row").isin(row_ids)), table)
    rows = sorted((row for row in history if itemgetter(*_KEY)(row) in keys), key=itemgetter(*_KEY))
    marks = merge_marks(version.properties)
    differences = []
    for (gateway, row), deltas in groupby(rows, key=itemgetter(*_KEY)):
        arrival, stored_state = stored.get((gateway, row), (0, RowState()))
        # A merge of chosen days does not move the table's mark, so a row may have later deltas, up to its own arrival.
        mark = max(marks.get(gateway, 0), arrival)
        merged = stored_state.copy() if days is not None else RowState()
        for delta in deltas:
            if delta["arrival"] <= mark:
                merged.merge(delta_of_row(delta))
        if merged != stored_state:
            texts = (encode_state(each).decode() for each in (stored_state, merged))
            differences.append(RowDifference(gateway, row, *texts))
    return differences


class _Sample(NamedTuple):
    """The rows of a state table that are compared."""

    keys: set[tuple[str, str]]
    """Gateway and id of each row."""
    deltas: list[dict[str, Any]]
    """Their deltas, in the columns `_DELTA`; also those of other gateways' rows with the same ids."""


_MODULUS = 1_000_000_007
"""Hashes are reduced modulo this prime, so that their sum fits a bigint."""


class DayFigures(msgspec.Struct, frozen=True):
    """Counts and hashes of one gateway's rows whose newest delta arrived on one day."""

    rows: int = 0
    visible: int = 0
    """Number of rows that are not deleted."""
    cells: int = 0
    """Number of values that no DELETE removed."""
    typed: int = 0
    """Number of values in typed columns."""
    row_sum: int = 0
    """Sum of the hashes of the rows' ids, newest arrivals, tombstones and INSERTs."""
    cell_sum: int = 0
    """Sum of the hashes of the values with their stamps."""
    typed_sum: int = 0
    """Sum of the hashes of the values in typed columns."""


class DayDifference(Fault, frozen=True):
    """A day on which a state table differs from the merge of its history."""

    day: str
    """`YYYY-MM-DD`, UTC."""
    stored: DayFigures
    """What the state table has."""
    merged: DayFigures
    """What the history merges to."""


@lake_errors
def days_unlike_history(
    spark: SparkSession, table: str, names: LakeNames, *, gateways: Collection[str] | None = None
) -> list[DayDifference]:
    """Return the days on which a state table is not the merge of its history up to its marks.

    Rows with deltas after the mark are left out. The table may have these deltas: a merge commits before it moves the
    marks, and a merge of chosen days does not move them. Typed columns that were added, and that the table's property
    `UNFILLED_PROPERTY` lists because earlier rows do not have their values yet, are left out too.

    Args:
        spark: an open Spark session.
        table: the state table's name.
        names: catalogue and namespaces of the lake's tables.
        gateways: ids of the gateways whose rows the table has; None for all.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    ensure_deltas(spark, names)
    version = read_version(spark, names.state(table))
    marks = merge_marks(version.properties)
    unfilled = unfilled_columns(version.properties)
    column_types = {
        name: column_type
        for name, column_type in typed_columns(spark, names.state(table)).items()
        if name not in unfilled
    }
    keys_and_values = [part for gateway, arrival in marks.items() for part in (sf.lit(gateway), sf.lit(arrival))]
    mark = sf.create_map(*keys_and_values)[sf.col("gateway")] if keys_and_values else sf.lit(None).cast("bigint")
    history = spark.table(names.deltas).where(sf.col("table_name") == table)
    is_merged = sf.coalesce(sf.col("arrival") <= mark, sf.lit(False))
    later_rows = history.where(~is_merged).select(sf.col("gateway").alias("_gateway"), sf.col("row_id").alias("_row"))
    deltas = history.where(is_merged).join(later_rows.toDF(*_KEY), list(_KEY), "anti")
    # without any mark, every row of the table that has no deltas is a difference
    state = at_snapshot(spark, names.state(table), version.snapshot_id).where(
        sf.col("_gateway").isin(*marks) if marks else sf.lit(True)
    )
    state = state.join(later_rows, ["_gateway", "_row"], "anti")
    if gateways is not None:
        deltas = deltas.where(sf.col("gateway").isin(*gateways))
        state = state.where(sf.col("_gateway").isin(*gateways))
    stored, merged = _figures(_stored_rows(state, list(column_types))), _figures(_merged_rows(deltas, column_types))
    return [
        DayDifference(gateway, day, stored.get((gateway, day), DayFigures()), merged.get((gateway, day), DayFigures()))
        for gateway, day in sorted({*stored, *merged})
        if stored.get((gateway, day)) != merged.get((gateway, day))
    ]


def _sample(
    spark: SparkSession,
    table: str,
    names: LakeNames,
    gateways: Collection[str] | None,
    days: Collection[date] | None,
    seed: int,
) -> _Sample:
    """Choose the rows to compare, and read their deltas; the parameters are those of the caller."""
    deltas = spark.table(names.deltas).where(sf.col("table_name") == table)
    if gateways is not None:
        deltas = deltas.where(sf.col("gateway").isin(*gateways))
    if days is not None:
        deltas = deltas.where(sf.col("day").isin(*days))
    chosen = (
        deltas.groupBy(*_KEY)
        .count()
        .where(sf.col("count") <= MAX_SAMPLED_DELTAS)
        .orderBy(sf.xxhash64(*_KEY, sf.lit(seed)))
        .limit(SAMPLE)
        .collect()
    )
    keys = {(row["gateway"], row["row_id"]) for row in chosen}
    of_rows = deltas.where(sf.col("row_id").isin(sorted({row for _, row in keys})))
    return _Sample(keys, of_rows.select(*_DELTA).toArrow().to_pylist())


def _states(states: DataFrame, table: str) -> dict[tuple[str, str], tuple[int, RowState]]:
    """Return `(latest arrival, state)` of state rows, by gateway and row id."""
    rows = states.select("_gateway", *ROW_COLUMNS).toArrow().to_pylist()
    return {(row["_gateway"], row["_row"]): (row["_arrival"], stored_row(table, row).state) for row in rows}


def _stored_rows(state: DataFrame, columns: Collection[str]) -> DataFrame:
    """Return each row's key, arrival, stamps and visibility, and counts and hash sums of its cells and typed values.

    `_figures` adds them up by day.
    """
    hashes = "transform(map_entries(_cells), e -> xxhash64(e.key, e.value.hlc, e.value.client_id, e.value.value))"
    values = {name: sf.col(f"`{name}`") for name in columns}
    typed = [value.isNotNull().cast("int") for value in values.values()]
    hashed = [_hashed(name, value) for name, value in values.items()]
    sums = {"_typed": combine(add, [sf.lit(0), *typed]), "_typed_sum": combine(add, [sf.lit(0), *hashed])}
    return state.withColumns(sums).selectExpr(
        "_gateway AS gateway",
        "_row AS row_id",
        "_arrival AS arrival",
        "_tombstone AS tombstone",
        "_inserted AS inserted",
        "NOT _gone AS visible",
        "coalesce(size(_cells), 0) AS cells",
        f"aggregate({hashes}, 0L, (total, one) -> total + pmod(one, {_MODULUS}L)) AS cell_sum",
        "_typed AS typed",
        "_typed_sum AS typed_sum",
    )


def _hashed(name: str | Column, value: Column) -> Column:
    """Return the hash of a value in a typed column, which is added to `typed_sum`; 0 if the value is null."""
    named = sf.lit(name) if isinstance(name, str) else name
    return sf.when(value.isNull(), 0).otherwise(sf.pmod(sf.xxhash64(named, value), sf.lit(_MODULUS)))


def _typed(column_type: Column, text: Column) -> dict[str, Column]:
    """Return schema type → the expression for the value of a JSON text.

    It is null if the column has another type, or if the text does not fit the type. Only strings with a backslash are
    parsed as JSON, which is slow. A number must begin like one, because the cast accepts other texts too, such as
    `NaN`.

    Args:
        column_type: the schema type of the value's column.
        text: the value's JSON text.
    """
    quoted = sf.when(text.startswith('"'), text)
    plain = sf.substring(quoted, sf.lit(2), sf.length(quoted) - 2)
    unescaped = sf.from_json(sf.concat(sf.lit("["), quoted, sf.lit("]")), "array<string>")[0]
    double = sf.when(text.rlike("^-?[0-9]"), text).try_cast("double")
    values = {
        "string": sf.when(quoted.contains("\\"), unescaped).otherwise(plain),
        "number": sf.when(sf.abs(double) < float("inf"), double),
        "boolean": sf.when(text.isin("true", "false"), text == "true"),
        "json": sf.when(text != "null", text),
    }
    return {name: sf.when(column_type == name, value) for name, value in values.items()}


def _merged_rows(deltas: DataFrame, column_types: Mapping[str, str]) -> DataFrame:
    """Merge deltas, and return the columns of `_stored_rows` for each merged row.

    Args:
        deltas: rows of the history.
        column_types: typed column → schema type.
    """
    stamp = "struct(hlc, client_id)"
    # 1. the newest DELETE and INSERT of each row
    rows = deltas.groupBy("gateway", "row_id").agg(
        sf.max("arrival").alias("arrival"),
        sf.max(sf.expr(f"CASE WHEN op = 'DELETE' THEN {stamp} END")).alias("tombstone"),
        sf.max(sf.expr(f"CASE WHEN op = 'INSERT' THEN {stamp} END")).alias("inserted"),
    )
    # 2. the value of each column: the greatest, if it is newer than the DELETE; then counts and sums of a row's values
    values = deltas.where("op <> 'DELETE'").selectExpr(
        "gateway", "row_id", "hlc", "client_id", "explode(columns) AS (name, value)"
    )
    value_sums = (
        values.groupBy("gateway", "row_id", "name")
        .agg(sf.max(sf.struct("hlc", "client_id", "value")).alias("cell"))
        .join(rows.select("gateway", "row_id", "tombstone"), ["gateway", "row_id"])
        .where("tombstone IS NULL OR struct(cell.hlc AS hlc, cell.client_id AS client_id) > tombstone")
        .groupBy("gateway", "row_id")
        .agg(
            sf.count("*").alias("cells"),
            sf.sum(sf.expr(f"pmod(xxhash64(name, cell.hlc, cell.client_id, cell.value), {_MODULUS}L)")).alias(
                "cell_sum"
            ),
            *_typed_sums(column_types),
        )
    )
    # 3. a row is visible if a value or an INSERT is newer than the DELETE
    is_inserted = "(inserted IS NOT NULL AND (tombstone IS NULL OR inserted > tombstone))"
    return rows.join(value_sums, ["gateway", "row_id"], "left").selectExpr(
        "gateway",
        "row_id",
        "arrival",
        "tombstone",
        f"CASE WHEN {is_inserted} THEN inserted END AS inserted",
        f"cells IS NOT NULL OR {is_inserted} AS visible",
        "coalesce(cells, 0) AS cells",
        "coalesce(cell_sum, 0) AS cell_sum",
        "coalesce(typed, 0) AS typed",
        "coalesce(typed_sum, 0) AS typed_sum",
    )


def _typed_sums(column_types: Mapping[str, str]) -> list[Column]:
    """Return the aggregates `typed` and `typed_sum` over the cells of a row."""
    entries = [sf.lit(part) for pair in column_types.items() for part in pair]
    column_type = sf.create_map(*entries)[sf.col("name")] if entries else sf.lit(None).cast("string")
    values = _typed(column_type, sf.col("cell.value")).values()
    typed = sum((value.isNotNull().cast("int") for value in values), sf.lit(0))
    hashed = sum((_hashed(sf.col("name"), value) for value in values), sf.lit(0))
    return [sf.sum(typed).alias("typed"), sf.sum(hashed).alias("typed_sum")]


def _figures(rows: DataFrame) -> dict[tuple[str, str], DayFigures]:
    """Return (gateway, day) → the figures of its rows."""
    stamps = "tombstone.hlc, tombstone.client_id, inserted.hlc, inserted.client_id"
    summed = (
        rows.withColumn(
            "day", sf.expr(f"cast(date_add(DATE'1970-01-01', cast(arrival div {ARRIVALS_PER_DAY} as int)) as string)")
        )
        .groupBy("gateway", "day")
        .agg(
            sf.count("*").alias("rows"),
            sf.sum(sf.expr("CASE WHEN visible THEN 1 ELSE 0 END")).alias("visible"),
            sf.sum(sf.expr(f"pmod(xxhash64(row_id, arrival, {stamps}), {_MODULUS}L)")).alias("row_sum"),
            *(sf.sum(name).alias(name) for name in ("cells", "typed", "cell_sum", "typed_sum")),
        )
        .collect()
    )
    names = DayFigures.__struct_fields__
    return {(row["gateway"], row["day"]): DayFigures(*(row[name] for name in names)) for row in summed}

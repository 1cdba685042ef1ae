"""Counts deltas and sums their ids in Spark, to compare the lake with staging's ledger of accepted deltas.

Equal counts and sums mean equal sets of deltas. `lakehouse.checks` calls it.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as sf

from lakesync.adapters.arrow import id_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame


def id_sums(deltas: DataFrame, by: Sequence[str] = ()) -> DataFrame:
    """Return `by`, the number of deltas as `count`, and the sum of their ids modulo 2**64 as the decimal `total`.

    Args:
        deltas: rows with `delta_id`, whose number is that of `lakesync.model.delta.id_number`.
        by: columns to group by. Without any there is one row, with nulls if there are no deltas.
    """
    fields = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in deltas.select(*by).schema.fields)
    schema = f"{fields}{', ' if by else ''}count bigint, total decimal(20,0)"

    def add(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        whole = id_sums_of(batches, by)
        if whole is not None:
            yield from whole.set_column(len(by) + 1, "total", _decimals(whole["total"])).to_batches()

    added = deltas.select("delta_id", *by).mapInArrow(add, schema)
    modulus = sf.lit(str(2**64)).cast("decimal(20,0)")
    total = (sf.sum("total") % modulus).cast("decimal(20,0)").alias("total")
    return added.groupBy(*by).agg(sf.sum("count").alias("count"), total)


def id_sums_of(batches: Iterable[pa.RecordBatch], by: Sequence[str] = ()) -> pa.Table | None:
    """Return the same columns as `id_sums`, `total` as an unsigned integer; None if there is no batch.

    Args:
        batches: rows with `delta_id` and the columns `by`.
        by: columns to group by.
    """
    parts = [_sums(batch, by) for batch in batches]
    if not parts:
        return None
    whole = pa.concat_tables(parts).group_by(list(by)).aggregate([("count", "sum"), ("total", "sum")])
    return whole.select([*by, "count_sum", "total_sum"]).rename_columns([*by, "count", "total"])


def _sums(batch: pa.RecordBatch, by: Sequence[str]) -> pa.Table:
    """Return one row for each group of a batch. Arrow sums unsigned integers modulo 2**64."""
    rows = pa.table([*(batch[name] for name in by), pa.array(id_numbers(batch["delta_id"]))], [*by, "total"])
    found = rows.group_by(list(by)).aggregate([("total", "count"), ("total", "sum")])
    return found.select([*by, "total_count", "total_sum"]).rename_columns([*by, "count", "total"])


def _decimals(numbers: pa.ChunkedArray) -> pa.Array:
    return pa.array([Decimal(number) for number in numbers.to_pylist()], pa.decimal128(20, 0))

"""Searches the history for deltas that were altered after their push, by the hash of their contents.

A delta is a change of a row, and its id the hash of its contents. The history is the Iceberg table `deltas` of all
flushed deltas. The audit's check `ids_equal_contents` (`assets.lake_checks`) calls `altered_deltas`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sf

from lakehouse.checks import MAX_RESULTS
from lakehouse.faults import Fault
from lakehouse.spark_errors import lake_errors
from lakehouse.table_creation import ensure_deltas
from lakehouse.table_definitions import LakeNames
from lakehouse.task_runner import column_ddl
from lakesync.model.delta import delta_id
from lakesync.model.types import ColumnValue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession


class AlteredDeltas(Fault, frozen=True):
    """Deltas of one table and day whose ids are not the hashes of their contents."""

    day: str
    """`YYYY-MM-DD`, UTC."""
    table: str
    count: int
    example: str
    """The id of one of these deltas."""


@lake_errors
def altered_deltas(spark: SparkSession, names: LakeNames) -> list[AlteredDeltas]:
    """Return the deltas that were altered after the push: their id is not the hash of their contents.

    Two kinds are skipped: deltas that an erasure has emptied, and those of clients that make ids in another way, which
    shows in that none of a client's ids is such a hash.

    Args:
        spark: an open Spark session.
        names: catalogue and namespaces of the lake's tables.
    """
    ensure_deltas(spark, names)
    # an erasure leaves an UPDATE without columns and with `width` 0; otherwise `width` is the number of columns
    hashed = spark.table(names.deltas).where("delta_id RLIKE '^[0-9a-f]{64}$' AND NOT (op = 'UPDATE' AND width = 0)")
    counted = (
        hashed.select(*_GROUP, "row_id", "hlc", "delta_id", "columns")
        .mapInArrow(_compare_ids, column_ddl(_COMPARED))
        .groupBy(*_GROUP)
        .agg(sf.sum("intact").alias("intact"), sf.sum("altered").alias("altered"), sf.min("example").alias("example"))
        .withColumn("intact_of_client", sf.expr("sum(intact) OVER (PARTITION BY gateway, client_id)"))
    )
    rows = (
        counted.where("altered > 0 AND intact_of_client > 0")
        .groupBy("gateway", "day", "table_name")
        .agg(sf.sum("altered").alias("altered"), sf.min("example").alias("example"))
        .limit(MAX_RESULTS)
        .collect()
    )
    return sorted(
        (AlteredDeltas(row["gateway"], row["day"].isoformat(), *row[2:]) for row in rows),
        key=lambda one: (one.gateway, one.day, one.table),
    )


_GROUP = ("gateway", "client_id", "day", "table_name")
"""The columns by which `_compare_ids` counts deltas."""
_COMPARED = pa.schema(
    [
        ("gateway", pa.string()),
        ("client_id", pa.string()),
        ("day", pa.date32()),
        ("table_name", pa.string()),
        ("intact", pa.int64()),
        ("altered", pa.int64()),
        ("example", pa.string()),
    ]
)
"""The columns that `_compare_ids` returns: numbers of deltas with a right and with a wrong id, and one wrong id."""


def _compare_ids(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count each batch's deltas whose id is the hash of their contents, and the others, in a Spark task."""
    for batch in batches:
        hashes = [
            delta_id(
                client_id=row["client_id"],
                hlc=row["hlc"],
                table=row["table_name"],
                row_id=row["row_id"],
                columns=[ColumnValue(name, msgspec.Raw(text.encode())) for name, text in row["columns"]],
            )
            for row in batch.to_pylist()
        ]
        is_intact = pc.equal(pa.array(hashes, pa.string()), batch["delta_id"])
        example = pc.if_else(is_intact, None, batch["delta_id"])
        counts = (is_intact.cast(pa.int64()), pc.invert(is_intact).cast(pa.int64()))
        rows = pa.table([*(batch[name] for name in _GROUP), *counts, example], _COMPARED)
        counted = rows.group_by(list(_GROUP)).aggregate([("intact", "sum"), ("altered", "sum"), ("example", "min")])
        compared = counted.select([*_GROUP, "intact_sum", "altered_sum", "example_min"])
        yield from compared.rename_columns(_COMPARED.names).to_batches()

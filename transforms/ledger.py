"""The sum by which staging's ledger and the lake are compared, as `lakesync.delta.id_number` says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import Column


def id_sum(delta_id: str) -> Column:
    """Aggregate: the sum of the delta ids' numbers modulo 2**64, as a decimal; 0 over nothing."""
    column = sf.col(delta_id)
    digest = sf.when(column.rlike(r"^[0-9a-f]{64}\z"), column).otherwise(sf.sha2(column, 256))
    number = sf.conv(sf.substring(digest, 1, 16), 16, 10).cast("decimal(20,0)")
    modulus = sf.lit(str(2**64)).cast("decimal(20,0)")
    return sf.coalesce(sf.sum(number) % modulus, sf.lit(0).cast("decimal(20,0)"))

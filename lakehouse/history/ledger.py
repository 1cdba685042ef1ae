"""The sum by which staging's ledger and the lake are compared, as `lakesync.delta.id_number` defines it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

_HEX = "if(length(delta_id) = 64 AND NOT delta_id RLIKE '[^0-9a-f]', delta_id, sha2(delta_id, 256))"
_HALVES = tuple(f"CAST(conv(substr({_HEX}, {start}, 8), 16, 10) AS bigint)" for start in (1, 9))
"""The high and the low 32 bits of a delta id's number: their sums fit a bigint."""


def id_sums(deltas: DataFrame, by: Sequence[str] = ()) -> DataFrame:
    """Count deltas and sum their ids' numbers modulo 2**64: columns `count`, and `total` as a decimal.

    Args:
        deltas: rows with `delta_id`.
        by: further columns, each group of which is summed by itself. Without any there is one row, of nulls for none.
    """
    return deltas.groupBy(*by).agg(sf.sum(sf.lit(1)).alias("count"), id_total().alias("total"))


def id_total(times: str = "1") -> Column:
    """Return an aggregate over `delta_id`: the sum of the ids' numbers modulo 2**64, as a decimal.

    Args:
        times: SQL of how many deltas a row stands for.
    """
    high, low = (f"CAST(sum({half} * {times}) AS decimal(38,0))" for half in _HALVES)
    return sf.expr(f"CAST((({high} % 4294967296) * 4294967296 + {low}) % 18446744073709551616 AS decimal(20,0))")

"""Pages as they landed to what they change: the law of `lakesync.connectors.diff`, over any number of pages at once.

Landed rows are one connector's, of one table. `page` and `hlc` grow from page to page and from row to row: a row's
versions are told apart and put in order by them, and `hlc` is the stamp of the change that it makes. So the same
landings give the same deltas, ids and all, whoever asks, as often as he likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as sf

from lakesync.connectors.diff import changed
from lakesync.delta import delta_id
from lakesync.types import ColumnValue, Op, RowDelta
from lakesync.wire.json import encode_delta

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROW, GONE, WHOLE, PLACE = "row", "gone", "whole", "place"
"""Kinds of landed rows: a version of a row; a row that is gone; that of the rows with a value in a column the page has
all; and where the connector goes on."""

DELTA_SCHEMA = "page bigint, hlc bigint, op string, delta string"

_BEFORE = -1
"""The page of what was known before."""

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def events(landed: DataFrame, known: DataFrame, identity: str | None, claimed: Sequence[str]) -> DataFrame:
    """What became of each row, in order: `row_id, day, page, hlc, columns, before, last`.

    `columns` is the row as JSON, null where it is gone; `before` is what it was until then, null where it was not;
    `last` marks the newest event of each row. What was known is an event of its own, with a `page` below 0.

    Args:
        landed: `kind, row_id, day, page, hlc, columns, name, value`.
        known: `row_id, columns` of the rows that there were before.
        identity: as in `source.Table`.
        claimed: the columns that are named by rows of the kind `whole`.
    """
    of_row = ("row_id", "day", "page", "hlc", "columns")
    brought = landed.where(sf.col("kind") == ROW).select(*of_row)
    before = known.select(
        "row_id",
        sf.lit(None).cast("date").alias("day"),
        sf.lit(_BEFORE).cast("bigint").alias("page"),
        sf.lit(_BEFORE).cast("bigint").alias("hlc"),
        "columns",
    )
    versions = before.unionByName(brought)
    told = landed.where(sf.col("kind") == GONE).select(*of_row[:-1], _no_columns())
    gone = told.join(brought.select("row_id", "page"), ["row_id", "page"], "left_anti").select(*of_row)
    columns = sorted({*claimed, *([identity] if identity is not None else [])})
    ended = [_replaced(landed, versions, column, own=column == identity) for column in columns]
    every = reduce(lambda one, other: one.unionByName(other), ended, versions.unionByName(gone))
    order = Window.partitionBy("row_id").orderBy("page", "hlc")
    return every.select(
        *of_row,
        sf.lag("columns").over(order).alias("before"),
        sf.lead("page").over(order).isNull().alias("last"),
    )


def deltas(of_rows: DataFrame, client_id: str, table: str) -> DataFrame:
    """The deltas that events are to the gateway (`DELTA_SCHEMA`), each as JSON; a version like the last gives none."""
    differing = (sf.col("page") > _BEFORE) & ~sf.col("columns").eqNullSafe(sf.col("before"))

    def make(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = (batch.column(place).to_pylist() for place in range(5))
            yield delta_batch(zip(*columns, strict=True), client_id, table)

    chosen = of_rows.where(differing).select("row_id", "page", "hlc", "columns", "before")
    return chosen.mapInArrow(make, DELTA_SCHEMA)


def field(column: str) -> Column:
    """A column's text out of a row's JSON."""
    return sf.get_json_object("columns", f"$.{column}")


def _replaced(landed: DataFrame, versions: DataFrame, column: str, *, own: bool) -> DataFrame:
    """The versions that end because a later page claims their value in a column and does not bring their row.

    Args:
        own: whether each row that is brought claims its own value.
    """
    order = Window.partitionBy("row_id").orderBy("page", "hlc")
    there = versions.select(
        "row_id", "page", field(column).alias("value"), sf.lead("page").over(order).alias("next"), _no_claim()
    ).where(sf.col("value").isNotNull())
    named = (sf.col("kind") == WHOLE) & (sf.col("name") == column)
    claims = landed.where(named).select("page", "value", _claim())
    if own:
        brought = landed.where((sf.col("kind") == ROW) & field(column).isNotNull())
        claims = claims.unionByName(brought.select("page", field(column).alias("value"), _claim()))
    # the nearest later claim of each version, in one pass from the last page to the first
    later = Window.partitionBy("value").orderBy(-sf.col("page")).rangeBetween(Window.unboundedPreceding, -1)
    found = there.unionByName(claims, allowMissingColumns=True).select("*", sf.min("claim").over(later).alias("by"))
    ends = sf.col("next").isNull() | (sf.col("by.page") < sf.col("next"))
    return found.where(sf.col("row_id").isNotNull() & sf.col("by").isNotNull() & ends).select(
        "row_id",
        sf.col("by.day").alias("day"),
        sf.col("by.page").alias("page"),
        sf.col("by.hlc").alias("hlc"),
        _no_columns(),
    )


def _claim() -> Column:
    return sf.struct("page", "hlc", "day").alias("claim")


def _no_claim() -> Column:
    return sf.lit(None).cast("struct<page: bigint, hlc: bigint, day: date>").alias("claim")


def _no_columns() -> Column:
    return sf.lit(None).cast("string").alias("columns")


def delta_batch(
    events: Iterable[tuple[str, int, int, str | None, str | None]], client_id: str, table: str
) -> pa.RecordBatch:
    """The deltas (`DELTA_SCHEMA`) of events, `(row id, page, hlc, columns, before)`, columns as JSON."""
    made: list[tuple[int, int, str, str]] = []
    for row_id, page, hlc, columns, before in events:
        op, values = _change(columns, before)
        if op == "UPDATE" and not values:
            continue
        cells = tuple(ColumnValue.of(name, value) for name, value in values.items())
        identity = delta_id(client_id=client_id, hlc=hlc, table=table, row_id=row_id, columns=cells)
        delta = RowDelta(op, table, row_id, client_id, cells, hlc, identity)
        made.append((page, hlc, op, encode_delta(delta).decode()))
    kinds = (pa.int64(), pa.int64(), pa.string(), pa.string())
    parts = zip(*made, strict=True) if made else ([],) * len(kinds)
    arrays = [pa.array(part, kind) for part, kind in zip(parts, kinds, strict=True)]
    return pa.record_batch(arrays, names=["page", "hlc", "op", "delta"])


def _change(columns: str | None, before: str | None) -> tuple[Op, Mapping[str, Any]]:
    if columns is None:
        return "DELETE", {}
    if before is None:
        return "INSERT", _decode(columns)
    return "UPDATE", changed(_decode(before), _decode(columns))

"""Deltas to row states: the law of `lakesync.lww`, said in DataFrame expressions.

M1 a column's value is the one with the greatest stamp; M2 a cell is alive only above the tombstone, and a row is
visible while it has a live cell or an INSERT above the tombstone; M3 equal stamps: the greater value text. Stamps
compare by hlc, then client id in code point order, which is the order of Spark's strings; so structs compare as they
stand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY = ("_gateway", "_row")

STATE_COLUMNS = (*KEY, "_cells", "_tombstone", "_inserted", "_gone", "_arrival")
"""What a reduction yields; typed columns follow by `project`."""


def reduce_deltas(deltas: DataFrame, state: DataFrame | None = None) -> DataFrame:
    """The state of every row that `deltas` or `state` names, invisible rows included.

    Any order, grouping and repetition of deltas gives the same rows, and `state` counts like the deltas that it came
    from, so that merging in steps equals reducing all at once. `deltas` has one table's rows of the history; `state`
    has at least `STATE_COLUMNS` but `_gone`.
    """
    pieces = _of_deltas(deltas)
    if state is not None:
        pieces = pieces.unionByName(_of_state(state))
    gathered = (
        pieces.repartition(*KEY)
        .groupBy(*KEY)
        .agg(
            sf.flatten(sf.collect_list("cells")).alias("cells"),
            sf.max("_tombstone").alias("_tombstone"),
            sf.max("inserted").alias("inserted"),
            sf.max("_arrival").alias("_arrival"),
        )
    )
    tombstone = sf.col("_tombstone")
    lived = gathered.select(
        *KEY,
        sf.map_from_entries(
            sf.transform(
                sf.filter(_greatest_of_each_column(sf.col("cells")), lambda cell: _above(cell, tombstone)),
                lambda cell: sf.struct(cell["column"], _stored_cell(cell)),
            )
        ).alias("_cells"),
        "_tombstone",
        sf.when(_above(sf.col("inserted"), tombstone), sf.col("inserted")).alias("_inserted"),
        "_arrival",
    )
    deleted = (sf.size("_cells") == 0) & sf.col("_inserted").isNull()
    return lived.withColumn("_gone", deleted).select(*STATE_COLUMNS)


def _of_deltas(deltas: DataFrame) -> DataFrame:
    stamp = sf.struct("hlc", "client_id")
    cells = sf.transform(
        sf.map_entries("columns"),
        lambda entry: sf.struct(
            entry["key"].alias("column"),
            sf.col("hlc"),
            sf.col("client_id"),
            entry["value"].alias("value"),
            sf.col("delta_id"),
            sf.col("width"),
        ),
    )
    deletes = sf.col("op") == "DELETE"
    return deltas.select(
        sf.col("gateway").alias("_gateway"),
        sf.col("row_id").alias("_row"),
        sf.when(~deletes, cells).alias("cells"),
        sf.when(deletes, stamp).alias("_tombstone"),
        sf.when(sf.col("op") == "INSERT", stamp).alias("inserted"),
        sf.col("arrival").alias("_arrival"),
    )


def _of_state(state: DataFrame) -> DataFrame:
    cells = sf.transform(
        sf.map_entries("_cells"),
        lambda entry: sf.struct(
            entry["key"].alias("column"),
            *(entry["value"][name].alias(name) for name in ("hlc", "client_id", "value", "delta_id", "width")),
        ),
    )
    return state.select(*KEY, cells.alias("cells"), "_tombstone", sf.col("_inserted").alias("inserted"), "_arrival")


def _greatest_of_each_column(cells: Column) -> Column:
    """The last of each column in the order (column, hlc, client id, value text, delta id).

    The sorted array is bound to a lambda's variable, or it would be sorted again for every element.
    """

    def last_of_each(ordered: Column) -> Column:
        def is_last(cell: Column, index: Column) -> Column:
            following = sf.get(ordered, index + 1)
            return following.isNull() | (following["column"] != cell["column"])

        return sf.filter(ordered, is_last)

    return sf.transform(sf.array(sf.sort_array(cells)), last_of_each)[0]


def _above(stamped: Column, tombstone: Column) -> Column:
    stamp = sf.struct(stamped["hlc"].alias("hlc"), stamped["client_id"].alias("client_id"))
    return tombstone.isNull() | (stamp > tombstone)


def _stored_cell(cell: Column) -> Column:
    return sf.struct(*(cell[name].alias(name) for name in ("hlc", "client_id", "delta_id", "width", "value")))

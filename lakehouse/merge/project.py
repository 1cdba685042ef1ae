"""Cells to typed columns: a value that does not fit is null there, and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

REJECTED = "_rejected"
"""Number of a row's live values that do not fit their columns."""


def project(states: DataFrame, columns: Sequence[tuple[str, str]]) -> DataFrame:
    """Add a typed column for each `(name, schema type)`, and `_rejected`.

    string → string, number → double, boolean → boolean, json → the JSON text, null → string that is always null. JSON
    null is null in every type. Columns that the schema does not name stay in `_cells` alone.
    """
    typed = states.select("*", *(_typed(sf.col("_cells")[name]["value"], kind).alias(name) for name, kind in columns))
    names = [name for name, _ in columns]
    given = sf.map_filter("_cells", lambda column, cell: column.isin(names) & (cell["value"] != "null"))
    fitting = sum((sf.col(name).isNotNull().cast("int") for name in names), sf.lit(0))
    return typed.select("*", (sf.size(given) - fitting).alias(REJECTED))


def rejected_values(states: DataFrame, columns: Sequence[tuple[str, str]]) -> DataFrame:
    """The misfits themselves: `_gateway`, `_row`, `column`, `type`, `value` (its JSON text)."""
    kinds = sf.create_map(*(sf.lit(part) for column in columns for part in column))
    cells = states.select("_gateway", "_row", sf.explode("_cells").alias("column", "cell"))
    named = cells.select("_gateway", "_row", "column", kinds[sf.col("column")].alias("type"), "cell.value")
    fits = sf.lit(False)
    for kind in sorted({kind for _, kind in columns}):
        fits = fits | ((sf.col("type") == kind) & _typed(sf.col("value"), kind).isNotNull())
    return named.where(sf.col("type").isNotNull() & (sf.col("value") != "null") & ~fits)


def _typed(text: Column, kind: str) -> Column:
    match kind:
        case "string":
            return sf.when(text.startswith('"'), _unquoted(text))
        case "number":
            return sf.when((text >= "-") & (text < ":"), text.try_cast("double"))  # begins with - or a digit
        case "boolean":
            return sf.when(text.isin("true", "false"), text == "true")
        case "json":
            return sf.when(text != "null", text)
        case "null":
            return sf.lit(None).cast("string")
    raise ValueError(f"no such column type: {kind!r}")


def _unquoted(text: Column) -> Column:
    parsed = sf.get(sf.from_json(sf.concat(sf.lit("["), text, sf.lit("]")), "array<string>"), sf.lit(0))
    plain = sf.substring(text, sf.lit(2), sf.length(text) - 2)
    return sf.when(text.contains("\\"), parsed).otherwise(plain)

"""From `deltas` to a table's state: idempotent, by arrival, any day again in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from resources.lake.tables import LakeNames

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

    from pyspark.sql import SparkSession

    from lakesync.schema import TableSchema


class MergeReport(msgspec.Struct, frozen=True):
    """What one merge did to a state table."""

    table: str
    deltas_in: int
    """Deltas read from the history."""
    rows_merged: int
    """Rows written."""
    tombstones: int
    """Rows among them that are not visible."""
    rejected_values: int
    """Live values among them that do not fit their column's type: null in the typed column, kept in `_cells`."""
    snapshot_id: int | None
    """The table's snapshot afterwards; None while it is empty."""
    marks: dict[str, int]
    """Merged marks afterwards, a gateway."""
    seconds: float


def merge_table(
    spark: SparkSession,
    schema: TableSchema,
    upto: Mapping[str, int],
    days: Sequence[date] | None = None,
    rebuild: bool = False,
    names: LakeNames = LakeNames(),
) -> MergeReport:
    """Merge a table's deltas with `arrival <= upto[gateway]` into its state; the table is made or grown first.

    Without `days`: those above the merged mark, which then is `upto`. With `days` (UTC days of arrival): all of these
    days, whatever the marks say; marks move only where the days close the gap to `upto`. With `rebuild`: the rows of the
    gateways in `upto` are made again from all their deltas, in one commit. Gateways outside `upto` stay as they are.
    Writes no snapshot when there is nothing to merge. One writer a table at a time is expected; a second one costs time,
    never data.

    Raises:
        SchemaError: the schema does not fit the lake's table.
        LakeUnavailableError: Spark is gone.
    """
    raise NotImplementedError


def forget_marks(spark: SparkSession, table: str, names: LakeNames = LakeNames()) -> None:
    """Drop a table's merged marks: the next merge reads all of its deltas again, with the same result."""
    raise NotImplementedError

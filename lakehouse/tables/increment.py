"""Defines the increment of a merge: the deltas of the history that one merge adds to a state table.

The history has all deltas (changes of one row), a state table the current rows of one synced table. An increment
selects deltas by their arrival, the gateway's timestamp of receipt. Merges (`lakehouse.tables.merging`), checkpoints
and their Spark tasks use this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.data_files import DataFile, read_rows, rows_in
from lakehouse.tables.kernel import DELTAS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import date

ROWS_PER_TASK = 250_000
"""Rows of the history that one task reads, approximately."""

_ROWS_AT_ONCE = 100_000
"""Rows of a file that are decoded at once. They are divided into chunks by the slice of row keys to which they belong,
because a merge works slice by slice. A chunk costs 60 µs to write, read and join, so it should have a thousand rows."""

_FILTERED = pa.schema(
    [("gateway", pa.string()), ("table_name", pa.string()), ("day", pa.date32()), ("arrival", pa.int64())]
)
"""The columns by which an increment selects deltas."""
_DELTA_COLUMNS = pa.schema([*DELTAS, *(_FILTERED.field(name) for name in ("table_name", "day"))])
"""The columns that are read to merge deltas."""
_KEY_COLUMNS = pa.schema([*_FILTERED, ("row_id", pa.string())])
"""The columns that are read to find the keys of deltas."""


class Increment(NamedTuple):
    """The deltas to merge: those of one table in a range of arrivals for each gateway."""

    table: str
    ranges: Mapping[str, tuple[int, int]]
    """Gateway → the arrival after which its deltas are merged, and the last arrival to merge."""
    days: Sequence[date] | None = None
    """UTC days of arrival whose deltas are merged; None for all."""

    def pick(self, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        """Return the increment's deltas among rows of the history.

        Args:
            rows: rows of the history.
            names: names of the columns to return.
        """
        gateways = pa.array(list(self.ranges), pa.string())
        gateway_index = pc.index_in(rows["gateway"], gateways)  # null for other gateways, whose rows are not selected
        after = pa.array([low for low, _ in self.ranges.values()], pa.int64()).take(gateway_index)
        last = pa.array([high for _, high in self.ranges.values()], pa.int64()).take(gateway_index)
        is_selected = pc.and_(pc.greater(rows["arrival"], after), pc.less_equal(rows["arrival"], last))
        is_selected = pc.and_(is_selected, pc.equal(rows["table_name"], self.table))
        if self.days is not None:
            is_selected = pc.and_(is_selected, pc.is_in(rows["day"], pa.array(self.days, pa.date32())))
        columns = rows.select(list(names))
        return columns if pc.all(is_selected, skip_nulls=False).as_py() else columns.filter(is_selected)

    def deltas(self, file: DataFile) -> Iterator[pa.Table]:
        """Yield the increment's deltas in a file, with the columns that a merge needs (`DELTAS`). Tasks call it."""
        return self._read(file, _DELTA_COLUMNS, DELTAS.names)

    def keys(self, file: DataFile) -> Iterator[pa.Table]:
        """Yield `gateway` and `row_id` of the increment's deltas in a file. Tasks call it."""
        return self._read(file, _KEY_COLUMNS, ("gateway", "row_id"))

    def _read(self, file: DataFile, schema: pa.Schema, names: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the columns `names` of the increment's deltas in a file. The columns of `schema` are read for that."""
        # row groups whose statistics exclude the table are skipped
        for rows in read_rows(file, schema, skip_without=("table_name", self.table), batch_rows=_ROWS_AT_ONCE):
            picked = self.pick(rows, names)
            if picked.num_rows:
                yield picked


class HistoryFiles(NamedTuple):
    """The files of the history that may have an increment's deltas."""

    files: tuple[DataFile, ...]
    delta_count: int | None
    """Number of the increment's deltas; None if the files' column bounds (least and greatest values) do not show it."""

    @property
    def max_deltas(self) -> int:
        """Upper bound of the number of the increment's deltas."""
        return rows_in(self.files) if self.delta_count is None else self.delta_count

"""An increment of a state table: which deltas of the history are merged, and how tasks read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.data_files import DataFile, read_rows
from lakehouse.merge.kernel import DELTAS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import date

ROWS_A_TASK = 250_000
"""Rows of the history that one task reads, approximately."""

_ROWS_AT_ONCE = 100_000
"""Of a file, decoded together and cut into a chunk for each slice. Each chunk costs 60 µs to write, read and join, so
they should have a thousand rows."""

_PLACES = pa.schema(
    [("gateway", pa.string()), ("table_name", pa.string()), ("day", pa.date32()), ("arrival", pa.int64())]
)
_PICKED = pa.schema([*DELTAS, *(_PLACES.field(name) for name in ("table_name", "day"))])
_KEYS = pa.schema([*_PLACES, ("row_id", pa.string())])


class Increment(NamedTuple):
    """The deltas to merge: those of one table with `low < arrival <= high`, by gateway."""

    table: str
    ranges: Mapping[str, tuple[int, int]]
    days: Sequence[date] | None = None
    """Only deltas of these UTC days of arrival; None: of all."""

    def pick(self, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        """Return columns of the increment's deltas among rows of the history.

        Args:
            rows: rows of the history.
            names: names of the columns.
        """
        gateways = pa.array(list(self.ranges), pa.string())
        place = pc.index_in(rows["gateway"], gateways)
        lows = pa.array([low for low, _ in self.ranges.values()], pa.int64()).take(place)
        highs = pa.array([high for _, high in self.ranges.values()], pa.int64()).take(place)
        own = pc.and_(pc.greater(rows["arrival"], lows), pc.less_equal(rows["arrival"], highs))
        own = pc.and_(own, pc.equal(rows["table_name"], self.table))
        if self.days is not None:
            own = pc.and_(own, pc.is_in(rows["day"], pa.array(self.days, pa.date32())))
        found = rows.select(list(names))
        return found if pc.all(own, skip_nulls=False).as_py() else found.filter(own)

    def deltas(self, file: DataFile) -> Iterator[pa.Table]:
        """Yield its deltas in a file, in the kernel's columns. Tasks call it."""
        return self._read(file, _PICKED, DELTAS.names)

    def keys(self, file: DataFile) -> Iterator[pa.Table]:
        """Yield `gateway` and `row_id` of its deltas in a file. Tasks call it."""
        return self._read(file, _KEYS, ("gateway", "row_id"))

    def _read(self, file: DataFile, schema: pa.Schema, names: Sequence[str]) -> Iterator[pa.Table]:
        for rows in read_rows(file, schema, only=("table_name", self.table), batch_rows=_ROWS_AT_ONCE):
            found = self.pick(rows, names)
            if found.num_rows:
                yield found

"""Groups the deltas of a push by row, and gives each row its arrival.

`engine.pushing` calls `by_row` before the transaction of a push begins, and passes the result on to `feed.apply`.
`engine.checks` calls `too_wide_rows` and `too_large_rows`, and `engine.rebuild` calls `arrivals_of`.

A *delta* is an INSERT, UPDATE or DELETE of some columns of one row. An *arrival* is the commit's timestamp by the
gateway, which is one app's stream of changes; each row of a push gets an arrival of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from sys import intern
from typing import NamedTuple

from lakesync.model.merge import intern_names
from lakesync.model.types import RowDelta, RowKey, column_names
from lakesync.staging.records import ARRIVAL_STEP, StoredRow
from lakesync.staging.records.rows import MAX_UNMERGED_COLUMNS

LARGE_BYTES = 1024
"""Values from this size on, as JSON, count as large; see `too_large_rows`."""


class PushRows(NamedTuple):
    """The deltas of one push by row."""

    deltas: Mapping[RowKey, Sequence[RowDelta]]
    """In order of first appearance. Keys of one table share its name as one object, so that comparing keys is fast."""
    columns: Sequence[tuple[str, ...]]
    """By row, in the order of `deltas`: the column names of its first delta, as `intern_names` returns them."""
    distinct_columns: AbstractSet[tuple[str, ...]]
    """The column names of the deltas, equal ones once: most pushes have few different ones."""
    cells: int
    """The number of column values in all deltas together."""
    largest: int = 0
    """Bytes of the largest value, as JSON."""

    @property
    def shared_columns(self) -> tuple[str, ...]:
        """The columns that each delta has, in this order; empty if they differ or a delta has none."""
        return next(iter(self.distinct_columns)) if len(self.distinct_columns) == 1 else ()


def by_row(deltas: Sequence[RowDelta]) -> PushRows:
    """Group the deltas of a push by row.

    Args:
        deltas: the push's deltas, at least one.
    """
    names = column_names(deltas)
    interned = {each: intern_names(each) for each in set(names)}
    names = [interned[each] for each in names]
    cells, distinct = sum(map(len, names)), set(interned.values())
    largest = max([len(cell.value) for delta in deltas for cell in delta.columns], default=0)
    # most pushes have one delta for each row
    single: dict[RowKey, Sequence[RowDelta]] = {(intern(delta.table), delta.row_id): (delta,) for delta in deltas}
    if len(single) == len(deltas):
        return PushRows(single, names, distinct, cells, largest)
    rows: dict[RowKey, list[RowDelta]] = {}
    columns = []
    for delta, of_delta in zip(deltas, names, strict=True):
        changes = rows.setdefault((intern(delta.table), delta.row_id), [])
        if not changes:
            columns.append(of_delta)
        changes.append(delta)
    return PushRows(rows, columns, distinct, cells, largest)


def arrivals_of(deltas: Sequence[RowDelta], last: int) -> dict[RowKey, int]:
    """Return each row's arrival in a push, in order of first appearance, as `feed.apply` gave it to the row.

    The lake (Iceberg tables) stores only the last one of a push, so a rebuild from the lake computes the others again.

    Args:
        deltas: the push's deltas.
        last: the push's last arrival.
    """
    rows = by_row(deltas).deltas
    first = last - ARRIVAL_STEP * (len(rows) - 1)
    return {key: first + ARRIVAL_STEP * number for number, key in enumerate(rows)}


def too_wide_rows(stored: Mapping[RowKey, StoredRow], rows: PushRows, max_columns: int) -> dict[RowKey, int]:
    """Return the rows that a push would give too many columns, with the number of columns after the push.

    A row that has too many already may keep them, but gets no further ones.

    Args:
        stored: the rows before the push; rows that do not exist yet are absent.
        rows: the push's deltas, by row.
        max_columns: the most columns that a row may have.
    """
    # A cheap upper bound first: most pushes are far below the limit. A row may have deltas that are not merged yet
    # (`unmerged`), with at most `MAX_UNMERGED_COLUMNS` columns. If the latest of them has exactly the columns of this
    # push, the row gets no new column. Equal names are one tuple object, so `is` compares them.
    shared = rows.shared_columns
    growing = [
        len(row.state.cells) for row in stored.values() if row.unmerged is None or row.unmerged.names is not shared
    ]
    most_before = max(growing, default=0) + MAX_UNMERGED_COLUMNS
    if most_before + rows.cells <= max_columns:
        return {}
    wide = {}
    for key, changes in rows.deltas.items():
        columns_before = stored[key].fold().state.cells if key in stored else {}  # `fold` merges unmerged deltas
        columns_after = columns_before.keys() | {cell.column for delta in changes for cell in delta.columns}
        if len(columns_after) > max(max_columns, len(columns_before)):
            wide[key] = len(columns_after)
    return wide


def too_large_rows(stored: Mapping[RowKey, StoredRow], rows: PushRows, max_bytes: int) -> dict[RowKey, int]:
    """Return the rows to which a push would give too many bytes of values, with the bytes after the push.

    Only rows that get a value of at least `LARGE_BYTES` are measured, so that most pushes cost nothing. Smaller values
    can make a row larger than `max_bytes` by `LARGE_BYTES` for each of its columns. A row that is too large already
    keeps its values, and may become smaller.

    Args:
        stored: the rows before the push; rows that do not exist yet are absent.
        rows: the push's deltas, by row.
        max_bytes: the most bytes of a row's values.
    """
    if rows.largest < LARGE_BYTES:
        return {}
    large = {}
    for key, changes in rows.deltas.items():
        new: dict[str, int] = {}
        for cell in (each for delta in changes for each in delta.columns):
            new[cell.column] = max(len(cell.value), new.get(cell.column, 0))  # which value wins is not known yet
        if max(new.values(), default=0) < LARGE_BYTES:
            continue
        before = (
            {name: len(value) for name, value in stored[key].fold().state.values().items()} if key in stored else {}
        )
        size = sum((before | new).values())
        if size > max(max_bytes, sum(before.values())):
            large[key] = size
    return large

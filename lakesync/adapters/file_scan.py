"""Queries over deltas in immutable files whose minimum and maximum timestamps are known, and a cache of such files.

A *delta* is a change of a row. Its *arrival* is the gateway's timestamp of the push that contained it, its *hlc* the
client's timestamp of the write. A query returns deltas page by page, in order of arrival or of hlc. A *position* is a
place in that order, where a page ends. Files are read in ascending order of their minimum, until a full page lies below
the minimum of every remaining file. So only files that overlap the page are read.

`FileAdapter` is the base class of `ObjectDeltas` (files in an object store) and `IcebergDeltas` (data files of the
lake). Other adapters use the functions that sort deltas.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from msgspec.structs import astuple

from lakesync.adapters.arrow import arrow_schema, from_arrow
from lakesync.adapters.arrow_access import ArrowAdapterBase
from lakesync.adapters.deltas import ArrowPage, DeltaQuery, Order, states_of
from lakesync.model.merge import RowState
from lakesync.model.types import Position

if TYPE_CHECKING:
    import pyarrow as pa

_SORT_COLUMNS = {
    "arrival": ("arrival", "hlc", "client_id", "delta_id", "gateway"),
    "hlc": ("hlc", "client_id", "delta_id", "gateway"),
}
"""The query's order → the columns by which deltas are ordered, most significant first: the fields of a `Position`."""

MAX_PAGE_BYTES = 512 << 20
"""A page has fewer deltas than the query's limit if they are larger. Arrow cannot sort texts of two gigabytes."""
_INTEGER_COLUMNS = ("arrival", "hlc")
"""Those of the `_SORT_COLUMNS` that are integers; the others are texts."""

P = TypeVar("P")
"""What identifies a file to its reader: a parsed object key, or a scan task of pyiceberg."""


class Segment(NamedTuple, Generic[P]):
    """A file of deltas and the range of its arrivals or hlcs, depending on the query's order."""

    source: P
    """The file; passed to the adapter's method that reads it."""
    low: int
    """Its lowest arrival or hlc, or a smaller one."""
    high: int
    """Its highest arrival or hlc, or a greater one."""
    deltas: int
    """Number of its deltas, approximately."""

    def overlaps(self, query: DeltaQuery) -> bool:
        """Return whether the file may contain deltas that match the query."""
        after = query.after.value if query.after is not None else query.since
        return self.high >= max(after, query.since) and (query.until is None or self.low <= query.until)


class FileAdapter(ArrowAdapterBase, Generic[P]):
    """A `DatabaseAdapter` whose deltas are in files: implements the methods that read them."""

    def query_arrow(self, query: DeltaQuery) -> ArrowPage:
        """Return a page, reading only files that may contain matching deltas."""
        return read_page(self._segments(query), self._read, query)

    def split_points(self, query: DeltaQuery, size: int) -> list[int]:
        """Return the values that divide a query into ranges, see `Splittable`, from the files' ranges and counts."""
        return split_points(self._segments(query), query, size)

    def get_latest_state(self, gateway: str | None, table: str, row_ids: Collection[str]) -> dict[str, RowState]:
        """Return row id → the row's merged state; rows without deltas are absent.

        Args:
            gateway: the gateway id; None merges the deltas of all gateways.
            table: the rows' table.
            row_ids: the rows to read.
        """
        if not row_ids:
            return {}
        query = DeltaQuery(gateway=gateway, tables=(table,), rows=tuple(row_ids))
        batches = (select_matching(self._read(segment.source), query) for segment in self._segments(query))
        return states_of(stored.delta for batch in batches for stored in from_arrow(batch))

    def newest_position(self, gateway: str | None = None) -> Position | None:
        """Return the last delta's position in arrival order; None without deltas. Only files that may have it are read.

        Args:
            gateway: the gateway id; None for all gateways.
        """
        query = DeltaQuery(gateway=gateway)
        newest: Position | None = None
        for segment in sorted(self._segments(query), key=lambda segment: segment.high, reverse=True):
            # `high` is only an upper bound: a file may have no statistics, or its last deltas may be deleted
            if newest is not None and segment.high < newest.value:
                break
            if len(batch := select_matching(self._read(segment.source), query)):
                last = last_position(sort_unique(batch, "arrival"), "arrival")
                newest = last if newest is None else max(newest, last)
        return newest

    @abstractmethod
    def _segments(self, query: DeltaQuery) -> Iterable[Segment[P]]:
        """Return the files that may contain deltas that match a query, with ranges in the query's order."""

    @abstractmethod
    def _read(self, file: P) -> pa.Table:
        """Return the deltas of a file."""


def read_page(segments: Iterable[Segment[P]], read: Callable[[P], pa.Table], query: DeltaQuery) -> ArrowPage:
    """Read one page of a query.

    Args:
        segments: the files that overlap the query, with ranges in the query's order.
        read: reads the deltas of one file.
        query: the query.
    """
    import pyarrow as pa

    # A page needs one delta more than `query.limit`, which shows whether another page follows. Files are read until the
    # deltas found so far contain so many, and the unread files only have greater ones. Large deltas lower the limit.
    ascending = sorted(segments, key=lambda segment: segment.low)
    merged = arrow_schema().empty_table()
    found: list[pa.Table] = []
    count = size = 0
    limit = query.limit
    for index, segment in enumerate(ascending):
        deltas = select_matching(read(segment.source), query)
        found.append(deltas)
        count += len(deltas)
        size += deltas.nbytes
        if size > MAX_PAGE_BYTES:
            limit = max(1, min(limit, count * MAX_PAGE_BYTES // size))
        if count > limit or index + 1 == len(ascending):
            merged = sort_unique(pa.concat_tables([merged, *found]), query.order).slice(0, limit + 1)
            found, count, size = [], len(merged), merged.nbytes
            unread = ascending[index + 1 :]
            if unread and count > limit and merged.column(query.order)[limit].as_py() < unread[0].low:
                break
    page = merged.slice(0, limit)
    return ArrowPage(page, last_position(page, query.order) if len(merged) > limit else None)


def split_points(segments: Iterable[Segment[P]], query: DeltaQuery, size: int) -> list[int]:
    """Return the values that divide a query's result into ranges of about `size` deltas, in ascending order.

    Each is the last value of a range; the last range has no such value, and ends with the query (`base.Splittable`).

    Args:
        segments: the files that overlap the query. Deltas are assumed to be evenly distributed within a file.
        query: the query to divide.
        size: deltas per range.
    """
    # Divide each file into parts of at most about `size` deltas: first value, and estimated number of deltas.
    parts: list[tuple[int, float]] = []
    for segment in segments:
        low = max(segment.low, query.since + 1)
        high = segment.high if query.until is None else min(segment.high, query.until)
        selected = segment.deltas * (high - low + 1) / (segment.high - segment.low + 1)
        part_count = max(1, round(selected / size))
        parts += ((low + (high - low) * number // part_count, selected / part_count) for number in range(part_count))
    # Join parts, in the order of their first values, as long as a range does not exceed `size`.
    points = list[int]()
    deltas_in_range = 0.0
    for low, deltas in sorted(parts):
        range_start = points[-1] if points else query.since
        if deltas_in_range and deltas_in_range + deltas > size and low - 1 > range_start:
            points.append(low - 1)
            deltas_in_range = 0
        deltas_in_range += deltas
    return points


def select_matching(deltas: pa.Table, query: DeltaQuery) -> pa.Table:
    """Return the deltas of an Arrow table that match a query, regardless of its limit."""
    import pyarrow as pa
    import pyarrow.compute as pc

    value = deltas.column(query.order)
    masks = [pc.greater(value, query.since)] if query.since >= 0 else []
    if query.until is not None:
        masks.append(pc.less_equal(value, query.until))
    if query.gateway is not None:
        masks.append(pc.equal(deltas.column("gateway"), query.gateway))
    for name, selected in (("table_name", query.tables), ("row_id", query.rows)):
        if selected:
            masks.append(pc.is_in(deltas.column(name), pa.array(selected, pa.string())))
    if query.after is not None:
        masks.append(_is_after(deltas, query.order, query.after))
    for mask in masks[1:]:
        masks[0] = pc.and_(masks[0], mask)
    return deltas.filter(masks[0]) if masks else deltas


def up_to(deltas: pa.Table, order: Order, end: Position) -> pa.Table:
    """Return the deltas up to a position.

    Args:
        deltas: a table of deltas.
        order: the order of positions.
        end: the position.
    """
    import pyarrow.compute as pc

    return deltas.filter(pc.invert(_is_after(deltas, order, end)))


def sort_unique(deltas: pa.Table, order: Order) -> pa.Table:
    """Sort deltas by position and keep one of each position. In hlc order that is the one that arrived first.

    Args:
        deltas: a table with at least the columns of a `Position`.
        order: the order of positions.
    """
    import pyarrow.compute as pc

    names = _SORT_COLUMNS[order]
    if len(deltas) < 2:
        return deltas
    # Files are usually sorted. If the integers ascend, so do the positions, and no two of them are equal.
    if not _is_ascending(deltas, [name for name in names if name in _INTEGER_COLUMNS]):
        deltas = deltas.take(
            pc.sort_indices(deltas, sort_keys=[(name, "ascending") for name in dict.fromkeys((*names, "arrival"))])
        )
        same = pc.equal(deltas.column(names[0]).slice(1), deltas.column(names[0]).slice(0, len(deltas) - 1))
        for name in names[1:]:
            if not pc.any(same).as_py():
                return deltas
            column = deltas.column(name)
            same = pc.and_(same, pc.equal(column.slice(1), column.slice(0, len(deltas) - 1)))
        if pc.any(same).as_py():
            return deltas.filter([True, *pc.invert(same).to_pylist()])
    return deltas


def last_position(deltas: pa.Table, order: Order) -> Position:
    """Return the position just after the last of some deltas. The table must not be empty.

    Args:
        deltas: a table with at least the columns of a `Position`.
        order: the order of positions.
    """
    last: dict[str, Any] = {name: deltas.column(name)[-1].as_py() for name in _SORT_COLUMNS["arrival"]}
    return Position(last[order], last["hlc"], last["client_id"], last["delta_id"], last["gateway"])


MAX_CACHED_DELTAS = 100_000
"""Default limit of a `FileCache`."""


class FileCache:
    """Caches the deltas of recently read files up to a number of deltas. Safe to use from several threads.

    Keys must identify immutable content. A single file may exceed the limit.
    """

    def __init__(self, max_deltas: int = MAX_CACHED_DELTAS) -> None:
        """Create an empty cache.

        Args:
            max_deltas: number of deltas to cache at most.
        """
        self._max_deltas = max_deltas
        self._entries: OrderedDict[str, pa.Table] = OrderedDict()
        self._deltas = 0
        self._lock = threading.Lock()

    def get(self, key: str, read: Callable[[], pa.Table]) -> pa.Table:
        """Return the deltas of a file, calling `read` if they are not cached.

        Args:
            key: identifies the file and its content.
            read: reads the file.
        """
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
        found = read()
        with self._lock:
            if key not in self._entries:
                self._entries[key] = found
                self._deltas += len(found)
            while self._deltas > self._max_deltas and len(self._entries) > 1:
                _, dropped = self._entries.popitem(last=False)
                self._deltas -= len(dropped)
        return found


def _is_ascending(deltas: pa.Table, numbers: Sequence[str]) -> bool:
    """Return whether each delta is greater than the one before, comparing integer columns, most significant first."""
    import pyarrow.compute as pc

    columns = [deltas.column(name) for name in numbers]
    return bool(pc.all(_is_greater([(each.slice(1), each.slice(0, len(deltas) - 1)) for each in columns])).as_py())


def _is_after(deltas: pa.Table, order: Order, after: Position) -> Any:
    """Return a mask of the deltas after a position, comparing columns, most significant first."""
    bounds = dict(zip(_SORT_COLUMNS["arrival"], astuple(after), strict=True))  # in hlc order, the first one is not used
    return _is_greater([(deltas.column(name), bounds[name]) for name in _SORT_COLUMNS[order]])


def _is_greater(pairs: Sequence[tuple[Any, Any]]) -> Any:
    """Return a mask: whether left is greater than right, comparing `(left, right)` pairs, most significant first."""
    import pyarrow.compute as pc

    mask: Any = None
    for left, right in reversed(pairs):
        greater = pc.greater(left, right)
        mask = greater if mask is None else pc.or_(greater, pc.and_(pc.equal(left, right), mask))
    return mask

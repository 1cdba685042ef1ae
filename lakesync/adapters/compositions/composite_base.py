"""`CompositeBase`: the reads that all compositions of adapters (routes, fan-out, tiers) share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from lakesync.adapters.arrow import columns_as_text, from_arrow
from lakesync.adapters.arrow_access import delete_arrow, max_writers, read_arrow, read_pages, split_points
from lakesync.adapters.base import DatabaseAdapter, Splittable
from lakesync.adapters.batch_scan import last_position, sort_unique
from lakesync.adapters.deltas import ArrowPage, DeltaPage, DeltaQuery
from lakesync.adapters.row_content import states_of
from lakesync.model.merge import RowState
from lakesync.model.types import Position

if TYPE_CHECKING:
    import pyarrow as pa

_ROW_IDS_PER_QUERY = 500


class CompositeBase:
    """Reads several adapters as one. Queries them one after another, in the order of `adapters`."""

    def __init__(self, adapters: Sequence[DatabaseAdapter]) -> None:
        """Store the adapters.

        Args:
            adapters: each adapter once. Tiers put the hot one first, because deltas move from there to the next.
        """
        self.adapters = tuple(adapters)

    def query_deltas_since(self, query: DeltaQuery) -> DeltaPage:
        """Return a page of the adapters' deltas. A delta that several adapters store is returned once."""
        page = self.query_arrow(query)
        return DeltaPage(tuple(from_arrow(page.deltas)), page.end)

    def query_arrow(self, query: DeltaQuery) -> ArrowPage:
        """Like `query_deltas_since`, as an Arrow table."""
        return merge_pages(self._adapters_for(query), query)

    def get_latest_state(self, gateway: str | None, table: str, row_ids: Collection[str]) -> dict[str, RowState]:
        """Return each row's merged state over all adapters."""
        ids = list(row_ids)
        states: dict[str, RowState] = {}
        for start in range(0, len(ids), _ROW_IDS_PER_QUERY):
            rows = tuple(ids[start : start + _ROW_IDS_PER_QUERY])
            query = DeltaQuery(gateway=gateway, tables=(table,), rows=rows)
            states |= states_of(
                stored.delta for page in read_pages(self.query_arrow, query) for stored in from_arrow(page.deltas)
            )
        return states

    def newest_position(self) -> Position | None:
        """Return the greatest of the adapters' newest positions; None if all adapters are empty."""
        newest = (each.newest_position() for each in self.adapters)
        return max((position for position in newest if position is not None), default=None)

    def split_points(self, query: DeltaQuery, size: int) -> list[int]:
        """Return the values that divide a query's deltas into ranges, see `Splittable`: those of every adapter.

        So a range has up to `size` deltas of each adapter. Empty if an adapter does not support splitting.
        """
        queried = self._adapters_for(query)
        if not all(isinstance(each, Splittable) for each in queried):
            return []
        return sorted({point for each in queried for point in split_points(each, query, size)})

    @property
    def max_writers(self) -> int:
        """Up to how many processes writing in parallel is faster: the smallest number that an adapter declares."""
        return min(map(max_writers, self.adapters))

    def delete_deltas(self, deltas: pa.Table) -> int:
        """Delete deltas in every adapter. A delta that two adapters stored counts twice."""
        return sum(delete_arrow(each, deltas) for each in self.adapters)

    def close(self) -> None:
        """Close all adapters, also if one of them fails; its error is raised at the end."""
        with ExitStack() as closing:
            for each in reversed(self.adapters):
                closing.callback(each.close)

    def _adapters_for(self, query: DeltaQuery) -> Sequence[DatabaseAdapter]:  # noqa: ARG002 used by subclasses
        """Return the adapters that may have deltas for a query: all of them, unless a subclass knows better."""
        return self.adapters


def merge_pages(adapters: Sequence[DatabaseAdapter], query: DeltaQuery) -> ArrowPage:
    """Return the first `query.limit` deltas of several adapters, in the query's order and each position once.

    Requires that an adapter's page has each position once, and `query.limit` deltas unless it is the last page. Then
    none of the first `query.limit` positions of all adapters is missing from its adapter's page.

    Args:
        adapters: at least one. They are read in this order.
        query: the query; its limit also applies to the merged page.
    """
    import pyarrow as pa

    pages = [read_arrow(each, query) for each in adapters]
    if len(pages) == 1:
        return pages[0]
    merged = sort_unique(pa.concat_tables([columns_as_text(page.deltas) for page in pages]), query.order)
    has_more = any(page.end is not None for page in pages) or len(merged) > query.limit
    deltas = merged.slice(0, query.limit)
    return ArrowPage(deltas, last_position(deltas, query.order) if has_more else None)

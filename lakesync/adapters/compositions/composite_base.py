"""`CompositeBase`: the read side that all compositions of adapters share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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

_ROWS_AT_ONCE = 500


class CompositeBase:
    """Reads several adapters as one, in their order."""

    def __init__(self, adapters: Sequence[DatabaseAdapter]) -> None:
        """Store the adapters.

        Args:
            adapters: each adapter once.
        """
        self.adapters = tuple(adapters)

    def query_deltas_since(self, query: DeltaQuery) -> DeltaPage:
        """Return a page over all adapters, each delta once."""
        page = self.query_arrow(query)
        return DeltaPage(tuple(from_arrow(page.deltas)), page.end)

    def query_arrow(self, query: DeltaQuery) -> ArrowPage:
        """Return a page over all adapters, each delta once."""
        return merge_pages(self._adapters_for(query), query)

    def get_latest_state(self, gateway: str | None, table: str, row_ids: Collection[str]) -> dict[str, RowState]:
        """Return each row's merged state over all adapters."""
        wanted = list(row_ids)
        states: dict[str, RowState] = {}
        for start in range(0, len(wanted), _ROWS_AT_ONCE):
            rows = tuple(wanted[start : start + _ROWS_AT_ONCE])
            query = DeltaQuery(gateway=gateway, tables=(table,), rows=rows)
            states |= states_of(
                stored.delta for page in read_pages(self.query_arrow, query) for stored in from_arrow(page.deltas)
            )
        return states

    def newest_position(self) -> Position | None:
        """Return the greatest of the adapters' positions."""
        return max((place for each in self.adapters if (place := each.newest_position()) is not None), default=None)

    def split_points(self, query: DeltaQuery, size: int) -> list[int]:
        """Return the split points of all adapters; empty if one of them does not support splitting."""
        asked = self._adapters_for(query)
        if not all(isinstance(each, Splittable) for each in asked):
            return []
        return sorted({point for each in asked for point in split_points(each, query, size)})

    @property
    def max_writers(self) -> int:
        """The minimum over all adapters."""
        return min(map(max_writers, self.adapters))

    def delete_deltas(self, deltas: pa.Table) -> int:
        """Delete deltas in every adapter."""
        return sum(delete_arrow(each, deltas) for each in self.adapters)

    def close(self) -> None:
        """Close all adapters."""
        for each in self.adapters:
            each.close()

    def _adapters_for(self, query: DeltaQuery) -> Sequence[DatabaseAdapter]:  # noqa: ARG002 used by subclasses
        """Return the adapters that may have deltas for a query. Subclasses narrow it."""
        return self.adapters


def merge_pages(adapters: Sequence[DatabaseAdapter], query: DeltaQuery) -> ArrowPage:
    """Merge one page of each adapter, up to the point that all of the pages cover."""
    import pyarrow as pa

    pages = [read_arrow(each, query) for each in adapters]
    if len(pages) == 1:
        return pages[0]
    found = sort_unique(pa.concat_tables([columns_as_text(page.deltas) for page in pages]), query.order)
    more = any(page.end is not None for page in pages) or len(found) > query.limit
    # a page that is not the last one is full, so the first `limit` deltas are covered by every page
    page = found.slice(0, query.limit)
    return ArrowPage(page, last_position(page, query.order) if more else None)

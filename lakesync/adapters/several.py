"""What compositions share: reading several adapters as if they were one, and writing to any as a table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lakesync.adapters.arrow import from_arrow, spelled, to_arrow
from lakesync.adapters.base import (
    ArrowAdapter,
    ArrowPage,
    ConcurrentWriters,
    DatabaseAdapter,
    DeltaBatch,
    DeltaPage,
    DeltaQuery,
    Divisible,
    Held,
    Position,
    Prunable,
)
from lakesync.adapters.contents import RowContent, RowId
from lakesync.adapters.pieces import in_order, last_position
from lakesync.adapters.selection import contents_of, merged
from lakesync.model.errors import ConfigurationError
from lakesync.model.merge import RowState

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_AT_ONCE = 500


class Several:
    """The reading half of a composition. The adapters are asked one after another, in their order."""

    def __init__(self, adapters: Sequence[DatabaseAdapter]) -> None:
        """Args: adapters: each once."""
        self.adapters = tuple(adapters)

    def query_deltas_since(self, query: DeltaQuery) -> DeltaPage:
        """A page of what all of them hold, each delta once."""
        page = self.query_arrow(query)
        return DeltaPage(tuple(from_arrow(page.deltas)), page.end)

    def query_arrow(self, query: DeltaQuery) -> ArrowPage:
        """A page of what all of them hold, each delta once."""
        return page_of_several(self._asked(query), query)

    def get_latest_state(self, gateway: str | None, table: str, row_ids: Collection[str]) -> dict[str, RowState]:
        """The merge of what all of them hold of each row."""
        wanted = list(row_ids)
        states: dict[str, RowState] = {}
        for start in range(0, len(wanted), _ROWS_AT_ONCE):
            rows = tuple(wanted[start : start + _ROWS_AT_ONCE])
            query = DeltaQuery(gateway=gateway, tables=(table,), rows=rows)
            states |= merged(
                stored.delta for page in walk(self.query_arrow, query) for stored in from_arrow(page.deltas)
            )
        return states

    def newest_position(self) -> Position | None:
        """The last of theirs."""
        return max((place for each in self.adapters if (place := each.newest_position()) is not None), default=None)

    def split_points(self, query: DeltaQuery, size: int) -> list[int]:
        """The values at which one of them would divide the query."""
        asked = self._asked(query)
        if not all(isinstance(each, Divisible) for each in asked):
            return []
        return sorted({point for each in asked for point in split_points(each, query, size)})

    @property
    def max_writers(self) -> int:
        """As many as the narrowest of them takes."""
        return min(map(max_writers, self.adapters))

    def delete_deltas(self, deltas: pa.Table) -> int:
        """Remove deltas wherever they are."""
        return sum(delete_arrow(each, deltas) for each in self.adapters)

    def close(self) -> None:
        """Close them all."""
        for each in self.adapters:
            each.close()

    def _asked(self, query: DeltaQuery) -> Sequence[DatabaseAdapter]:  # noqa: ARG002 a subclass may know better
        """Those that may hold what a query asks for."""
        return self.adapters


def page_of_several(adapters: Sequence[DatabaseAdapter], query: DeltaQuery) -> ArrowPage:
    """A page of what several adapters hold: as far as the one whose page ends first."""
    import pyarrow as pa

    pages = [read_arrow(each, query) for each in adapters]
    if len(pages) == 1:
        return pages[0]
    found = in_order(pa.concat_tables([spelled(page.deltas) for page in pages]), query.order)
    more = any(page.end is not None for page in pages) or len(found) > query.limit
    # a page that goes on has as many as the limit, so no more than the first so many can lie within all of them
    page = found.slice(0, query.limit)
    return ArrowPage(page, last_position(page, query.order) if more else None)


def read_arrow(adapter: DatabaseAdapter, query: DeltaQuery) -> ArrowPage:
    """`query_arrow` of any adapter."""
    if isinstance(adapter, ArrowAdapter):
        return adapter.query_arrow(query)
    page = adapter.query_deltas_since(query)
    return ArrowPage(to_arrow(page.deltas), page.end)


def read_contents(adapter: DatabaseAdapter, table: str, rows: Sequence[RowId]) -> dict[RowId, RowContent]:
    """The merge of all deltas that an adapter holds of each row of a table; a row without any is absent."""
    by_gateway: dict[str, list[str]] = {}
    for gateway, row_id in rows:
        by_gateway.setdefault(gateway, []).append(row_id)
    found: dict[RowId, RowContent] = {}
    for gateway, row_ids in by_gateway.items():
        for start in range(0, len(row_ids), _ROWS_AT_ONCE):
            query = DeltaQuery(gateway=gateway, tables=(table,), rows=tuple(row_ids[start : start + _ROWS_AT_ONCE]))
            pages = walk(partial(read_arrow, adapter), query)
            found |= contents_of(stored for page in pages for stored in from_arrow(page.deltas))
    return found


def write_arrow(adapter: DatabaseAdapter, batch_id: str, gateway: str, deltas: pa.Table) -> Held:
    """`insert_arrow` of any adapter."""
    if isinstance(adapter, ArrowAdapter):
        return adapter.insert_arrow(batch_id, gateway, deltas)
    return adapter.insert_deltas(DeltaBatch(batch_id, gateway, tuple(from_arrow(deltas))))


def delete_arrow(adapter: DatabaseAdapter, deltas: pa.Table) -> int:
    """`delete_deltas` of an adapter that can.

    Raises:
        ConfigurationError: it cannot.
    """
    if not isinstance(adapter, Prunable):
        raise ConfigurationError(f"{type(adapter).__name__} cannot let go of deltas: use a database as the hot tier")
    return adapter.delete_deltas(deltas)


def split_points(adapter: DatabaseAdapter, query: DeltaQuery, size: int) -> list[int]:
    """`split_points` of an adapter that can divide a query; of another one, nothing: one range holds everything."""
    return adapter.split_points(query, size) if isinstance(adapter, Divisible) else []


def max_writers(adapter: DatabaseAdapter) -> int:
    """`max_writers` of an adapter that says it; of another one, 1."""
    return adapter.max_writers if isinstance(adapter, ConcurrentWriters) else 1


def walk(read: Callable[[DeltaQuery], ArrowPage], query: DeltaQuery) -> Iterator[ArrowPage]:
    """Every page of a query, from `query.after` on."""
    while True:
        page = read(query)
        yield page
        if page.end is None:
            return
        query = replace(query, after=page.end)

"""Adapters that store deltas in several others: `CompositeAdapter` by table, `LifecycleAdapter` by age.

A *delta* is a change of a row; its *hlc* is the client's timestamp, its *arrival* the gateway's. A `Position` names one
delta in the order of a query, by hlc or by arrival. Deltas are written in *batches*, and queries return them in
*pages*. `CompositeAdapter` stores each table in the adapter that a route names, for example events in S3 and orders in
Postgres. `LifecycleAdapter` has a *hot tier* for recent deltas and a *cold tier* for old ones, such as a database and
an object store. `CompositeBase` has what all compositions share; the third composition is in `fan_out.py`.

`backend_config` creates them for `[routes]` and `[tiers]` of `lakesync.toml`, and programs with an embedded gateway
create them themselves. To move old deltas, the pipeline calls `LifecycleAdapter.move_range`, and such programs call
`migrate_to_tier`. A *destination table* has the current rows of a synced table, beside its deltas; to materialise rows
is to write them there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lakesync.adapters.arrow import columns_as_text, from_arrow
from lakesync.adapters.arrow_access import (
    ArrowAdapterBase,
    as_prunable,
    copy_page,
    fence_writes,
    max_writers,
    read_arrow,
    read_contents,
    read_pages,
    split_points,
    write_arrow,
)
from lakesync.adapters.base import ContentTransform, DatabaseAdapter, Materialisable, Splittable, StateWriter
from lakesync.adapters.deltas import (
    PAGE_DELTAS,
    ArrowPage,
    BatchChecksum,
    DeltaQuery,
    RowContent,
    RowId,
    queries_of_rows,
    states_of,
)
from lakesync.adapters.file_scan import last_position, sort_unique, up_to
from lakesync.model import hlc
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import ConfigurationError
from lakesync.model.merge import RowState
from lakesync.model.schema import TableSchema
from lakesync.model.types import Position

if TYPE_CHECKING:
    import pyarrow as pa

_GREATEST_HLC = hlc.encode(hlc.MAX_WALL_MS, hlc.MAX_COUNTER)
"""In `TierReport.until`, if `move_range` had no bound."""


class CompositeBase(ArrowAdapterBase):
    """Reads several adapters as one, one after another in their order, and deletes deltas in all of them."""

    def __init__(self, adapters: Sequence[DatabaseAdapter]) -> None:
        """Store the adapters.

        Args:
            adapters: each adapter once. Tiers put the hot one first: a delta that moves to the cold tier meanwhile is
                then read twice, not missed.
        """
        self.adapters = tuple(adapters)

    def query_arrow(self, query: DeltaQuery) -> ArrowPage:
        """Return a page of the adapters' deltas. A delta that several adapters store is returned once."""
        return _merge_pages(self._adapters_for(query), query)

    def get_latest_state(self, gateway: str | None, table: str, row_ids: Collection[str]) -> dict[str, RowState]:
        """Return row id → the merged state over all adapters; rows without deltas are absent."""
        states: dict[str, RowState] = {}
        for query in queries_of_rows(table, ((gateway, row_id) for row_id in row_ids)):
            states |= states_of(stored.delta for page in read_pages(self, query) for stored in from_arrow(page.deltas))
        return states

    def newest_position(self, gateway: str | None = None) -> Position | None:
        """Return the greatest of the adapters' newest positions; None if no adapter has one."""
        newest = (each.newest_position(gateway) for each in self.adapters)
        return max((position for position in newest if position is not None), default=None)

    def split_points(self, query: DeltaQuery, size: int) -> list[int]:
        """Return hlcs or arrivals, by the query's order, that divide its deltas into ranges; see `Splittable`.

        They are the points of all adapters together. So each adapter has about `size` deltas or fewer in a range, and
        all adapters together may have more. Empty if one of the adapters is not `Splittable`.

        Args:
            query: the query to divide.
            size: the most deltas of one adapter in a range, approximately.
        """
        queried = self._adapters_for(query)
        if not all(isinstance(each, Splittable) for each in queried):
            return []
        return sorted({point for each in queried for point in split_points(each, query, size)})

    @property
    def max_writers(self) -> int:
        """The number of processes up to which parallel writing is faster: the smallest that an adapter declares."""
        return min(map(max_writers, self.adapters))

    def delete_deltas(self, deltas: pa.Table) -> int:
        """Delete deltas in every adapter, and return their number. A delta that two adapters store counts twice."""
        return sum(as_prunable(each).delete_deltas(deltas) for each in self.adapters)

    def fence_writes(self, name: str) -> None:
        """Make later writes fail in every adapter that supports it, once an erasure has begun there.

        Args:
            name: the name of the task that writes; see `FencesWrites`.
        """
        for each in self.adapters:
            fence_writes(each, name)

    def close(self) -> None:
        """Close all adapters, also if one of them fails; its error is raised at the end."""
        with ExitStack() as closing:
            for each in reversed(self.adapters):
                closing.callback(each.close)

    def _adapters_for(self, query: DeltaQuery) -> Sequence[DatabaseAdapter]:  # noqa: ARG002 used by subclasses
        """Return the adapters that may store deltas of a query: all of them, unless a subclass excludes some."""
        return self.adapters


class Route(NamedTuple):
    """Tables that are stored in one adapter."""

    tables: frozenset[str]
    adapter: DatabaseAdapter


class CompositeAdapter(CompositeBase):
    """`DatabaseAdapter` and `StateWriter` that stores each table in its route's adapter, others in the default adapter.

    A batch for several adapters is split into one batch per adapter. Each is atomic and repeatable, so a retry
    completes what a crash interrupted. Rows of a table whose adapter has no destination tables are not materialised.
    """

    def __init__(self, routes: Sequence[Route], default: DatabaseAdapter) -> None:
        """Check and store the routes.

        Args:
            routes: each table in at most one route.
            default: stores all other tables.

        Raises:
            ConfigurationError: a table has two routes.
        """
        self._routes: dict[str, DatabaseAdapter] = {}
        for route in routes:
            if twice := self._routes.keys() & route.tables:
                raise ConfigurationError(f"table {min(twice)!r} has two routes: keep one of them")
            self._routes |= dict.fromkeys(route.tables, route.adapter)
        self._default = default
        each_once = {id(adapter): adapter for adapter in (default, *self._routes.values())}
        super().__init__(list(each_once.values()))

    def insert_arrow(self, batch_id: str, gateway: str, deltas: pa.Table) -> BatchChecksum:
        """Split a batch by adapter, and insert each part under the batch's id, a dot and the adapter's index.

        If the routes change before a batch is repeated, parts get other ids. Databases recognise each delta by its own
        id; an object store may store it twice.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        by_adapter: dict[int, list[str]] = {}
        for table in pc.unique(deltas.column("table_name")).to_pylist():
            by_adapter.setdefault(self.adapters.index(self._adapter_of(table)), []).append(table)
        total = BatchChecksum()
        for index, tables in sorted(by_adapter.items()):
            part = deltas.filter(pc.is_in(deltas.column("table_name"), pa.array(tables, pa.string())))
            total = total.plus(write_arrow(self.adapters[index], f"{batch_id}.{index}", gateway, part))
        return total

    def get_latest_state(self, gateway: str | None, table: str, row_ids: Collection[str]) -> dict[str, RowState]:
        """Return row id → the merged state in the table's adapter; rows without deltas are absent."""
        return self._adapter_of(table).get_latest_state(gateway, table, row_ids)

    def ensure_schema(self, schema: TableSchema) -> None:
        """Create the destination table in the table's adapter; nothing if that adapter has no destination tables."""
        adapter = self._adapter_of(schema.table)
        if isinstance(adapter, Materialisable):
            adapter.ensure_schema(schema)

    def materialise(self, gateway: str, schema: TableSchema, row_ids: Sequence[str]) -> int:
        """Rewrite rows in the table's adapter, and return their number; 0 if it has no destination tables."""
        adapter = self._adapter_of(schema.table)
        return adapter.materialise(gateway, schema, row_ids) if isinstance(adapter, Materialisable) else 0

    def write_states(self, schema: TableSchema, read: Callable[[], Mapping[RowId, RowContent]]) -> int:
        """Write rows in the table's adapter, and return their number; 0 if it cannot write merged rows.

        Args:
            schema: the table's schema.
            read: returns row → merged content. The adapter calls it once, after it has locked the table.
        """
        adapter = self._adapter_of(schema.table)
        return adapter.write_states(schema, read) if isinstance(adapter, StateWriter) else 0

    def _adapter_of(self, table: str) -> DatabaseAdapter:
        """Return the adapter that stores a table."""
        return self._routes.get(table, self._default)

    def _adapters_for(self, query: DeltaQuery) -> Sequence[DatabaseAdapter]:
        """Return the adapters that may store deltas of a query."""
        if not query.tables:
            return self.adapters
        adapter_ids = {id(self._adapter_of(table)) for table in query.tables}
        return [each for each in self.adapters if id(each) in adapter_ids]


class TierReport(msgspec.Struct, frozen=True):
    """What `LifecycleAdapter` has moved to the cold tier."""

    deltas: int
    """Number of deltas."""
    id_sum: int
    """Sum of the ids of these deltas, as in `BatchChecksum`."""
    pages: int
    """Number of pages; each was copied, verified and deleted on its own."""
    until: int
    """The hlc up to which deltas were moved, inclusive."""


class LifecycleAdapter(CompositeBase):
    """`DatabaseAdapter` and `StateWriter` that writes a hot tier and reads both tiers.

    `migrate_to_tier` moves a page of deltas in three steps: copy it, read it back, delete it from the hot tier. Readers
    query the hot tier first: a delta that was deleted there is already in the cold tier. So reads are complete while
    deltas move. Destination tables are in the hot tier, if it is a `StateWriter`: they are written from the deltas of
    both tiers.
    """

    def __init__(
        self,
        hot: DatabaseAdapter,
        cold: DatabaseAdapter,
        max_age_ms: int,
        wall: Callable[[], int] = hlc.wall_clock,
    ) -> None:
        """Store the tiers.

        Args:
            hot: receives all writes. To move deltas it must be `Prunable`: support deleting them.
            cold: receives what `migrate_to_tier` moves.
            max_age_ms: age by hlc above which `migrate_to_tier` moves a delta.
            wall: the clock, in milliseconds since 1970.
        """
        super().__init__((hot, cold))
        self.hot = hot
        self.cold = cold
        self._max_age_ms = max_age_ms
        self._wall = wall

    def insert_arrow(self, batch_id: str, gateway: str, deltas: pa.Table) -> BatchChecksum:
        """Insert a batch into the hot tier, however old its deltas are; the next `move_range` finds them."""
        return write_arrow(self.hot, batch_id, gateway, deltas)

    def ensure_schema(self, schema: TableSchema) -> None:
        """Create the destination table in the hot tier; nothing if that tier cannot write merged rows."""
        if isinstance(self.hot, StateWriter):
            self.hot.ensure_schema(schema)

    def materialise(self, gateway: str, schema: TableSchema, row_ids: Sequence[str]) -> int:
        """Rewrite rows in the hot tier from the deltas of both tiers, and return their number."""
        rows = [(gateway, row_id) for row_id in row_ids]
        return self.write_states(schema, lambda: read_contents(self, schema.table, rows))

    def write_states(self, schema: TableSchema, read: Callable[[], Mapping[RowId, RowContent]]) -> int:
        """Write rows in the hot tier, and return their number; 0 if that tier cannot write merged rows.

        Args:
            schema: the table's schema.
            read: returns row → merged content. The tier calls it once, after it has locked the table.
        """
        return self.hot.write_states(schema, read) if isinstance(self.hot, StateWriter) else 0

    def migrate_to_tier(self, until_ms: int | None = None) -> TierReport:
        """Move deltas from the hot tier to the cold one, page by page. Can be killed and repeated at any point.

        Args:
            until_ms: move deltas up to this time, milliseconds since 1970. The default is now minus the maximum age.

        Raises:
            AdapterError: a tier cannot be reached; completed pages stay moved.
            IntegrityError: the cold tier did not store a page as it was written; nothing of that page was deleted.
            ConfigurationError: the hot tier does not support deleting deltas.
        """
        until = hlc.encode(until_ms if until_ms is not None else self._wall() - self._max_age_ms, hlc.MAX_COUNTER)
        return self.move_range(-1, until)

    def move_range(self, since: int, until: int | None) -> TierReport:
        """Move the deltas of a range of hlcs, as `migrate_to_tier` does.

        Args:
            since: exclusive lower bound; -1 for no bound.
            until: inclusive upper bound; None for no bound.

        Raises:
            AdapterError, IntegrityError, ConfigurationError: as `migrate_to_tier`.
        """
        hot = as_prunable(self.hot)  # before a page is copied that cannot be deleted
        query = DeltaQuery(order="hlc", since=since, until=until, limit=PAGE_DELTAS)
        total, pages = BatchChecksum(), 0
        # each pass reads the first page again, because the page before it was deleted
        while len(deltas := read_arrow(self.hot, query).deltas):
            total = total.plus(copy_page(self.cold, kind="tier", deltas=deltas))  # which reads the copy back
            crash_point("tier.after_copy")  # tests kill the process here
            hot.delete_deltas(deltas)
            crash_point("tier.after_delete")
            pages += 1
        return TierReport(total.deltas, total.id_sum, pages, _GREATEST_HLC if until is None else until)


def cold_tier_contents(cold: Sequence[DatabaseAdapter]) -> ContentTransform:
    """Return the `ContentTransform` for a hot tier that the pipeline writes directly, without `LifecycleAdapter`.

    The hot tier passes it row → the merge of the deltas that the hot tier has, and writes what it returns: row → the
    merge of the deltas that all tiers have. `lakehouse.backends` uses it for destinations, and `transfer.flows` for
    copies to a hot tier.

    Args:
        cold: the cold tiers with older deltas of the same rows.
    """

    def merge_tiers(
        schema: TableSchema, rows: Sequence[RowId], contents: Mapping[RowId, RowContent]
    ) -> Mapping[RowId, RowContent]:
        merged = dict(contents)
        for adapter in cold:
            for row, content in read_contents(adapter, schema.table, rows).items():
                merged[row] = merged[row].merged_with(content) if row in merged else content
        return merged

    return merge_tiers


def _merge_pages(adapters: Sequence[DatabaseAdapter], query: DeltaQuery) -> ArrowPage:
    """Return the first deltas of several adapters, in the query's order and each delta once.

    There are `query.limit` at most, and none after the end of an adapter's page that is not its last one, because the
    adapter may have deltas before them. A page of large deltas is short.

    Args:
        adapters: at least one. They are read in this order.
        query: the query; its limit also applies to the merged page.
    """
    import pyarrow as pa

    pages = [read_arrow(each, query) for each in adapters]
    if len(pages) == 1:
        return pages[0]
    merged = sort_unique(pa.concat_tables([columns_as_text(page.deltas) for page in pages]), query.order)
    end = min((page.end for page in pages if page.end is not None), default=None)
    deltas = (merged if end is None else up_to(merged, query.order, end)).slice(0, query.limit)
    has_more = end is not None or len(merged) > query.limit
    return ArrowPage(deltas, last_position(deltas, query.order) if has_more else None)

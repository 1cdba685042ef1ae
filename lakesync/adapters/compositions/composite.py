"""`CompositeAdapter`: stores each table in the adapter that a route names, e.g. events in S3 and orders in Postgres.

`backend_config` creates it for `[routes]`; programs with an embedded gateway create it themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lakesync.adapters.arrow import to_arrow
from lakesync.adapters.arrow_access import write_arrow
from lakesync.adapters.base import DatabaseAdapter, Materialisable, StateWriter
from lakesync.adapters.compositions.composite_base import CompositeBase
from lakesync.adapters.deltas import BatchChecksum, DeltaBatch, DeltaQuery
from lakesync.adapters.row_content import RowContent, RowId
from lakesync.model.errors import ConfigurationError
from lakesync.model.merge import RowState
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa


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
        super().__init__(list({id(each): each for each in (default, *self._routes.values())}.values()))

    def insert_deltas(self, batch: DeltaBatch) -> BatchChecksum:
        """Split a batch by adapter and insert each part under the id `BATCH.INDEX`."""
        return self.insert_arrow(batch.batch_id, batch.gateway, to_arrow(batch.deltas))

    def insert_arrow(self, batch_id: str, gateway: str, deltas: pa.Table) -> BatchChecksum:
        """Like `insert_deltas`, from an Arrow table."""
        import pyarrow as pa
        import pyarrow.compute as pc

        by_adapter: dict[int, list[str]] = {}
        for table in pc.unique(deltas.column("table_name")).to_pylist():
            by_adapter.setdefault(self.adapters.index(self._adapter_of(table)), []).append(table)
        count, total = 0, 0
        for index, tables in sorted(by_adapter.items()):
            part = deltas.filter(pc.is_in(deltas.column("table_name"), pa.array(tables, pa.string())))
            stored = write_arrow(self.adapters[index], f"{batch_id}.{index}", gateway, part)
            count, total = count + stored.deltas, total + stored.id_sum
        return BatchChecksum(count, total % 2**64)

    def get_latest_state(self, gateway: str | None, table: str, row_ids: Collection[str]) -> dict[str, RowState]:
        """Return the states from the table's adapter."""
        return self._adapter_of(table).get_latest_state(gateway, table, row_ids)

    def ensure_schema(self, schema: TableSchema) -> None:
        """Create the destination table in the table's adapter; nothing if that adapter has no destination tables."""
        adapter = self._adapter_of(schema.table)
        if isinstance(adapter, Materialisable):
            adapter.ensure_schema(schema)

    def materialise(self, gateway: str, schema: TableSchema, row_ids: Sequence[str]) -> int:
        """Rewrite rows in the table's adapter; returns 0 if that adapter has no destination tables."""
        adapter = self._adapter_of(schema.table)
        return adapter.materialise(gateway, schema, row_ids) if isinstance(adapter, Materialisable) else 0

    def write_states(self, schema: TableSchema, read: Callable[[], Mapping[RowId, RowContent]]) -> int:
        """Write rows in the table's adapter; returns 0 if that adapter does not accept row states."""
        adapter = self._adapter_of(schema.table)
        return adapter.write_states(schema, read) if isinstance(adapter, StateWriter) else 0

    def _adapter_of(self, table: str) -> DatabaseAdapter:
        return self._routes.get(table, self._default)

    def _adapters_for(self, query: DeltaQuery) -> Sequence[DatabaseAdapter]:
        if not query.tables:
            return self.adapters
        adapter_ids = {id(self._adapter_of(table)) for table in query.tables}
        return [each for each in self.adapters if id(each) in adapter_ids]

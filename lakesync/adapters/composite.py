"""Several adapters as one, by table: what grows goes to the lake, what is asked for row by row to a database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lakesync.adapters.arrow import to_arrow
from lakesync.adapters.base import DatabaseAdapter, DeltaBatch, DeltaQuery, Held, Materialisable, StateWriter
from lakesync.adapters.contents import RowContent, RowId
from lakesync.adapters.several import Several, write_arrow
from lakesync.model.errors import ConfigurationError
from lakesync.model.merge import RowState
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa


class Route(NamedTuple):
    """Tables that go to one adapter."""

    tables: frozenset[str]
    adapter: DatabaseAdapter


class CompositeAdapter(Several):
    """`DatabaseAdapter` and `StateWriter`: each table at the adapter of its route, all others at the default.

    A batch of several routes is several batches, one an adapter: whole in each, and repeatable, so that a repeat
    completes what a crash cut short. Rows of a table whose adapter keeps no tables are not materialised.
    """

    def __init__(self, routes: Sequence[Route], default: DatabaseAdapter) -> None:
        """Args: routes: of tables that are named once.

        Raises:
            ConfigurationError: a table has two routes.
        """
        self._routes: dict[str, DatabaseAdapter] = {}
        for route in routes:
            if twice := self._routes.keys() & route.tables:
                raise ConfigurationError(f"table {min(twice)!r} has two routes: name it in one")
            self._routes |= dict.fromkeys(route.tables, route.adapter)
        self._default = default
        super().__init__(list({id(each): each for each in (default, *self._routes.values())}.values()))

    def insert_deltas(self, batch: DeltaBatch) -> Held:
        """Keep each table's deltas at its adapter."""
        return self.insert_arrow(batch.batch_id, batch.gateway, to_arrow(batch.deltas))

    def insert_arrow(self, batch_id: str, gateway: str, deltas: pa.Table) -> Held:
        """Keep each table's deltas at its adapter."""
        import pyarrow as pa
        import pyarrow.compute as pc

        by_adapter: dict[int, list[str]] = {}
        for table in pc.unique(deltas.column("table_name")).to_pylist():
            by_adapter.setdefault(self.adapters.index(self._of(table)), []).append(table)
        count, total = 0, 0
        for place, tables in sorted(by_adapter.items()):
            some = deltas.filter(pc.is_in(deltas.column("table_name"), pa.array(tables, pa.string())))
            held = write_arrow(self.adapters[place], f"{batch_id}.{place}", gateway, some)
            count, total = count + held.deltas, total + held.id_sum
        return Held(count, total % 2**64)

    def get_latest_state(self, gateway: str | None, table: str, row_ids: Collection[str]) -> dict[str, RowState]:
        """As the table's adapter tells it."""
        return self._of(table).get_latest_state(gateway, table, row_ids)

    def ensure_schema(self, schema: TableSchema) -> None:
        """At the table's adapter, where it keeps tables."""
        adapter = self._of(schema.table)
        if isinstance(adapter, Materialisable):
            adapter.ensure_schema(schema)

    def materialise(self, gateway: str, schema: TableSchema, row_ids: Sequence[str]) -> int:
        """At the table's adapter, where it keeps tables."""
        adapter = self._of(schema.table)
        return adapter.materialise(gateway, schema, row_ids) if isinstance(adapter, Materialisable) else 0

    def write_states(self, schema: TableSchema, read: Callable[[], Mapping[RowId, RowContent]]) -> int:
        """At the table's adapter, where it keeps tables."""
        adapter = self._of(schema.table)
        return adapter.write_states(schema, read) if isinstance(adapter, StateWriter) else 0

    def _of(self, table: str) -> DatabaseAdapter:
        return self._routes.get(table, self._default)

    def _asked(self, query: DeltaQuery) -> Sequence[DatabaseAdapter]:
        if not query.tables:
            return self.adapters
        wanted = {id(self._of(table)) for table in query.tables}
        return [each for each in self.adapters if id(each) in wanted]

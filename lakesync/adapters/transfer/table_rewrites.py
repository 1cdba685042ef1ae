"""Rewrites whole destination tables that were created, dropped, or gained a column, after their deltas arrived.

A *follower* copies deltas (changes of rows) from the lake to an adapter, its destination, which may also have a
*destination table* with the current rows of each synced table. `follow_history` calls `rewrite_outdated_tables` before
it copies new deltas. So does `run_flow`, which copies them from another adapter; its flow is the follower here. A table
that cannot be written is *suspended*: it gets no rows until a retry succeeds. `FanOutAdapter` calls `rewrite_table` for
tables of which it dropped a write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from lakesync.adapters.arrow_access import read_contents, read_pages
from lakesync.adapters.base import (
    ContentTransform,
    DatabaseAdapter,
    FindsTables,
    StateWriter,
    SuspendsTables,
    is_retry_due,
    unchanged,
)
from lakesync.adapters.deltas import DeltaQuery, RowContent, RowId, TableSelection
from lakesync.model.errors import AdapterError, SchemaError
from lakesync.model.hlc import wall_clock
from lakesync.model.schema import TableSchema

TableColumns = Mapping[str, tuple[str, ...]]
"""Synced table → columns of its destination table that every row has, and at the end the schema's `sourceTable`, if it
has one, which is the destination table's name."""
_EVERYTHING = TableSelection()


def columns_of_tables(adapter: DatabaseAdapter, schemas: Sequence[TableSchema]) -> dict[str, tuple[str, ...]]:
    """Return the `TableColumns` that rows written from now on have; empty if the adapter has no destination tables.

    Args:
        adapter: the follower's destination.
        schemas: the destination tables.
    """
    if not isinstance(adapter, StateWriter):
        return {}
    system_columns = ("gateway", "last_arrival")  # missing in tables of earlier versions
    return {
        schema.table: (*system_columns, *(each.name for each in schema.columns), *filter(None, [schema.source_table]))
        for schema in schemas
    }


def rewrite_outdated_tables(
    adapter: StateWriter,
    follower: str,
    schemas: Sequence[TableSchema],
    current: TableColumns,
    written: TableColumns | None,
    transform: ContentTransform,
    selection: TableSelection,
    cold: Sequence[DatabaseAdapter] = (),
) -> None:
    """Rewrite each table that was dropped or whose rows lack columns, and each suspended table whose retry is due.

    A table that cannot be rewritten is suspended. The suspension of a table ends if it is no longer a destination
    table, for example because its schema was retired.

    Args:
        adapter: the follower's destination.
        follower: the follower's name.
        schemas: the destination tables.
        current: the columns that rows written from now on have, see `columns_of_tables`.
        written: the columns that the stored rows have; None before the first delta, when there are no rows.
        transform: changes row contents before they are written. It adds those of the cold tiers.
        selection: the deltas that the follower selects.
        cold: the adapters to which old deltas were moved, perhaps all deltas of a row.

    Raises:
        AdapterError: the adapter cannot be reached; retry.
    """
    suspended = adapter.suspended_tables(follower) if isinstance(adapter, SuspendsTables) else []
    retry_times = {each.table: each.retry_ms for each in suspended}
    if isinstance(adapter, SuspendsTables):
        for table in retry_times.keys() - current.keys():
            adapter.resume_table(follower, table)
    now_ms = wall_clock()
    for schema in schemas:
        if schema.table in retry_times:
            is_due = is_retry_due(retry_times[schema.table], now_ms)
        elif written is None:
            is_due = False
        else:
            was_dropped = isinstance(adapter, FindsTables) and not adapter.has_table(schema)
            is_due = was_dropped or written.get(schema.table) != current[schema.table]
        if is_due:
            _rewrite_or_suspend(adapter, follower, schema, transform, selection, cold)


def rewrite_table(
    adapter: StateWriter,
    schema: TableSchema,
    transform: ContentTransform = unchanged,
    selection: TableSelection = _EVERYTHING,
    cold: Sequence[DatabaseAdapter] = (),
) -> None:
    """Write every row of a destination table again from its deltas, those in cold tiers included.

    Args:
        adapter: has the table and its deltas.
        schema: the table.
        transform: changes row contents before they are written. It adds those of the cold tiers.
        selection: selects the deltas of cold tiers whose rows are written.
        cold: the adapters to which old deltas were moved, perhaps all deltas of a row.

    Raises:
        AdapterError: an adapter cannot be reached, or rejects a write; rows before it are written.
        SchemaError: the adapter cannot create the table.
    """

    def read_rows(rows: Sequence[RowId]) -> Mapping[RowId, RowContent]:
        return transform(schema, rows, read_contents(adapter, schema.table, rows))

    query = DeltaQuery(tables=(schema.table,))
    adapter.ensure_schema(schema)
    # a cold tier may have deltas of others; the hot one is read first, because deltas move from it meanwhile
    tiers = [read_pages(adapter, query), *(read_pages(each, query) for each in cold)]
    for number, pages in enumerate(tiers):
        for page in pages:
            deltas = selection.select(page.deltas) if number else page.deltas
            ids = (deltas.column(name).to_pylist() for name in ("gateway", "row_id"))
            rows = list(dict.fromkeys(zip(*ids, strict=True)))
            if rows:
                adapter.write_states(schema, partial(read_rows, rows))


def _rewrite_or_suspend(
    adapter: StateWriter,
    follower: str,
    schema: TableSchema,
    transform: ContentTransform,
    selection: TableSelection,
    cold: Sequence[DatabaseAdapter],
) -> None:
    """Rewrite every row of a table; if that fails, suspend the table."""
    try:
        rewrite_table(adapter, schema, transform, selection, cold)
    except (AdapterError, SchemaError) as error:
        if not isinstance(adapter, SuspendsTables):
            raise
        adapter.suspend_table(follower, schema.table, str(error))
        return
    if isinstance(adapter, SuspendsTables):
        adapter.resume_table(follower, schema.table)

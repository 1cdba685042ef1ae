"""Restores days of a destination from the lake: writes missing and altered deltas again and removes surplus ones.

A *destination* is an adapter to which a *follower* copies the lake's *deltas* (changes of rows). A *gateway* is one
app's stream of deltas, an *arrival* its timestamp of a push. A database also has *destination tables*, with the current
rows; one that cannot be written is *suspended*: it gets no rows until a retry succeeds. Old deltas may have been moved
from it to another adapter, a *cold tier*.

The pipeline compares both sides by day (`adapters/digests.py`), and calls `restore` for the days that differ. These
days, with the tables and gateways that the follower copies, are the *scope*. The follower's progress stays as it is,
because the follower has copied these days before. A repeat, also after a crash, has the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lakesync.adapters.arrow import DELTA_COLUMNS, id_numbers
from lakesync.adapters.arrow_access import read_pages
from lakesync.adapters.base import ContentTransform, DatabaseAdapter, StoresBatches, unchanged
from lakesync.adapters.deltas import DeltaQuery
from lakesync.adapters.digests import DigestScope, arrival_ranges
from lakesync.adapters.transfer.follower import split_chunks
from lakesync.model.crash_points import crash_point

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

MIN_DELTAS_PER_WRITE = 25_000
"""Deltas that are written at once to a database, at least. Batches (the deltas of one flush to the lake) stay whole."""


@runtime_checkable
class Restorable(Protocol):
    """A `DatabaseAdapter` that can replace stored deltas and their rows."""

    def restore_arrow(
        self,
        follower: str,
        batch_id: str,
        deltas: pa.Table,
        scope: DigestScope,
        transform: ContentTransform = unchanged,
    ) -> None:
        """Write deltas in place of stored ones with the same gateway, client, hlc and id, and rewrite their rows.

        Args:
            follower: name of the follower. A destination table that cannot be written is suspended for it.
            batch_id: id of the first of the lake's batches, for adapters that store batches as objects.
            deltas: the deltas as an Arrow table.
            scope: the destination tables and days that are restored.
            transform: changes row contents before they are written.

        Raises:
            AdapterError: the restore may be incomplete; retry.
        """

    def remove_surplus(
        self, follower: str, deltas: pa.Table, scope: DigestScope, transform: ContentTransform = unchanged
    ) -> None:
        """Delete deltas, and rewrite their rows from the remaining ones.

        Args:
            follower: as in `restore_arrow`.
            deltas: the deltas to delete.
            scope: the destination tables and days that are restored.
            transform: changes row contents before they are written.

        Raises:
            AdapterError: the removal may be incomplete; retry.
        """

    def remove_orphan_rows(self, scope: DigestScope) -> int:
        """Delete rows of the scope's days without stored deltas, and return their number.

        Raises:
            AdapterError: nothing was changed.
        """


def restore(
    adapter: DatabaseAdapter,
    follower: str,
    history: Iterable[pa.RecordBatch],
    scope: DigestScope,
    cold: Sequence[DatabaseAdapter] = (),
    transform: ContentTransform = unchanged,
) -> int:
    """Write whole batches of the lake again, and remove surplus deltas of the scope's days.

    Args:
        adapter: the destination.
        follower: the follower's name.
        history: the lake's deltas of these days, in the columns `follower.HISTORY_COLUMNS`, in order of gateway, shard
            and arrival. Batches are complete.
        scope: tables, gateways and days to restore. Surplus deltas are removed from these days.
        cold: the destination's cold tiers. Deltas that are stored there are not restored.
        transform: changes row contents before they are written.

    Returns:
        The number of deltas written; 0 if the adapter cannot restore (`Restorable`).

    Raises:
        AdapterError: the destination cannot be reached; retry.
    """
    import numpy as np

    if not isinstance(adapter, Restorable):
        return 0
    restorable: Restorable = adapter
    min_deltas = 1 if isinstance(adapter, StoresBatches) else MIN_DELTAS_PER_WRITE
    lake_ids: list[npt.NDArray[np.uint64]] = []
    cold_ids = _stored_ids(cold, scope)
    count = 0
    for chunk in split_chunks(history, ("batch_id",), min_deltas):
        ids = _ids_of(chunk)
        lake_ids.append(ids)
        to_write = chunk.filter(~np.isin(ids, cold_ids)) if len(cold_ids) else chunk
        if len(to_write):
            batch_id = to_write.column("batch_id")[0].as_py()
            restorable.restore_arrow(follower, batch_id, to_write.select(list(DELTA_COLUMNS)), scope, transform)
            crash_point("restore.after_chunk")  # tests kill the process here
            count += len(to_write)
    all_lake_ids = np.concatenate([np.array([], np.uint64), *lake_ids])
    for low, high in arrival_ranges(scope.days):  # `high` is exclusive
        query = DeltaQuery(since=low - 1, until=high - 1, tables=scope.tables)
        for page in read_pages(adapter, query):
            in_scope = scope.select(page.deltas)
            surplus = in_scope.filter(~np.isin(_ids_of(in_scope), all_lake_ids))
            if len(surplus):
                restorable.remove_surplus(follower, surplus, scope, transform)
    if not cold:  # a row whose deltas are all in a cold tier would count as an orphan
        restorable.remove_orphan_rows(scope)
    return count


def _stored_ids(adapters: Sequence[DatabaseAdapter], scope: DigestScope) -> npt.NDArray[np.uint64]:
    """Return the ids, as `_ids_of` does, of all deltas of the scope's days that some adapters store."""
    import numpy as np

    found: list[npt.NDArray[np.uint64]] = []
    for adapter in adapters:
        for low, high in arrival_ranges(scope.days):
            pages = read_pages(adapter, DeltaQuery(since=low - 1, until=high - 1))
            found += [_ids_of(page.deltas) for page in pages]
    return np.concatenate([np.array([], np.uint64), *found])


def _ids_of(deltas: pa.Table) -> npt.NDArray[np.uint64]:
    """Return the ids of a table's deltas as 64-bit numbers (`id_numbers`), in their order."""
    import numpy as np

    chunks = deltas.column("delta_id").chunks
    return np.concatenate([np.array([], np.uint64), *(id_numbers(chunk) for chunk in chunks if len(chunk))])

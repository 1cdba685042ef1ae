"""Restores days of a destination from the lake: writes missing and altered deltas again and removes surplus ones.

Marks keep their value, because restored deltas were applied before. A repeat, also after a crash, ends the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lakesync.adapters.arrow import DELTA_COLUMNS
from lakesync.adapters.arrow_access import read_arrow, read_pages
from lakesync.adapters.base import UNCHANGED, ContentTransform, DatabaseAdapter
from lakesync.adapters.deltas import DeltaQuery
from lakesync.adapters.digests import DigestScope, arrival_ranges
from lakesync.adapters.object_store.deltas import ObjectDeltas
from lakesync.adapters.transfer.follower import split_parts
from lakesync.model.crash_points import crash_point

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

AT_ONCE = 25_000


@runtime_checkable
class Restorable(Protocol):
    """A `DatabaseAdapter` that can replace stored deltas and their rows."""

    def restore_arrow(
        self,
        follower: str,
        batch_id: str,
        deltas: pa.Table,
        scope: DigestScope,
        transform: ContentTransform = UNCHANGED,
    ) -> None:
        """Replace deltas by their identity, and write their rows.

        Args:
            follower: the follower whose tables are suspended if they cannot be written.
            batch_id: the lake's batch, for adapters that store batches.
            deltas: a table as in `ArrowAdapter`.
            scope: the destination tables.
            transform: changes row contents before they are written.

        Raises:
            AdapterError: the restore may be incomplete; retry.
        """

    def remove_surplus(
        self, follower: str, deltas: pa.Table, scope: DigestScope, transform: ContentTransform = UNCHANGED
    ) -> None:
        """Delete deltas, and write their rows from the remaining ones.

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
    transform: ContentTransform = UNCHANGED,
) -> int:
    """Write whole batches of the lake again, and remove surplus deltas of the scope's days.

    Args:
        adapter: the destination.
        follower: the follower's name.
        history: `HISTORY_COLUMNS` of whole batches in order of gateway, shard and arrival.
        scope: what is restored. Surplus deltas are removed from its days.
        cold: cold tiers; deltas stored there are not restored.
        transform: changes row contents before they are written.

    Returns:
        The number of deltas written.

    Raises:
        AdapterError: the destination cannot be reached; retry.
    """
    import numpy as np

    from lakesync.adapters.arrow import id_numbers, select_deltas

    if not isinstance(adapter, Restorable):
        return 0
    restorable: Restorable = adapter
    is_whole = isinstance(adapter, ObjectDeltas)
    written_ids: list[npt.NDArray[np.uint64]] = []
    cold_ids = _stored_ids(cold, scope)
    count = 0
    for part in split_parts(history, ("batch_id",), 1 if is_whole else AT_ONCE):
        written_ids += [id_numbers(chunk) for chunk in part.column("delta_id").chunks if len(chunk)]
        if len(cold_ids):
            keep = [~np.isin(id_numbers(chunk), cold_ids) for chunk in part.column("delta_id").chunks if len(chunk)]
            part = part.filter(np.concatenate(keep))  # noqa: PLW2901 skip deltas in a cold tier
        if len(part):
            restorable.restore_arrow(
                follower, part.column("batch_id")[0].as_py(), part.select(list(DELTA_COLUMNS)), scope, transform
            )
            crash_point("restore.after_part")
            count += len(part)
    lake_ids = np.concatenate(written_ids) if written_ids else np.array([], np.uint64)
    for low, high in arrival_ranges(scope.days):
        query = DeltaQuery(since=low - 1, until=high - 1, tables=scope.tables)
        for page in read_pages(partial(read_arrow, adapter), query):
            in_scope = select_deltas(page.deltas, scope.tables, scope.without, scope.gateways)
            if len(in_scope):
                numbers = np.concatenate(
                    [id_numbers(chunk) for chunk in in_scope.column("delta_id").chunks if len(chunk)]
                )
                surplus = in_scope.filter(~np.isin(numbers, lake_ids))
                if len(surplus):
                    restorable.remove_surplus(follower, surplus, scope, transform)
    if not cold:  # otherwise all deltas of a row may be in a cold tier
        restorable.remove_orphan_rows(scope)
    return count


def _stored_ids(places: Sequence[DatabaseAdapter], scope: DigestScope) -> npt.NDArray[np.uint64]:
    """Return the id numbers that adapters store of the scope's days."""
    import numpy as np

    from lakesync.adapters.arrow import id_numbers

    found: list[npt.NDArray[np.uint64]] = []
    for place in places:
        for low, high in arrival_ranges(scope.days):
            for page in read_pages(partial(read_arrow, place), DeltaQuery(since=low - 1, until=high - 1)):
                found += [id_numbers(chunk) for chunk in page.deltas.column("delta_id").chunks if len(chunk)]
    return np.concatenate(found) if found else np.array([], np.uint64)

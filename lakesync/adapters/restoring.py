"""Days of a destination written again from the lake: what is missing, altered or surplus there is as in the lake.

Marks stay where they are: what is restored was taken before. A repeat, also after a crash at any point, ends the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lakesync.adapters.base import NOTHING_BESIDE, Beside, DatabaseAdapter, DeltaQuery
from lakesync.adapters.digests import Scope, ranges
from lakesync.adapters.flat import COLUMNS
from lakesync.adapters.following import parts_of
from lakesync.adapters.objects import ObjectDeltas
from lakesync.adapters.several import read_arrow, walk
from lakesync.model.crash_points import crash_point

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

AT_ONCE = 25_000


@runtime_checkable
class Restorable(Protocol):
    """A `DatabaseAdapter` that can replace deltas that it holds, and the rows of them."""

    def restore_arrow(
        self, follower: str, batch_id: str, deltas: pa.Table, scope: Scope, beside: Beside = NOTHING_BESIDE
    ) -> None:
        """Write deltas in place of what is held under their identities, and their rows.

        Args:
            follower: continues without a table whose rows cannot be written.
            batch_id: of the lake's batch, where the adapter keeps batches.
            deltas: as `ArrowAdapter` has them.
            scope: the tables of rows.
            beside: what those show besides.

        Raises:
            AdapterError: some of it may be done; a repeat is safe.
        """

    def remove_surplus(self, follower: str, deltas: pa.Table, scope: Scope, beside: Beside = NOTHING_BESIDE) -> None:
        """Remove deltas, and write their rows from what is left.

        Raises:
            AdapterError: some of it may be done; a repeat is safe.
        """

    def remove_unknown_rows(self, scope: Scope) -> int:
        """Remove rows of the scope's days of which no delta is held; how many.

        Raises:
            AdapterError: nothing was changed.
        """


def restore(
    adapter: DatabaseAdapter,
    follower: str,
    history: Iterable[pa.RecordBatch],
    scope: Scope,
    cold: Sequence[DatabaseAdapter] = (),
    beside: Beside = NOTHING_BESIDE,
) -> int:
    """Write whole batches of the lake again, and remove what the scope's days have besides; how many deltas.

    Args:
        adapter: the destination.
        follower: the name of its mark.
        history: `HISTORY`'s columns in order of gateway, shard and arrival, of whole batches.
        scope: what is restored; its days are those from which surplus is removed.
        cold: where older deltas may be, which do not come back.
        beside: what tables of rows show besides.

    Raises:
        AdapterError: the destination cannot be reached; a repeat is safe.
    """
    import numpy as np

    from lakesync.adapters.arrow import chosen, id_numbers

    if not isinstance(adapter, Restorable):
        return 0
    to: Restorable = adapter
    is_whole = isinstance(adapter, ObjectDeltas)
    known: list[npt.NDArray[np.uint64]] = []
    elsewhere = _ids(cold, scope)
    count = 0
    for part in parts_of(history, ("batch_id",), 1 if is_whole else AT_ONCE):
        known += [id_numbers(chunk) for chunk in part.column("delta_id").chunks if len(chunk)]
        if len(elsewhere):
            mine = [~np.isin(id_numbers(chunk), elsewhere) for chunk in part.column("delta_id").chunks if len(chunk)]
            part = part.filter(np.concatenate(mine))  # noqa: PLW2901 without what went to a cold tier
        if len(part):
            to.restore_arrow(follower, part.column("batch_id")[0].as_py(), part.select(list(COLUMNS)), scope, beside)
            crash_point("restore.after_part")
            count += len(part)
    lake = np.concatenate(known) if known else np.array([], np.uint64)
    for low, high in ranges(scope.days):
        query = DeltaQuery(since=low - 1, until=high - 1, tables=scope.tables)
        for page in walk(partial(read_arrow, adapter), query):
            found = chosen(page.deltas, scope.tables, scope.without, scope.gateways)
            if len(found):
                numbers = np.concatenate([id_numbers(chunk) for chunk in found.column("delta_id").chunks if len(chunk)])
                surplus = found.filter(~np.isin(numbers, lake))
                if len(surplus):
                    to.remove_surplus(follower, surplus, scope, beside)
    if not cold:  # else a row's deltas may all be there
        to.remove_unknown_rows(scope)
    return count


def _ids(places: Sequence[DatabaseAdapter], scope: Scope) -> npt.NDArray[np.uint64]:
    """The numbers of the ids that places hold of the scope's days."""
    import numpy as np

    from lakesync.adapters.arrow import id_numbers

    found: list[npt.NDArray[np.uint64]] = []
    for place in places:
        for low, high in ranges(scope.days):
            for page in walk(partial(read_arrow, place), DeltaQuery(since=low - 1, until=high - 1)):
                found += [id_numbers(chunk) for chunk in page.deltas.column("delta_id").chunks if len(chunk)]
    return np.concatenate(found) if found else np.array([], np.uint64)

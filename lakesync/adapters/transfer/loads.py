"""Loads: a follower's large backlog, divided into parts that several tasks apply in parallel.

A *follower* copies the deltas (changes of rows) of the lake to an adapter, its destination. It stores its *mark* there,
a text with its progress. Each part of a load is a follower with a mark of its own, so a killed load resumes part by
part. When every part has ended, the follower's mark takes over their progress in one step. The pipeline
(`lakehouse.backends.destinations`) begins and finishes loads, and runs each part as a Spark task.

During a load, the deltas of one gateway (an app's stream of changes) are not written in order of *arrival*, their
timestamp from the gateway. So `LoadBarrier` returns no deltas meanwhile to flows (copies from adapter to adapter) and
to clients that read a database, because they rely on this order.

A *stream* is the deltas of one gateway and shard (some of its tables). A *destination table* has the current rows of a
synced table, beside the deltas. There are two lists of its columns: `Load.written_columns` has those of the rows that
the load writes, and `FollowerProgress.row_columns` those that all rows have, so that a later run rewrites rows that
lack some. A table that cannot be written is *suspended*: it gets no rows until a retry succeeds.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec
from msgspec.structs import replace

from lakesync.adapters.arrow_access import read_arrow, write_arrow
from lakesync.adapters.base import DatabaseAdapter, MarkStore, Materialisable, StoresBatches
from lakesync.adapters.composite import CompositeBase
from lakesync.adapters.deltas import ArrowPage, BatchChecksum, DeltaBatch, DeltaPage, DeltaQuery
from lakesync.adapters.transfer.follower import (
    DeltaSelection,
    FollowerProgress,
    Load,
    continued_progress,
    read_follower_progress,
)
from lakesync.adapters.transfer.progress import ProgressInMark, require_marks
from lakesync.adapters.transfer.table_rewrites import columns_of_tables
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import AdapterError, IntegrityError, SchemaError
from lakesync.model.types import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from lakesync.model.merge import RowState
    from lakesync.model.schema import TableSchema

LOADS = "loads"
"""The name of the mark, one for each adapter, that lists the followers whose loads are in progress."""
_ATTEMPTS = 5
"""Attempts to change the mark `LOADS`: another follower may change it at the same time."""


class ActiveLoads(msgspec.Struct, frozen=True):
    """The value of the mark `LOADS`."""

    begun: int = 0
    """Number of loads ever started at this adapter, so that a reader notices a load that started and ended."""
    names: tuple[str, ...] = ()
    """Followers whose load is in progress."""


def begin_load(
    adapter: DatabaseAdapter,
    name: str,
    selection: DeltaSelection,
    until: Mapping[str, int],
    parts: int,
    schemas: Sequence[TableSchema] = (),
) -> Load:
    """Divide a follower's backlog and record the load in its mark.

    Args:
        adapter: the follower's destination.
        name: the follower's name.
        selection: the deltas that the follower selects.
        until: `GATEWAY/SHARD` → last arrival of the load, for each stream with missing deltas.
        parts: number of tasks, at most `lakesync.adapters.deltas.HASH_SLOTS`.
        schemas: the destination tables that the parts write.

    Raises:
        IntegrityError: another run moved the mark.
        AdapterError: the adapter cannot be reached.
    """
    mark = ProgressInMark(require_marks(adapter), name, FollowerProgress)
    progress = continued_progress(mark.read(), selection)
    written_columns = columns_of_tables(adapter, schemas)
    load = Load(
        id=secrets.token_hex(8),
        parts=parts,
        until=dict(until),
        # Each part gets whole batches for an object store, where a batch is one object, which only one part can write.
        # For other adapters, each part gets some of the rows.
        by_batch=isinstance(adapter, StoresBatches),
        written_columns=written_columns,
    )
    if isinstance(adapter, Materialisable):
        for schema in schemas:
            with suppress(SchemaError, AdapterError):  # the parts suspend a table that cannot be created
                adapter.ensure_schema(schema)
    # announce the load before it is in the mark: no part may write while readers are not stopped
    _change(adapter, lambda loads: ActiveLoads(loads.begun + 1, tuple(sorted({*loads.names, name}))))
    crash_point("load.announced")  # tests kill the process here
    # rows from before the load may lack columns that the load writes; before the first delta there is no row
    row_columns = progress.row_columns if progress.deltas else written_columns
    mark.write(replace(progress, load=load, row_columns=row_columns))
    crash_point("load.begun")
    return load


def load_to_resume(
    adapter: DatabaseAdapter, progress: FollowerProgress, schemas: Sequence[TableSchema] = ()
) -> Load | None:
    """Return a follower's load in progress; None if no load is in progress, or if its destination tables have changed.

    A load of other tables is not resumed: the next run replaces it and applies all of its deltas again. Deltas that are
    stored stay as they are; their rows are written to the changed destination tables.

    Args:
        adapter: the follower's destination.
        progress: the follower's progress.
        schemas: the destination tables.
    """
    load = progress.load
    if load is None or load.written_columns != columns_of_tables(adapter, schemas):
        return None
    return load


def part_name(name: str, number: int) -> str:
    """Return the name of a part's mark. Its text has the load's id, so that a mark of an earlier load is ignored.

    Args:
        name: the follower's name.
        number: the part's number.
    """
    return f"{name}#{number}"


def finish_load(adapter: DatabaseAdapter, name: str, selection: DeltaSelection) -> FollowerProgress:
    """Move the follower's mark to the end of its load, after all parts have ended.

    Args:
        adapter: the follower's destination.
        name: the follower's name.
        selection: the deltas that the follower selects.

    Raises:
        IntegrityError: a part has not ended, or another run moved the mark.
        AdapterError: the adapter cannot be reached; retry.
    """
    mark = ProgressInMark(require_marks(adapter), name, FollowerProgress)
    progress = continued_progress(mark.read(), selection)
    load = progress.load
    if load is None:
        raise IntegrityError(f"the load of {name!r} is already finished: another run has moved its mark")
    total = BatchChecksum(progress.deltas, progress.id_sum)
    for number in range(load.parts):
        part_selection = replace(selection, part=load.part(number))
        part_progress = read_follower_progress(adapter, part_name(name, number), part_selection)
        if not part_progress.has_reached(load.until):
            raise IntegrityError(f"part {number} of the load of {name!r} is not finished: run the destination again")
        total = total.plus(BatchChecksum(part_progress.deltas, part_progress.id_sum))
    crash_point("load.before_finish")
    streams = {**progress.streams, **load.until}
    new_progress = replace(progress, streams=streams, deltas=total.deltas, id_sum=total.id_sum, load=None)
    mark.write(new_progress)
    crash_point("load.after_finish")
    withdraw_load(adapter, name)
    return new_progress


def is_announced(adapter: DatabaseAdapter, name: str) -> bool:
    """Return whether a `LoadBarrier` returns no deltas because of this follower's load.

    If the process dies in `begin_load`, the load is announced but not in the follower's mark. Therefore the pipeline
    calls `withdraw_load` at the end of the follower's next run.
    """
    return any(name in loads.names for loads in active_loads(adapter))


def withdraw_load(adapter: DatabaseAdapter, name: str) -> None:
    """Remove a follower from the mark `LOADS`, so that readers get deltas again. Its load has ended, or never began.

    Raises:
        AdapterError: the adapter cannot be reached; retry.
    """
    _change(adapter, lambda loads: replace(loads, names=tuple(each for each in loads.names if each != name)))


@runtime_checkable
class StreamSource(Protocol):
    """An adapter that has deltas of every stream in order of arrival, and no followers: the lake."""

    def latest_arrivals(self) -> dict[str, int]:
        """Return stream → its newest arrival.

        Raises:
            AdapterError: the adapter cannot be read.
        """


class WrittenStreams(msgspec.Struct, frozen=True):
    """How far followers and flows have written an adapter, or the adapters of a composition, at one time.

    A flow (`transfer.flows`) reads it before and after it copies, because a new writer, or one with a new selection or
    filter, writes old deltas behind the flow's position.
    """

    streams: dict[str, dict[str, int]] = {}
    """Name and selection of a follower, or name and row filter of a flow, as one text → stream → arrival up to which it
    has written. The text is empty for a `StreamSource`, which has no such writers."""
    loads: tuple[ActiveLoads, ...] = ()
    """The loads of each adapter."""
    by_filtered_flow: bool = False
    """Whether a flow with conditions writes there: when a row starts to match them, it writes the row's old deltas."""

    def had_no_load_until(self, later: WrittenStreams) -> bool:
        """Return whether no load, in which a `LoadBarrier` hides deltas, was in progress up to a later reading."""
        return self.loads == later.loads and not any(each.names for each in self.loads)

    def require_no_load_until(self, later: WrittenStreams) -> None:
        """Check the same as `had_no_load_until`, for a reader that does not continue later.

        Args:
            later: the reading at the reader's end.

        Raises:
            AdapterError: a load was in progress.
        """
        if not self.had_no_load_until(later):
            raise AdapterError(
                "the source received a large backlog meanwhile, during which its deltas cannot be read in order; "
                "repeat this when the destination that writes it is up to date"
            )


class LoadBarrier:
    """A `DatabaseAdapter` and `ArrowAdapter` for readers that continue in arrival order, such as flows.

    It returns an empty last page if a load was in progress at any time during the read. Otherwise a reader could
    continue after deltas that a part of the load has not written yet.
    """

    def __init__(self, adapter: DatabaseAdapter) -> None:
        """Wrap an adapter.

        Args:
            adapter: the adapter to read.
        """
        self._adapter = adapter

    def query_arrow(self, query: DeltaQuery) -> ArrowPage:
        """Like `query_deltas_since`, as an Arrow table."""
        before = self._loads(query)
        page = read_arrow(self._adapter, query)
        return page if self._is_safe(query, before) else ArrowPage(page.deltas.slice(0, 0), None)

    def query_deltas_since(self, query: DeltaQuery) -> DeltaPage:
        """Return a page; an empty last one while a load is in progress."""
        before = self._loads(query)
        page = self._adapter.query_deltas_since(query)
        return page if self._is_safe(query, before) else DeltaPage((), None)

    # The other methods call the adapter.

    def insert_deltas(self, batch: DeltaBatch) -> BatchChecksum:
        """Insert into the adapter."""
        return self._adapter.insert_deltas(batch)

    def insert_arrow(self, batch_id: str, gateway: str, deltas: pa.Table) -> BatchChecksum:
        """Insert into the adapter. Without it, this would be no `ArrowAdapter`, whose pages are read faster."""
        return write_arrow(self._adapter, batch_id, gateway, deltas)

    def get_latest_state(self, gateway: str | None, table: str, row_ids: Collection[str]) -> dict[str, RowState]:
        """Read from the adapter."""
        return self._adapter.get_latest_state(gateway, table, row_ids)

    def newest_position(self, gateway: str | None = None) -> Position | None:
        """Read from the adapter."""
        return self._adapter.newest_position(gateway)

    def close(self) -> None:
        """Close the adapter."""
        self._adapter.close()

    def _loads(self, query: DeltaQuery) -> list[ActiveLoads]:
        """Return the active loads, if the query's reader will continue later in order of arrival; otherwise none.

        A query for given rows (`query.rows`) is not continued.
        """
        return [] if query.order != "arrival" or query.rows else list(active_loads(self._adapter))

    def _is_safe(self, query: DeltaQuery, before: Sequence[ActiveLoads]) -> bool:
        """Return whether no load was in progress while a page was read."""
        return not any(each.names for each in before) and self._loads(query) == before


def active_loads(adapter: DatabaseAdapter) -> Iterator[ActiveLoads]:
    """Yield the active loads of each adapter of a composition."""
    for each in single_adapters(adapter):
        if isinstance(each, MarkStore):
            yield _loads_mark(each).read() or ActiveLoads()


def single_adapters(adapter: DatabaseAdapter) -> Iterator[DatabaseAdapter]:
    """Yield each adapter of a composition, or the adapter itself."""
    if isinstance(adapter, CompositeBase):
        for each in adapter.adapters:
            yield from single_adapters(each)
    else:
        yield adapter


def _change(adapter: DatabaseAdapter, change: Callable[[ActiveLoads], ActiveLoads]) -> None:
    """Change the mark `LOADS`. Retries if another follower of the adapter changes it at the same time."""
    mark = _loads_mark(require_marks(adapter))
    for attempt in range(_ATTEMPTS):
        before = mark.read() or ActiveLoads()
        changed = change(before)
        if changed == before:
            return
        try:
            mark.write(changed)
        except (IntegrityError, AdapterError):
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return


def _loads_mark(adapter: MarkStore) -> ProgressInMark[ActiveLoads]:
    """Return the mark `LOADS` of an adapter."""
    return ProgressInMark(adapter, LOADS, ActiveLoads)

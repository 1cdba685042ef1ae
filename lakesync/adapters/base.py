"""The protocols of a database that stores deltas: `DatabaseAdapter`, and optional ones that only some backends have.

A *delta* is a change of one row of a *synced table*, a table that clients synchronise. It belongs to a *gateway*, the
stream of changes of one app. A backend is a database, which implements `DatabaseAdapter` directly, or an object store
(`lakesync.adapters.object_store.base`), which `ObjectDeltas` turns into one. Compositions, which store deltas in
several adapters, are `DatabaseAdapter`s too. The pipeline and `lakesync migrate` call the protocols, and a gateway
that flushes its deltas by itself, without a pipeline. Deltas are written in *batches*, and read in *pages*.

A database can also keep a *destination table* for each synced table: the table of its current rows. The *content* of a
row is the merge of its deltas. A *follower* copies the deltas of the lake (Iceberg) to an adapter, its destination. A
destination table that cannot be written is *suspended*: it gets no rows until a retry succeeds. A value that the
database rejects is a *dead letter*.

Adapters block, are safe to call from several threads, and keep no state that a crash could lose. They report every
backend failure as `AdapterError`. Every method may be retried. `tests/conformance/test_adapters.py` runs against every
implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from lakesync.adapters.deltas import (
    EVERYTHING,
    ArrowPage,
    BatchChecksum,
    DeltaBatch,
    DeltaPage,
    DeltaQuery,
    MarkUpdate,
    RowContent,
    RowId,
    TableSelection,
)
from lakesync.model.merge import RowState
from lakesync.model.schema import TableSchema
from lakesync.model.types import Position

if TYPE_CHECKING:
    import pyarrow as pa


class DatabaseAdapter(Protocol):
    """Stores deltas permanently."""

    def insert_deltas(self, batch: DeltaBatch) -> BatchChecksum:
        """Store a batch atomically and durably.

        A delta that is already stored, with the same `StoredDelta.identity`, is left unchanged, whichever batch it came
        from. So a batch can be inserted again after a lost response or a crash.

        Returns:
            Number and id sum of the batch's deltas, read back after the commit.

        Raises:
            AdapterError: the batch may or may not be stored; retry.
        """

    def query_deltas_since(self, query: DeltaQuery) -> DeltaPage:
        """Return one page of the deltas that match a query.

        Passing each page's `end` as the next query's `after` returns each delta once. A column's value is JSON text,
        either in the canonical form of RFC 8785 or as it was written.

        Raises:
            AdapterError: the backend cannot be read.
        """

    def get_latest_state(self, gateway: str | None, table: str, row_ids: Collection[str]) -> dict[str, RowState]:
        """Return the state of each row, the merge of its deltas, also of deleted rows. Rows without deltas are absent.

        Args:
            gateway: the gateway id; None merges the deltas of every gateway as if they were one gateway's.
            table: the rows' table.
            row_ids: the rows to return.

        Raises:
            AdapterError: the backend cannot be read.
        """

    def newest_position(self, gateway: str | None = None) -> Position | None:
        """Return the position of the last delta in order of arrival at its gateway; None if there is no delta.

        Args:
            gateway: the gateway id; None for the last delta of all gateways.

        Raises:
            AdapterError: the backend cannot be read.
        """

    def close(self) -> None:
        """Close all connections. No other method is called afterwards."""


@runtime_checkable
class Materialisable(Protocol):
    """A `DatabaseAdapter` that can also maintain destination tables. To *materialise* rows is to write them there."""

    def ensure_schema(self, schema: TableSchema) -> None:
        """Create the destination table, or add its missing columns.

        Its name is the schema's `source_table`, or `table` if that is None.

        Its primary key is `gateway` and `row_id`. The schema's own key is not unique there, because clients that are
        offline may create rows with the same one. Besides the schema's columns the table has `props` (JSON for the
        user's own data, which is never overwritten), `synced_at`, `last_arrival`, `checksum` and, with soft delete,
        `deleted_at`.

        Raises:
            AdapterError: the backend rejected the statement.
        """

    def materialise(self, gateway: str, schema: TableSchema, row_ids: Sequence[str]) -> int:
        """Rewrite one gateway's rows of the destination table from the deltas that this adapter stores.

        Can be repeated at any time and in any order, because it reads only deltas. If the schema has soft delete, a
        deleted row gets `deleted_at` and keeps its values; otherwise the row is removed.

        Args:
            gateway: the gateway id.
            schema: the table's schema; `ensure_schema` was called with it.
            row_ids: the rows to rewrite.

        Returns:
            The number of rows examined.

        Raises:
            AdapterError: the backend rejected the write; nothing was changed.
        """


@runtime_checkable
class StateWriter(DatabaseAdapter, Materialisable, Protocol):
    """A `Materialisable` that writes contents which the caller has merged, for example from several adapters."""

    def write_states(self, schema: TableSchema, read: Callable[[], Mapping[RowId, RowContent]]) -> int:
        """Write rows of the destination table with given contents.

        Args:
            schema: the table's schema; `ensure_schema` was called with it.
            read: returns `(gateway, row id)` → content of the rows. Called once, after the table has been locked
                against other writers.

        Returns:
            The number of rows.

        Raises:
            AdapterError: the backend rejected the write; nothing was changed.
        """


@runtime_checkable
class ArrowAdapter(Protocol):
    """A `DatabaseAdapter` that reads and writes large amounts as Arrow tables, with the same guarantees."""

    def insert_arrow(self, batch_id: str, gateway: str, deltas: pa.Table) -> BatchChecksum:
        """Store a batch as `insert_deltas` does.

        Args:
            batch_id: identifies this exact set of deltas permanently.
            gateway: the gateway id.
            deltas: a table with the columns of `arrow.arrow_schema`; its column `columns` may be a map or JSON text.
        """

    def query_arrow(self, query: DeltaQuery) -> ArrowPage:
        """Return the same page as `query_deltas_since`, with its deltas as an Arrow table."""


@runtime_checkable
class Prunable(Protocol):
    """A `DatabaseAdapter` that can delete deltas.

    A *hot tier* needs this: it keeps only recent deltas, and old ones are moved to another adapter, the *cold tier*.
    """

    def delete_deltas(self, deltas: pa.Table) -> int:
        """Delete exactly these deltas, by their identity, durably. Deltas that are not stored are ignored.

        Args:
            deltas: a table as in `ArrowAdapter`.

        Returns:
            The number of deltas deleted.

        Raises:
            AdapterError: some deltas may be deleted; retry.
        """


@runtime_checkable
class StoresBatches(Protocol):
    """A `DatabaseAdapter` that stores whole batches, and so a delta of two batches twice.

    A copy whose batches differ from run to run first asks which of the deltas are missing. Followers, their loads and
    restores write the lake's own batches, which never change.
    """

    def missing(self, deltas: pa.Table) -> pa.Table:
        """Return those of some deltas that are not stored yet.

        Args:
            deltas: a table as in `ArrowAdapter`.

        Raises:
            AdapterError: the backend cannot be read.
        """


@runtime_checkable
class Splittable(Protocol):
    """A `DatabaseAdapter` that can divide a query into ranges, so that several tasks can process it."""

    def split_points(self, query: DeltaQuery, size: int) -> list[int]:
        """Return the values that divide a query's deltas into ranges of about `size`.

        Args:
            query: the query to divide; its limit is ignored.
            size: deltas per range; an estimate is enough.

        Returns:
            Values of the query's order, ascending, each the last of its range. Empty if one range suffices.

        Raises:
            AdapterError: the backend cannot be read.
        """


@runtime_checkable
class ConcurrentWriters(Protocol):
    """A `DatabaseAdapter` that several processes can write to without blocking each other."""

    @property
    def max_writers(self) -> int:
        """The number of processes up to which parallel writes are faster; 1 if writers would wait for each other."""


ContentTransform = Callable[[TableSchema, Sequence[RowId], Mapping[RowId, RowContent]], Mapping[RowId, RowContent]]
"""Changes row contents before they are written to a destination table.

For example, it adds the old deltas that were moved to a cold tier, or hides rows that a filter excludes. It gets the
table's schema, the rows to write, and row → the merge of the deltas that the destination stores of the row; a row
without deltas is absent. It returns the contents to write.
"""


def unchanged(
    schema: TableSchema,  # noqa: ARG001 required by `ContentTransform`
    rows: Sequence[RowId],  # noqa: ARG001
    contents: Mapping[RowId, RowContent],
) -> Mapping[RowId, RowContent]:
    """Return contents as they are: the default `ContentTransform`."""
    return contents


@runtime_checkable
class MarkStore(Protocol):
    """A `DatabaseAdapter` that stores followers' marks, so that deltas and mark change in one transaction.

    A *mark* is a text under a name, which says how far a follower has read the lake. Flows and migrations, which copy
    from one adapter to another, store their progress in marks too.
    """

    def read_mark(self, name: str) -> str | None:
        """Return the value of a mark; None if it was never written."""

    def move_mark(self, mark: MarkUpdate) -> None:
        """Update a mark without writing deltas.

        Raises:
            IntegrityError: the mark has neither the expected nor the new value: another run has moved it.
            AdapterError: the mark may or may not have moved; retry.
        """

    def apply_arrow(
        self,
        batch_id: str,
        deltas: pa.Table,
        mark: MarkUpdate,
        schemas: Sequence[TableSchema] = (),
        transform: ContentTransform = unchanged,
    ) -> BatchChecksum:
        """Insert a batch, rewrite its rows in destination tables, and move the mark, all in one transaction.

        Each written row is the merge of all deltas of its gateway and row id that the adapter stores. The call can be
        repeated after a lost response: a mark that already has the new value is left unchanged. A backend without
        transactions writes the mark last, so that a crash repeats work and loses none.

        Args:
            batch_id: identifies this exact set of deltas permanently.
            deltas: a table as in `ArrowAdapter`, with at least one delta, of any gateways.
            mark: the follower's mark.
            schemas: the tables whose rows are rewritten.
            transform: changes row contents before they are written.

        Returns:
            Number and id sum of the batch's deltas, read back after the commit.

        Raises:
            IntegrityError: the mark has neither the expected nor the new value: another run has moved it.
            AdapterError: the batch may or may not be stored; retry.
        """


@runtime_checkable
class FencesWrites(Protocol):
    """A `DatabaseAdapter` that can reject writes of deltas that were read before an erasure."""

    def fence_writes(self, name: str) -> None:
        """Make later inserts and repairs of this object fail as soon as an erasure has begun at the adapter.

        A Spark task of a killed run may go on while the erasure runs. So a task that writes without a follower's mark
        calls this before it reads the deltas. An adapter without transactions may still write what is being sent when
        the erasure begins.

        Args:
            name: the task's name. Tasks that write at the same time have different ones.

        Raises:
            AdapterError: the backend cannot be reached.
        """


WHOLE_ROW = ""
"""In place of a column's name, if the database rejects the row even with null in all columns of the schema."""


class DeadLetter(msgspec.Struct, frozen=True):
    """A value that was replaced by null in the destination table, or a row that was not written, with the reason."""

    gateway: str
    table: str
    row_id: str
    column: str
    """A column name, or `WHOLE_ROW`."""
    value: str
    """The rejected value as JSON text; `null` for `WHOLE_ROW`."""
    reason: str
    """The database's message."""


LONGEST_PAUSE_MS = 3_600_000
"""The longest pause between two attempts to write a suspended table."""


class SuspendedTable(msgspec.Struct, frozen=True):
    """A destination table that could not be written.

    The destination still stores the table's deltas. A successful retry rewrites all rows from them.
    """

    table: str
    reason: str
    failures: int
    """Consecutive failed attempts."""
    retry_ms: int
    """When the next attempt is due, milliseconds since 1970."""


def is_retry_due(retry_ms: int, now_ms: int) -> bool:
    """Return whether a suspended table is to be written again.

    A time beyond the longest pause was set before the clock was set back; it counts as past.

    Args:
        retry_ms: `SuspendedTable.retry_ms`.
        now_ms: server wall time in milliseconds since 1970.
    """
    return not now_ms < retry_ms <= now_ms + LONGEST_PAUSE_MS


@runtime_checkable
class FindsTables(Protocol):
    """A `StateWriter` that knows whether a destination table exists. A follower fills one that was dropped again."""

    def has_table(self, schema: TableSchema) -> bool:
        """Return whether the destination table exists.

        Args:
            schema: the table's schema.

        Raises:
            AdapterError: the backend cannot be reached.
        """


@runtime_checkable
class SuspendsTables(Protocol):
    """A `DatabaseAdapter` that continues if it cannot write a destination table or a value.

    It suspends the table for the follower, or sets the value aside as a dead letter.
    """

    def suspended_tables(self, follower: str) -> list[SuspendedTable]:
        """Return the follower's suspended tables, also those whose retry is due.

        Args:
            follower: the follower's name.

        Raises:
            AdapterError: the backend cannot be reached.
        """

    def suspend_table(self, follower: str, table: str, reason: str) -> SuspendedTable:
        """Suspend a table. Each further failure doubles the pause before the next attempt, from a minute to an hour.

        Args:
            follower: the follower's name.
            table: the synced table.
            reason: why it cannot be written.

        Raises:
            AdapterError: the backend cannot be reached.
        """

    def resume_table(self, follower: str, table: str) -> None:
        """End a table's suspension, so that the next batches write to it. The caller has rewritten all of its rows.

        Args:
            follower: the follower's name.
            table: the synced table.

        Raises:
            AdapterError: the backend cannot be reached.
        """

    def retry_tables(self, follower: str, tables: Sequence[str]) -> None:
        """Make the follower's next run rewrite all rows of these tables, suspended or not.

        Args:
            follower: the follower's name.
            tables: the synced tables.

        Raises:
            AdapterError: the backend cannot be reached.
        """

    def dead_letters(self, limit: int, selection: TableSelection = EVERYTHING) -> list[DeadLetter]:
        """Return the first dead letters of some tables and gateways, ordered by table, gateway, row and column.

        There are no pages: the next write of a row replaces its dead letters, so a position would not stay valid.

        Args:
            limit: the most dead letters to return.
            selection: the tables and gateways. Other destinations may write others to the same backend.

        Raises:
            AdapterError: the backend cannot be reached.
        """

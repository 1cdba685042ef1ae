"""What a backend is to LakeSync: a place that takes deltas and gives them back.

An object store implements `LakeAdapter` and becomes a place for deltas through `ObjectDeltas`; a database implements
`DatabaseAdapter`. Compositions (by table, fan-out, hot and cold) are `DatabaseAdapter`s of `DatabaseAdapter`s. What not
every backend can do stands in a further protocol: `Materialisable`.

Adapters block, may be called from several threads at once, and hold no state of their own that a crash could lose.
Every failure of the backend is an `AdapterError`, which a repeat may cure; each method is safe to repeat.
`tests/conformance/test_adapters.py` and `test_adapters_objects.py` run over every implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import msgspec

from lakesync.adapters.contents import RowContent, RowId
from lakesync.adapters.object_store import LakeAdapter
from lakesync.model.merge import RowState
from lakesync.model.position import Position
from lakesync.model.schema import TableSchema
from lakesync.model.types import RowDelta

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import TypeIs

__all__ = [
    "NOTHING_BESIDE",
    "Adapter",
    "ArrowAdapter",
    "ArrowPage",
    "Beside",
    "ConcurrentWriters",
    "DatabaseAdapter",
    "DeltaBatch",
    "DeltaPage",
    "DeltaQuery",
    "Divisible",
    "Held",
    "Identity",
    "Mark",
    "Marked",
    "Materialisable",
    "Order",
    "Position",
    "Prunable",
    "StateWriter",
    "StoredDelta",
    "is_object_store",
    "position_of",
]

DEFAULT_PAGE = 10_000


class StoredDelta(msgspec.Struct, frozen=True, gc=False):
    """A delta as a backend keeps it."""

    gateway: str
    arrival: int
    """When it reached its gateway: the gateway's own clock, for all deltas of one push the same."""
    delta: RowDelta

    @property
    def identity(self) -> Identity:
        """What makes it this delta and no other: one client's delta ids are its own affair."""
        return (self.gateway, self.delta.client_id, self.delta.hlc, self.delta.delta_id)


Identity = tuple[str, str, int, str]
"""`(gateway, client id, hlc, delta id)`."""


class DeltaBatch(msgspec.Struct, frozen=True):
    """Deltas of one gateway that belong together: the unit in which they are written."""

    batch_id: str
    """Names this very set of deltas for ever: a batch that is written again under its id is the same batch."""
    gateway: str
    deltas: tuple[StoredDelta, ...]
    """In order of arrival; at least one."""


class Held(msgspec.Struct, frozen=True):
    """What an adapter holds of a batch, as read back from it."""

    deltas: int
    id_sum: int
    """Sum of `delta.id_number` modulo 2**64."""


Order = Literal["arrival", "hlc"]


def position_of(stored: StoredDelta, order: Order) -> Position:
    """The place just after a delta."""
    delta = stored.delta
    value = stored.arrival if order == "arrival" else delta.hlc
    return Position(value, delta.hlc, delta.client_id, delta.delta_id, stored.gateway)


class DeltaQuery(msgspec.Struct, frozen=True):
    """Which deltas are asked for, and in which order; every condition must hold."""

    order: Order = "arrival"
    """By arrival a follower misses nothing that one gateway's flushes write; by hlc deltas stand by their age."""
    since: int = -1
    """Above this arrival or hlc, by `order`."""
    until: int | None = None
    """At or below this arrival or hlc, by `order`."""
    after: Position | None = None
    """Behind this place: the `end` of the page before."""
    gateway: str | None = None
    """None: of every gateway."""
    tables: tuple[str, ...] = ()
    """Empty: of every table."""
    rows: tuple[str, ...] = ()
    """Row ids; empty: of every row."""
    limit: int = DEFAULT_PAGE


class DeltaPage(msgspec.Struct, frozen=True):
    """A part of what a query finds."""

    deltas: tuple[StoredDelta, ...]
    """In the query's order, at most its limit."""
    end: Position | None
    """Where the next page starts; None when nothing is left."""


class ArrowPage(msgspec.Struct, frozen=True):
    """A part of what a query finds, as a table."""

    deltas: pa.Table
    """In the query's order, at most its limit; the columns of `arrow.arrow_schema`, in either form."""
    end: Position | None
    """Where the next page starts; None when nothing is left."""


class DatabaseAdapter(Protocol):
    """A place that keeps deltas, one by one, for good."""

    def insert_deltas(self, batch: DeltaBatch) -> Held:
        """Keep a batch, whole or not at all, durably before this returns.

        A delta that is held already, by `StoredDelta.identity`, stays as it is, from whichever batch it came: so a
        batch may be inserted again after an answer that was lost or a crash at any point.

        Returns:
            What the adapter holds of the batch's deltas now, read back after the commit.

        Raises:
            AdapterError: the batch may or may not be there; a repeat is safe.
        """

    def query_deltas_since(self, query: DeltaQuery) -> DeltaPage:
        """A page of the deltas that a query asks for.

        Following `end` gives each delta once. A value comes back as its RFC 8785 text or as it came in.

        Raises:
            AdapterError: the backend cannot be read.
        """

    def get_latest_state(self, gateway: str | None, table: str, row_ids: Collection[str]) -> dict[str, RowState]:
        """The merge of all deltas held of each row, also of rows that are deleted; a row without any is absent.

        Args:
            gateway: None for deltas of every gateway, merged as if they were one's.
            table: the rows' table.
            row_ids: the rows.

        Raises:
            AdapterError: the backend cannot be read.
        """

    def newest_position(self) -> Position | None:
        """The place after the last of all deltas held, in order of arrival; None where there are none.

        Raises:
            AdapterError: the backend cannot be read.
        """

    def close(self) -> None:
        """Release connections; nothing else is called afterwards."""


@runtime_checkable
class Materialisable(Protocol):
    """A `DatabaseAdapter` that can keep a table of rows beside the deltas."""

    def ensure_schema(self, schema: TableSchema) -> None:
        """Make the destination's table (`source_table`, or `table`), or add the columns that it lacks.

        The table is unique by `gateway` and `row_id` alone: two rows may have one key of the user's. Besides the
        schema's columns it has `props` (JSON, the user's own, never written again), `synced_at`, `last_arrival`,
        `checksum` and, with soft delete, `deleted_at`.

        Raises:
            AdapterError: the backend refused.
        """

    def materialise(self, gateway: str, schema: TableSchema, row_ids: Sequence[str]) -> int:
        """Bring one gateway's rows of the destination's table in line with the deltas that this adapter holds of them.

        Repeatable at any time and in any order, as it reads what it writes from the deltas alone. A deleted row's row
        gets `deleted_at` and keeps its values where the schema says soft delete, and is removed otherwise.

        Returns:
            How many rows were looked at.

        Raises:
            AdapterError: the backend refused; nothing was changed.
        """


@runtime_checkable
class StateWriter(Materialisable, Protocol):
    """A `Materialisable` that takes rows' states from elsewhere, as compositions of several places need."""

    def write_states(self, schema: TableSchema, read: Callable[[], Mapping[RowId, RowContent]]) -> int:
        """Bring rows of the destination's table in line with contents.

        Args:
            schema: the table's; `ensure_schema` has been called with it.
            read: returns the contents by row, called once nobody else writes the table any more.

        Raises:
            AdapterError: the backend refused; nothing was changed.
        """


@runtime_checkable
class ArrowAdapter(Protocol):
    """A `DatabaseAdapter` that takes and gives large amounts as Arrow tables; the promises are the same."""

    def insert_arrow(self, batch_id: str, gateway: str, deltas: pa.Table) -> Held:
        """`insert_deltas` of a table with the columns of `arrow.arrow_schema`, in either form."""

    def query_arrow(self, query: DeltaQuery) -> ArrowPage:
        """`query_deltas_since` as a table."""


@runtime_checkable
class Prunable(Protocol):
    """A `DatabaseAdapter` that can let go of deltas: what a hot tier must be able to do."""

    def delete_deltas(self, deltas: pa.Table) -> int:
        """Remove, durably, exactly these deltas, by their identity; nothing where one is not held.

        Args:
            deltas: as `ArrowAdapter` has them.

        Returns:
            How many were removed.

        Raises:
            AdapterError: some may be gone; a repeat is safe.
        """


@runtime_checkable
class Divisible(Protocol):
    """A `DatabaseAdapter` that can divide a query into ranges, so that several tasks move what it finds."""

    def split_points(self, query: DeltaQuery, size: int) -> list[int]:
        """Return the values that cut a query's deltas into ranges of about `size`.

        Args:
            query: what is to be divided; its limit does not count.
            size: deltas a range; an estimate will do.

        Returns:
            Values of the query's order, ascending, each the last of its range; empty if one range holds everything.

        Raises:
            AdapterError: the backend cannot be read.
        """


@runtime_checkable
class ConcurrentWriters(Protocol):
    """A `DatabaseAdapter` that several processes write at the same time without waiting for each other."""

    @property
    def max_writers(self) -> int:
        """How many processes at most gain by writing at the same time; 1 if they would only wait."""


class Mark(msgspec.Struct, frozen=True):
    """How far a follower is, as the place that it writes to knows it."""

    name: str
    """Of the follower: 1 to 512 characters."""
    was: str | None
    """What it found there when it began; None where there was none."""
    now: str
    """What is true once the batch is in."""


class Beside(Protocol):
    """What is shown in tables of rows besides what the follower's own deltas say."""

    def shown(
        self, schema: TableSchema, rows: Sequence[RowId], contents: Mapping[RowId, RowContent]
    ) -> Mapping[RowId, RowContent]:
        """Return the contents to write.

        Args:
            schema: the table's.
            rows: the rows to write.
            contents: the merge of the deltas held of them.
        """


class _NothingBeside:
    def shown(
        self,
        schema: TableSchema,  # noqa: ARG002 the protocol's
        rows: Sequence[RowId],  # noqa: ARG002
        contents: Mapping[RowId, RowContent],
    ) -> Mapping[RowId, RowContent]:
        return contents


NOTHING_BESIDE: Beside = _NothingBeside()


@runtime_checkable
class Marked(Protocol):
    """A `DatabaseAdapter` that keeps followers' marks beside the deltas, so that both change together."""

    def mark(self, name: str) -> str | None:
        """The mark of a follower; None where it never wrote one."""

    def move_mark(self, mark: Mark) -> None:
        """Move a follower's mark alone.

        Raises:
            IntegrityError: the mark is neither `was` nor `now`: another run has moved it.
            AdapterError: it may or may not have happened; a repeat is safe.
        """

    def follow(self, batch: DeltaBatch, mark: Mark, schemas: Sequence[TableSchema] = ()) -> Held:
        """`insert_deltas`, the tables of rows that `schemas` name brought in line, and the mark: all or nothing.

        A row of such a table is the merge of all deltas of its gateway and id. May be repeated after an answer that
        was lost: a mark that is `now` already is left so. Where the backend has no transactions the mark
        comes last, so that a crash repeats work and loses none.

        Raises:
            IntegrityError: the mark is neither `was` nor `now`: another run has moved it.
            AdapterError: it may or may not have happened; a repeat is safe.
        """

    def follow_arrow(
        self,
        batch_id: str,
        deltas: pa.Table,
        mark: Mark,
        schemas: Sequence[TableSchema] = (),
        beside: Beside = NOTHING_BESIDE,
    ) -> Held:
        """`follow` of a table as `ArrowAdapter` has them, of any gateways; raises as that.

        Args:
            batch_id: names this very set of deltas for ever.
            deltas: at least one.
            mark: of the follower.
            schemas: of the tables of rows to be brought in line.
            beside: what those show besides.
        """


Adapter = DatabaseAdapter | LakeAdapter


def is_object_store(adapter: Adapter) -> TypeIs[LakeAdapter]:
    """Whether an adapter keeps objects rather than deltas."""
    return hasattr(adapter, "put_object")

"""Deltas and rows as adapters store, write and query them: the data types of the adapter protocols in `base.py`.

Adapters, and everything that reads or writes them, use these types.

- A *delta* is a change of one row. It belongs to a *gateway*, the stream of changes of one app. It has two times: its
  *hlc*, by the clock of the client that made it, and its *arrival*, by the clock of the server that received it. Both
  are hybrid logical clocks (milliseconds and a counter in one integer).
- A *position* is a place between two deltas in the order of a query. A page of a result ends at one.
- A *follower* copies the deltas of the lake (Iceberg) to an adapter. Its *mark*, a text stored at the adapter, says how
  far it has read the lake.
- A *destination table* has the current rows of a synced table, beside the deltas. The content of a row there is the
  merge of the row's deltas, in any order. With soft delete, a deleted row stays in the table with its last values,
  marked as deleted.
- A *hash slot* is a hash of a row id or batch id. Hash slots divide a large backlog among parallel writers
  (`transfer/loads.py`), and the rows of a destination table among locks (`sql/row_tables.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal
from zlib import crc32

import msgspec

from lakesync.model.delta import id_number
from lakesync.model.errors import IntegrityError
from lakesync.model.merge import RowState
from lakesync.model.types import ColumnValue, Position, RowDelta

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_PER_QUERY = 500
"""Rows that one query selects, at most."""
PAGE_DELTAS = 10_000
"""Deltas per page, unless a query sets a limit."""

HASH_SLOTS = 16
"""Number of hash slots, and so the most writers that can share a backlog, because each takes whole slots."""
RowId = tuple[str, str]
"""`(gateway, row id)`: the identity of a row at a destination."""


class StoredDelta(msgspec.Struct, frozen=True, gc=False):
    """A delta as an adapter stores it."""

    gateway: str
    arrival: int
    """The gateway's HLC for the commit. All deltas of one push share it."""
    delta: RowDelta

    @property
    def identity(self) -> DeltaIdentity:
        """The delta's unique identity. Delta ids are unique per client only."""
        return (self.gateway, self.delta.client_id, self.delta.hlc, self.delta.delta_id)


DeltaIdentity = tuple[str, str, int, str]
"""`(gateway, client id, hlc, delta id)`."""


class DeltaBatch(msgspec.Struct, frozen=True):
    """Deltas of one gateway that are written together."""

    batch_id: str
    """Identifies this exact set of deltas permanently. A retry under the same id writes the same batch."""
    gateway: str
    deltas: tuple[StoredDelta, ...]
    """In order of arrival; at least one."""


class BatchChecksum(msgspec.Struct, frozen=True):
    """Number and id sum of deltas: what an adapter reads back after a write, to compare with what it was given."""

    deltas: int = 0
    id_sum: int = 0
    """Sum of `delta.id_number`, the first 64 bits of a hash, modulo 2**64."""

    def plus(self, other: BatchChecksum) -> BatchChecksum:
        """Return the checksum of both sets of deltas together."""
        return BatchChecksum(self.deltas + other.deltas, (self.id_sum + other.id_sum) % 2**64)


Order = Literal["arrival", "hlc"]
"""The order in which a query returns deltas. Equal values are ordered by hlc, client id, delta id and gateway."""


def position_of(stored: StoredDelta, order: Order) -> Position:
    """Return the position just after a delta.

    Args:
        stored: the delta.
        order: whether positions are by arrival or by hlc.
    """
    delta = stored.delta
    value = stored.arrival if order == "arrival" else delta.hlc
    return Position(value, delta.hlc, delta.client_id, delta.delta_id, stored.gateway)


class DeltaQuery(msgspec.Struct, frozen=True):
    """Selects the deltas that fulfil all conditions, and their order."""

    order: Order = "arrival"
    """`arrival` to follow a gateway: deltas that are stored later have greater arrivals. `hlc` to select by age."""
    since: int = -1
    """Exclusive lower bound on the arrival or the hlc, depending on `order`."""
    until: int | None = None
    """Inclusive upper bound on the arrival or the hlc, depending on `order`."""
    after: Position | None = None
    """Continue after this position: the `end` of the previous page."""
    gateway: str | None = None
    """None selects every gateway."""
    tables: tuple[str, ...] = ()
    """Empty selects every table."""
    rows: tuple[str, ...] = ()
    """Row ids; empty selects every row."""
    limit: int = PAGE_DELTAS
    """Deltas per page, at most."""


def queries_of_rows(table: str, rows: Iterable[tuple[str | None, str]]) -> Iterator[DeltaQuery]:
    """Yield queries that together select all deltas of some rows. The deltas of one row are never in two of them.

    Args:
        table: the rows' table.
        rows: gateway and id of each row. None as the gateway, then for all rows, selects the ids of every gateway.
    """
    by_gateway: dict[str | None, list[str]] = {}
    for gateway, row_id in dict.fromkeys(rows):
        by_gateway.setdefault(gateway, []).append(row_id)
    for gateway, row_ids in by_gateway.items():
        for start in range(0, len(row_ids), _ROWS_PER_QUERY):
            yield DeltaQuery(gateway=gateway, tables=(table,), rows=tuple(row_ids[start : start + _ROWS_PER_QUERY]))


class TableSelection(msgspec.Struct, frozen=True):
    """Selects deltas by table and gateway."""

    tables: tuple[str, ...] = ()
    """Empty selects every table."""
    without: tuple[str, ...] = ()
    """Tables to leave out."""
    gateways: tuple[str, ...] = ()
    """Empty selects every gateway."""

    def has_table(self, table: str) -> bool:
        """Return whether a table is selected."""
        return table not in self.without and (not self.tables or table in self.tables)

    def has_gateway(self, gateway: str) -> bool:
        """Return whether a gateway is selected."""
        return not self.gateways or gateway in self.gateways

    def select(self, deltas: pa.Table) -> pa.Table:
        """Return the selected ones of an Arrow table's deltas."""
        return self.select_tables(_among(deltas, "gateway", self.gateways) if self.gateways else deltas)

    def select_tables(self, deltas: pa.Table) -> pa.Table:
        """Return those of an Arrow table's deltas whose table is selected, of any gateway."""
        if self.tables:
            deltas = _among(deltas, "table_name", self.tables)
        return _among(deltas, "table_name", self.without, is_among=False) if self.without else deltas


EVERYTHING = TableSelection()
"""Selects every table and gateway."""


class DeltaPage(msgspec.Struct, frozen=True):
    """One page of a query's result."""

    deltas: tuple[StoredDelta, ...]
    """In the query's order, at most `limit`."""
    end: Position | None
    """Pass it as `after` to get the next page. None on the last page."""


class ArrowPage(msgspec.Struct, frozen=True):
    """One page of a query's result as an Arrow table."""

    deltas: pa.Table
    """In the query's order, at most `limit`. Has the columns of `arrow.arrow_schema`; `columns` is a map or text."""
    end: Position | None
    """Pass it as `after` to get the next page. None on the last page."""


class MarkUpdate(msgspec.Struct, frozen=True):
    """A compare-and-set of a follower's mark."""

    name: str
    """The mark's name: 1 to 512 characters."""
    expected: str | None
    """The value that the follower read when it started. None if the mark did not exist."""
    value: str
    """The value to write together with the batch."""

    def check(self, found: str | None) -> None:
        """Check that a stored mark has the expected value, or the new one: an interrupted attempt may have written it.

        Args:
            found: the stored value; None if the mark does not exist.

        Raises:
            IntegrityError: the mark has another value.
        """
        if found not in (self.expected, self.value):
            raise self.moved_error(found)

    def moved_error(self, found: str | None) -> IntegrityError:
        """Return the error to raise if another run has moved the mark.

        Args:
            found: the stored value; None if the mark does not exist.
        """
        return IntegrityError(
            f"the mark {self.name!r} is {found!r}, expected {self.expected!r}: another run has moved it. Start again "
            "from its current value."
        )


def checksum_of(deltas: Iterable[StoredDelta]) -> BatchChecksum:
    """Return the count and id sum of deltas.

    Unlike `arrow.table_checksum` it needs no pyarrow, so gateways can flush JSON without it.
    """
    count, total = 0, 0
    for stored in deltas:
        count += 1
        total += id_number(stored.delta.delta_id)
    return BatchChecksum(count, total % 2**64)


def hash_slot_of(text: str) -> int:
    """Return the hash slot of a row id or batch id. It is the same in every process and version."""
    return crc32(text.encode()) % HASH_SLOTS


class Part(msgspec.Struct, frozen=True, rename={"count": "of"}):
    """One part of a *load*, which is a follower's large backlog: the deltas that one of several writers applies.

    Each part has a mark of its own.
    """

    load: str
    """The load's id, by which a mark that is left of an earlier load is recognised."""
    number: int
    """From 0."""
    count: int
    """Number of the load's parts; stored as `of`."""
    by_batch: bool = False
    """Whether deltas are divided by batch id, as object stores store whole batches; otherwise by row id."""

    def mask(self, deltas: pa.Table) -> pa.ChunkedArray:
        """Return a mask of the deltas that belong to this part.

        Args:
            deltas: a table with the columns `batch_id` and `row_id`.
        """
        import pyarrow as pa

        keys = deltas.column("batch_id" if self.by_batch else "row_id")
        encoded = pa.chunked_array(keys, pa.string()).combine_chunks().dictionary_encode()
        belongs = pa.array(
            [hash_slot_of(text) % self.count == self.number for text in encoded.dictionary.to_pylist()], pa.bool_()
        )
        return pa.chunked_array([belongs.take(encoded.indices)])


class RowContent(msgspec.Struct, frozen=True, gc=False):
    """The merge of a row's deltas, with the details that a destination table needs.

    A state is *visible* if the row exists: some column, or an INSERT, is newer than every DELETE.
    """

    state: RowState
    """The merge of all of the row's deltas."""
    arrival: int = -1
    """The greatest arrival of its deltas; -1 if it has no deltas."""
    without_deletes: RowState | None = None
    """The merge without DELETEs: the values that a soft-deleted row keeps. None if no delta is a DELETE, so that it
    would equal `state`."""
    is_hidden: bool = False
    """Whether the filter of a flow, a configured copy of some deltas, excludes the row."""

    @property
    def retained(self) -> RowState:
        """The state whose values a soft-deleted row keeps."""
        return self.state if self.without_deletes is None else self.without_deletes

    @property
    def is_deleted(self) -> bool:
        """Whether a table with soft delete marks the row as deleted.

        That is so if a DELETE removed a row that existed, or if a filter hides the row, even one that never existed.
        """
        return self.is_hidden or (not self.state.visible and self.retained.visible)

    def merged_with(self, other: RowContent) -> RowContent:
        """Return the content of the union of both sets of deltas."""
        has_deletes = self.without_deletes is not None or other.without_deletes is not None
        return RowContent(
            merge_states(self.state, other.state),
            max(self.arrival, other.arrival),
            merge_states(self.retained, other.retained) if has_deletes else None,
            self.is_hidden or other.is_hidden,
        )


NO_CONTENT = RowContent(RowState())
"""The content of a row without deltas."""


def merge_states(first: RowState, second: RowState) -> RowState:
    """Merge two states of one row. The result equals the merge of all deltas of both states.

    `RowState` merges only deltas, so this function makes deltas that give each state, and merges these.

    Args:
        first: a state.
        second: another state of the same row.
    """
    merged = RowState()
    for state in (first, second):
        for op, stamp in (("DELETE", state.tombstone), ("INSERT", state.inserted)):
            if stamp is not None:
                hlc, client_id = stamp
                merged.merge(RowDelta(op, "", "", client_id, (), hlc, delta_id=""))  # type: ignore[arg-type]
        for write in state.live:
            cells = tuple(ColumnValue(column, value) for column, value in write.columns.items())
            merged.merge(RowDelta("UPDATE", "", "", write.client_id, cells, write.hlc, write.delta_id))
    return merged


def states_of(deltas: Iterable[RowDelta]) -> dict[str, RowState]:
    """Merge deltas of one table into row states, by row id."""
    states: dict[str, RowState] = {}
    for delta in deltas:
        states.setdefault(delta.row_id, RowState()).merge(delta)
    return states


def contents_of(deltas: Iterable[StoredDelta]) -> dict[RowId, RowContent]:
    """Merge deltas of one table into row contents, by gateway and row id."""
    by_row: dict[RowId, list[StoredDelta]] = {}
    for stored in deltas:
        by_row.setdefault((stored.gateway, stored.delta.row_id), []).append(stored)
    return {row: _content(row_deltas) for row, row_deltas in by_row.items()}


def _among(deltas: pa.Table, column: str, values: Sequence[str], *, is_among: bool = True) -> pa.Table:
    """Return the deltas whose value in a column is one of `values`; with `is_among` false, the others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    mask = pc.is_in(deltas.column(column), pa.array(values, pa.string()))
    return deltas.filter(mask if is_among else pc.invert(mask))


def _content(deltas: Sequence[StoredDelta]) -> RowContent:
    """Merge the deltas of one row."""
    state, without_deletes = RowState(), RowState()
    has_deletes = any(stored.delta.op == "DELETE" for stored in deltas)
    for stored in deltas:
        state.merge(stored.delta)
        if has_deletes and stored.delta.op != "DELETE":
            without_deletes.merge(stored.delta)
    return RowContent(state, max(stored.arrival for stored in deltas), without_deletes if has_deletes else None)

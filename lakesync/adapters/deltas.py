"""Deltas as adapters store, write and query them: the data types of the adapter protocols in `base.py`.

A delta is a change of one row. It has two times: its hlc, by the clock of the client that made it, and its arrival, by
the clock of the gateway that received it. A position is a place between two deltas in the order of a query. Row ids and
batch ids have hash buckets, which divide a load among parallel writers (`transfer/loads.py`), and a destination table
among locks (`sql/row_tables.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal
from zlib import crc32

import msgspec

from lakesync.model.delta import id_number
from lakesync.model.errors import IntegrityError
from lakesync.model.types import Position, RowDelta

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_PER_QUERY = 500
"""Rows that one query selects, at most."""
_DEFAULT_PAGE = 10_000
"""Deltas per page, unless a query sets a limit."""

BUCKETS = 16
"""Number of buckets. A load has at most this many parts, because each part takes whole buckets."""


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
    """Count and id sum of deltas: what an adapter reads back after a write, to compare with what it was given."""

    deltas: int
    id_sum: int
    """Sum of `delta.id_number` modulo 2**64."""


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
    """Selects deltas and their order. All conditions must hold."""

    order: Order = "arrival"
    """`arrival` to follow a gateway: later flushes only add greater arrivals. `hlc` to select deltas by age."""
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
    limit: int = _DEFAULT_PAGE
    """Deltas per page, at most."""


def queries_of_rows(table: str, rows: Iterable[tuple[str | None, str]]) -> Iterator[DeltaQuery]:
    """Yield queries that together select all deltas of some rows. The deltas of one row are never in two of them.

    Args:
        table: the rows' table.
        rows: gateway and id of each row; None as the gateway selects the row ids of every gateway.
    """
    by_gateway: dict[str | None, list[str]] = {}
    for gateway, row_id in rows:
        by_gateway.setdefault(gateway, []).append(row_id)
    for gateway, row_ids in by_gateway.items():
        for start in range(0, len(row_ids), _ROWS_PER_QUERY):
            yield DeltaQuery(gateway=gateway, tables=(table,), rows=tuple(row_ids[start : start + _ROWS_PER_QUERY]))


class DeltaPage(msgspec.Struct, frozen=True):
    """One page of a query's result."""

    deltas: tuple[StoredDelta, ...]
    """In the query's order, at most `limit`."""
    end: Position | None
    """Pass it as `after` to get the next page. None on the last page."""


class ArrowPage(msgspec.Struct, frozen=True):
    """One page of a query's result as an Arrow table."""

    deltas: pa.Table
    """In the query's order, at most `limit`. Has the columns of `arrow.arrow_schema`, in either form of `columns`."""
    end: Position | None
    """Pass it as `after` to get the next page. None on the last page."""


class MarkUpdate(msgspec.Struct, frozen=True):
    """A compare-and-set of a follower's mark, the stored text that says how far the follower has read the lake."""

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


def bucket_of(text: str) -> int:
    """Return the bucket of a row id or batch id. It is the same in every process and version."""
    return crc32(text.encode()) % BUCKETS


class Part(msgspec.Struct, frozen=True, rename={"count": "of"}):
    """One part of a load, which is a follower's large backlog: the deltas that one writer applies."""

    load: str
    """The load's id; part of the names of its parts' marks."""
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
            [bucket_of(text) % self.count == self.number for text in encoded.dictionary.to_pylist()], pa.bool_()
        )
        return pa.chunked_array([belongs.take(encoded.indices)])

"""Reads and writes deltas of any adapter as Arrow tables, whether or not the adapter itself supports Arrow.

Adapters may implement optional protocols (`ArrowAdapter`, `Splittable`, …). Each function here calls the protocol if
the adapter implements it, and otherwise does the same in another way or returns a default. Adapters composed of others
(`composite.py`, `fan_out.py`), the transfers between adapters and the pipeline call these functions. A delta is a
change of a row. It belongs to a gateway, one app's stream of deltas. Its *hlc* is its client's timestamp, its *arrival*
that of the server that received it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lakesync.adapters.arrow import from_arrow, table_checksum, to_arrow
from lakesync.adapters.base import (
    ArrowAdapter,
    ConcurrentWriters,
    DatabaseAdapter,
    FencesWrites,
    Prunable,
    Splittable,
    StoresBatches,
)
from lakesync.adapters.deltas import (
    ArrowPage,
    BatchChecksum,
    DeltaBatch,
    DeltaPage,
    DeltaQuery,
    RowContent,
    RowId,
    contents_of,
    queries_of_rows,
)
from lakesync.model.errors import ConfigurationError, IntegrityError

if TYPE_CHECKING:
    import pyarrow as pa


class ArrowAdapterBase(ABC):
    """Base class of adapters that work with Arrow tables: implements `DatabaseAdapter`'s methods for single deltas."""

    @abstractmethod
    def insert_arrow(self, batch_id: str, gateway: str, deltas: pa.Table) -> BatchChecksum:
        """Store a batch, see `ArrowAdapter.insert_arrow`."""

    @abstractmethod
    def query_arrow(self, query: DeltaQuery) -> ArrowPage:
        """Return a page, see `ArrowAdapter.query_arrow`."""

    def insert_deltas(self, batch: DeltaBatch) -> BatchChecksum:
        """Store a batch, see `DatabaseAdapter.insert_deltas`."""
        return self.insert_arrow(batch.batch_id, batch.gateway, to_arrow(batch.deltas))

    def query_deltas_since(self, query: DeltaQuery) -> DeltaPage:
        """Return a page, see `DatabaseAdapter.query_deltas_since`."""
        page = self.query_arrow(query)
        return DeltaPage(tuple(from_arrow(page.deltas)), page.end)


def read_arrow(adapter: DatabaseAdapter, query: DeltaQuery) -> ArrowPage:
    """Return a page of an adapter's deltas as an Arrow table.

    Raises:
        AdapterError: the adapter cannot be reached; retry.
    """
    if isinstance(adapter, ArrowAdapter):
        return adapter.query_arrow(query)
    page = adapter.query_deltas_since(query)
    return ArrowPage(to_arrow(page.deltas), page.end)


def read_contents(adapter: DatabaseAdapter, table: str, rows: Sequence[RowId]) -> dict[RowId, RowContent]:
    """Return the content of rows of one table, each the merge of its deltas. Rows without deltas are absent.

    Args:
        adapter: stores the rows' deltas.
        table: the rows' table.
        rows: the rows to read, of any gateways.
    """
    found: dict[RowId, RowContent] = {}
    for query in queries_of_rows(table, rows):
        pages = read_pages(adapter, query)
        found |= contents_of(stored for page in pages for stored in from_arrow(page.deltas))
    return found


def write_arrow(adapter: DatabaseAdapter, batch_id: str, gateway: str, deltas: pa.Table) -> BatchChecksum:
    """Insert a batch of deltas, and return its checksum as read back. Deltas that are already stored are unchanged.

    Args:
        adapter: the adapter.
        batch_id: identifies this exact set of deltas permanently.
        gateway: the gateway id.
        deltas: the deltas as an Arrow table; `columns` may be a map or text (see `lakesync.adapters.arrow`).

    Raises:
        AdapterError: the deltas may or may not be written; retry.
    """
    if isinstance(adapter, ArrowAdapter):
        return adapter.insert_arrow(batch_id, gateway, deltas)
    return adapter.insert_deltas(DeltaBatch(batch_id, gateway, tuple(from_arrow(deltas))))


def fence_writes(adapter: DatabaseAdapter, name: str) -> None:
    """Make this task's later writes fail once an erasure has begun at the adapter, if it implements `FencesWrites`.

    Args:
        adapter: the adapter to write to.
        name: the task's name. Tasks that write at the same time have different ones.
    """
    if isinstance(adapter, FencesWrites):
        adapter.fence_writes(name)


def as_prunable(adapter: DatabaseAdapter) -> Prunable:
    """Return an adapter that can delete deltas, as such.

    Raises:
        ConfigurationError: the adapter does not support deleting deltas.
    """
    if not isinstance(adapter, Prunable):
        raise ConfigurationError(
            f"{type(adapter).__name__} does not support deleting deltas and cannot be a hot tier: use a database"
        )
    return adapter


def split_points(adapter: DatabaseAdapter, query: DeltaQuery, size: int) -> list[int]:
    """Return the arrivals or hlcs, by the query's order, at which it can be split; see `Splittable.split_points`.

    Args:
        adapter: the adapter.
        query: the query to split.
        size: number of deltas in a range, approximately.

    Returns:
        The last value of each range except the last; empty if the adapter does not support splitting.
    """
    return adapter.split_points(query, size) if isinstance(adapter, Splittable) else []


def max_writers(adapter: DatabaseAdapter) -> int:
    """Return the number of processes up to which parallel writes are faster; 1 for no `ConcurrentWriters`."""
    return adapter.max_writers if isinstance(adapter, ConcurrentWriters) else 1


def read_pages(adapter: DatabaseAdapter, query: DeltaQuery) -> Iterator[ArrowPage]:
    """Yield every page of a query, starting at `query.after`.

    Args:
        adapter: the adapter to read.
        query: the query of the first page.
    """
    while True:
        page = read_arrow(adapter, query)
        yield page
        if page.end is None:
            return
        query = replace(query, after=page.end)


def missing_deltas(target: DatabaseAdapter, deltas: pa.Table) -> pa.Table:
    """Return the deltas that a copy must write: those that the target lacks; all if it ignores stored ones itself.

    Args:
        target: the adapter to write to.
        deltas: the deltas to copy.
    """
    return target.missing(deltas) if isinstance(target, StoresBatches) else deltas


def copy_page(target: DatabaseAdapter, kind: str, deltas: pa.Table) -> BatchChecksum:
    """Write a page of deltas, one batch per gateway. A repeated copy changes nothing.

    Args:
        target: the adapter to write to.
        kind: why the page is copied: `tier` (its deltas are old, and move to another adapter), `fan-out` (the target
            is a second copy) or `migration`; part of the batch ids.
        deltas: at least one, in the order of the query that returned them.

    Returns:
        Number and id sum of all deltas, as read back.

    Raises:
        AdapterError: the deltas may or may not be written; retry.
        IntegrityError: the target stores fewer or other deltas than were written.
    """
    import pyarrow.compute as pc

    missing = missing_deltas(target, deltas)
    for gateway in pc.unique(missing.column("gateway")).to_pylist():
        of_gateway = missing.filter(pc.equal(missing.column("gateway"), gateway))
        expected = table_checksum(of_gateway)
        first = of_gateway.column("hlc")[0].as_py()
        # the same for a repeated copy of the page, so that the target recognises it
        batch_id = f"{gateway}.{kind}.{first:016x}-{expected.deltas}-{expected.id_sum:016x}"
        stored = write_arrow(target, batch_id, gateway, of_gateway)
        if stored != expected:
            raise IntegrityError(
                f"{expected.deltas} deltas of gateway {gateway!r} were written (id sum {expected.id_sum}), but "
                f"{stored.deltas} were read back (id sum {stored.id_sum}). The copy stops; check the target."
            )
    return table_checksum(deltas)

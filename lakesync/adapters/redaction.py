"""Erasure at an adapter: the permanent deletion of the content of a row's or a client's deltas (changes of rows).

A request concerns one gateway, an app's stream of deltas. A delta that it covers stays stored, but loses its content. A
covered INSERT or UPDATE becomes an UPDATE without columns, which changes nothing in a merge; a DELETE stays a DELETE,
because it deletes older values. Each keeps its hlc (the client's timestamp), client and id. So the number of deltas and
the sum of their ids, by which copies are compared, stay the same, and a batch that is written again recognises the
delta as stored. The rows of destination tables (tables with the current rows), which are merged from the deltas, are
rebuilt without the content.

The pipeline's erasure calls `Redactable.redact`; adapters implement it with the other functions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from lakesync.adapters.arrow import columns_as_text
from lakesync.adapters.base import ContentTransform, DatabaseAdapter, MarkStore, unchanged
from lakesync.adapters.deltas import MarkUpdate
from lakesync.model.errors import ConfigurationError
from lakesync.model.schema import TableSchema
from lakesync.model.validation import check_erasure_target

if TYPE_CHECKING:
    import pyarrow as pa

NO_COLUMNS = "{}"
"""The JSON text of a delta's columns after its erasure."""
TouchedRow = tuple[str, str, str]
"""`(gateway, table, row id)`."""


class RedactionRequest(msgspec.Struct, frozen=True):
    """The deltas of one gateway to erase: those of a row, or all that a client wrote.

    Raises:
        ValidationError: it names neither one row nor one client, and so would cover a whole gateway or table.
    """

    gateway: str
    hlc: int
    """The request covers deltas up to this hlc, inclusive."""
    table: str | None = None
    row_id: str | None = None
    client_id: str | None = None
    """Set either this, or `table` and `row_id`."""
    tables: tuple[str, ...] = ()
    """Restricts a client's deltas to these tables; empty for every table."""

    def __post_init__(self) -> None:
        """Check that it names either a row or a client."""
        subject = f"the redaction request of gateway {self.gateway!r}"
        check_erasure_target(subject, self.table, self.row_id, self.client_id)


class RedactionResult(msgspec.Struct, frozen=True):
    """What an adapter has erased."""

    deltas: int = 0
    """Covered INSERTs, and other covered deltas that still had columns."""
    rows: int = 0
    """Rows of destination tables that were rebuilt from the remaining content, changed or not."""
    touched: tuple[TouchedRow, ...] = ()
    """Every row with a covered delta, including deltas that were already empty, each once."""


@runtime_checkable
class Redactable(Protocol):
    """A `DatabaseAdapter` that can erase the content of deltas."""

    def redact(
        self,
        requests: Sequence[RedactionRequest],
        schemas: Sequence[TableSchema] = (),
        transform: ContentTransform = unchanged,
        also: Collection[TouchedRow] = (),
    ) -> RedactionResult:
        """Erase covered deltas and rebuild their rows, durably.

        Can be repeated, also after a crash: rows are rebuilt even if their deltas are already empty. A row that is no
        longer visible is removed from its destination table, together with its column `props`, which the user may
        write. If the table has soft delete (deleted rows stay, marked as deleted), it is written again if it has
        content left. The caller ensures that no process writes covered deltas meanwhile. Tasks of killed runs may go
        on, so the texts of marks change, and `MarkStore.apply_arrow` fails with a mark that was read before.

        Args:
            requests: what to erase.
            schemas: schemas of the adapter's destination tables, whose rows are rebuilt; empty for none.
            transform: changes the contents of rows before they are written.
            also: further rows to rebuild, because their deltas were erased at another adapter.

        Raises:
            AdapterError: the erasure may be incomplete; retry.
        """


@runtime_checkable
class RowRemover(Protocol):
    """A `Redactable` that can delete rows of destination tables which nothing writes any longer."""

    def remove_rows(self, rows: Collection[TouchedRow]) -> int:
        """Delete rows and their dead letters, durably, and return the number of deleted rows.

        A table that LakeSync did not create stays.

        Args:
            rows: the rows to delete, with the names of their destination tables. Dead letters have the names of synced
                tables; pass a row with both names if they differ.

        Raises:
            AdapterError: the removal may be incomplete; retry.
        """


def require_redactable(adapter: DatabaseAdapter, name: str) -> Redactable:
    """Return an adapter as `Redactable`.

    Args:
        adapter: the adapter.
        name: its name in `lakesync.toml`, for the message.

    Raises:
        ConfigurationError: the adapter cannot erase.
    """
    if not isinstance(adapter, Redactable):
        raise ConfigurationError(
            f"the adapter {name!r} ({type(adapter).__name__}) does not support erasure: implement `redact`, or erase "
            "manually and remove it from lakesync.toml"
        )
    return adapter


def read_fence(adapter: MarkStore, name: str) -> MarkUpdate:
    """Return an update that leaves a task's mark as it is, and so fails once an erasure has changed its text.

    Args:
        adapter: stores the mark, which is created if it is missing.
        name: the task's name; see `FencesWrites`.
    """
    mark = f"fences/{name}"
    text = adapter.read_mark(mark)
    if text is None:
        text = "{}"
        adapter.move_mark(MarkUpdate(mark, None, text))
    return MarkUpdate(mark, text, text)


def covered_mask(deltas: pa.Table, requests: Sequence[RedactionRequest]) -> pa.ChunkedArray:
    """Return a mask of the deltas that any request covers.

    Args:
        deltas: a table of deltas, with the columns of `adapters.arrow.DELTA_COLUMNS`.
        requests: what to erase.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    mask = pa.chunked_array([pa.repeat(False, len(deltas))])
    for request in requests:
        covered = pc.and_(
            pc.equal(deltas.column("gateway"), request.gateway), pc.less_equal(deltas.column("hlc"), request.hlc)
        )
        conditions = {"client_id": request.client_id, "table_name": request.table, "row_id": request.row_id}
        for name, value in conditions.items():
            if value is not None:
                covered = pc.and_(covered, pc.equal(deltas.column(name), value))
        if request.tables:
            covered = pc.and_(covered, pc.is_in(deltas.column("table_name"), pa.array(request.tables, pa.string())))
        mask = pc.or_(mask, covered)
    return mask


def redact_table(deltas: pa.Table, requests: Sequence[RedactionRequest]) -> tuple[pa.Table, RedactionResult]:
    """Return all deltas with the covered ones emptied, and what was erased. `columns` becomes JSON text.

    Args:
        deltas: a table of deltas, with `columns` as maps or as JSON text.
        requests: what to erase.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    deltas = columns_as_text(deltas)
    covered = covered_mask(deltas, requests)
    ops = deltas.column("op").cast(pa.string())
    has_content = pc.or_(pc.equal(ops, "INSERT"), pc.not_equal(deltas.column("columns"), NO_COLUMNS))
    not_empty = pc.and_(covered, has_content)
    ops_without_content = pc.if_else(pc.equal(ops, "DELETE"), "DELETE", "UPDATE")
    row_columns = ["gateway", "table_name", "row_id"]
    rows = deltas.filter(covered).select(row_columns).group_by(row_columns).aggregate([])
    touched = tuple(zip(*(rows.column(name).to_pylist() for name in row_columns), strict=True))
    for name, emptied in (("op", ops_without_content), ("columns", pa.scalar(NO_COLUMNS, pa.string()))):
        column = pc.if_else(not_empty, emptied, deltas.column(name).cast(pa.string()))
        deltas = deltas.set_column(deltas.schema.get_field_index(name), name, column)
    return deltas, RedactionResult(pc.sum(not_empty).as_py() or 0, touched=touched)

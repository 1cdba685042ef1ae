"""What an erasure is to a backend: of the deltas that it covers their places stay, and what they said goes.

The law is the lake's own: a covered delta becomes an UPDATE of no columns, under its hlc, client and id, so that it
changes nothing wherever it is merged, counts and sums of ids stay, and a batch that comes again finds it there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from lakesync.adapters.arrow import spelled
from lakesync.adapters.base import NOTHING_BESIDE, Beside, DatabaseAdapter
from lakesync.model.errors import ConfigurationError
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

NO_COLUMNS = "{}"
TouchedRow = tuple[str, str, str]
"""`(gateway, table, row id)`."""


class Redaction(msgspec.Struct, frozen=True):
    """What is to be erased of one gateway: a row, or what a client wrote."""

    gateway: str
    hlc: int
    """What is stamped up to here."""
    table: str | None = None
    row_id: str | None = None
    client_id: str | None = None
    """Either this, or `table` and `row_id`."""
    tables: tuple[str, ...] = ()
    """Of a client's deltas those of these tables; empty: of every table."""


class Redacted(msgspec.Struct, frozen=True):
    """What a backend has erased."""

    deltas: int = 0
    """That said something until now."""
    rows: int = 0
    """Rows of tables of rows that were made again from what is left, whether or not that changed them."""
    touched: tuple[TouchedRow, ...] = ()
    """Every row of which it holds a covered delta, also one that said nothing any more, each once."""


@runtime_checkable
class Redactable(Protocol):
    """A `DatabaseAdapter` that can take from deltas what they said."""

    def redact(
        self,
        requests: Sequence[Redaction],
        schemas: Sequence[TableSchema] = (),
        beside: Beside = NOTHING_BESIDE,
        also: Collection[TouchedRow] = (),
    ) -> Redacted:
        """Redact what requests cover, and make the rows of it again, durably before this returns.

        May be repeated, also after a crash at any point: rows are made again whether or not their deltas still said
        something. A row that is not shown any more is removed, with soft delete too, and `props` with it. Nobody may
        write older deltas meanwhile.

        Args:
            requests: what is to be erased.
            schemas: of the tables of rows that are kept here.
            beside: what those show besides.
            also: further rows to be made again.

        Raises:
            AdapterError: some of it may be done; a repeat is safe.
        """


def redactable(adapter: DatabaseAdapter, name: str) -> Redactable:
    """An adapter that can erase; `name` is what the user calls it.

    Raises:
        ConfigurationError: it cannot.
    """
    if not isinstance(adapter, Redactable):
        raise ConfigurationError(
            f"the adapter {name!r} ({type(adapter).__name__}) cannot erase: give it the method `redact`, or erase "
            "there by hand and take it out of lakesync.toml"
        )
    return adapter


def covered(deltas: pa.Table, requests: Sequence[Redaction]) -> pa.Table:
    """Which deltas requests cover, as a mask: of a table as `ArrowAdapter` has them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pa.chunked_array([pa.repeat(False, len(deltas))])
    for each in requests:
        mine = pc.and_(pc.equal(deltas.column("gateway"), each.gateway), pc.less_equal(deltas.column("hlc"), each.hlc))
        wanted = {"client_id": each.client_id, "table_name": each.table, "row_id": each.row_id}
        for name, value in wanted.items():
            if value is not None:
                mine = pc.and_(mine, pc.equal(deltas.column(name), value))
        if each.tables:
            mine = pc.and_(mine, pc.is_in(deltas.column("table_name"), pa.array(each.tables, pa.string())))
        found = pc.or_(found, mine)
    return found


def redacted(deltas: pa.Table, requests: Sequence[Redaction]) -> tuple[pa.Table, Redacted]:
    """Deltas, spelled, without what requests cover of them, and what that was."""
    import pyarrow as pa
    import pyarrow.compute as pc

    deltas = spelled(deltas)
    mine = covered(deltas, requests)
    saying = pc.and_(mine, pc.not_equal(deltas.column("columns"), NO_COLUMNS))
    named = ["gateway", "table_name", "row_id"]
    keys = deltas.filter(mine).select(named).group_by(named).aggregate([])
    touched = tuple(zip(*(keys.column(name).to_pylist() for name in named), strict=True))
    for name, value in (("op", "UPDATE"), ("columns", NO_COLUMNS)):
        column = pc.if_else(saying, pa.scalar(value, pa.string()), deltas.column(name).cast(pa.string()))
        deltas = deltas.set_column(deltas.schema.get_field_index(name), name, column)
    return deltas, Redacted(pc.sum(saying).as_py() or 0, touched=touched)

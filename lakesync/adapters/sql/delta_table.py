"""The table of deltas in a SQL database: its columns, conversion from Arrow, inserts, deletes and redactions.

`SqlAdapter` writes the table with this module, and reads it with `queries`. A *delta* is a change of a row, written by
a client at its time *hlc*; a *batch* is the deltas that are written together. A *gateway* is one app's stream of
deltas. A *redaction* empties the deltas that an erasure covers, the permanent deletion of a row's or client's data.

The table's primary key is a delta's identity (hlc, client id, delta id, gateway), in the order that reads by hlc need.
Clients choose delta ids, which may be too long for a key. A long id is stored in the column `long_id`. The key then
contains `#` and 63 digits of the id's SHA-256 instead, 64 characters, which no short id can equal. The SQL column
`columns` has a delta's columns as JSON text; Arrow tables have them so, or as a map (see `lakesync.adapters.arrow`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from lakesync.adapters.arrow import columns_as_text, hashes_of, ids_checksum, value_range
from lakesync.adapters.deltas import BatchChecksum, RowId
from lakesync.adapters.file_scan import sort_unique
from lakesync.adapters.redaction import NO_COLUMNS, RedactionRequest, RedactionResult, TouchedRow
from lakesync.adapters.sql.backend import (
    Column,
    Connection,
    Dialect,
    DirectAppend,
    HashReader,
    Value,
    load_scratch_table,
)

if TYPE_CHECKING:
    import pyarrow as pa

DELTAS_TABLE = "lakesync_deltas"
"""The table's name."""
TABLE_COLUMNS = (
    Column("hlc", "integer"),
    Column("client_id", "id"),
    Column("delta_id", "name"),
    Column("gateway", "name"),
    Column("arrival", "integer"),
    Column("table_name", "name"),
    Column("row_id", "id"),
    Column("op", "name"),
    Column("columns", "text"),
    Column("long_id", "id", required=False),
)
"""`columns` has the delta's columns as JSON; `long_id` is null for an id that fits `delta_id`."""
KEY = ("hlc", "client_id", "delta_id", "gateway")
"""The primary key; a delta's identity."""
INDEXES = {"lakesync_by_arrival": "(arrival)", "lakesync_by_row": "(row_id, table_name)"}
"""Name of each further index → its columns."""
ID_EXPRESSION = "COALESCE(long_id, delta_id)"
"""SQL expression for the delta id that the client chose."""

_MIN_LONG_CHARS = 64
"""An id of this length or more is long, unless it is a SHA-256."""
_HASH = r"^[0-9a-f]{64}$"

_SCRATCH = "lakesync_incoming"
"""The scratch (temporary) table that a batch is loaded into."""
_FIRST_CHUNK_ROWS = 1_000
"""Rows of the first chunk of an append without scratch table; it is small, so that sending starts early."""
_CHUNK_ROWS = 10_000
"""Rows per further chunk. A chunk is encoded while the previous one is sent."""
_OTHER_ID = "0" * 64
"""Replaces the ids of other gateways' and clients' deltas in `_stored_and_own_hashes`."""
_HLC_RANGE = "hlc >= ? AND hlc <= ?"
"""A condition with the batch's lowest and highest hlc, so that the database reads no older and newer deltas."""


def to_table_rows(deltas: pa.Table) -> pa.Table:
    """Return deltas as rows of the table, sorted by its key, without duplicates.

    Args:
        deltas: deltas as an Arrow table. Its column `columns` is returned in the same form, map or text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    table = deltas
    ids = table.column("delta_id").cast(pa.string())
    absent = pa.nulls(len(table), pa.string())
    if _are_short(ids):
        table = table.append_column("long_id", absent)
    else:
        long = pc.and_(
            pc.greater_equal(pc.utf8_length(ids), _MIN_LONG_CHARS), pc.invert(pc.match_substring_regex(ids, _HASH))
        )
        keys = pa.array(
            [
                _key_of_long_id(text) if is_long else text
                for text, is_long in zip(ids.to_pylist(), long.to_pylist(), strict=True)
            ],
            pa.string(),
        )
        table = table.append_column("long_id", pc.if_else(long, ids, absent))
        table = table.set_column(table.schema.get_field_index("delta_id"), "delta_id", keys)
    rows = table.select([column.name for column in TABLE_COLUMNS])
    return sort_unique(rows, "hlc")  # by hlc, then by the rest of the key


def rows_of_table(deltas: pa.Table, table: str) -> list[RowId]:
    """Return the distinct rows of one table among deltas.

    Args:
        deltas: deltas as an Arrow table.
        table: the synced table's name.
    """
    import pyarrow.compute as pc

    of_table = deltas.filter(pc.equal(deltas.column("table_name"), table))
    return list(
        dict.fromkeys(zip(of_table.column("gateway").to_pylist(), of_table.column("row_id").to_pylist(), strict=True))
    )


class DeltaWriter:
    """Inserts or deletes one batch of deltas over one connection, and reads back what is stored.

    An insert takes three calls: `stage`, `insert` within a transaction, and `stored_checksum` after it.
    """

    def __init__(self, connection: Connection, dialect: Dialect, deltas: pa.Table) -> None:
        """Prepare a batch.

        Args:
            connection: an open connection.
            dialect: the database's dialect.
            deltas: at least one delta, as an Arrow table.
        """
        self._connection = connection
        self._dialect = dialect
        self._rows = to_table_rows(deltas)
        self._bounds = list(value_range(self._rows, "hlc"))  # the values for `_HLC_RANGE`
        self._loaded = False  # whether the batch is in the scratch table

    def stage(self) -> None:
        """Load the batch into a scratch table, unless the connection can append without one (`DirectAppend`).

        Call it before `insert`, and before the transaction starts, to keep the transaction short.
        """
        if not isinstance(self._connection, DirectAppend):
            self._load()

    def insert(self) -> None:
        """Insert the deltas within the caller's transaction. Deltas that are stored already stay unchanged.

        An append without scratch table is tried first, if the connection supports it. It succeeds only if none of the
        deltas is stored yet, which is the usual case. Rows are sorted by key, so that two writers cannot deadlock.
        """
        connection = self._connection
        if isinstance(connection, DirectAppend):
            if connection.append(DELTAS_TABLE, self._rows.column_names, self._chunks()):
                return
            self._load()
        connection.execute(
            self._dialect.merge_statement(DELTAS_TABLE, _SCRATCH, [column.name for column in TABLE_COLUMNS], KEY, ())
        )

    def stored_checksum(self) -> BatchChecksum:
        """Return the number of the batch's deltas that the table contains, and the sum of their ids as numbers.

        The caller compares both with the batch's own, to verify the insert.
        """
        # If the scratch table is loaded, a join with it by key is the simpler way.
        checksum = None if self._loaded else self._checksum_by_ids()
        return checksum if checksum is not None else self._checksum_by_keys()

    def delete(self) -> int:
        """Delete the deltas in one statement, and return how many were stored."""
        self._load()
        is_same = " AND ".join(f"i.{name} = {DELTAS_TABLE}.{name}" for name in KEY)
        is_in_batch = f"EXISTS (SELECT 1 FROM {_SCRATCH} i WHERE {is_same})"
        return self._connection.execute(
            f"DELETE FROM {DELTAS_TABLE} WHERE {_HLC_RANGE} AND {is_in_batch}", self._bounds
        )

    def _load(self) -> None:
        """Load the batch into the scratch table."""
        rows = columns_as_text(self._rows)
        load_scratch_table(self._connection, self._dialect, _SCRATCH, TABLE_COLUMNS, KEY, rows)
        self._loaded = True

    def _chunks(self) -> Iterator[pa.Table]:
        """Yield the rows in chunks."""
        count = len(self._rows)
        for start, end in pairwise([0, *range(_FIRST_CHUNK_ROWS, count, _CHUNK_ROWS), count]):
            yield columns_as_text(self._rows.slice(start, end - start))
        self._own_hashes  # noqa: B018 a cached property, computed here while the last chunk is sent

    def _checksum_by_ids(self) -> BatchChecksum | None:
        """Return the checksum of the batch if the ids stored in its hlc range show that all of its deltas are stored.

        Reads all ids in the range, and compares them with the batch's. It is faster than `_checksum_by_keys`, which
        needs the scratch table. Two gateways or clients may use one id, so ids are compared together with both.

        Returns:
            The checksum; None if this way cannot show it: the range contains many other deltas, or not exactly one for
            each id of the batch.
        """
        import pyarrow.compute as pc

        max_stored = 2 * len(self._rows)  # with more, this way is not the faster one
        stored, own = self._stored_and_own_hashes(max_stored + 1) or self._stored_and_own_texts(max_stored + 1)
        if len(stored) > max_stored:
            return None
        if not stored.equals(own):
            stored = stored.filter(pc.is_in(stored, own))
            if len(stored) != len(own) or not pc.all(pc.is_in(own, stored)).as_py():
                return None
        # every delta of the batch is stored, so the sum of the stored ids is that of its own
        return ids_checksum(self._own_hashes if self._own_hashes is not None else self._own_ids)

    def _stored_and_own_hashes(self, limit: int) -> tuple[pa.ChunkedArray, pa.ChunkedArray] | None:
        """Return the ids stored in the hlc range, and the batch's ids, as hashes.

        Ids of other gateways and clients are returned as `_OTHER_ID`.

        Returns:
            Both; None if any id is not a hash, or is `_OTHER_ID` itself, or if the batch has deltas of several gateways
            or clients.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if not isinstance(self._connection, HashReader) or self._own_hashes is None:
            return None
        writers = [self._rows.column(name).unique().to_pylist() for name in ("gateway", "client_id")]
        if [len(names) for names in writers] != [1, 1] or pc.any(pc.equal(self._own_ids, _OTHER_ID)).as_py():
            return None
        own_id = f"CASE WHEN gateway = ? AND client_id = ? THEN delta_id ELSE '{_OTHER_ID}' END"
        query = f"SELECT {own_id} AS id FROM {DELTAS_TABLE} WHERE {_HLC_RANGE} LIMIT {limit}"
        stored = self._connection.read_hashes(query, [name for (name,) in writers] + self._bounds)
        return None if stored is None else (pa.chunked_array([stored]), self._own_hashes)

    @cached_property
    def _own_ids(self) -> pa.ChunkedArray:
        """The batch's ids as the clients chose them."""
        import pyarrow.compute as pc

        return pc.coalesce(self._rows.column("long_id"), self._rows.column("delta_id"))

    @cached_property
    def _own_hashes(self) -> pa.ChunkedArray | None:
        """The batch's ids as hashes; None if any is not a hash."""
        import pyarrow as pa

        hashes = [hashes_of(chunk) for chunk in self._rows.column("delta_id").chunks]
        return None if any(each is None for each in hashes) else pa.chunked_array(hashes)

    def _stored_and_own_texts(self, limit: int) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """Return the ids stored in the hlc range, and the batch's ids, as texts that start with gateway and client."""
        import pyarrow as pa
        import pyarrow.compute as pc

        names = ("gateway", "client_id", "delta_id")
        query = f"SELECT {', '.join(names)} FROM {DELTAS_TABLE} WHERE {_HLC_RANGE} LIMIT {limit}"
        schema = pa.schema([(name, pa.string()) for name in names])
        found = self._connection.query_arrow(query, self._bounds, schema)
        stored, own = (
            pc.binary_join_element_wise(*(table.column(name) for name in names), "\0") for table in (found, self._rows)
        )
        return stored, own

    def _checksum_by_keys(self) -> BatchChecksum:
        """Return the checksum of the stored deltas that have the key of a delta of the batch."""
        import pyarrow as pa

        if not self._loaded:
            self._load()
        is_same = " AND ".join(f"i.{name} = d.{name}" for name in KEY)
        stored = self._connection.query_arrow(
            f"SELECT COALESCE(d.long_id, d.delta_id) AS delta_id FROM {_SCRATCH} i JOIN {DELTAS_TABLE} d ON {is_same}"
            " WHERE d.hlc >= ? AND d.hlc <= ?",
            self._bounds,
            pa.schema([("delta_id", pa.string())]),
        )
        return ids_checksum(stored.column("delta_id"))


def redact_deltas(connection: Connection, requests: Sequence[RedactionRequest]) -> RedactionResult:
    """Remove the content of the deltas that erasure requests cover, within the caller's transaction.

    Such a delta becomes an UPDATE without columns. Its row, ids and timestamps stay, so that counts still agree.

    Args:
        connection: with an open transaction.
        requests: what to erase.
    """
    count = 0
    touched: dict[TouchedRow, None] = {}
    for each in requests:
        where, values = _covered_condition(each)
        found = connection.query(f"SELECT DISTINCT table_name, row_id FROM {DELTAS_TABLE} WHERE {where}", values)
        touched |= dict.fromkeys((each.gateway, table, row_id) for table, row_id in found)
        # An INSERT would make its row visible even without columns, so it becomes an UPDATE. A DELETE must stay one.
        emptied = "op = CASE WHEN op = 'DELETE' THEN op ELSE 'UPDATE' END, columns = ?"
        count += connection.execute(
            f"UPDATE {DELTAS_TABLE} SET {emptied} WHERE {where} AND (op = 'INSERT' OR columns <> ?)",
            [NO_COLUMNS, *values, NO_COLUMNS],
        )
    return RedactionResult(count, touched=tuple(touched))


def _are_short(ids: pa.ChunkedArray) -> bool:
    """Return whether all ids fit the key unchanged."""
    import pyarrow.compute as pc

    return (
        all(hashes_of(chunk) is not None for chunk in ids.chunks)
        or not pc.any(pc.greater_equal(pc.utf8_length(ids), _MIN_LONG_CHARS)).as_py()
    )


def _key_of_long_id(delta_id: str) -> str:
    """Return the key of a delta whose id is too long for the key column: `#` and a hash of the id."""
    return "#" + hashlib.sha256(delta_id.encode()).hexdigest()[1:]


def _covered_condition(request: RedactionRequest) -> tuple[str, list[Value]]:
    """Return the condition for the deltas that a request covers, and its values."""
    conditions: list[tuple[str, Value]] = [("gateway = ?", request.gateway), ("hlc <= ?", request.hlc)]
    optional = {"client_id": request.client_id, "table_name": request.table, "row_id": request.row_id}
    conditions += [(f"{name} = ?", value) for name, value in optional.items() if value is not None]
    where = " AND ".join(condition for condition, _ in conditions)
    if request.tables:
        where += f" AND table_name IN ({', '.join('?' * len(request.tables))})"
    return where, [*(value for _, value in conditions), *request.tables]

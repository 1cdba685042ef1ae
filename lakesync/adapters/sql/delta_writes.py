"""Writes to the table of deltas: inserts, deletes and redactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from lakesync.adapters.arrow import columns_as_text, hashes_of, ids_checksum
from lakesync.adapters.deltas import BatchChecksum
from lakesync.adapters.redaction import NO_COLUMNS, RedactionRequest, RedactionResult, TouchedRow
from lakesync.adapters.sql.delta_table import DELTAS_TABLE, ID_EXPRESSION, KEY, TABLE_COLUMNS, to_table_rows
from lakesync.adapters.sql.dialect import Dialect
from lakesync.adapters.sql.executor import Connection, DirectAppend, HashReader, Value

if TYPE_CHECKING:
    import pyarrow as pa

_SCRATCH = "lakesync_incoming"
_FIRST_CHUNK_ROWS = 1_000
_CHUNK_ROWS = 10_000
"""Rows encoded while the previous chunk is sent."""
_HLC_RANGE = "hlc >= ? AND hlc <= ?"
"""Lets the database skip older and newer deltas."""


class DeltaWriter:
    """Inserts or deletes one batch of deltas over one connection."""

    def __init__(self, connection: Connection, dialect: Dialect, deltas: pa.Table) -> None:
        """Prepare a batch.

        Args:
            connection: an open connection.
            dialect: the database's dialect.
            deltas: in either form, at least one.
        """
        self._connection = connection
        self._dialect = dialect
        self._rows = to_table_rows(deltas)
        self._bounds = _bounds(self._rows)
        self._loaded = False

    def stage(self) -> None:
        """Load the scratch table before the transaction starts, if the connection cannot append directly."""
        if not isinstance(self._connection, DirectAppend):
            self._load()

    def insert(self) -> None:
        """Insert the deltas within the caller's transaction; stored deltas are left unchanged.

        Usually none is stored yet, so a direct append is tried first where the connection supports it. Rows are sorted
        by key, so that two writers of the same rows cannot deadlock.
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
        """Return the count and id sum of the batch's deltas that the table contains."""
        found = None if self._loaded else self._checksum_by_ids()
        return found if found is not None else self._checksum_by_keys()

    def delete(self) -> int:
        """Delete the deltas in one statement, and return how many were stored."""
        self._load()
        same = " AND ".join(f"i.{name} = {DELTAS_TABLE}.{name}" for name in KEY)
        there = f"EXISTS (SELECT 1 FROM {_SCRATCH} i WHERE {same})"
        return self._connection.execute(f"DELETE FROM {DELTAS_TABLE} WHERE {_HLC_RANGE} AND {there}", self._bounds)

    def _load(self) -> None:
        for statement in self._dialect.create_scratch(_SCRATCH, TABLE_COLUMNS, KEY):
            self._connection.execute(statement)
        self._connection.load_scratch(_SCRATCH, columns_as_text(self._rows))
        self._loaded = True

    def _chunks(self) -> Iterator[pa.Table]:
        """Yield the rows in chunks; the first one is small, so that sending starts early."""
        count = len(self._rows)
        for start, end in pairwise([0, *range(_FIRST_CHUNK_ROWS, count, _CHUNK_ROWS), count]):
            yield columns_as_text(self._rows.slice(start, end - start))
        self._own_hashes  # noqa: B018 computed while the last chunk is sent

    def _checksum_by_ids(self) -> BatchChecksum | None:
        """Compare ids only. Returns None if the hlc range contains many other deltas, or the result is ambiguous."""
        import pyarrow.compute as pc

        most = 2 * len(self._rows)
        found, wanted = self._stored_and_own_hashes(most + 1) or self._stored_and_own_texts(most + 1)
        if len(found) > most:
            return None
        if not found.equals(wanted):
            found = found.filter(pc.is_in(found, wanted))
        if len(found) != len(wanted):
            return None  # a delta is missing, or two clients share an id
        return ids_checksum(found)

    def _stored_and_own_hashes(self, most: int) -> tuple[pa.ChunkedArray, pa.ChunkedArray] | None:
        """Return the ids stored in the hlc range and the batch's ids, if all of them are hashes."""
        import pyarrow as pa

        if not isinstance(self._connection, HashReader):
            return None
        if self._own_hashes is None:
            return None
        query = f"SELECT delta_id AS id FROM {DELTAS_TABLE} WHERE {_HLC_RANGE} LIMIT {most}"
        found = self._connection.read_hashes(query, self._bounds)
        return None if found is None else (pa.chunked_array([found]), self._own_hashes)

    @cached_property
    def _own_hashes(self) -> pa.ChunkedArray | None:
        """The batch's ids as hashes; None if any is not a hash."""
        import pyarrow as pa

        hashes = [hashes_of(chunk) for chunk in self._rows.column("delta_id").chunks]
        return None if any(each is None for each in hashes) else pa.chunked_array(hashes)

    def _stored_and_own_texts(self, most: int) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """Return the ids stored in the hlc range and the batch's ids."""
        import pyarrow.compute as pc

        query = f"SELECT {ID_EXPRESSION} AS delta_id FROM {DELTAS_TABLE} WHERE {_HLC_RANGE} LIMIT {most}"
        found = self._connection.query_arrow(query, self._bounds, _ids()).column("delta_id")
        return found, pc.coalesce(self._rows.column("long_id"), self._rows.column("delta_id"))

    def _checksum_by_keys(self) -> BatchChecksum:
        if not self._loaded:
            self._load()
        same = " AND ".join(f"i.{name} = d.{name}" for name in KEY)
        found = self._connection.query_arrow(
            f"SELECT COALESCE(d.long_id, d.delta_id) AS delta_id FROM {_SCRATCH} i JOIN {DELTAS_TABLE} d ON {same}"
            " WHERE d.hlc >= ? AND d.hlc <= ?",
            self._bounds,
            _ids(),
        )
        return ids_checksum(found.column("delta_id"))


def _ids() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field("delta_id", pa.string())])


def _bounds(rows: pa.Table) -> list[int]:
    """Return the least and the greatest hlc."""
    import pyarrow.compute as pc

    between = pc.min_max(rows.column("hlc")).as_py()
    return [between["min"], between["max"]]


def redact_deltas(connection: Connection, requests: Sequence[RedactionRequest]) -> RedactionResult:
    """Empty the covered deltas, within the caller's transaction."""
    count = 0
    touched: dict[TouchedRow, None] = {}
    for each in requests:
        where, values = _covered_condition(each)
        found = connection.query(f"SELECT DISTINCT table_name, row_id FROM {DELTAS_TABLE} WHERE {where}", values)
        touched |= dict.fromkeys((each.gateway, table, row_id) for table, row_id in found)
        count += connection.execute(
            f"UPDATE {DELTAS_TABLE} SET op = 'UPDATE', columns = ? WHERE {where} AND columns <> ?",
            [NO_COLUMNS, *values, NO_COLUMNS],
        )
    return RedactionResult(count, touched=tuple(touched))


def _covered_condition(request: RedactionRequest) -> tuple[str, list[Value]]:
    parts: list[tuple[str, Value]] = [("gateway = ?", request.gateway), ("hlc <= ?", request.hlc)]
    wanted = {"client_id": request.client_id, "table_name": request.table, "row_id": request.row_id}
    parts += [(f"{name} = ?", value) for name, value in wanted.items() if value is not None]
    where = " AND ".join(condition for condition, _ in parts)
    if request.tables:
        where += f" AND table_name IN ({', '.join('?' * len(request.tables))})"
    return where, [*(value for _, value in parts), *request.tables]

"""`RowWriter`: writes rows of destination tables from the stored deltas, in the transactions of `SqlAdapter`.

A *destination table* has the current rows of a synced table. The *content* of a row is the merge of its deltas; a
`ContentTransform` changes contents before they are written. A table that cannot be written is *suspended*: it gets no
rows until a retry succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from lakesync.adapters.base import ContentTransform
from lakesync.adapters.deltas import NO_CONTENT, RowContent, RowId
from lakesync.adapters.redaction import TouchedRow
from lakesync.adapters.sql import follower_state, queries
from lakesync.adapters.sql.backend import Connection, Dialect
from lakesync.adapters.sql.delta_table import rows_of_table
from lakesync.adapters.sql.row_tables import RowTable, savepoint, table_name
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

log = structlog.get_logger("adapters")

_ROWS_PER_REBUILD = 5_000
"""Rows whose contents an erasure reads and writes at once, to bound its memory."""


class RowWriter:
    """Writes rows by one connection. Locks on rows last until the transaction ends."""

    def __init__(self, connection: Connection, dialect: Dialect) -> None:
        """Create the writer.

        Args:
            connection: an open connection.
            dialect: the database's SQL.
        """
        self._connection = connection
        self._dialect = dialect

    def write(
        self,
        schema: TableSchema,
        read: Callable[[], Mapping[RowId, RowContent]],
        rows: Collection[RowId] | None = None,
    ) -> int:
        """Write what `read` returns in one transaction, and return the number of contents.

        Args:
            schema: the table's schema.
            read: returns contents by row, with the locks taken.
            rows: the rows to lock; None locks the whole table.
        """
        table = self._table(schema)
        with self._connection.transaction():
            table.take_locks(rows)
            contents = read()
            table.write(contents)
        return len(contents)

    def write_or_suspend(
        self,
        deltas: pa.Table,
        schemas: Sequence[TableSchema],
        transform: ContentTransform,
        follower: str,
        uncreated: Mapping[str, str],
    ) -> None:
        """Write the rows of some deltas, and suspend each table that was not created or whose rows are rejected.

        Tables are written in the order of their names, so that two writers cannot deadlock.

        Args:
            deltas: the deltas.
            schemas: the schemas of the destination tables.
            transform: changes contents before they are written.
            follower: name of the follower for which tables are suspended.
            uncreated: table → error, of tables that could not be created.
        """
        suspended = follower_state.suspended_tables(self._connection, follower)
        reasons: dict[str, str] = {}
        for schema in sorted(schemas, key=table_name):
            rows = rows_of_table(deltas, schema.table)
            if not rows or schema.table in suspended:
                continue
            if schema.table in uncreated:
                reasons[schema.table] = uncreated[schema.table]
                continue
            try:
                with savepoint(self._connection, self._dialect):
                    table = self._table(schema)
                    if self._dialect.has_transactions:  # a lock lasts until the end of the transaction
                        table.take_locks(rows)
                    stored = queries.read_contents(self._connection, schema.table, rows)
                    # A row of which no delta is stored (all were removed) gets empty content, which deletes it, unless
                    # the transform adds deltas.
                    absent = {row: NO_CONTENT for row in rows if row not in stored}
                    table.write({**absent, **transform(schema, rows, stored)})
            except Exception as error:
                rejection = self._connection.statement_error(error)
                if rejection is None:
                    raise
                reasons[schema.table] = rejection.reason
        for name, reason in reasons.items():
            log.warning("a destination table was suspended", follower=follower, table=name, reason=reason)
            follower_state.suspend_table(self._connection, follower, name, reason)

    def rebuild(self, schema: TableSchema, touched: Collection[TouchedRow], transform: ContentTransform) -> int:
        """Lock the touched rows of a table, rebuild them from the stored deltas, and return their number.

        Args:
            schema: the table's schema.
            touched: rows of any table.
            transform: changes contents before they are written.
        """
        rows = sorted((gateway, row_id) for gateway, table, row_id in touched if table == schema.table)
        destination = self._table(schema)
        if rows:
            destination.take_locks(rows)
        for start in range(0, len(rows), _ROWS_PER_REBUILD):
            chunk = rows[start : start + _ROWS_PER_REBUILD]
            contents = queries.read_contents(self._connection, schema.table, chunk)
            destination.rebuild(chunk, transform(schema, chunk, contents))
        return len(rows)

    def _table(self, schema: TableSchema) -> RowTable:
        """Return a destination table."""
        return RowTable(self._connection, self._dialect, schema)

"""`SqlAdapter`: an adapter that keeps deltas, and tables built from them, in a SQL database of any dialect and driver.

A *delta* is a change of a row. `SqlAdapter` loads a batch of deltas into a *scratch table* (a temporary one) by the
driver's bulk path, merges it by one statement in one transaction, and reads the stored deltas back. Besides the deltas
it keeps *destination tables*, which have the current rows of synced tables, and *marks*: each says how far a *follower*
has copied the lake's deltas here. A destination table that cannot be written is *suspended*: it gets no rows until a
retry succeeds. A value that the database rejects is a *dead letter*. Each SQL database has a subclass in `backends/`,
which `registry.open_adapter` opens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lakesync.adapters.arrow import require_pyarrow
from lakesync.adapters.arrow_access import ArrowAdapterBase
from lakesync.adapters.base import ContentTransform, DeadLetter, SuspendedTable, unchanged
from lakesync.adapters.deltas import (
    EVERYTHING,
    HASH_SLOTS,
    ArrowPage,
    BatchChecksum,
    DeltaQuery,
    MarkUpdate,
    RowContent,
    RowId,
    TableSelection,
)
from lakesync.adapters.digests import Digest, DigestScope
from lakesync.adapters.redaction import RedactionRequest, RedactionResult, TouchedRow, read_fence
from lakesync.adapters.sql import follower_state, queries
from lakesync.adapters.sql.backend import Connection, Dialect, Executor
from lakesync.adapters.sql.delta_table import DELTAS_TABLE, INDEXES, KEY, TABLE_COLUMNS, DeltaWriter, redact_deltas
from lakesync.adapters.sql.follower_state import DEAD_LETTERS_TABLE, MARKS_TABLE
from lakesync.adapters.sql.queries import delete_orphan_rows, digests
from lakesync.adapters.sql.row_tables import RowTable, remove_rows, table_name
from lakesync.adapters.sql.row_writer import RowWriter
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import AdapterError, SchemaError
from lakesync.model.merge import RowState
from lakesync.model.schema import TableSchema
from lakesync.model.types import Position

if TYPE_CHECKING:
    import pyarrow as pa


class SqlAdapter(ArrowAdapterBase):
    """Implements `DatabaseAdapter` and all optional protocols on top of a dialect and an executor.

    The protocols (`lakesync.adapters.base`, `Digestible`, `Restorable`, `Redactable`) document the methods. A
    `DigestScope` says which gateways, tables and days are compared or repaired. Writers of
    a destination table take locks on its rows until their transaction ends. The *content* of a row is the merge of its
    deltas. A `ContentTransform` changes contents before they are written, for example to add older deltas that were
    moved to another adapter.
    """

    def __init__(self, executor: Executor, dialect: Dialect) -> None:
        """Create the adapter; it connects on the first call.

        Args:
            executor: opens connections.
            dialect: the database's SQL.

        Raises:
            ConfigurationError: pyarrow is not installed.
        """
        require_pyarrow()
        self._executor = executor
        self._dialect = dialect
        self._is_prepared = threading.Event()
        self._fence: MarkUpdate | None = None

    def prepare(self) -> None:
        """Create missing tables now instead of on the first call.

        Raises:
            AdapterError: the database rejected a statement.
        """
        with self._executor.connect() as connection:
            self._prepare(connection)

    # -- deltas --------------------------------------------------------------------------------------------------------

    def insert_arrow(self, batch_id: str, gateway: str, deltas: pa.Table) -> BatchChecksum:  # noqa: ARG002 deltas carry their gateway
        """Insert a batch in one transaction, and read it back."""
        with self._connect() as connection:
            writer = DeltaWriter(connection, self._dialect, deltas)
            writer.stage()
            with self._fenced_transaction(connection):
                writer.insert()
            crash_point("sql.after_commit")  # tests kill the process here
            return writer.stored_checksum()

    def query_arrow(self, query: DeltaQuery) -> ArrowPage:
        """Return a page, using the index for the query's order."""
        with self._connect() as connection:
            return queries.read_page(connection, query)

    def get_latest_state(self, gateway: str | None, table: str, row_ids: Collection[str]) -> dict[str, RowState]:
        """Return row id → the row's merged state; rows without deltas are absent."""
        with self._connect() as connection:
            return queries.read_states(connection, gateway, table, list(row_ids))

    def newest_position(self, gateway: str | None = None) -> Position | None:
        """Return the last delta's position by arrival (the gateway's timestamp of its push); None without deltas."""
        with self._connect() as connection:
            return queries.newest_position(connection, gateway)

    def split_points(self, query: DeltaQuery, size: int) -> list[int]:
        """Return arrivals or hlcs, by the query's order, that divide it into ranges of `size` deltas, by an index."""
        with self._connect() as connection:
            return queries.split_points(connection, query, size)

    @property
    def max_writers(self) -> int:
        """The most writers at a time: one, unless the database runs transactions on different rows concurrently."""
        return HASH_SLOTS if self._dialect.concurrent_writers else 1

    def delete_deltas(self, deltas: pa.Table) -> int:
        """Delete deltas in one statement, and return their number."""
        with self._connect() as connection:
            return DeltaWriter(connection, self._dialect, deltas).delete()

    # -- destination tables --------------------------------------------------------------------------------------------

    def ensure_schema(self, schema: TableSchema) -> None:
        """Create the destination table, or add its missing columns."""
        with self._connect() as connection:
            RowTable(connection, self._dialect, schema).ensure()

    def has_table(self, schema: TableSchema) -> bool:
        """Return whether a table has the destination table's name."""
        with self._connect() as connection:
            return bool(connection.column_names(table_name(schema)))

    def materialise(self, gateway: str, schema: TableSchema, row_ids: Sequence[str]) -> int:
        """Rewrite rows of the destination table from the deltas, in one transaction, and return their number."""
        with self._connect() as connection:
            rows = [(gateway, row_id) for row_id in row_ids]
            read = partial(queries.read_contents, connection, schema.table, rows)
            return RowWriter(connection, self._dialect).write(schema, read, rows)

    def write_states(self, schema: TableSchema, read: Callable[[], Mapping[RowId, RowContent]]) -> int:
        """Write rows of the destination table from contents, in one transaction. Returns the number of contents."""
        with self._connect() as connection:
            return RowWriter(connection, self._dialect).write(schema, read)

    # -- marks ---------------------------------------------------------------------------------------------------------

    def read_mark(self, name: str) -> str | None:
        """Return the value of a follower's mark."""
        with self._connect() as connection:
            return follower_state.read_mark(connection, name)

    def apply_arrow(
        self,
        batch_id: str,  # noqa: ARG002 deltas have ids of their own
        deltas: pa.Table,
        mark: MarkUpdate,
        schemas: Sequence[TableSchema] = (),
        transform: ContentTransform = unchanged,
    ) -> BatchChecksum:
        """Insert a batch, write its rows and move the mark in one transaction.

        A table that cannot be written is suspended.
        """
        uncreated = self._ensure_tables(schemas)
        with self._connect() as connection:
            writer = DeltaWriter(connection, self._dialect, deltas)
            writer.stage()
            with connection.transaction():
                if self._dialect.has_transactions:
                    # first, so that a concurrent run waits for this transaction, and then fails
                    follower_state.move_mark(connection, mark)
                else:  # last, so that a crash repeats the writes
                    mark.check(follower_state.read_mark(connection, mark.name))
                writer.insert()
                crash_point("sql.before_rows")
                follower = follower_state.follower_of(mark.name)  # the mark may be that of a part of its backlog
                rows = RowWriter(connection, self._dialect)
                rows.write_or_suspend(deltas, schemas, transform, follower, uncreated)
                crash_point("sql.before_mark")
                if not self._dialect.has_transactions:
                    follower_state.move_mark(connection, mark)
            crash_point("sql.after_follow")
            return writer.stored_checksum()

    def move_mark(self, mark: MarkUpdate) -> None:
        """Update a follower's mark without writing deltas."""
        with self._connect() as connection, connection.transaction():
            follower_state.move_mark(connection, mark)

    def fence_writes(self, name: str) -> None:
        """Make later inserts and repairs fail once an erasure has begun."""
        self._fence = read_fence(self, name)

    # -- dead letters and suspended tables -----------------------------------------------------------------------------

    def suspended_tables(self, follower: str) -> list[SuspendedTable]:
        """Return the follower's suspended tables."""
        with self._connect() as connection:
            return list(follower_state.suspended_tables(connection, follower).values())

    def suspend_table(self, follower: str, table: str, reason: str) -> SuspendedTable:
        """Suspend a table: it gets no rows until its retry is due."""
        with self._connect() as connection, connection.transaction():
            return follower_state.suspend_table(connection, follower, table, reason)

    def resume_table(self, follower: str, table: str) -> None:
        """End a table's suspension."""
        with self._connect() as connection, connection.transaction():
            follower_state.resume_table(connection, follower, table)

    def retry_tables(self, follower: str, tables: Sequence[str]) -> None:
        """Make the follower's next run rewrite all rows of these tables."""
        with self._connect() as connection, connection.transaction():
            for table in tables:
                follower_state.retry_table(connection, follower, table)

    def dead_letters(self, limit: int, selection: TableSelection = EVERYTHING) -> list[DeadLetter]:
        """Return dead letters of some tables and gateways."""
        with self._connect() as connection:
            return follower_state.read_dead_letters(connection, limit, selection)

    # -- repair --------------------------------------------------------------------------------------------------------

    def restore_arrow(
        self,
        follower: str,
        batch_id: str,  # noqa: ARG002 deltas have ids of their own
        deltas: pa.Table,
        scope: DigestScope,
        transform: ContentTransform = unchanged,
    ) -> None:
        """Replace deltas and rewrite their rows, in one transaction."""
        self._delete_or_replace(follower, deltas, scope, transform, are_replaced=True)

    def remove_surplus(
        self, follower: str, deltas: pa.Table, scope: DigestScope, transform: ContentTransform = unchanged
    ) -> None:
        """Delete deltas and rewrite their rows from the remaining ones, in one transaction."""
        self._delete_or_replace(follower, deltas, scope, transform, are_replaced=False)

    def remove_orphan_rows(self, scope: DigestScope) -> int:
        """Delete rows without stored deltas, table by table.

        A table is skipped if it cannot be ensured, for example because it has the rows of another synced table.
        """
        uncreated = self._ensure_tables(scope.schemas)
        schemas = [schema for schema in scope.schemas if schema.table not in uncreated]
        with self._connect() as connection:
            return sum(delete_orphan_rows(connection, self._dialect, scope, schema) for schema in schemas)

    def digests(self, scope: DigestScope) -> list[Digest]:
        """Return the digest (counts and checksums) of each table and day, computed by the database."""
        with self._connect() as connection:
            return digests(connection, self._dialect, scope)

    # -- erasure -------------------------------------------------------------------------------------------------------

    def redact(
        self,
        requests: Sequence[RedactionRequest],
        schemas: Sequence[TableSchema] = (),
        transform: ContentTransform = unchanged,
        also: Collection[TouchedRow] = (),
    ) -> RedactionResult:
        """Empty the deltas that an erasure covers, and rebuild their rows, in one transaction.

        Without transactions the rows are rebuilt last.
        """
        schemas = [schema for schema in schemas if self._ensure_table_with_rows(schema)]
        with self._connect() as connection:
            with connection.transaction():
                follower_state.revoke_marks(connection)  # first: it waits for writers, whose deltas are then erased too
                redacted = redact_deltas(connection, requests)
                crash_point("sql.redacted_deltas")
                touched = {*redacted.touched, *also}
                writer = RowWriter(connection, self._dialect)
                rows = sum(writer.rebuild(schema, touched, transform) for schema in schemas)
            crash_point("sql.redacted")
            self._reclaim_space(
                connection,
                [
                    DELTAS_TABLE,
                    DEAD_LETTERS_TABLE,
                    *(self._dialect.quote(table_name(each)) for each in schemas),
                ],
            )
        return replace(redacted, rows=rows)

    def remove_rows(self, rows: Collection[TouchedRow]) -> int:
        """Delete rows of destination tables that nothing writes any longer, in one transaction."""
        if not rows:
            return 0
        by_table: dict[str, list[RowId]] = {}
        for gateway, table, row_id in sorted(rows):
            by_table.setdefault(table, []).append((gateway, row_id))
        with self._connect() as connection:
            with connection.transaction():
                removed = {
                    table: remove_rows(connection, self._dialect, table, of_table)
                    for table, of_table in by_table.items()
                }
            changed = [self._dialect.quote(table) for table, count in removed.items() if count]
            self._reclaim_space(connection, [DEAD_LETTERS_TABLE, *changed])
        return sum(removed.values())

    # -- closing -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close every connection."""
        self._executor.close()

    # -- internals -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _fenced_transaction(self, connection: Connection) -> Iterator[None]:
        """Open a transaction, which fails if an erasure has begun since `fence_writes`."""
        with connection.transaction():
            if self._fence is not None:
                follower_state.move_mark(connection, self._fence)
            yield

    def _delete_or_replace(
        self, follower: str, deltas: pa.Table, scope: DigestScope, transform: ContentTransform, *, are_replaced: bool
    ) -> None:
        """Delete deltas, or replace them by those with the same ids in `deltas`, and rewrite their destination rows."""
        uncreated = self._ensure_tables(scope.schemas)
        with self._connect() as connection:
            writer = DeltaWriter(connection, self._dialect, deltas)
            with self._fenced_transaction(connection):
                writer.delete()
                if are_replaced:
                    writer.insert()
                rows = RowWriter(connection, self._dialect)
                rows.write_or_suspend(deltas, scope.schemas, transform, follower, uncreated)

    def _reclaim_space(self, connection: Connection, tables: Sequence[str]) -> None:
        """Physically remove old row versions of tables, whose names are quoted. Does nothing unless overridden."""

    @contextmanager
    def _connect(self) -> Iterator[Connection]:
        """Yield a connection; on the first call, create LakeSync's own tables before."""
        with self._executor.connect() as connection:
            if not self._is_prepared.is_set():
                self._prepare(connection)
            yield connection

    def _prepare(self, connection: Connection) -> None:
        """Create LakeSync's own tables, as far as they are missing."""
        dialect = self._dialect
        statements: list[str] = []
        if not connection.column_names(MARKS_TABLE):  # the last of these tables to be created
            statements += dialect.create_table(DELTAS_TABLE, TABLE_COLUMNS, KEY, INDEXES)
            statements += dialect.create_table(MARKS_TABLE, follower_state.MARK_COLUMNS, ("name",))
        if not connection.column_names(DEAD_LETTERS_TABLE):
            statements += dialect.create_table(
                DEAD_LETTERS_TABLE, follower_state.DEAD_LETTER_COLUMNS, follower_state.DEAD_LETTER_KEY
            )
        if statements:
            with connection.transaction():
                for statement in statements:
                    connection.execute(statement)
        self._is_prepared.set()

    def _ensure_tables(self, schemas: Sequence[TableSchema]) -> dict[str, str]:
        """Create the destination tables. Returns table → error, for those that cannot be created."""
        uncreated: dict[str, str] = {}
        for schema in schemas:
            try:
                self.ensure_schema(schema)
            except (SchemaError, AdapterError) as error:
                uncreated[schema.table] = str(error)
        return uncreated

    def _ensure_table_with_rows(self, schema: TableSchema) -> bool:
        """Create a destination table; False if it cannot be created, and there are no rows of it.

        Raises:
            SchemaError, AdapterError: as `ensure_schema`, for a table that LakeSync created earlier.
        """
        try:
            self.ensure_schema(schema)
        except (SchemaError, AdapterError):
            with self._connect() as connection:
                if queries.is_destination_table(connection, schema):
                    raise
            return False
        return True

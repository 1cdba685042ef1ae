"""A SQL database as a place for deltas, tables of rows and marks: everything but words and wires.

A batch is loaded into a scratch table of the connection by the driver's bulk path, and brought over by one statement in
one transaction; what is held of it is read back after the commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from lakesync.adapters.arrow import from_arrow, require_pyarrow, to_arrow
from lakesync.adapters.base import (
    NOTHING_BESIDE,
    ArrowPage,
    Beside,
    DeltaBatch,
    DeltaPage,
    DeltaQuery,
    Held,
    Mark,
    Position,
)
from lakesync.adapters.buckets import BUCKETS
from lakesync.adapters.contents import NOTHING, RowContent, RowId
from lakesync.adapters.dead_letters import DeadLetter, SetAside
from lakesync.adapters.digests import Digest, Scope
from lakesync.adapters.redaction import Redacted, Redaction, TouchedRow
from lakesync.adapters.sql import aside, letters, marks, reading, tables
from lakesync.adapters.sql.dialect import Dialect
from lakesync.adapters.sql.digests import digests, remove_unknown
from lakesync.adapters.sql.executor import Connection, Executor
from lakesync.adapters.sql.incoming import Incoming
from lakesync.adapters.sql.letters import LETTERS, read_letters
from lakesync.adapters.sql.marks import MARKS
from lakesync.adapters.sql.redaction import redact_deltas
from lakesync.adapters.sql.stored import DELTAS, INDEXES, KEY, STORED, rows_named
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import AdapterError, SchemaError
from lakesync.model.merge import RowState
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

log = structlog.get_logger("adapters")

_MADE_AGAIN_AT_ONCE = 5_000


class SqlAdapter:
    """`DatabaseAdapter`, and all that goes beyond, over a dialect and an executor."""

    def __init__(self, executor: Executor, dialect: Dialect) -> None:
        """Nothing is asked of the database before the first call.

        Raises:
            ConfigurationError: pyarrow is not installed.
        """
        require_pyarrow()
        self._executor = executor
        self._dialect = dialect
        self._made = threading.Event()

    def prepare(self) -> None:
        """Make the tables that are missing, now rather than at the first call.

        Raises:
            AdapterError: the database refused.
        """
        with self._executor.connect() as connection:
            self._prepare(connection)

    # -- deltas --------------------------------------------------------------------------------------------------------

    def insert_deltas(self, batch: DeltaBatch) -> Held:
        """Keep a batch in one transaction, and read it back."""
        return self.insert_arrow(batch.batch_id, batch.gateway, to_arrow(batch.deltas))

    def insert_arrow(self, batch_id: str, gateway: str, deltas: pa.Table) -> Held:  # noqa: ARG002 deltas know theirs
        """Keep a batch in one transaction, and read it back."""
        with self._connected() as connection:
            incoming = Incoming(connection, self._dialect, deltas)
            incoming.begin()
            with connection.transaction():
                incoming.bring()
            crash_point("sql.after_commit")
            return incoming.held()

    def query_deltas_since(self, query: DeltaQuery) -> DeltaPage:
        """A page, found by the index of its order."""
        page = self.query_arrow(query)
        return DeltaPage(tuple(from_arrow(page.deltas)), page.end)

    def query_arrow(self, query: DeltaQuery) -> ArrowPage:
        """A page, found by the index of its order."""
        with self._connected() as connection:
            return reading.page(connection, query)

    def get_latest_state(self, gateway: str | None, table: str, row_ids: Collection[str]) -> dict[str, RowState]:
        """The merge of all deltas held of each row."""
        with self._connected() as connection:
            return reading.states(connection, gateway, table, list(row_ids))

    def newest_position(self) -> Position | None:
        """The place after the last of all deltas, by its index."""
        with self._connected() as connection:
            return reading.newest(connection)

    def split_points(self, query: DeltaQuery, size: int) -> list[int]:
        """The values that cut a query's deltas into ranges, by the index of its order."""
        with self._connected() as connection:
            return reading.split_points(connection, query, size)

    @property
    def max_writers(self) -> int:
        """Several where the database has transactions run at the same time."""
        return BUCKETS if self._dialect.concurrent else 1

    def delete_deltas(self, deltas: pa.Table) -> int:
        """Remove these deltas, in one statement."""
        with self._connected() as connection:
            return Incoming(connection, self._dialect, deltas).remove()

    # -- tables of rows ------------------------------------------------------------------------------------------------

    def ensure_schema(self, schema: TableSchema) -> None:
        """Make the destination's table, or add the columns that it lacks."""
        with self._connected() as connection:
            tables.ensure_table(connection, self._dialect, schema)
            marks.make_locks(connection, self._dialect, tables.locks_of(self._dialect, schema))

    def materialise(self, gateway: str, schema: TableSchema, row_ids: Sequence[str]) -> int:
        """Bring rows of the destination's table in line with the deltas, in one transaction."""
        with self._connected() as connection:
            rows = [(gateway, row_id) for row_id in row_ids]
            return self._write(connection, schema, partial(reading.contents, connection, schema.table, rows), rows)

    def write_states(self, schema: TableSchema, read: Callable[[], Mapping[RowId, RowContent]]) -> int:
        """Bring rows of the destination's table in line with contents, in one transaction."""
        with self._connected() as connection:
            return self._write(connection, schema, read)

    def write_rows(self, schema: TableSchema, rows: pa.Table) -> int:
        """Bring rows in, as a table that `rows.rows_schema` describes, in one transaction: for large amounts.

        Raises:
            AdapterError: the backend refused; nothing was changed.
        """
        with self._connected() as connection:
            scratch = tables.load_rows(connection, self._dialect, schema, rows)
            with connection.transaction():
                marks.take_locks(connection, tables.locks_of(self._dialect, schema))
                tables.bring_rows(connection, self._dialect, schema, scratch)
        return len(rows)

    # -- marks ---------------------------------------------------------------------------------------------------------

    def mark(self, name: str) -> str | None:
        """The mark of a follower."""
        with self._connected() as connection:
            return marks.read(connection, name)

    def follow(self, batch: DeltaBatch, mark: Mark, schemas: Sequence[TableSchema] = ()) -> Held:
        """A batch, its tables of rows and the mark in one transaction."""
        return self.follow_arrow(batch.batch_id, to_arrow(batch.deltas), mark, schemas)

    def follow_arrow(
        self,
        batch_id: str,  # noqa: ARG002 deltas are known by themselves
        deltas: pa.Table,
        mark: Mark,
        schemas: Sequence[TableSchema] = (),
        beside: Beside = NOTHING_BESIDE,
    ) -> Held:
        """Deltas, their tables of rows and the mark in one transaction; where there is none, the mark is last."""
        failed = self._ensured(schemas)
        with self._connected() as connection:
            incoming = Incoming(connection, self._dialect, deltas)
            incoming.begin()
            with connection.transaction():
                if self._dialect.transactions:
                    marks.move(connection, mark)  # which has a second run wait here, and then refuses it
                else:
                    marks.check(connection, mark)
                incoming.bring()
                crash_point("sql.before_rows")
                self._write_followed(connection, deltas, schemas, beside, aside.follower_of(mark.name), failed)
                crash_point("sql.before_mark")
                if not self._dialect.transactions:
                    marks.move(connection, mark)
            crash_point("sql.after_follow")
            return incoming.held()

    def move_mark(self, mark: Mark) -> None:
        """Move a follower's mark alone."""
        with self._connected() as connection, connection.transaction():
            marks.move(connection, mark)

    # -- what it continues without ---------------------------------------------------------------------------------

    def set_aside(self, follower: str) -> list[SetAside]:
        """Return the tables that a follower continues without."""
        with self._connected() as connection:
            return list(aside.tables_aside(connection, follower).values())

    def put_aside(self, follower: str, table: str, reason: str) -> SetAside:
        """Continue without a table."""
        with self._connected() as connection, connection.transaction():
            return aside.put_aside(connection, follower, table, reason)

    def bring_back(self, follower: str, table: str) -> None:
        """Write a table again with each batch."""
        with self._connected() as connection, connection.transaction():
            aside.bring_back(connection, follower, table)

    def retry_now(self, follower: str, tables: Sequence[str]) -> None:
        """Have the follower's next run write all rows of tables."""
        with self._connected() as connection, connection.transaction():
            for table in tables:
                aside.retry_now(connection, follower, table)

    def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Return the values that do not fit."""
        with self._connected() as connection:
            return read_letters(connection, limit)

    def restore_arrow(
        self,
        follower: str,
        batch_id: str,  # noqa: ARG002 deltas are known by themselves
        deltas: pa.Table,
        scope: Scope,
        beside: Beside = NOTHING_BESIDE,
    ) -> None:
        """Replace deltas and write their rows, in one transaction."""
        failed = self._ensured(scope.schemas)
        with self._connected() as connection:
            incoming = Incoming(connection, self._dialect, deltas)
            with connection.transaction():
                incoming.remove()
                incoming.bring()
                self._write_followed(connection, deltas, scope.schemas, beside, follower, failed)

    def remove_surplus(self, follower: str, deltas: pa.Table, scope: Scope, beside: Beside = NOTHING_BESIDE) -> None:
        """Remove deltas and write their rows, in one transaction."""
        failed = self._ensured(scope.schemas)
        with self._connected() as connection:
            incoming = Incoming(connection, self._dialect, deltas)
            with connection.transaction():
                incoming.remove()
                self._write_followed(connection, deltas, scope.schemas, beside, follower, failed)

    def remove_unknown_rows(self, scope: Scope) -> int:
        """Remove rows of which no delta is held, table by table."""
        with self._connected() as connection:
            return sum(remove_unknown(connection, self._dialect, scope, schema) for schema in scope.schemas)

    def digests(self, scope: Scope) -> list[Digest]:
        """Return the figures of each table and day, added up by the database."""
        with self._connected() as connection:
            return digests(connection, self._dialect, scope)

    # -- erasure -------------------------------------------------------------------------------------------------------

    def redact(
        self,
        requests: Sequence[Redaction],
        schemas: Sequence[TableSchema] = (),
        beside: Beside = NOTHING_BESIDE,
        also: Collection[TouchedRow] = (),
    ) -> Redacted:
        """Redact deltas and make their rows again in one transaction; where there is none, rows come last."""
        for schema in schemas:
            self.ensure_schema(schema)
        with self._connected() as connection:
            with connection.transaction():
                done = redact_deltas(connection, requests)
                crash_point("sql.redacted_deltas")
                touched = {*done.touched, *also}
                rows = sum(self._make_again(connection, schema, touched, beside) for schema in schemas)
            crash_point("sql.redacted")
            self._forget(
                connection, [DELTAS, LETTERS, *(self._dialect.quote(tables.destination(each)) for each in schemas)]
            )
        return replace(done, rows=rows)

    def _forget(self, connection: Connection, tables: Sequence[str]) -> None:
        """Let go of what no row of tables, quoted, holds any more, where the database waits to be told."""

    def _make_again(
        self, connection: Connection, schema: TableSchema, touched: Collection[TouchedRow], beside: Beside
    ) -> int:
        rows = sorted((gateway, row_id) for gateway, table, row_id in touched if table == schema.table)
        if rows:
            marks.take_locks(connection, tables.locks_of(self._dialect, schema, rows))
        for start in range(0, len(rows), _MADE_AGAIN_AT_ONCE):
            some = rows[start : start + _MADE_AGAIN_AT_ONCE]
            contents = reading.contents(connection, schema.table, some)
            tables.make_again(connection, self._dialect, schema, some, beside.shown(schema, some, contents))
        return len(rows)

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close every connection."""
        self._executor.close()

    # -- beneath -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with self._executor.connect() as connection:
            if not self._made.is_set():
                self._prepare(connection)
            yield connection

    def _prepare(self, connection: Connection) -> None:
        dialect = self._dialect
        statements: list[str] = []
        if not connection.columns(MARKS):  # the last one of these to be made
            statements += dialect.table(DELTAS, STORED, KEY)
            for name, columns in INDEXES.items():
                statements += dialect.index(name, DELTAS, columns)
            statements += dialect.table(MARKS, marks.COLUMNS, ("name",))
        if not connection.columns(LETTERS):
            statements += dialect.table(LETTERS, letters.COLUMNS, letters.KEY)
        if statements:
            with connection.transaction():
                for statement in statements:
                    connection.execute(statement)
        self._made.set()

    def _ensured(self, schemas: Sequence[TableSchema]) -> dict[str, str]:
        """Make the tables of rows; why those that cannot be made cannot, by table."""
        failed: dict[str, str] = {}
        for schema in schemas:
            try:
                self.ensure_schema(schema)
            except (SchemaError, AdapterError) as error:
                failed[schema.table] = str(error)
        return failed

    def _write_followed(
        self,
        connection: Connection,
        deltas: pa.Table,
        schemas: Sequence[TableSchema],
        beside: Beside,
        follower: str,
        failed: Mapping[str, str],
    ) -> None:
        """Write the rows of each table, or set the table aside; all tables in the order of their names.

        The order keeps two writers from waiting for each other.
        """
        already = aside.tables_aside(connection, follower)
        reasons: dict[str, str] = {}
        for schema in sorted(schemas, key=tables.destination):
            rows = rows_named(deltas, schema.table)
            if not rows or schema.table in already:
                continue
            if schema.table in failed:
                reasons[schema.table] = failed[schema.table]
                continue
            try:
                with tables.savepoint(connection, self._dialect):
                    if self._dialect.transactions:
                        marks.take_locks(connection, tables.locks_of(self._dialect, schema, rows))
                    held = reading.contents(connection, schema.table, rows)
                    absent = {row: NOTHING for row in rows if row not in held}
                    contents = {**absent, **beside.shown(schema, rows, held)}
                    tables.write_contents(connection, self._dialect, schema, contents)
            except Exception as error:
                refusal = connection.refusal(error)
                if refusal is None:
                    raise
                reasons[schema.table] = refusal.reason
        for table, reason in reasons.items():
            log.warning("a destination continues without a table", follower=follower, table=table, reason=reason)
            aside.put_aside(connection, follower, table, reason)

    def _write(
        self,
        connection: Connection,
        schema: TableSchema,
        read: Callable[[], Mapping[RowId, RowContent]],
        rows: Collection[RowId] | None = None,
    ) -> int:
        with connection.transaction():
            marks.take_locks(connection, tables.locks_of(self._dialect, schema, rows))
            contents = read()
            tables.write_contents(connection, self._dialect, schema, contents)
        return len(contents)

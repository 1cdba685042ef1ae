"""Columns that the gateway's schemas have and the app's tables lack: requests the schemas and adds the columns.

`SyncSession` calls a `SchemaFetcher`. Apps may call `SchemaSynchroniser` with a schema that they have. An edit is a
change of the app that the gateway has not acknowledged; it is *refused* if the gateway rejected it.
"""

from __future__ import annotations

import time
from contextlib import suppress

from msgspec.structs import replace

from lakesync.client.core import ClientCore
from lakesync.client.sync.exchange import CycleResult
from lakesync.client.sync.replica import Replica
from lakesync.client.transports.base import SchemaTransport, SyncTransport
from lakesync.model.errors import LakeSyncError, NotFoundError, SchemaError
from lakesync.model.schema import TableSchema

SCHEMA_SECONDS = 60.0
"""Seconds between two requests of auto-sync for the schemas of tables whose schema refused an edit."""


class SchemaSynchroniser:
    """Adds columns that the gateway's schemas have and the app's tables lack."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def synchronise(self, table: str, server_schema: TableSchema, server_version: int) -> bool:
        """Add the columns of the gateway's schema to the app's table, and retry edits that were refused without them.

        Args:
            table: a synced table.
            server_schema: the gateway's schema of this table.
            server_version: the version of that schema, from 1.

        Returns:
            Whether the schema was newer than the one that this client had.

        Raises:
            NotFoundError: the table is not synchronised.
            SchemaError: a column has another type in the gateway's schema, or a name that is reserved here.
        """
        if table not in self._replica.tables():
            raise NotFoundError(f"table {table!r} is not synchronised: pass its schema when you open the database")
        if server_schema.table != table:
            raise SchemaError(
                f"the schema for table {table!r} is one of table {server_schema.table!r}: request the right one"
            )
        # an old gateway may have a column row_id; here every table has this column already
        columns = tuple(column for column in server_schema.columns if column.name.lower() != "row_id")
        usable = replace(server_schema, columns=columns)

        def adopt(core: ClientCore) -> bool:
            """Adopt the schema if it is newer, and retry the refused edits whose columns it has."""
            store = self._replica.store
            if store.version(table) >= server_version:
                return False
            store.put_gateway_schema(usable, server_version)  # this adds the columns to the app's table
            names = {column.name for column in usable.columns}
            numbers = [
                edit.number
                for edit in core.edits()
                if edit.status == "refused"
                and edit.code == SchemaError.code
                and edit.delta.table == table
                and names >= {cell.column for cell in edit.delta.columns}
            ]
            core.retry(numbers)
            return True

        return self._replica.step(adopt)


class SchemaFetcher:
    """Requests the gateway's schemas when the app's tables may lack columns, and adds these."""

    def __init__(self, replica: Replica, transport: SyncTransport) -> None:
        """Create a fetcher; nothing is requested yet.

        Args:
            replica: the app's database.
            transport: requests the schemas, if it is a `SchemaTransport`; otherwise all methods do nothing.
        """
        self._replica = replica
        self._transport = transport
        self._synchroniser = SchemaSynchroniser(replica)
        self._has_newest_schemas = False
        """Whether the tables have the columns of the gateway's newest schemas, as far as the client knows."""
        self._next_check = 0.0
        """When auto-sync may request the same schemas again, on the monotonic clock."""
        self._conflict: SchemaError | None = None
        """The first table's that cannot get the gateway's columns; it lasts until a schema changes."""

    def fetch_for_refused_edits(self) -> None:
        """Add columns that the gateway got since it refused edits for them, so that these edits are pushed next.

        A failure ends the method. `fetch_after` repeats it for edits that are still refused, and reports the failure.
        """
        if isinstance(self._transport, SchemaTransport):
            with suppress(LakeSyncError):
                for table in self._tables_with_refused_edits():
                    self._fetch(self._transport, table)

    def fetch_after(self, result: CycleResult, *, is_foreground: bool) -> None:
        """Fetch schemas after a synchronisation, if that may be necessary. A failure is stored in `result.error`.

        It may be after the first synchronisation, and after each in which the gateway refused an edit because of its
        columns, or sent a column that the app's table lacks. As long as such an edit is refused, the schema of its
        table is fetched again, because it may have the column by now.

        Args:
            result: the outcomes of the synchronisation. After a failure, nothing is fetched.
            is_foreground: whether the app started it. In auto-sync, `SCHEMA_SECONDS` passes between repeated requests.
        """
        if result.found_new_column or any(edit.code == SchemaError.code for edit in result.refused):
            self._has_newest_schemas, self._conflict = False, None
        if result.error is not None or not isinstance(self._transport, SchemaTransport):
            return
        tables: list[str] = []
        is_due = is_foreground or time.monotonic() >= self._next_check
        if is_due:
            self._conflict = None
        if not self._has_newest_schemas and self._conflict is None:
            tables = self._replica.tables()
        elif is_due:
            tables = self._tables_with_refused_edits()
        try:
            for table in tables:
                try:
                    self._fetch(self._transport, table)
                except SchemaError as error:  # of this table alone
                    self._conflict = self._conflict or error
            self._has_newest_schemas = self._has_newest_schemas or self._conflict is None
            result.error = self._conflict
        except LakeSyncError as error:
            result.error = error
        finally:
            if tables:
                self._next_check = time.monotonic() + SCHEMA_SECONDS

    def _tables_with_refused_edits(self) -> list[str]:
        """Return the tables with edits that the gateway refused because of their columns."""
        rows = self._replica.read(
            "SELECT DISTINCT tbl FROM _lakesync_edits WHERE status = 'refused' AND code = ?", (SchemaError.code,)
        )
        return [table for (table,) in rows if table in self._replica.tables()]

    def _fetch(self, transport: SchemaTransport, table: str) -> None:
        """Fetch the gateway's schema of a table, if it has one, and add its columns to the table.

        Raises:
            LakeSyncError: the gateway rejected the request or did not respond.
            SchemaError: a column has another type in the gateway's schema, or a name that is reserved here.
        """
        registered = transport.schema(table)
        if registered is not None:
            self._synchroniser.synchronise(table, registered.schema, registered.version)

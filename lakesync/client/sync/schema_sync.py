"""Adds the columns of the gateway's schemas to the app's tables. `SyncSession` calls it; apps may too."""

from __future__ import annotations

from msgspec.structs import replace

from lakesync.client.core import ClientCore
from lakesync.client.sync.replica import Replica
from lakesync.client.transports.base import SchemaTransport
from lakesync.model.errors import NotFoundError, SchemaError
from lakesync.model.schema import TableSchema


class SchemaSynchroniser:
    """Adds columns that the gateway's schemas have and the app's tables lack."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def synchronise_all(self, transport: SchemaTransport) -> None:
        """Add the columns to every table that the gateway has a schema of.

        Raises:
            LakeSyncError: the gateway did not answer.
            SchemaError: a column has another type in the gateway's schema.
        """
        for table in self._replica.tables():
            registered = transport.schema(table)
            if registered is not None:
                self.synchronise(table, registered.schema, registered.version)

    def synchronise(self, table: str, server_schema: TableSchema, server_version: int) -> bool:
        """Add the columns of the gateway's schema to a table, and retry edits that its old schema had rejected.

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

        def work(core: ClientCore) -> bool:
            store = self._replica.store
            if store.version(table) >= server_version:
                return False
            store.put_version(usable, server_version)
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

        return self._replica.step(work)

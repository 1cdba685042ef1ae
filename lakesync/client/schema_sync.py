"""Tables grow with the gateway's schemas."""

from __future__ import annotations

from msgspec.structs import replace

from lakesync.client.core import ClientCore
from lakesync.client.replica import Replica
from lakesync.client.transports.base import SchemaTransport
from lakesync.model.errors import NotFoundError, SchemaError
from lakesync.model.schema import TableSchema


class SchemaSynchroniser:
    """Adds the columns that the gateway's schemas have and the app's tables lack."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def synchronise_all(self, transport: SchemaTransport) -> None:
        """Bring every table in line with its registered schema, where there is one.

        Raises:
            LakeSyncError: the gateway did not say.
            SchemaError: a column has another type there.
        """
        for table in self._replica.tables():
            known = transport.schema(table)
            if known is not None:
                self.synchronise(table, known.schema, known.version)

    def synchronise(self, table: str, server_schema: TableSchema, server_version: int) -> bool:
        """Add what a table lacks, where its version is older; edits that were refused for want of it wait again.

        Raises:
            NotFoundError: the client has no such table.
            SchemaError: a column has another type there, or a name that it cannot have here.
        """
        if table not in self._replica.tables():
            raise NotFoundError(f"this client has no table {table!r}: name its schema when you open the database")

        if server_schema.table != table:
            raise SchemaError(f"the schema of table {table!r} is one of {server_schema.table!r}: ask the gateway anew")
        # a gateway may have the column from before the name was reserved; every table here has it already
        columns = tuple(column for column in server_schema.columns if column.name.lower() != "row_id")
        usable = replace(server_schema, columns=columns)

        def work(core: ClientCore) -> bool:
            store = self._replica.store
            if store.version(table) >= server_version:
                return False
            store.put_version(usable, server_version)
            names = {column.name for column in usable.columns}
            again = [
                edit.number
                for edit in core.edits()
                if edit.status == "refused"
                and edit.code == SchemaError.code
                and edit.delta.table == table
                and names >= {cell.column for cell in edit.delta.columns}
            ]
            core.retry(again)
            return True

        return self._replica.step(work)

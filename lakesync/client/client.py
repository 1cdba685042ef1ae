"""`Client`, which `lakesync.open` returns: an app's SQLite database that is synchronised with a gateway.

Apps call it. It delegates the synchronisation to `SyncCoordinator`, and reads and writes of rows to `LocalDB`. A
gateway is one app's stream of changes. Auto-sync is a thread that synchronises by itself.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from lakesync.client import queries
from lakesync.client.core import Edit
from lakesync.client.sqlite.database import LocalDB
from lakesync.client.sqlite.tables import Row, Table
from lakesync.client.status import Event, SyncReport, SyncStatus, TableCheck, Version, versions
from lakesync.client.sync.action_queue import QueuedAction
from lakesync.client.sync.coordinator import SyncCoordinator
from lakesync.client.transports.base import TokenTransport
from lakesync.client.transports.tokens import Token
from lakesync.model.action_handlers import ConnectorDescriptor
from lakesync.model.errors import ConfigurationError, ValidationError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa


class Client:
    """An app's database and its synchronisation with a gateway. Threads may share it; see `docs/client.md`.

    A change is a write to a synced table. It is *unacknowledged* until the gateway has accepted it. A change that the
    gateway rejected has the status `refused`, and stays unacknowledged until `retry` or `drop`.
    """

    def __init__(self, db: LocalDB, coordinator: SyncCoordinator) -> None:
        """Create a client; `lakesync.open` opens the database and does this.

        Args:
            db: the app's database; `close` closes it.
            coordinator: synchronises this database; `close` closes it and its transport.
        """
        self.db = db
        self.coordinator = coordinator
        self.transport = coordinator.transport
        """Sends requests to the gateway."""
        self._replica = coordinator.replica
        self._closed = threading.Event()

    # -- the app's data -------------------------------------------------------------------------------------------

    @property
    def conn(self) -> sqlite3.Connection:
        """A plain connection to the app's database, for SQL, pandas and other libraries; commit what you write."""
        return self.db.conn

    @property
    def client_id(self) -> str:
        """This client's id."""
        return self.coordinator.client_id

    def __getitem__(self, table: str) -> Table:
        """Return a synced table.

        Raises:
            NotFoundError: the table is not synchronised.
        """
        return self.coordinator.tables[table]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the synced tables."""
        return iter(self.coordinator.tables)

    def __contains__(self, table: object) -> bool:
        return table in self.coordinator.tables

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction for writes by `conn` and by tables, and wake auto-sync after its commit.

        An exception rolls it back. Within another transaction, it is a savepoint.
        """
        with self.db.transaction() as conn:
            yield conn
        self.coordinator.notify_write()

    def query(self, sql: str, params: Any = ()) -> list[Row]:
        """Return the rows of a query as dicts, including rows that are not committed yet.

        A column whose name is taken gets a number, as `row_id_1`; name it with AS.

        Args:
            sql: one statement that returns rows, such as SELECT.
            params: values for its placeholders, as for `sqlite3`.

        Raises:
            ValidationError: the statement writes, or returns no rows.
        """
        return self.db.query(sql, params)

    def watch(self, sql: str, params: Any = ()) -> queries.Watch:
        """Watch a query: iterate over its result now, and over each changed result.

            for rows in db.watch("SELECT * FROM todos WHERE NOT done"):
                show(rows)

        Args:
            sql: one statement that returns rows.
            params: values for its placeholders, as for `sqlite3`.
        """
        self.db.check_open()
        return queries.Watch(self.db.path, sql, params, self._replica.tables(), self._closed)

    def history(self, table: str, row_id: str) -> list[Version]:
        """Return the writes to a row, oldest first: who wrote which columns when, and which are unacknowledged.

        Args:
            table: a synced table.
            row_id: the row's id.
        """
        key = (table, row_id)

        def read(_: Any) -> list[Version]:
            store = self._replica.store
            return versions(store.known([key]).get(key), store.edits_of([key]).get(key, []))

        return self._replica.step(read)

    def to_pandas(self, sql: str, params: Any = ()) -> pd.DataFrame:
        """Return the result of a query, or a whole table, as a pandas frame.

        Args:
            sql: a query, or a table's name.
            params: values for the query's placeholders.

        Raises:
            ConfigurationError: pandas is not installed.
            ValidationError: the statement writes, or returns no rows.
        """
        return queries.to_pandas(self._read_columns(sql, params))

    def to_polars(self, sql: str, params: Any = ()) -> pl.DataFrame:
        """Return the result of a query, or a whole table, as a polars frame.

        Args:
            sql: a query, or a table's name.
            params: values for the query's placeholders.

        Raises:
            ConfigurationError: polars is not installed.
            ValidationError: the statement writes, or returns no rows.
        """
        return queries.to_polars(self._read_columns(sql, params))

    def to_arrow(self, sql: str, params: Any = ()) -> pa.Table:
        """Return the result of a query, or a whole table, as an Arrow table.

        Args:
            sql: a query, or a table's name.
            params: values for the query's placeholders.

        Raises:
            ConfigurationError: pyarrow is not installed.
            ValidationError: the statement writes, or returns no rows.
        """
        return queries.to_arrow(self._read_columns(sql, params))

    # -- synchronisation ------------------------------------------------------------------------------------------

    def sync(self) -> SyncReport:
        """Push, pull and send actions now, without waiting for retry delays.

        Raises:
            LakeSyncError: a request failed, and no later one of its kind succeeded. Results of others are kept, and the
                changes are pushed next time.
        """
        return self.coordinator.sync_once()

    @property
    def status(self) -> SyncStatus:
        """The current state of the synchronisation."""
        return self.coordinator.status

    def on(self, event: Event, listener: Callable[..., Any]) -> None:
        """Call a function whenever an event occurs, in the thread that synchronises.

        Args:
            event: one of the names in `lakesync.client.status.Event`, which lists each event's arguments.
            listener: the function; it must be fast, because the synchronisation waits for it.

        Raises:
            ValidationError: the event is unknown.
        """
        self.coordinator.on(event, listener)

    def pending(self) -> list[Edit]:
        """Return every unacknowledged change, including those that the gateway rejected (status `refused`)."""
        return self.coordinator.outbox.all()

    def verify(self) -> dict[str, TableCheck]:
        """Pull everything again, repair tables that differ from the gateway's rows, and return checksums by table.

        Unacknowledged changes are kept.

        Raises:
            ConfigurationError: the client never pulls (mode `pushOnly`).
            LakeSyncError: the gateway rejected a request or did not respond; rows that were pulled before it stay.
        """
        return self.coordinator.verify()

    def retry(self, *numbers: int) -> None:
        """Push changes again that the gateway rejected: those with these `Edit.number`s, or all.

        Raises:
            NotFoundError: a number does not belong to a refused change.
        """
        self.coordinator.outbox.retry(*numbers)

    def drop(self, *numbers: int) -> None:
        """Delete the changes with these `Edit.number`s, and restore their rows as if they had never been made.

        Raises:
            NotFoundError: a number does not belong to an unacknowledged change.
            ValidationError: no number was passed, or the gateway may have stored a change already.
        """
        if not numbers:
            raise ValidationError("drop needs the numbers of the changes to delete: pending() lists them")
        self.coordinator.outbox.drop(*numbers)

    def execute_action(
        self, connector: str, action_type: str, params: Mapping[str, Any], *, idempotency_key: str | None = None
    ) -> str:
        """Queue an action, a request that the gateway executes once in an external system.

        It is sent when the gateway can be reached. The event `onActionComplete` reports its end.

        Args:
            connector: name of the connector at the gateway that executes it.
            action_type: one of the connector's actions, such as `open_ticket`.
            params: a JSON object.
            idempotency_key: actions with the same key are executed once; None if every call is an action of its own.

        Returns:
            The action's id, for `action`.

        Raises:
            ConfigurationError: the transport cannot send actions.
            ValidationError: `params` is not a JSON object.
        """
        return self.coordinator.execute_action(connector, action_type, params, idempotency_key).action_id

    def action(self, action_id: str) -> QueuedAction:
        """Return an action's status and result.

        Raises:
            NotFoundError: this client has not queued it, or it was dropped.
        """
        return self.coordinator.actions.get(action_id)

    def list_connector_types(self) -> list[ConnectorDescriptor]:
        """Return the types of connector that the gateway supports, with the JSON Schema of their settings.

        Raises:
            ConfigurationError: the transport cannot list them.
            LakeSyncError: the gateway rejected the request or did not respond.
        """
        return self.coordinator.list_connector_types()

    def set_token(self, token: Token) -> None:
        """Send this token, or the tokens of this function, from now on; auto-sync retries immediately.

        Raises:
            ConfigurationError: the transport sends no token.
        """
        if not isinstance(self.transport, TokenTransport):
            raise ConfigurationError("this transport sends no token: use HttpTransport or WebSocketTransport")
        self.transport.set_token(token)
        self._replica.core.reset_backoff()
        self.coordinator.wake()

    def close(self) -> None:
        """Stop synchronising, and close the transport and the database; unacknowledged changes stay in it."""
        if not self._closed.is_set():
            self._closed.set()
            if not self.db.forked:  # else everything belongs to the parent process
                try:
                    self.coordinator.close()
                finally:
                    self.db.close()

    destroy = close
    """The name of `close` in the reference, the TypeScript client."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_columns(self, sql: str, params: Any) -> queries.Columns:
        """Read the result of a query, or a table that is named instead of it, column by column."""
        self.db.check_open()
        return queries.read_columns(self.db.path, self._replica.store.committed_schemas.get(sql), sql, params)

"""The client: an app's database that is synchronised with a gateway. `lakesync.open` returns it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from lakesync.client import dataframes
from lakesync.client.core import CoreLimits, Edit, Mode, RetryPolicy
from lakesync.client.events import Event
from lakesync.client.history import Version, versions
from lakesync.client.queues import SyncQueue
from lakesync.client.sqlite.database import LocalDB
from lakesync.client.sqlite.tables import Row, Table
from lakesync.client.status import SyncReport, SyncStatus
from lakesync.client.sync.action_queue import QueuedAction
from lakesync.client.sync.coordinator import DEFAULT_HEARTBEAT, DEFAULT_INTERVAL, SyncCoordinator
from lakesync.client.sync.verification import TableCheck
from lakesync.client.transports.base import SyncTransport, Token, TokenTransport
from lakesync.client.watch import Watch
from lakesync.model.action_handlers import ConnectorDescriptor
from lakesync.model.errors import ConfigurationError, ValidationError
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa


class Client:
    """The app's database and its synchronisation. `docs/client.md` describes its use."""

    def __init__(
        self,
        db: LocalDB,
        transport: SyncTransport,
        *,
        client_id: str | None = None,
        schemas: Iterable[TableSchema | Mapping[str, Any]] = (),
        mode: Mode = "full",
        limits: CoreLimits | None = None,
        interval: float = DEFAULT_INTERVAL,
        heartbeat: float = DEFAULT_HEARTBEAT,
        retry: RetryPolicy | None = None,
        queue: SyncQueue | None = None,
        wall: Callable[[], int] | None = None,
    ) -> None:
        """Create a client over a database; `close` closes the database and the transport.

        Args:
            db: the app's database.
            transport: leads to the gateway.
            client_id: as for `SyncCoordinator`, like all further arguments.
            schemas: of the synced tables.
            mode: `full`, `pushOnly` or `pullOnly`.
            limits: the size of requests.
            interval: seconds between pulls of auto-sync.
            heartbeat: seconds between pulls of auto-sync while a WebSocket is open.
            retry: the delays after failures.
            queue: a custom queue.
            wall: returns milliseconds.

        Raises:
            ConfigurationError: the database belongs to another client or gateway, or a table cannot be synchronised.
            SchemaError: a schema is wrong, or changes a column's type.
        """
        self.db = db
        self.transport = transport
        self.coordinator = SyncCoordinator(
            db,
            transport,
            client_id=client_id,
            schemas=schemas,
            queue=queue,
            mode=mode,
            interval=interval,
            heartbeat=heartbeat,
            retry=retry,
            limits=limits,
            wall=wall,
        )
        self._replica = self.coordinator.replica
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
        """Run a transaction for writes by `conn` and by tables; within another one, a savepoint."""
        with self.db.transaction() as conn:
            yield conn
        self.coordinator.notify_write()

    def query(self, sql: str, params: Any = ()) -> list[Row]:
        """Return the rows of a query. See `LocalDB.query`.

        Args:
            sql: a query.
            params: its parameters.
        """
        return self.db.query(sql, params)

    def watch(self, sql: str, params: Any = ()) -> Watch:
        """Watch a query: iterate over its result now, and over each changed result.

        for rows in db.watch("SELECT * FROM todos WHERE NOT done"):
            show(rows)

        Args:
            sql: a query.
            params: its parameters.
        """
        self.db.check_open()
        return Watch(self.db.path, sql, params, self._replica.tables(), _rows_as_dicts, self._closed)

    def history(self, table: str, row_id: str) -> list[Version]:
        """Return the deltas of a row, oldest first: who wrote which columns when, and which are unacknowledged.

        Args:
            table: a synced table.
            row_id: the row's id.
        """
        key = (table, row_id)

        def work(_: Any) -> list[Version]:
            store = self._replica.store
            return versions(store.known([key]).get(key), store.edits_of([key]).get(key, []))

        return self._replica.step(work)

    def to_pandas(self, sql: str, params: Any = ()) -> pd.DataFrame:
        """Return the result of a query, or a whole table, as a pandas frame.

        Args:
            sql: a query, or a table's name.
            params: the query's parameters.

        Raises:
            ConfigurationError: pandas is not installed.
        """
        return dataframes.to_pandas(self._read_columns(sql, params))

    def to_polars(self, sql: str, params: Any = ()) -> pl.DataFrame:
        """Return the result of a query, or a whole table, as a polars frame. See `to_pandas`.

        Args:
            sql: a query, or a table's name.
            params: the query's parameters.

        Raises:
            ConfigurationError: polars is not installed.
        """
        return dataframes.to_polars(self._read_columns(sql, params))

    def to_arrow(self, sql: str, params: Any = ()) -> pa.Table:
        """Return the result of a query, or a whole table, as an Arrow table. See `to_pandas`.

        Args:
            sql: a query, or a table's name.
            params: the query's parameters.

        Raises:
            ConfigurationError: pyarrow is not installed.
        """
        return dataframes.to_arrow(self._read_columns(sql, params))

    # -- synchronisation ------------------------------------------------------------------------------------------

    def sync(self) -> SyncReport:
        """Push, pull and run actions now. See `SyncCoordinator.sync_once`."""
        return self.coordinator.sync_once()

    @property
    def status(self) -> SyncStatus:
        """The current state of the synchronisation."""
        return self.coordinator.status

    def on(self, event: Event, listener: Callable[..., Any]) -> None:
        """Call a listener whenever an event occurs, in the thread that synchronises. See `Event`.

        Args:
            event: its name.
            listener: called with the event's arguments.
        """
        self.coordinator.on(event, listener)

    def pending(self) -> list[Edit]:
        """Return every unacknowledged change; those with status `refused` were rejected by the gateway."""
        return self.coordinator.outbox.all()

    def verify(self) -> dict[str, TableCheck]:
        """Compare every table with the gateway by checksum, and repair it. See `SyncCoordinator.verify`."""
        return self.coordinator.verify()

    def retry(self, *numbers: int) -> None:
        """Push refused changes again: those with these numbers, or all."""
        self.coordinator.outbox.retry(*(numbers or self._refused_numbers()))

    def drop(self, *numbers: int) -> None:
        """Delete changes and restore their rows as if the changes had never been made.

        Raises:
            ValidationError: no number was passed, or the gateway may have a change already.
        """
        if not numbers:
            raise ValidationError("drop needs the numbers of the changes to delete: pending() lists them")
        self.coordinator.outbox.drop(*numbers)

    def execute_action(
        self, connector: str, action_type: str, params: Mapping[str, Any], *, idempotency_key: str | None = None
    ) -> str:
        """Queue an action. See `SyncCoordinator.execute_action`.

        Args:
            connector: the connector that executes it.
            action_type: what the connector does.
            params: a JSON object.
            idempotency_key: actions with the same key are executed once.

        Returns:
            The action's id, for `action`.
        """
        return self.coordinator.execute_action(connector, action_type, params, idempotency_key).action_id

    def action(self, action_id: str) -> QueuedAction:
        """Return an action's status and result.

        Raises:
            NotFoundError: this client has not queued it.
        """
        return self.coordinator.actions.get(action_id)

    def list_connector_types(self) -> list[ConnectorDescriptor]:
        """Return the types of connector that the gateway supports. See `SyncCoordinator.list_connector_types`."""
        return self.coordinator.list_connector_types()

    def set_token(self, token: Token) -> None:
        """Send this token from now on, and retry at once.

        Raises:
            ConfigurationError: the transport sends no token.
        """
        if not isinstance(self.transport, TokenTransport):
            raise ConfigurationError("this transport sends no token: use HttpTransport or WebSocketTransport")
        self.transport.set_token(token)
        self._replica.core.reset_backoff()
        self.coordinator.wake()

    def close(self) -> None:
        """Stop synchronising and close the database; unacknowledged changes stay in it."""
        if not self._closed.is_set():
            self._closed.set()
            if not self.db.forked:  # else everything belongs to the parent process
                try:
                    self.coordinator.close()
                finally:
                    self.db.close()

    destroy = close
    """The reference's name."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refused_numbers(self) -> list[int]:
        return [edit.number for edit in self.coordinator.outbox.all("refused")]

    def _read_columns(self, sql: str, params: Any) -> dataframes.Columns:
        self.db.check_open()
        return dataframes.read_columns(self.db.path, self._replica.store.schemas.get(sql), sql, params)


def _rows_as_dicts(cursor: sqlite3.Cursor) -> list[Row]:
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]

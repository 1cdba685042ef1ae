"""An app's database that is kept in step with a gateway."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from lakesync.client import frames
from lakesync.client.coordinator import DEFAULT_HEARTBEAT, DEFAULT_INTERVAL, SyncCoordinator
from lakesync.client.core import CoreLimits, Edit, Mode, RetryPolicy
from lakesync.client.database import LocalDB
from lakesync.client.events import Event
from lakesync.client.history import Version, versions
from lakesync.client.queues import SyncQueue
from lakesync.client.status import SyncReport, SyncStatus
from lakesync.client.table import Row, Table
from lakesync.client.transports.base import RenewableTransport, SyncTransport, Token
from lakesync.client.watching import Watch
from lakesync.model.action_handlers import ConnectorDescriptor
from lakesync.model.errors import ConfigurationError, ValidationError
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from lakesync.client.actions import QueuedAction
    from lakesync.client.verify import TableCheck


class Client:
    """What `lakesync.open` gives: the app's database, and its synchronisation."""

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
        """See `open`; the database and the transport are closed with this.

        Raises:
            ConfigurationError: the database is another client's or gateway's, or a table in it cannot be used.
            SchemaError: a schema is wrong, or a table has a column of another type.
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
        """A plain connection to the app's database: write by SQL, pandas or whatever takes one, and commit."""
        return self.db.conn

    @property
    def client_id(self) -> str:
        """Who this is."""
        return self.coordinator.client_id

    def __getitem__(self, table: str) -> Table:
        """A synced table.

        Raises:
            NotFoundError: there is none of that name.
        """
        return self.coordinator.tables[table]

    def __iter__(self) -> Iterator[str]:
        """The names of the synced tables."""
        return iter(self.coordinator.tables)

    def __contains__(self, table: object) -> bool:
        return table in self.coordinator.tables

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All that is written inside, by `conn` or by tables, or none of it; within another one, of that part."""
        with self.db.transaction() as conn:
            yield conn
        self.coordinator.wrote()

    def query(self, sql: str, params: Any = ()) -> list[Row]:
        """The rows that a query gives."""
        return self.db.query(sql, params)

    def watch(self, sql: str, params: Any = ()) -> Watch:
        """The rows that a query gives now, and again whenever a table that it reads has changed.

        for rows in db.watch("SELECT * FROM todos WHERE NOT done"):
            show(rows)
        """
        self.db.check_open()
        return Watch(self.db.path, sql, params, self._replica.tables(), _dicts, self._closed)

    def history(self, table: str, row_id: str) -> list[Version]:
        """The changes that a row consists of: who wrote which columns when, and what of it waits."""
        key = (table, row_id)

        def work(_: Any) -> list[Version]:
            store = self._replica.store
            return versions(store.known([key]).get(key), store.edits_of([key]).get(key, []))

        return self._replica.step(work)

    def to_pandas(self, sql: str, params: Any = ()) -> pd.DataFrame:
        """A query's result, or a whole table by its name.

        Raises:
            ConfigurationError: pandas is not installed.
        """
        return frames.to_pandas(self._columns(sql, params))

    def to_polars(self, sql: str, params: Any = ()) -> pl.DataFrame:
        """A query's result, or a whole table by its name.

        Raises:
            ConfigurationError: polars is not installed.
        """
        return frames.to_polars(self._columns(sql, params))

    def to_arrow(self, sql: str, params: Any = ()) -> pa.Table:
        """A query's result, or a whole table by its name.

        Raises:
            ConfigurationError: pyarrow is not installed.
        """
        return frames.to_arrow(self._columns(sql, params))

    # -- synchronisation ------------------------------------------------------------------------------------------

    def sync(self) -> SyncReport:
        """Push, pull and do actions now. See `SyncCoordinator.sync_once`."""
        return self.coordinator.sync_once()

    @property
    def status(self) -> SyncStatus:
        """How things are now."""
        return self.coordinator.status

    def on(self, event: Event, listener: Callable[..., Any]) -> None:
        """Be told of an event; the listener is called in the thread that synchronises."""
        self.coordinator.on(event, listener)

    def pending(self) -> list[Edit]:
        """Every change that the gateway is not known to have; those with status `refused` were set aside."""
        return self.coordinator.outbox.all()

    def verify(self) -> dict[str, TableCheck]:
        """Compare every table with the gateway by checksum, and repair it. See `SyncCoordinator.verify`."""
        return self.coordinator.verify()

    def retry(self, *numbers: int) -> None:
        """Send changes again that were set aside; all of them unless numbers are given."""
        self.coordinator.outbox.retry(*(numbers or self._refused()))

    def drop(self, *numbers: int) -> None:
        """Give changes up, so that their rows are as if they had never been made.

        Raises:
            ValidationError: none is named, or the gateway may have it already.
        """
        if not numbers:
            raise ValidationError("say which changes to give up: pending() has their numbers")
        self.coordinator.outbox.drop(*numbers)

    def execute_action(
        self, connector: str, action_type: str, params: Mapping[str, Any], *, idempotency_key: str | None = None
    ) -> str:
        """Have an action done as soon as the gateway can be reached; its id, for `action`."""
        return self.coordinator.execute_action(connector, action_type, params, idempotency_key).action_id

    def action(self, action_id: str) -> QueuedAction:
        """How far an action is, and what it gave back.

        Raises:
            NotFoundError: there is none of that id here.
        """
        return self.coordinator.actions.get(action_id)

    def list_connector_types(self) -> list[ConnectorDescriptor]:
        """Which types of connector the gateway may have. See `SyncCoordinator.list_connector_types`."""
        return self.coordinator.list_connector_types()

    def set_token(self, token: Token) -> None:
        """Show another token from now on, and try again at once."""
        if not isinstance(self.transport, RenewableTransport):
            raise ConfigurationError("this transport shows no token")
        self.transport.set_token(token)
        self._replica.core.hurry()
        self.coordinator.wake()

    def close(self) -> None:
        """Stop synchronising and close the database; what waits to be sent stays in it."""
        if not self._closed.is_set():
            self._closed.set()
            if not self.db.forked:  # else all of it is the parent's
                self.coordinator.close()
                self.db.close()

    destroy = close
    """The reference's name."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refused(self) -> list[int]:
        return [edit.number for edit in self.coordinator.outbox.all("refused")]

    def _columns(self, sql: str, params: Any) -> frames.Columns:
        self.db.check_open()
        return frames.columns(self.db.path, self._replica.store.schemas.get(sql), sql, params)


def _dicts(cursor: sqlite3.Cursor) -> list[Row]:
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]

"""What the data pipeline reads and writes on Postgres; each call is one transaction.

`PostgresStore` inherits the methods of `Pipeline`. `PipelineTables` has the statements, which the SQLite store shares;
`staging.store.pipeline` says what each method promises and defines the terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from psycopg import sql

from lakesync.staging.head import Head
from lakesync.staging.pipeline_tables import PipelineTables
from lakesync.staging.postgres.connection import Connection, Database
from lakesync.staging.postgres.journal import ConfigCache, load_head, save_head
from lakesync.staging.records import Backlog, Batch, Checkpoint, GatewayConfig, LedgerDay


class _Transaction(PipelineTables):
    """The pipeline's tables in one transaction. A transaction that writes locks the gateways whose heads it reads."""

    def __init__(self, connection: Connection, wall: Callable[[], int], configs: ConfigCache, *, writes: bool) -> None:
        self._connection = connection
        self._wall = wall
        self._configs = configs
        self._writes = writes

    def _query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(sql.SQL(statement.replace("?", "%s")), values)
        return cursor.fetchall() if cursor.description else []

    def gateways(self) -> list[str]:
        """Return the ids of all gateways, sorted."""
        return [gateway for (gateway,) in self._query("SELECT id FROM gateway ORDER BY id")]

    def _head(self, gateway: str) -> Head:
        return load_head(self._connection, gateway, self._configs, lock=self._writes)

    def _set_head(self, head: Head) -> None:
        save_head(self._connection, head)

    def _now_ms(self) -> int:
        return self._wall()


class Pipeline:
    """The methods of `PipelineStore` for batches, the ledger, checkpoints and marks."""

    def __init__(self, database: Database, wall: Callable[[], int], configs: ConfigCache) -> None:
        """Create the pipeline's methods over a database.

        Args:
            database: the pool of connections.
            wall: returns the server's wall time in milliseconds since 1970.
            configs: the cache of gateways' configurations.
        """
        self._database = database
        self._wall = wall
        self._configs = configs

    @contextmanager
    def _reading(self) -> Iterator[_Transaction]:
        """Open a read-only transaction."""
        with self._database.reading() as connection:
            yield _Transaction(connection, self._wall, self._configs, writes=False)

    @contextmanager
    def _writing(self) -> Iterator[_Transaction]:
        """Open a transaction, which is committed when the `with` block ends without an error."""
        with self._database.writing() as connection:
            yield _Transaction(connection, self._wall, self._configs, writes=True)

    def gateways(self) -> list[str]:
        """Return the ids of all gateways, sorted."""
        with self._reading() as tables:
            return tables.gateways()

    def gateway_config(self, gateway: str) -> GatewayConfig:
        """Return a gateway's schemas and rules."""
        with self._database.reading() as connection:
            return load_head(connection, gateway, self._configs, lock=False).config

    def backlog(self) -> list[Backlog]:
        """Return size and age of the unflushed deltas of each gateway, ordered by id."""
        with self._reading() as tables:
            return tables.backlog()

    def plan(
        self, gateway: str, shard: str, max_deltas: int, through: int | None = None, since: int | None = None
    ) -> Batch | None:
        """Return the open batch, or a new one; see `PipelineStore.plan`."""
        with self._writing() as tables:
            return tables.plan(gateway, shard, max_deltas, through, since)

    def confirm(self, batch_id: str, deltas: int, id_sum: int, snapshot_id: int | None = None) -> None:
        """Record that the lake contains the batch; see `PipelineStore.confirm`."""
        with self._writing() as tables:
            tables.confirm(batch_id, deltas, id_sum, snapshot_id)

    def trim(self, gateway: str, shard: str) -> int:
        """Delete the log bodies of confirmed batches; return the freed bytes. See `PipelineStore.trim`."""
        with self._writing() as tables:
            return tables.trim(gateway, shard)

    def ledger(self, gateway: str) -> list[LedgerDay]:
        """Return counts and id sums of a gateway's deltas by UTC day of arrival, in order."""
        with self._reading() as tables:
            return tables.ledger(gateway)

    def request_flush(self, gateway: str) -> None:
        """Record that a flush was requested; see `PipelineStore.request_flush`."""
        with self._writing() as tables:
            tables.request_flush(gateway)

    def publish_checkpoint(self, checkpoint: Checkpoint) -> bool:
        """Publish a checkpoint; return False if this epoch has one at the same or a later arrival."""
        with self._writing() as tables:
            return tables.publish_checkpoint(checkpoint)

    def newest_checkpoint(self, gateway: str) -> Checkpoint | None:
        """Return the newest published checkpoint of the store's epoch; None before its first one."""
        with self._reading() as tables:
            return tables.newest_checkpoint(gateway)

    def marks(self) -> dict[str, str]:
        """Return how far each part of the pipeline is, by name; see `PipelineStore.marks`."""
        with self._reading() as tables:
            return tables.marks()

    def put_mark(self, name: str, body: str) -> None:
        """Store how far a part of the pipeline is; see `PipelineStore.put_mark`."""
        with self._writing() as tables:
            tables.put_mark(name, body)

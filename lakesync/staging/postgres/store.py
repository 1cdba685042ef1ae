"""`PostgresStore`: a staging store (the database that pushes are committed to) on Postgres.

`staging.open_store` creates it for a `postgresql://` URL; the engine opens it. It forwards transactions to `Groups` and
notices to `PostgresNotices`. The methods that the data pipeline calls are one transaction each; `PipelineTables` has
their statements, which the SQLite store shares. `staging.store` says what each method promises and defines the terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from psycopg import sql

from lakesync.model.types import StoredConnector
from lakesync.staging.cut_point import CutPointStore
from lakesync.staging.erasing_store import ErasingStore
from lakesync.staging.head import MAIN_SHARD, Head
from lakesync.staging.notices import Listener
from lakesync.staging.pipeline_tables import PipelineTables
from lakesync.staging.postgres.connection import Connection, Database
from lakesync.staging.postgres.groups import Groups
from lakesync.staging.postgres.journal import ConfigCache, ensure_gateway, load_head, save_head
from lakesync.staging.postgres.notices import PostgresNotices
from lakesync.staging.records import Backlog, Batch, Checkpoint, GatewayConfig, LedgerDay, LogSource
from lakesync.staging.store import Commit, View
from lakesync.staging.store.push import Replayer

T = TypeVar("T")


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


class PostgresStore(ErasingStore, CutPointStore):
    """A store that any number of processes may open at once; a lock on the gateway's row orders their commits.

    The log is never replayed, because rows and feed entries are part of the commit. The ids of deltas are kept forever,
    16 bytes each, so that a repeated push is recognised however old it is.
    """

    shared = True
    """Other processes may use the store at the same time."""

    def __init__(self, url: str, wall: Callable[[], int], shard: str = MAIN_SHARD) -> None:
        """Create the store; `open` connects it.

        Args:
            url: the database's address, in libpq's form (`postgresql://USER@HOST/NAME`).
            wall: returns the server's wall time in milliseconds since 1970.
            shard: name of the shard that the store serves; gateways that are created in it belong to this shard.
        """
        self._database = Database(url)
        self._wall = wall
        self._configs = ConfigCache()
        self._shard = shard
        self._notices = PostgresNotices(self._database.info, self._database.address)
        self._groups = Groups(self._database, wall, self._configs, self._notices)

    def open(self, replayer: Replayer | None = None) -> None:
        """Connect, apply migrations, and complete interrupted erasures.

        Args:
            replayer: writes rows for erasures; normally the engine. None for a process that only reads or flushes.

        Raises:
            StagingVersionError: a newer LakeSync wrote the store.
            StagingUnavailableError: the database cannot be reached.
        """
        self._database.open()
        self._replayer = replayer
        if replayer is not None:
            self._finish_erasures()

    def close(self) -> None:
        """Run the functions that were submitted before, and close every connection."""
        self._groups.close()
        self._notices.close()
        self._database.close()

    def ensure_gateway(self, gateway: str) -> None:
        """Create a gateway with a new epoch, unless it exists."""
        with self._database.writing() as connection:
            ensure_gateway(connection, gateway, self._wall(), self._shard)

    def submit(self, gateway: str, job: Callable[[Commit], T]) -> Future[T]:
        """Run `job` in a commit; the future completes when Postgres has committed. See `StagingStore.submit`.

        Args:
            gateway: the gateway's id.
            job: the function to run, given the transaction.
        """
        return self._groups.submit(gateway, job)

    def read(self, gateway: str, job: Callable[[View], T]) -> Future[T]:
        """Run `job` over a snapshot; see `StagingStore.read`."""
        return self._groups.read(gateway, job)

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` for new visible commits of every process; return a function that removes it."""
        return self._notices.watch(listener)

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """Return the connectors that were registered at run time, ordered by name."""
        return self.read(gateway, lambda view: view.connectors()).result()

    def log_source(self, shard: str = MAIN_SHARD) -> LogSource:  # noqa: ARG002 all shards are in one table
        """Return the log's address for Postgres' JDBC driver, with this store's credentials."""
        url, properties = self._database.jdbc()
        return LogSource(url=url, table="lakesync.log", properties=properties)

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

    def _now_ms(self) -> int:
        return self._wall()

    def _purge(self) -> None:
        self._database.vacuum()

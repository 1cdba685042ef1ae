"""`StagingStore` on Postgres."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from lakesync.model.types import StoredConnector
from lakesync.staging.erasing import ErasingStore
from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.holding import HoldingStore
from lakesync.staging.notices import Listener
from lakesync.staging.postgres.connection import Database
from lakesync.staging.postgres.groups import Groups
from lakesync.staging.postgres.journal import ConfigCache, ensure_gateway
from lakesync.staging.postgres.listening import Listening
from lakesync.staging.postgres.pipeline import Pipeline
from lakesync.staging.records import Backlog, Batch, Cut, GatewayConfig, LedgerDay, LogSource
from lakesync.staging.store import Commit, Replayer, View

T = TypeVar("T")


class PostgresStore(ErasingStore, HoldingStore):
    """A store that any number of processes may open at once; the lock of a gateway's row orders their commits.

    Nothing is ever replayed: rows and feed entries are part of the commit. Ids are kept for good, 16 bytes a delta.
    """

    shared = True

    def __init__(self, url: str, wall: Callable[[], int], shard: str = MAIN_SHARD) -> None:
        """Args:
        url: as libpq reads it.
        wall: the server's clock in milliseconds.
        shard: what the streams of new gateways are called.
        """
        self._shard = shard
        self._wall = wall
        self._database = Database(url)
        self._configs = ConfigCache()
        self._listening = Listening(self._database.info, self._database.where)
        self._groups = Groups(self._database, wall, self._configs, self._listening)
        self._pipeline = Pipeline(self._database, wall, self._configs)

    def open(self, replayer: Replayer | None = None) -> None:
        """Connect and apply migrations; the replayer has nothing to do but where something is erased.

        Raises:
            StagingVersionError: the store was written by a newer version.
            StagingUnavailableError: it cannot be reached.
        """
        self._database.open()
        self._replayer = replayer
        if replayer is not None:
            self._finish_erasures()

    def close(self) -> None:
        """Finish what was submitted and close every connection."""
        self._groups.close()
        self._listening.close()
        self._database.close()

    def ensure_gateway(self, gateway: str) -> None:
        """Make a gateway with a new epoch; nothing when it exists."""
        with self._database.writing() as connection:
            ensure_gateway(connection, gateway, self._wall(), self._shard)

    def submit(self, gateway: str, work: Callable[[Commit], T]) -> Future[T]:
        """Run `work` in a commit; the future ends once Postgres has committed."""
        return self._groups.submit(gateway, work)

    def read(self, gateway: str, work: Callable[[View], T]) -> Future[T]:
        """Run `work` over a snapshot."""
        return self._groups.read(gateway, work)

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` of new visible arrivals of every process; what is returned ends that."""
        return self._listening.watch(listener)

    # -- the pipeline --------------------------------------------------------------------------------------------

    def gateways(self) -> list[str]:
        """Every gateway id of the store."""
        return self._pipeline.gateways()

    def backlog(self) -> list[Backlog]:
        """What waits, shard by shard."""
        return self._pipeline.backlog()

    def gateway_config(self, gateway: str) -> GatewayConfig:
        """Schemas and rules of a gateway."""
        return self._pipeline.gateway_config(gateway)

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """The connectors registered at run time."""
        return self.read(gateway, lambda view: view.connectors()).result()

    def plan(
        self, gateway: str, shard: str, max_deltas: int, through: int | None = None, since: int | None = None
    ) -> Batch | None:
        """The open batch, or a new one, durable before it is returned."""
        return self._pipeline.plan(gateway, shard, max_deltas, through, since)

    def confirm(self, batch_id: str, deltas: int, id_sum: int, snapshot_id: int | None = None) -> None:
        """Record that the lake was read and holds the batch."""
        self._pipeline.confirm(batch_id, deltas, id_sum, snapshot_id)

    def trim(self, gateway: str, shard: str) -> int:
        """Drop the bodies of confirmed batches; bytes freed."""
        return self._pipeline.trim(gateway, shard)

    def ledger(self, gateway: str) -> list[LedgerDay]:
        """Every arrival day that the gateway ever had."""
        return self._pipeline.ledger(gateway)

    def request_flush(self, gateway: str) -> None:
        """Make the next `backlog` say that a flush was asked for, where anything waits."""
        self._pipeline.request_flush(gateway)

    def publish_cut(self, cut: Cut) -> bool:
        """Publish a cut whole."""
        return self._pipeline.publish_cut(cut)

    def newest_cut(self, gateway: str) -> Cut | None:
        """The newest published cut."""
        return self._pipeline.newest_cut(gateway)

    def marks(self) -> dict[str, str]:
        """Return the stored marks."""
        return self._pipeline.marks()

    def put_mark(self, name: str, body: str) -> None:
        """Store a mark."""
        self._pipeline.put_mark(name, body)

    def log_source(self, shard: str = MAIN_SHARD) -> LogSource:  # noqa: ARG002 all of them stand in one table
        """The log, for Postgres' JDBC driver; its credentials are this store's."""
        url, properties = self._database.jdbc()
        return LogSource(url=url, table="lakesync.log", properties=properties)

    def _now_ms(self) -> int:
        return self._wall()

    def _purge(self) -> None:
        self._database.vacuum()

"""`PostgresStore`: a staging store (the database that pushes are committed to) on Postgres.

`staging.open_store` creates it for a `postgresql://` URL; the engine opens it. It creates its parts, and forwards
transactions and notices to them. The methods that the data pipeline calls are in its base class `Pipeline`.
`staging.store` says what each method promises.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from lakesync.model.types import StoredConnector
from lakesync.staging.cut_point import CutPointStore
from lakesync.staging.erasing import ErasingStore
from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.notices import Listener
from lakesync.staging.postgres.connection import Database
from lakesync.staging.postgres.groups import Groups
from lakesync.staging.postgres.journal import ConfigCache, ensure_gateway
from lakesync.staging.postgres.listening import Listening
from lakesync.staging.postgres.pipeline import Pipeline
from lakesync.staging.records import LogSource
from lakesync.staging.store import Commit, View
from lakesync.staging.store.push import Replayer

T = TypeVar("T")


class PostgresStore(Pipeline, ErasingStore, CutPointStore):
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
        super().__init__(Database(url), wall, ConfigCache())
        self._shard = shard
        self._listening = Listening(self._database.info, self._database.address)
        self._groups = Groups(self._database, wall, self._configs, self._listening)

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
        self._listening.close()
        self._database.close()

    def ensure_gateway(self, gateway: str) -> None:
        """Create a gateway with a new epoch, unless it exists."""
        with self._database.writing() as connection:
            ensure_gateway(connection, gateway, self._wall(), self._shard)

    def submit(self, gateway: str, work: Callable[[Commit], T]) -> Future[T]:
        """Run `work` in a commit; the future completes when Postgres has committed. See `StagingStore.submit`.

        Args:
            gateway: the gateway's id.
            work: the function to run, given the transaction.
        """
        return self._groups.submit(gateway, work)

    def read(self, gateway: str, work: Callable[[View], T]) -> Future[T]:
        """Run `work` over a snapshot; see `StagingStore.read`."""
        return self._groups.read(gateway, work)

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` for new visible commits of every process; return a function that removes it."""
        return self._listening.watch(listener)

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """Return the connectors that were registered at run time, ordered by name."""
        return self.read(gateway, lambda view: view.connectors()).result()

    def log_source(self, shard: str = MAIN_SHARD) -> LogSource:  # noqa: ARG002 all shards are in one table
        """Return the log's address for Postgres' JDBC driver, with this store's credentials."""
        url, properties = self._database.jdbc()
        return LogSource(url=url, table="lakesync.log", properties=properties)

    def _now_ms(self) -> int:
        return self._wall()

    def _purge(self) -> None:
        self._database.vacuum()

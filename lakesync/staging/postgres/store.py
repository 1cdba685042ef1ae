"""`PostgresStore`: `StagingStore` on a Postgres database. It creates its parts, and forwards transactions and notices.

`open_store` creates it for a URL of Postgres. The methods of the pipeline are in its base class `Pipeline`.
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

    Nothing is ever replayed, because rows and feed entries are part of the commit. Ids are kept forever, 16 bytes per
    delta.
    """

    shared = True

    def __init__(self, url: str, wall: Callable[[], int], shard: str = MAIN_SHARD) -> None:
        """Create the store; `open` connects it.

        Args:
            url: the database's address, in libpq's form (`postgresql://USER@HOST/NAME`).
            wall: returns the server's wall time in milliseconds since 1970.
            shard: name of the shard that the store serves; gateways created in it get this name.
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
        """Run the submitted functions, and close every connection."""
        self._groups.close()
        self._listening.close()
        self._database.close()

    def ensure_gateway(self, gateway: str) -> None:
        """Create a gateway with a new epoch, unless it exists."""
        with self._database.writing() as connection:
            ensure_gateway(connection, gateway, self._wall(), self._shard)

    def submit(self, gateway: str, work: Callable[[Commit], T]) -> Future[T]:
        """Run `work` in a commit; the future completes when Postgres has committed. See `StagingStore.submit`."""
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

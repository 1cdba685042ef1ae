"""A store that consists of one store per shard; every table belongs to one shard.

Sharding divides the write load of one gateway (an app's stream of changes) over several stores. `engine.sharding` uses
the `ShardedStore`; its base class has the methods that the data pipeline calls. A client's *cursor* says up to where it
has received changes; the store keeps a cursor in each shard for it. Processes open staging, sharded or not, with
`open_staging`, or with `configured_store` from the settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from lakesync.model.errors import ConfigurationError, IntegrityError
from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.notices import Listener
from lakesync.staging.sharded_pipeline import ShardedPipeline
from lakesync.staging.shards import ShardMap, shard_map, shard_urls
from lakesync.staging.store import Commit, StagingStore, TransactionStore, View
from lakesync.staging.store.pipeline import FlushStore
from lakesync.staging.store.push import Replayer
from lakesync.staging.store_urls import open_store

if TYPE_CHECKING:
    from lakesync.config import Config

T = TypeVar("T")


class ShardedStore(ShardedPipeline):
    """Several complete stores. Each transaction belongs to one of them; none spans several.

    The default shard is authoritative for what the shards have in common: schemas, rules, clients' cursors. `submit`
    and `read` use its store. Use `store_of(table)` to get the store with a table's rows.
    """

    @property
    def is_shared(self) -> bool:
        """Whether other processes may commit to the default shard; processes notify each other through it."""
        return self.default_store.is_shared

    def open(self, replayer: Replayer) -> None:
        """Open every store, and check that the configured shards fit the stores' contents.

        Args:
            replayer: replays log rows that were not applied before a crash; normally the engine.

        Raises:
            StagingVersionError: a newer LakeSync wrote a store.
            StagingUnavailableError: a store cannot be reached, or another process owns it.
            ConfigurationError: a store belongs to another shard, or a table has rows in another shard than its own.
            IntegrityError: the store of a shard is empty, but clients have cursors from it.
        """
        with ExitStack() as opening:
            # Each store is checked before the next is opened, so that a wrong setting creates no empty store. The
            # default shard is the first, because the checks of others read it.
            for name, store in self.stores.items():
                store.open(replayer)
                opening.callback(store.close)
                self._check_name(name, store)
                self._check_tables(name, store)
                self._check_not_lost(name, store)
            for gateway in self.default_store.gateways():
                self.ensure_gateway(gateway)
            opening.pop_all()

    def close(self) -> None:
        """Run the functions that were submitted before, and close every store."""
        with ExitStack() as closing:
            for store in self.stores.values():
                closing.callback(store.close)

    def ensure_gateway(self, gateway: str) -> None:
        """Create a gateway in every shard, unless it exists.

        The default shard, which decides whether a gateway exists, comes last. So a gateway that exists there exists in
        all shards.
        """
        for store in reversed(self.stores.values()):
            store.ensure_gateway(gateway)

    def submit(self, gateway: str, job: Callable[[Commit], T]) -> Future[T]:
        """Run `job` in a commit of the default shard; see `StagingStore.submit`."""
        return self.default_store.submit(gateway, job)

    def read(self, gateway: str, job: Callable[[View], T]) -> Future[T]:
        """Run `job` over a view of the default shard; see `StagingStore.read`."""
        return self.default_store.read(gateway, job)

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` for new visible commits in every shard; return a function that removes it."""
        removals = [store.watch(listener) for store in self.stores.values()]

        def remove() -> None:
            for each in removals:
                each()

        return remove

    def store_of(self, table: str) -> StagingStore:
        """Return the store that has a table's rows: that of the table's shard."""
        return self.stores[self.shards.of(table)]

    def _check_name(self, name: str, store: FlushStore) -> None:
        """Check that a store was created for the shard; the default one may be from before tables were sharded.

        Raises:
            ConfigurationError: it belongs to another shard.
        """
        allowed = (name, MAIN_SHARD) if name == self.shards.default else (name,)
        for backlog in store.backlog():
            if backlog.shard not in allowed:
                raise ConfigurationError(
                    f"the store of shard {name!r} holds shard {backlog.shard!r} of gateway {backlog.gateway!r}: "
                    "give each shard the store that it had"
                )

    def _check_not_lost(self, name: str, store: StagingStore) -> None:
        """Check that an empty shard is a new one, and not a shard whose disk is missing.

        If clients have cursors from it, it had rows before.

        Raises:
            IntegrityError: the shard's contents are missing.
        """
        for gateway in {*self.default_store.gateways()} - {*store.gateways()}:
            if self.default_store.read(gateway, lambda view: view.sent_rows_of_shard(name)).result():
                raise IntegrityError(
                    f"the store of shard {name!r} lacks gateway {gateway!r}, but clients were sent rows of that shard: "
                    f"put the store back, run `lakesync staging rebuild --from-lake --shard {name}`, or give the shard "
                    "another name to start without rows"
                )

    def _check_tables(self, name: str, store: StagingStore) -> None:
        """Check that a store has rows of no table that is configured for another shard.

        Raises:
            ConfigurationError: it has such rows, so the configuration was changed.
        """
        for gateway in store.gateways():
            for table in tables_with_rows(store, gateway):
                if self.shards.of(table) != name:
                    raise ConfigurationError(
                        f"table {table!r} of gateway {gateway!r} has rows in shard {name!r} and is configured for "
                        f"{self.shards.of(table)!r}: a table cannot change its shard, configure {name!r} for it"
                    )


def open_staging(url: str, shards: ShardMap | None, wall: Callable[[], int]) -> StagingStore:
    """Return the store of a URL; with shards, a store that consists of one store per shard.

    Args:
        url: the store's URL, as for `open_store`; with shards, that of the default shard.
        shards: which tables belong to which shard; None if the store at `url` has every table.
        wall: returns the server's wall time in milliseconds since 1970.

    Raises:
        ConfigurationError: a URL or a shard is invalid.
    """
    if shards is None:
        return open_store(url, wall)
    shards.check()
    urls = shard_urls(shards, url)
    return ShardedStore(shards, {name: open_store(each, wall, name) for name, each in urls.items()})


def configured_store(config: Config, wall: Callable[[], int]) -> StagingStore:
    """Return the store that the settings name, not opened yet.

    Args:
        config: the settings of `lakesync.toml` and the environment.
        wall: returns the server's wall time in milliseconds since 1970.

    Raises:
        ConfigurationError: a URL or a shard is invalid.
    """
    return open_staging(config.staging.url, shard_map(config.shard_config), wall)


def tables_with_rows(store: TransactionStore, gateway: str) -> Iterator[str]:
    """Yield the tables of which a gateway has rows in a store, deleted ones included.

    Args:
        store: the store, or that of one shard.
        gateway: the gateway's id.
    """
    after = None
    while True:
        rows = store.submit(gateway, lambda commit, after=after: commit.scan_rows(after, 1)).result()  # type: ignore[misc]
        if not rows:
            return
        table = rows[0].table
        yield table
        after = (f"{table} ", "")  # after all rows of the table: no name has a space, which sorts before all of theirs

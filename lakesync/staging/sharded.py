"""A store that consists of one store per shard; every table belongs to one shard.

`open_staging` and `configured_store` are how processes open staging, sharded or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from lakesync.model.errors import ConfigurationError, IntegrityError
from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.notices import Listener
from lakesync.staging.open import open_store
from lakesync.staging.sharded_pipeline import ShardedPipeline
from lakesync.staging.shards import ShardMap, shard_map, shard_urls
from lakesync.staging.store import Commit, StagingStore, TransactionStore, View
from lakesync.staging.store.pipeline import FlushStore
from lakesync.staging.store.push import Replayer

if TYPE_CHECKING:
    from lakesync.config import Config

T = TypeVar("T")


class ShardedStore(ShardedPipeline):
    """Several complete stores. Each commit belongs to one of them.

    `submit` and `read` use the default shard; use `home(table)` for a table's rows.
    """

    @property
    def shared(self) -> bool:
        """Whether other processes may commit to the default shard, through which processes announce presence."""
        return self.main.shared

    def open(self, replayer: Replayer) -> None:
        """Open every store.

        Raises:
            StagingVersionError, StagingUnavailableError: as the stores' `open`.
            ConfigurationError: a store belongs to another shard, or a table has rows in another shard than its own.
            IntegrityError: the store of a shard is empty, but clients have cursors from it.
        """
        with ExitStack() as opening:
            for store in self.stores.values():
                store.open(replayer)
                opening.callback(store.close)
            for name, store in self.stores.items():
                self._check_name(name, store)
                self._check_tables(name, store)
                self._check_there(name, store)
            for gateway in self.main.gateways():
                self.ensure_gateway(gateway)
            opening.pop_all()

    def close(self) -> None:
        """Complete what was submitted, and close every store."""
        with ExitStack() as closing:
            for store in self.stores.values():
                closing.callback(store.close)

    def ensure_gateway(self, gateway: str) -> None:
        """Create a gateway in every shard, in the default shard last: it exists once it is there."""
        for store in reversed(self.stores.values()):
            store.ensure_gateway(gateway)

    def submit(self, gateway: str, work: Callable[[Commit], T]) -> Future[T]:
        """Run `work` in a commit of the default shard."""
        return self.main.submit(gateway, work)

    def read(self, gateway: str, work: Callable[[View], T]) -> Future[T]:
        """Run `work` over a view of the default shard."""
        return self.main.read(gateway, work)

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` for new visible arrivals in every shard; return a function that ends that."""
        ends = [store.watch(listener) for store in self.stores.values()]

        def end() -> None:
            for each in ends:
                each()

        return end

    def home(self, table: str) -> StagingStore:
        """Return the store of a table's shard."""
        return self.stores[self.shards.of(table)]

    def _check_name(self, name: str, store: FlushStore) -> None:
        allowed = (name, MAIN_SHARD) if name == self.shards.default else (name,)
        for waiting in store.backlog():
            if waiting.shard not in allowed:
                raise ConfigurationError(
                    f"the store of shard {name!r} holds shard {waiting.shard!r} of gateway {waiting.gateway!r}: "
                    "give each shard the store that it had"
                )

    def _check_there(self, name: str, store: StagingStore) -> None:
        """Check that an empty shard is a new one, and not a shard whose disk is missing."""
        for gateway in {*self.main.gateways()} - {*store.gateways()}:
            if self.main.read(gateway, lambda view: view.told_of_shard(name)).result():
                raise IntegrityError(
                    f"the store of shard {name!r} knows nothing of gateway {gateway!r}, but clients were told of rows "
                    f"there: put the store back, run `lakesync staging rebuild --from-lake --shard {name}`, or give "
                    "the shard another name to begin with nothing"
                )

    def _check_tables(self, name: str, store: StagingStore) -> None:
        for gateway in store.gateways():
            for table in _tables(store, gateway):
                if self.shards.of(table) != name:
                    raise ConfigurationError(
                        f"table {table!r} of gateway {gateway!r} has rows in shard {name!r} and is configured for "
                        f"{self.shards.of(table)!r}: a table cannot change its shard, configure {name!r} for it"
                    )


def open_staging(url: str, shards: ShardMap | None, wall: Callable[[], int]) -> StagingStore:
    """Return the store of a URL; with shards, a store that consists of one store per shard.

    Args:
        url: as for `open_store`; with shards, that of the default shard.
        shards: None if the store at `url` holds every table.
        wall: returns the server's wall time in milliseconds since 1970.

    Raises:
        ConfigurationError: a URL or a shard is invalid.
    """
    if shards is None:
        return open_store(url, wall)
    shards.check()
    urls = shard_urls(shards, url)
    return ShardedStore(shards, {name: open_store(place, wall, name) for name, place in urls.items()})


def configured_store(config: Config, wall: Callable[[], int]) -> StagingStore:
    """Return the store that a configuration names.

    Args:
        config: the configuration.
        wall: returns the server's wall time in milliseconds since 1970.

    Raises:
        ConfigurationError: a URL or a shard is invalid.
    """
    return open_staging(config.staging.url, shard_map(config.shard_config), wall)


def _tables(store: TransactionStore, gateway: str) -> Iterator[str]:
    """Yield the tables of which a gateway has rows, deleted ones included."""
    after = None
    while True:
        rows = store.submit(gateway, lambda commit, after=after: commit.scan_rows(after, 1)).result()  # type: ignore[misc]
        if not rows:
            return
        yield rows[0].table
        after = (rows[0].table + " ", "")  # after all rows of the table, before tables with longer names

"""One staging store made of several: every table belongs to one of them, its shard."""

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
from lakesync.staging.store import Commit, Replayer, StagingStore, View

if TYPE_CHECKING:
    from lakesync.config import Config

T = TypeVar("T")


class ShardedStore(ShardedPipeline):
    """Stores, each complete by itself, of whose commits each is of one alone.

    `submit` and `read` are of the default shard; what concerns a table is asked of `home(table)`.
    """

    @property
    def shared(self) -> bool:
        """Whether other processes may work on the default shard, whose commits carry what processes say."""
        return self.main.shared

    def open(self, replayer: Replayer) -> None:
        """Open every store.

        Raises:
            StagingVersionError, StagingUnavailableError: as the stores' `open`.
            ConfigurationError: a store is another shard's, or a table has rows in a shard that is not its own.
            IntegrityError: a shard's store is gone, of which clients were told.
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
        """Finish what was submitted, and release every store."""
        with ExitStack() as closing:
            for store in self.stores.values():
                closing.callback(store.close)

    def ensure_gateway(self, gateway: str) -> None:
        """Make a gateway in every shard, in the default one last: there it counts as made."""
        for store in reversed(self.stores.values()):
            store.ensure_gateway(gateway)

    def submit(self, gateway: str, work: Callable[[Commit], T]) -> Future[T]:
        """Run `work` in a commit of the default shard."""
        return self.main.submit(gateway, work)

    def read(self, gateway: str, work: Callable[[View], T]) -> Future[T]:
        """Run `work` over a view of the default shard."""
        return self.main.read(gateway, work)

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` of new visible arrivals in every shard; what is returned ends that."""
        ends = [store.watch(listener) for store in self.stores.values()]

        def end() -> None:
            for each in ends:
                each()

        return end

    def home(self, table: str) -> StagingStore:
        """The store of a table's shard."""
        return self.stores[self.shards.of(table)]

    def _check_name(self, name: str, store: StagingStore) -> None:
        allowed = (name, MAIN_SHARD) if name == self.shards.default else (name,)
        for waiting in store.backlog():
            if waiting.shard not in allowed:
                raise ConfigurationError(
                    f"the store of shard {name!r} holds shard {waiting.shard!r} of gateway {waiting.gateway!r}: "
                    "give each shard the store that it had"
                )

    def _check_there(self, name: str, store: StagingStore) -> None:
        """Whether a shard that begins with nothing is a new one; one whose disk is away would begin anew elsewhere."""
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
    """The store at a URL, with a store of its own for each shard beside the default one.

    Args:
        url: as `open_store` takes it.
        shards: None: the store at `url` holds every table.
        wall: the server's clock in milliseconds.

    Raises:
        ConfigurationError: a URL or a shard cannot be used.
    """
    if shards is None:
        return open_store(url, wall)
    shards.check()
    urls = shard_urls(shards, url)
    return ShardedStore(shards, {name: open_store(place, wall, name) for name, place in urls.items()})


def configured_store(config: Config, wall: Callable[[], int]) -> StagingStore:
    """The store, or stores, that a configuration names.

    Raises:
        ConfigurationError: a URL or a shard cannot be used.
    """
    return open_staging(config.staging.url, shard_map(config.shard_config), wall)


def _tables(store: StagingStore, gateway: str) -> Iterator[str]:
    """The tables that a gateway has rows of, deleted ones included."""
    after = None
    while True:
        rows = store.submit(gateway, lambda commit, after=after: commit.scan_rows(after, 1)).result()  # type: ignore[misc]
        if not rows:
            return
        yield rows[0].table
        after = (rows[0].table + " ", "")  # behind all of its rows, before any longer name

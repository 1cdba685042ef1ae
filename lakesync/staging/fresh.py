"""A store that is made beside the one in use, or where none is, and takes its place whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol, TypeVar

from lakesync.model.errors import ConfigurationError
from lakesync.staging.restored_log import Restoring
from lakesync.staging.store import Replayer

T = TypeVar("T")


class FreshStore(Protocol):
    """An empty store that nobody else can see yet."""

    def ensure_gateway(self, gateway: str) -> None:
        """Make a gateway with a new epoch."""

    def run(self, gateway: str, work: Callable[[Restoring], T]) -> T:
        """Run `work` in a commit."""


@contextmanager
def fresh_stores(
    urls: Mapping[str, str], wall: Callable[[], int], replayer: Replayer, *, replace: bool
) -> Iterator[dict[str, FreshStore]]:
    """A fresh store for each of these shards, put in place at the end of the `with`, the first one last.

    Where something is raised in it, all are dropped. Where the process dies while they are put in place, those that
    were are new, and the first one's is not: it is to be done again.

    Args:
        urls: shard → URL of its store. Those in folders inside the first one's are made inside, and placed with it.
        wall: the server's clock in milliseconds.
        replayer: for stores that have nothing to replay.
        replace: a store that is there already is set aside, under a name that tells when.

    Raises:
        ConfigurationError: there is a store already and `replace` is not set, or a URL names no lasting store.
        StagingUnavailableError: a store in use has an owner, or cannot be reached.
    """
    main, first = next(iter(urls.items()))
    inside = {name: url for name, url in urls.items() if url.startswith(f"{first.rstrip('/')}/")}
    with ExitStack() as opened:
        stores = {main: opened.enter_context(_fresh_store(main, first, wall, replayer, replace=replace))}
        for name, url in urls.items():
            if name in inside:
                folder = url.removeprefix(f"{first.rstrip('/')}/")
                stores[name] = opened.enter_context(_made_inside(stores[main], folder, name, replayer))
            elif name != main:
                stores[name] = opened.enter_context(_fresh_store(name, url, wall, replayer, replace=replace))
        yield stores


def _made_inside(store: FreshStore, folder: str, shard: str, replayer: Replayer) -> AbstractContextManager[FreshStore]:
    from lakesync.staging.sqlite.fresh import inside_of

    return inside_of(store, folder, shard, replayer)


def _fresh_store(
    shard: str, url: str, wall: Callable[[], int], replayer: Replayer, *, replace: bool
) -> AbstractContextManager[FreshStore]:
    if url.startswith("sqlite://"):
        from lakesync.staging.sqlite.fresh import fresh_folder

        return fresh_folder(shard, url, wall, replayer, replace=replace)
    if url.startswith(("postgresql://", "postgres://")):
        from lakesync.staging.postgres.fresh import fresh_schema

        return fresh_schema(shard, url, wall, replace=replace)
    raise ConfigurationError(f"staging at a {url.partition(':')[0]!r} URL does not outlive its process: nothing to do")

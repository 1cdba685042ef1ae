"""Builds new, empty stores beside the stores in use, and then replaces the stores in use with them.

`engine.rebuilding` fills them from the lake, for `lakesync staging rebuild`. A replacement becomes visible as a whole
or not at all. A *shard* is a store with some of the tables; without sharding there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager

from lakesync.model.errors import ConfigurationError
from lakesync.staging.restored_log import ReplacementStore
from lakesync.staging.store.push import Replayer


@contextmanager
def replacement_stores(
    urls: Mapping[str, str], wall: Callable[[], int], replayer: Replayer, *, replace: bool
) -> Iterator[dict[str, ReplacementStore]]:
    """Yield an empty store for each shard, by shard name; at the end of the `with` block, they replace the old stores.

    If the block raises, the new stores are deleted, and the old ones stay. The default shard's store is replaced last,
    because it is authoritative: if the process dies in between, it still has its old store, and the rebuild has to run
    again.

    Args:
        urls: the URL of each shard's store, by shard name, the default shard first. Stores in folders inside that of
            the default shard are built inside its replacement.
        wall: returns the server's wall time in milliseconds since 1970.
        replayer: opening a store needs a replayer, although a new store has nothing to replay.
        replace: whether an existing store may be replaced; it is renamed, with the time in its new name. Otherwise it
            is an error.

    Raises:
        ConfigurationError: a store exists and `replace` is false, or a URL names a store in memory.
        StagingUnavailableError: another process owns a store in use, or a store cannot be reached.
    """
    main, first = next(iter(urls.items()))
    inside = {name: url for name, url in urls.items() if url.startswith(f"{first.rstrip('/')}/")}
    with ExitStack() as opened:
        stores = {main: opened.enter_context(_replacement_store(main, first, wall, replayer, replace=replace))}
        for name, url in urls.items():
            if name in inside:
                folder = url.removeprefix(f"{first.rstrip('/')}/")
                stores[name] = opened.enter_context(_nested_store(stores[main], folder, name, replayer))
            elif name != main:
                stores[name] = opened.enter_context(_replacement_store(name, url, wall, replayer, replace=replace))
        yield stores


def _nested_store(
    store: ReplacementStore, folder: str, shard: str, replayer: Replayer
) -> AbstractContextManager[ReplacementStore]:
    """Return a shard's new store in a folder inside that of another new store."""
    from lakesync.staging.sqlite.replacement import nested_replacement

    return nested_replacement(store, folder, shard, replayer)


def _replacement_store(
    shard: str, url: str, wall: Callable[[], int], replayer: Replayer, *, replace: bool
) -> AbstractContextManager[ReplacementStore]:
    """Return a shard's new store of the kind that the URL names."""
    if url.startswith("sqlite://"):
        from lakesync.staging.sqlite.replacement import replacement_folder

        return replacement_folder(shard, url, wall, replayer, replace=replace)
    if url.startswith(("postgresql://", "postgres://")):
        from lakesync.staging.postgres.replacement import replacement_schema

        return replacement_schema(shard, url, wall, replace=replace)
    raise ConfigurationError(f"staging at a {url.partition(':')[0]!r} URL does not outlive its process: nothing to do")

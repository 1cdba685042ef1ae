"""Builds new stores beside the stores in use, and replaces those with them in one step.

`engine.rebuilding` calls it to restore staging from the lake. A replacement becomes visible as a whole or not at all.
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
    """Yield an empty store for each shard; at the end of the `with` block, put them in place, the default shard last.

    If the block raises, all are discarded. If the process dies while they are put in place, the default shard still has
    its old store, and the rebuild has to run again.

    Args:
        urls: shard to URL of its store, the default shard first. Stores in folders inside that of the default shard are
            built inside its replacement.
        wall: returns the server's wall time in milliseconds since 1970.
        replayer: of the new stores, which have nothing to replay.
        replace: whether an existing store is renamed, with the time in its new name.

    Raises:
        ConfigurationError: a store exists and `replace` is false, or a URL names a store in memory.
        StagingUnavailableError: a store in use has an owner, or cannot be reached.
    """
    main, first = next(iter(urls.items()))
    inside = {name: url for name, url in urls.items() if url.startswith(f"{first.rstrip('/')}/")}
    with ExitStack() as opened:
        stores = {main: opened.enter_context(_replacement_store(main, first, wall, replayer, replace=replace))}
        for name, url in urls.items():
            if name in inside:
                folder = url.removeprefix(f"{first.rstrip('/')}/")
                stores[name] = opened.enter_context(_made_inside(stores[main], folder, name, replayer))
            elif name != main:
                stores[name] = opened.enter_context(_replacement_store(name, url, wall, replayer, replace=replace))
        yield stores


def _made_inside(
    store: ReplacementStore, folder: str, shard: str, replayer: Replayer
) -> AbstractContextManager[ReplacementStore]:
    from lakesync.staging.sqlite.replacement import inside_of

    return inside_of(store, folder, shard, replayer)


def _replacement_store(
    shard: str, url: str, wall: Callable[[], int], replayer: Replayer, *, replace: bool
) -> AbstractContextManager[ReplacementStore]:
    if url.startswith("sqlite://"):
        from lakesync.staging.sqlite.replacement import replacement_folder

        return replacement_folder(shard, url, wall, replayer, replace=replace)
    if url.startswith(("postgresql://", "postgres://")):
        from lakesync.staging.postgres.replacement import replacement_schema

        return replacement_schema(shard, url, wall, replace=replace)
    raise ConfigurationError(f"staging at a {url.partition(':')[0]!r} URL does not outlive its process: nothing to do")

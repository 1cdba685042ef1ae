"""Opens, inspects, upgrades or replaces the staging store (the database that pushes are committed to) of a URL.

`staging.sharded.open_staging` calls `open_store`, once for each *shard* (a store with some of the tables; without
sharding there is one). `lakesync staging status`, `lakesync staging migrate` and `lakesync doctor` read and upgrade
stores without opening them. `engine.rebuild` fills `replacement_stores` from the lake, for `lakesync staging
rebuild`. Each kind of store is imported when a URL names it, so that Postgres' driver need not be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from lakesync.model.errors import ConfigurationError, extra
from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.migrations import Status, Upgrade
from lakesync.staging.rebuild_commit import ReplacementStore
from lakesync.staging.store import StagingStore
from lakesync.staging.store.push import Replayer

_SQLITE = "sqlite://"
_MEMORY = "memory://"
_POSTGRES = ("postgresql://", "postgres://")


def open_store(url: str, wall: Callable[[], int], shard: str = MAIN_SHARD) -> StagingStore:
    """Return the store of a URL; call its `open` before anything else.

    Args:
        url: `sqlite:///ABSOLUTE/FOLDER`; `postgresql://…` in libpq's form; `memory://`, a store whose data is deleted
            when it is closed; or `memory://NAME`, whose data is deleted when the process ends.
        wall: returns the server's wall time in milliseconds since 1970.
        shard: name of the shard that the store serves; gateways that are created in it belong to this shard.

    Raises:
        ConfigurationError: the URL names no kind of store, or its driver is not installed.
    """
    if url.startswith(_SQLITE):
        from lakesync.staging.sqlite import SqliteStore

        folder = url.removeprefix(_SQLITE).lstrip("/")
        if not folder:
            raise ConfigurationError(f"the staging URL {url!r} names no folder: write sqlite:///ABSOLUTE/FOLDER")
        return SqliteStore(Path("/") / folder, wall, shard=shard)
    if url.startswith(_MEMORY):
        from lakesync.staging.memory import MemoryStore

        return MemoryStore(wall, url.removeprefix(_MEMORY) or None, shard)
    if url.startswith(_POSTGRES):
        with extra("postgres", "staging on Postgres needs its driver"):
            from lakesync.staging.postgres import PostgresStore
        return PostgresStore(url, wall, shard)
    kind = url.partition(":")[0]
    raise ConfigurationError(
        f"staging cannot be a {kind!r} URL: write sqlite:///ABSOLUTE/FOLDER, postgresql://USER:PASSWORD@HOST/DATABASE "
        "or memory://"
    )


def store_status(url: str) -> Status:
    """Read a store's schema versions, size and counters; another process may have the store open.

    Args:
        url: the store's URL, as for `open_store`.

    Raises:
        ConfigurationError: the URL names no kind of store that outlives its process, or there is no store.
        StagingUnavailableError: the store cannot be read.
    """
    if url.startswith(_SQLITE):
        from lakesync.staging.sqlite import administration as sqlite_administration

        return sqlite_administration.status(url)
    _check_postgres(url)
    from lakesync.staging.postgres import administration

    return administration.status(url)


def upgrade_store(url: str) -> list[Upgrade]:
    """Upgrade a store's schema to the newest version, in place; its contents stay.

    Args:
        url: the store's URL, as for `open_store`.

    Returns:
        The versions of each database before and after.

    Raises:
        ConfigurationError: as `store_status`.
        StagingVersionError: a newer LakeSync wrote the store; nothing was changed.
        StagingUnavailableError: the store cannot be reached or, on SQLite, a process has it open.
    """
    if url.startswith(_SQLITE):
        from lakesync.staging.sqlite import administration as sqlite_administration

        return sqlite_administration.upgrade(url)
    _check_postgres(url)
    from lakesync.staging.postgres import administration

    return administration.upgrade(url)


def upgrade_stores(urls: Mapping[str, str]) -> dict[str, list[Upgrade]]:
    """Upgrade several stores; if a newer LakeSync wrote any of them, none is changed.

    Args:
        urls: the stores' URLs, by shard name.

    Returns:
        The versions of each store's databases before and after, by shard name.

    Raises:
        ConfigurationError, StagingVersionError, StagingUnavailableError: as `upgrade_store`.
    """
    for url in urls.values():
        if any(schema.version > schema.newest for schema in store_status(url).schemas):
            upgrade_store(url)  # raises StagingVersionError, and changes nothing
    return {name: upgrade_store(url) for name, url in urls.items()}


@contextmanager
def replacement_stores(
    urls: Mapping[str, str], wall: Callable[[], int], replayer: Replayer, *, replace: bool
) -> Iterator[dict[str, ReplacementStore]]:
    """Yield a new, empty store for each shard, by shard name; when the `with` block ends, they replace the old stores.

    A replacement becomes visible as a whole or not at all. If the block raises, the new stores are deleted, and the
    old ones stay. The default shard's store is replaced last, because it is authoritative: if the process dies in
    between, it still has its old store, and the rebuild has to run again.

    Args:
        urls: the URL of each shard's store, by shard name, the default shard first. Stores in folders inside that of
            the default shard are built inside its replacement.
        wall: returns the server's wall time in milliseconds since 1970.
        replayer: applies the log after a crash; opening needs it, although a new store has nothing to replay.
        replace: whether an existing store may be replaced; it is renamed, with the time in its new name. Otherwise it
            is an error.

    Raises:
        ConfigurationError: a store exists and `replace` is false, or a URL names a store in memory.
        StagingUnavailableError: another process owns a store in use, or a store cannot be reached.
    """
    main, main_url = next(iter(urls.items()))  # the default shard
    inside = {name: url for name, url in urls.items() if url.startswith(f"{main_url.rstrip('/')}/")}
    with ExitStack() as opened:
        stores: dict[str, ReplacementStore] = {}
        for name, url in urls.items():
            if name in inside:
                folder = url.removeprefix(f"{main_url.rstrip('/')}/")
                stores[name] = opened.enter_context(_nested_store(stores[main], folder, name, replayer))
            else:
                stores[name] = opened.enter_context(_replacement_store(name, url, wall, replayer, replace=replace))
        yield stores


def _check_postgres(url: str) -> None:
    """Raise ConfigurationError unless the URL is of Postgres."""
    if not url.startswith(_POSTGRES):
        kind = url.partition(":")[0]
        raise ConfigurationError(f"staging at a {kind!r} URL has nothing that outlives its process: there is no schema")


def _nested_store(
    store: ReplacementStore, folder: str, shard: str, replayer: Replayer
) -> AbstractContextManager[ReplacementStore]:
    """Return a shard's new store in a folder inside that of another new store."""
    from lakesync.staging.sqlite.administration import nested_replacement

    return nested_replacement(store, folder, shard, replayer)


def _replacement_store(
    shard: str, url: str, wall: Callable[[], int], replayer: Replayer, *, replace: bool
) -> AbstractContextManager[ReplacementStore]:
    """Return a shard's new store of the kind that the URL names."""
    if url.startswith(_SQLITE):
        from lakesync.staging.sqlite.administration import replacement_folder

        return replacement_folder(shard, url, wall, replayer, replace=replace)
    if url.startswith(_POSTGRES):
        from lakesync.staging.postgres.administration import replacement_schema

        return replacement_schema(shard, url, wall, replace=replace)
    raise ConfigurationError(f"staging at a {url.partition(':')[0]!r} URL does not outlive its process: nothing to do")

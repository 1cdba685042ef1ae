"""Creates the staging store (the database that pushes are committed to) that a URL names.

`staging.sharded.open_staging` calls `open_store`, once for each shard (a store with some of the tables). Each kind of
store is imported when it is named, so that Postgres' driver need not be installed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lakesync.model.errors import ConfigurationError
from lakesync.model.optional_imports import extra
from lakesync.staging.head import MAIN_SHARD

if TYPE_CHECKING:
    from lakesync.staging.store import StagingStore

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

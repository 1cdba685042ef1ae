"""A staging store by its URL."""

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
    """The store that a URL names; call its `open` before anything else.

    Args:
        url: `sqlite:///ABSOLUTE/FOLDER` (a further slash does no harm), `postgresql://…` as libpq reads it, or
            `memory://`, gone when it is closed; `memory://NAME` is gone at the end of the process.
        wall: the server's clock in milliseconds.
        shard: what the streams of gateways are called that are made in it.

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

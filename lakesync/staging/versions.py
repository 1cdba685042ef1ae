"""Shows and upgrades a store's schema from outside its owner: `lakesync staging status` and `upgrade` call it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lakesync.model.errors import ConfigurationError
from lakesync.staging.migrations import migrations


class Schema(msgspec.Struct, frozen=True, rename="camel"):
    """The schema version of one database of a store."""

    database: str
    """`log.db`, `state.db`, or the name of a Postgres database."""
    version: int
    """0 if the database is empty."""
    newest: int
    """The newest version that this LakeSync knows."""


class Upgrade(msgspec.Struct, frozen=True, rename="camel"):
    """The versions of one database before and after an upgrade."""

    database: str
    before: int
    after: int


class GatewayHead(msgspec.Struct, frozen=True, rename="camel"):
    """The counters of one shard of a gateway; see `Head`."""

    gateway: str
    epoch: int
    arrival: int
    """The highest arrival of a commit."""
    shard: str
    last_seq: int
    flushed_seq: int
    trimmed_seq: int
    deltas: int
    """Number of unflushed deltas."""
    bytes: int
    """Stored bytes of unflushed deltas."""


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """A store's schemas, size and counters at one moment."""

    url: str
    """Without its password."""
    schemas: tuple[Schema, ...]
    bytes: int
    """Size on disk."""
    heads: tuple[GatewayHead, ...]
    """Empty if a schema is newer than this LakeSync."""


HEADS = (
    "SELECT id, epoch, arrival, shard, last_seq, flushed_seq, trimmed_seq, deltas, bytes"
    " FROM gateway JOIN shard ON shard.gateway = gateway.id ORDER BY id, shard"
)
"""SQL: the fields of `GatewayHead`, the same in both stores and all versions."""


def newest(database: str) -> int:
    """Return the newest schema version of `sqlite/log`, `sqlite/state` or `postgres`."""
    return migrations(database)[-1].number


def status(url: str) -> Status:
    """Read a store's status; it may be in use.

    Raises:
        ConfigurationError: the URL names no kind of store, or there is no store.
        StagingUnavailableError: it cannot be read.
    """
    if url.startswith("sqlite://"):
        from lakesync.staging.sqlite import inspection as of_sqlite

        return of_sqlite.status(url)
    _check_postgres(url)
    from lakesync.staging.postgres import inspection

    return inspection.status(url)


def upgrade(url: str) -> list[Upgrade]:
    """Upgrade a store's schema to the newest version, in place; its contents stay.

    Raises:
        ConfigurationError: as `status`.
        StagingVersionError: a newer LakeSync wrote the store; nothing was changed.
        StagingUnavailableError: it cannot be reached or, on SQLite, its owner is running.
    """
    if url.startswith("sqlite://"):
        from lakesync.staging.sqlite import inspection as of_sqlite

        return of_sqlite.upgrade(url)
    _check_postgres(url)
    from lakesync.staging.postgres import inspection

    return inspection.upgrade(url)


def upgrade_all(urls: Mapping[str, str]) -> dict[str, list[Upgrade]]:
    """Upgrade several stores by name; if a newer LakeSync wrote any of them, change none.

    Raises:
        As `upgrade`.
    """
    for url in urls.values():
        if any(schema.version > schema.newest for schema in status(url).schemas):
            upgrade(url)  # which refuses it, and says why
    return {name: upgrade(url) for name, url in urls.items()}


def _check_postgres(url: str) -> None:
    if not url.startswith(("postgresql://", "postgres://")):
        kind = url.partition(":")[0]
        raise ConfigurationError(f"staging at a {kind!r} URL has nothing that outlives its process: there is no schema")

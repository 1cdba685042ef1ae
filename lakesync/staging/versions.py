"""A staging store's schema and contents from outside: what `lakesync staging` shows and upgrades."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lakesync.model.errors import ConfigurationError
from lakesync.staging.migrations import migrations


class Schema(msgspec.Struct, frozen=True, rename="camel"):
    """The schema of one database of a store."""

    database: str
    """`log.db`, `state.db`, or the name of a Postgres database."""
    version: int
    """0 where nothing was made yet."""
    newest: int
    """What this LakeSync knows."""


class Upgrade(msgspec.Struct, frozen=True, rename="camel"):
    """What an upgrade did to one database."""

    database: str
    before: int
    after: int


class GatewayHead(msgspec.Struct, frozen=True, rename="camel"):
    """How far one shard of a gateway is."""

    gateway: str
    epoch: int
    arrival: int
    """The highest handed out."""
    shard: str
    last_seq: int
    flushed_seq: int
    trimmed_seq: int
    deltas: int
    """Those that wait for the lake."""
    bytes: int
    """Of what waits."""


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """A store at one moment."""

    url: str
    """Without a password."""
    schemas: tuple[Schema, ...]
    bytes: int
    """On the disk."""
    heads: tuple[GatewayHead, ...]
    """None where a schema is newer than this LakeSync."""


HEADS = (
    "SELECT id, epoch, arrival, shard, last_seq, flushed_seq, trimmed_seq, deltas, bytes"
    " FROM gateway JOIN shard ON shard.gateway = gateway.id ORDER BY id, shard"
)
"""The columns of `GatewayHead`, in either kind of store, whatever its version."""


def newest(database: str) -> int:
    """The newest schema version of `sqlite/log`, `sqlite/state` or `postgres`."""
    return migrations(database)[-1].number


def status(url: str) -> Status:
    """Look at a store, which may be in use.

    Raises:
        ConfigurationError: the URL names no kind of store, or there is none.
        StagingUnavailableError: it cannot be read.
    """
    if url.startswith("sqlite://"):
        from lakesync.staging.sqlite import inspection as of_sqlite

        return of_sqlite.status(url)
    _check_postgres(url)
    from lakesync.staging.postgres import inspection

    return inspection.status(url)


def upgrade(url: str) -> list[Upgrade]:
    """Bring a store's schema to the newest version, in place; what it holds stays.

    Raises:
        ConfigurationError: as `status`.
        StagingVersionError: it was written by a newer LakeSync; nothing was changed.
        StagingUnavailableError: it cannot be reached or, on SQLite, its owner still runs.
    """
    if url.startswith("sqlite://"):
        from lakesync.staging.sqlite import inspection as of_sqlite

        return of_sqlite.upgrade(url)
    _check_postgres(url)
    from lakesync.staging.postgres import inspection

    return inspection.upgrade(url)


def upgrade_all(urls: Mapping[str, str]) -> dict[str, list[Upgrade]]:
    """Upgrade several stores, by name; where a newer LakeSync wrote any of them, none is changed.

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

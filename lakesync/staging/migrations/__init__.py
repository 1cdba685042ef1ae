"""The schema migrations of the stores: numbered SQL files, in one folder for each database.

Stores apply each file once, in order, under a lock (`sqlite.files.migrate`, `postgres.connection.migrate`).
`staging.store_urls` reports versions and upgrades with the structs here, which `lakesync staging status` and `migrate`
print. A *gateway* is one app's stream of changes. A *log row* is one push, a client's request with *deltas* (changes of
rows); they are *flushed* when they are in the lake.
"""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

import msgspec

from lakesync.model.errors import StagingVersionError


class Migration(NamedTuple):
    """One step of a database's schema."""

    number: int
    """The schema version that it leads to; numbers count from 1 without gaps."""
    name: str
    """The name of its file."""
    sql: str
    """Its statements."""


class Schema(msgspec.Struct, frozen=True, rename="camel"):
    """The schema version of one database of a store."""

    database: str
    """`log.db`, `state.db`, or the name of a Postgres database."""
    version: int
    """0 if the database is empty."""
    newest: int
    """The newest version that this LakeSync knows."""


class Upgrade(msgspec.Struct, frozen=True, rename="camel"):
    """The schema versions of one database before and after an upgrade."""

    database: str
    """`log.db`, `state.db`, or the name of a Postgres database."""
    before: int
    """The version before."""
    after: int
    """The version after; the same if nothing was to do."""


class GatewayHead(msgspec.Struct, frozen=True, rename="camel"):
    """The counters of a gateway in one shard (a store for some tables), as `lakesync staging status` prints them."""

    gateway: str
    epoch: int
    """Wall time in milliseconds when the gateway was created in its store; a rebuild from the lake creates it again."""
    arrival: int
    """The highest arrival: the gateway's own timestamp of a commit."""
    shard: str
    last_seq: int
    """Number of the newest log row."""
    flushed_seq: int
    """Log rows up to this one are in the lake."""
    trimmed_seq: int
    """Log rows up to this one are kept without their encoded deltas."""
    deltas: int
    """Number of unflushed deltas."""
    bytes: int
    """Stored bytes of unflushed deltas."""


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """A store's schemas, size and counters at one moment."""

    url: str
    """The store's URL, without its password."""
    schemas: tuple[Schema, ...]
    """One for each database."""
    bytes: int
    """Size on disk."""
    heads: tuple[GatewayHead, ...]
    """Empty if a schema is newer than this LakeSync."""


HEADS = (
    "SELECT id, epoch, arrival, shard, last_seq, flushed_seq, trimmed_seq, deltas, bytes"
    " FROM gateway JOIN shard ON shard.gateway = gateway.id ORDER BY id, shard"
)
"""SQL: the fields of `GatewayHead`, the same in both stores and all versions."""


def migrations(database: str) -> list[Migration]:
    """Return the steps of a database's schema, in order.

    Args:
        database: `sqlite/log`, `sqlite/state` or `postgres`.
    """
    folder = resources.files(__package__).joinpath(*database.split("/"))
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [Migration(int(name[:4]), name, folder.joinpath(name).read_text("utf-8")) for name in names]


def pending(database: str, version: int, where: str) -> list[Migration]:
    """Return the steps that a database still lacks, in order.

    Args:
        database: `sqlite/log`, `sqlite/state` or `postgres`.
        version: the database's schema version; 0 if it is empty.
        where: the database's path or address, for the error message.

    Raises:
        StagingVersionError: `version` is above every known step: a newer LakeSync wrote the database.
    """
    steps = migrations(database)
    last = steps[-1].number
    if version > last:
        raise StagingVersionError(
            f"{where} has schema version {version} and this LakeSync knows versions up to {last}: "
            "it was written by a newer version, start that one instead"
        )
    return [step for step in steps if step.number > version]


def newest(database: str) -> int:
    """Return the newest schema version of `sqlite/log`, `sqlite/state` or `postgres`."""
    return migrations(database)[-1].number

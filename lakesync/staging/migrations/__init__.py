"""The schema migrations of the stores: numbered SQL files in one folder per database.

Stores apply each file once, in order, under a lock; `staging.versions` shows what is missing, as the values here.
"""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

import msgspec

from lakesync.model.errors import StagingVersionError


class Migration(NamedTuple):
    """One step of a database's schema; numbers count from 1 without gaps."""

    number: int
    name: str
    sql: str


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


def migrations(database: str) -> list[Migration]:
    """Return the steps of `sqlite/log`, `sqlite/state` or `postgres`, in order."""
    folder = resources.files(__package__).joinpath(*database.split("/"))
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [Migration(int(name[:4]), name, folder.joinpath(name).read_text("utf-8")) for name in names]


def pending(database: str, version: int, where: str) -> list[Migration]:
    """Return the steps above `version`.

    Args:
        database: `sqlite/log`, `sqlite/state` or `postgres`.
        version: the database's version.
        where: its address, for the message.

    Raises:
        StagingVersionError: `version` is above every known step.
    """
    known = migrations(database)
    newest = known[-1].number
    if version > newest:
        raise StagingVersionError(
            f"{where} has schema version {version} and this LakeSync knows versions up to {newest}: "
            "it was written by a newer version, start that one instead"
        )
    return [step for step in known if step.number > version]


def newest(database: str) -> int:
    """Return the newest schema version of `sqlite/log`, `sqlite/state` or `postgres`."""
    return migrations(database)[-1].number

"""The schema migrations of the stores: numbered SQL files in one folder per database.

Stores apply each file once, in order, under a lock; `staging.versions` shows what is missing.
"""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

from lakesync.model.errors import StagingVersionError


class Migration(NamedTuple):
    """One step of a database's schema; numbers count from 1 without gaps."""

    number: int
    name: str
    sql: str


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

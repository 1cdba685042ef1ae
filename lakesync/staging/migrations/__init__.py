"""Numbered SQL files, one folder a database; each is applied once, in order, under a lock."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

from lakesync.model.errors import StagingVersionError


class Migration(NamedTuple):
    """One step of a database's schema; numbers count from 1 without a gap."""

    number: int
    name: str
    sql: str


def migrations(database: str) -> list[Migration]:
    """The steps of `database` (`sqlite/log`, `sqlite/state`, `postgres`), in order."""
    folder = resources.files(__package__).joinpath(*database.split("/"))
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [Migration(int(name[:4]), name, folder.joinpath(name).read_text("utf-8")) for name in names]


def pending(database: str, version: int, where: str) -> list[Migration]:
    """The steps above `version`.

    Args:
        where: the database's address, for the message.

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

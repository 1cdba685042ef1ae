"""Reads the status of a SQLite store and upgrades its schema, without opening it as a store.

`staging.store_urls` calls it, for `lakesync staging status` and `lakesync staging upgrade`.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from lakesync.model.errors import ConfigurationError, StagingUnavailableError
from lakesync.staging.migrations import HEADS, GatewayHead, Schema, Status, Upgrade, newest, pending
from lakesync.staging.sqlite.files import LOG_FILE, STATE_FILE, OwnerLock, connect, migrate, size_of

_DATABASES = ((LOG_FILE, "sqlite/log"), (STATE_FILE, "sqlite/state"))
"""Each file's name, and the name of its migrations."""


def folder_of(url: str) -> Path:
    """Return the folder of a `sqlite://` URL.

    Raises:
        ConfigurationError: there is no store in the folder.
    """
    folder = Path("/") / url.removeprefix("sqlite://").lstrip("/")
    if not (folder / LOG_FILE).exists():
        raise ConfigurationError(f"there is no staging store in {folder}: name its folder, sqlite:///ABSOLUTE/FOLDER")
    return folder


def status(url: str) -> Status:
    """Read a store's status from its files; a process may have it open.

    The gateways' counters are left out if a newer LakeSync wrote the file, because its tables may differ.

    Args:
        url: `sqlite:///FOLDER`.

    Raises:
        ConfigurationError: there is no store.
        StagingUnavailableError: a file cannot be read.
    """
    folder = folder_of(url)
    schemas = tuple(Schema(name, _version(folder / name), newest(database)) for name, database in _DATABASES)
    heads: tuple[GatewayHead, ...] = ()
    if schemas[0].version <= schemas[0].newest:
        heads = tuple(GatewayHead(*row) for row in _select(folder / LOG_FILE, HEADS))
    size = sum(size_of(file) for file in folder.iterdir())
    return Status(url, schemas, size, heads)


def upgrade(url: str) -> list[Upgrade]:
    """Apply missing migrations to both files, with the store's lock.

    Args:
        url: `sqlite:///FOLDER`.

    Returns:
        For each file, its schema version before and after.

    Raises:
        ConfigurationError: there is no store.
        StagingVersionError: a newer LakeSync wrote a file; nothing was changed.
        StagingUnavailableError: a process has the store open, or a file cannot be written.
    """
    folder = folder_of(url)
    lock = OwnerLock(folder)
    try:
        before = {name: _version(folder / name) for name, _ in _DATABASES}
        for name, database in _DATABASES:  # check both before changing either
            pending(database, before[name], str(folder / name))
        for name, database in _DATABASES:
            with closing(connect(folder / name)) as connection:
                migrate(connection, database, folder / name)
        return [Upgrade(name, before[name], _version(folder / name)) for name, _ in _DATABASES]
    except sqlite3.Error as exc:
        raise StagingUnavailableError(f"the staging folder {folder} cannot be upgraded: {exc}") from exc
    finally:
        lock.release()


def _version(path: Path) -> int:
    """Return a database's schema version; 0 if its file is missing."""
    return int(_select(path, "PRAGMA user_version")[0][0]) if path.exists() else 0


def _select(path: Path, query: str) -> list[tuple[Any, ...]]:
    """Run a query on a read-only connection; an error becomes StagingUnavailableError."""
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=10)) as connection:
            return connection.execute(query).fetchall()
    except sqlite3.Error as exc:
        raise StagingUnavailableError(f"{path} cannot be read: {exc}") from exc

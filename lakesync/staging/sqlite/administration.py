"""Reads the status of a SQLite store, upgrades its schema, and replaces it by a new one.

`staging.store_urls` calls it, for `lakesync staging status`, `migrate` and `rebuild`. `status` and `upgrade` read and
write the files without opening them as a store. `engine.rebuild` fills a replacement from the lake, in a folder beside
the store in use. This folder then gets the name of the old one; a crash before the rename leaves the old store as it
was. A *gateway* is one app's stream of changes. Its tables may be divided among shards, stores in folders inside the
main one. Its *head* is its counters, such as the number of its last push. A *replayer* is the engine, which every store
calls to merge its log into rows when it opens; the log of a new store is empty.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from lakesync.model.crash_points import crash_point
from lakesync.model.errors import ConfigurationError, StagingUnavailableError
from lakesync.model.secrets import make_private_folder
from lakesync.staging.migrations import HEADS, GatewayHead, Schema, Status, Upgrade, newest, pending
from lakesync.staging.rebuild_commit import RebuildCommit, ReplacementStore, SqlLogCommit
from lakesync.staging.sqlite.commit import SqliteCommit
from lakesync.staging.sqlite.files import (
    LOCK_FILE,
    LOG_FILE,
    STATE_FILE,
    OwnerLock,
    connect,
    migrate,
    replacement_folder_of,
    size_of,
)
from lakesync.staging.sqlite.store import SqliteStore
from lakesync.staging.store.push import Replayer

T = TypeVar("T")

_DATABASES = ((LOG_FILE, "sqlite/log"), (STATE_FILE, "sqlite/state"))
"""Each file's name, and the name of its migrations."""


def folder_of(url: str) -> Path:
    """Return the folder of a `sqlite://` URL.

    Raises:
        ConfigurationError: there is no store in the folder.
    """
    folder = _folder_named(url)
    if not (folder / LOG_FILE).exists():
        raise ConfigurationError(f"there is no staging store in {folder}: name its folder, sqlite:///ABSOLUTE/FOLDER")
    return folder


def status(url: str) -> Status:
    """Read a store's status from its files; a process may have it open.

    The gateways' heads are left out if a newer LakeSync wrote the file, because its tables may differ, and if the
    file has no tables yet.

    Args:
        url: `sqlite:///FOLDER`.

    Raises:
        ConfigurationError: there is no store.
        StagingUnavailableError: a file cannot be read.
    """
    folder = folder_of(url)
    schemas = tuple(Schema(name, _version(folder / name), newest(database)) for name, database in _DATABASES)
    heads: tuple[GatewayHead, ...] = ()
    if 0 < schemas[0].version <= schemas[0].newest:
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


class _SqliteRebuildCommit(SqliteCommit, SqlLogCommit):
    """The commit of a store that is being rebuilt: it also writes log rows (pushes) and configuration as they were."""


class _SqliteReplacement(SqliteStore):
    """A new store, in a folder that has not got its final name yet."""

    def run(self, gateway: str, job: Callable[[RebuildCommit], T]) -> T:
        opened = self._open
        return opened.owner.submit(
            lambda _: job(_SqliteRebuildCommit(opened.journal, opened.state, gateway, alone=True)), writes=True
        ).result()


@contextmanager
def nested_replacement(
    store: ReplacementStore, name: str, shard: str, replayer: Replayer
) -> Iterator[_SqliteReplacement]:
    """Yield a shard's new store in a folder inside that of another new store, which is renamed with its contents.

    Args:
        store: the new store whose folder contains it.
        name: the name of the folder inside.
        shard: the shard's name.
        replayer: the engine.
    """
    assert isinstance(store, _SqliteReplacement)
    nested = _SqliteReplacement(store.folder / name, store.wall, shard=shard)
    nested.open(replayer)
    try:
        yield nested
    finally:
        nested.close()


@contextmanager
def replacement_folder(
    shard: str, url: str, wall: Callable[[], int], replayer: Replayer, *, replace: bool
) -> Iterator[_SqliteReplacement]:
    """Yield a new store in a folder beside the URL's; when the `with` block ends, it becomes the store of the URL.

    If the block raises, the new store is deleted and the old one stays. `staging.store_urls.replacement_stores` calls
    this.

    Args:
        shard: the shard's name.
        url: `sqlite:///FOLDER`.
        wall: returns the server's wall time in milliseconds since 1970.
        replayer: the engine.
        replace: whether a folder with contents, such as an existing store, may be replaced: it is renamed to
            `FOLDER.replaced-MILLISECONDS`.

    Raises:
        ConfigurationError: a store or another file exists in the folder, and `replace` is false.
        StagingUnavailableError: another process owns the folder, or it cannot be written.
    """
    folder = _folder_named(url)
    with _os_errors_mapped(folder):
        has_contents = folder.exists() and any(path.name != LOCK_FILE for path in folder.iterdir())
    if has_contents and not replace:
        existing = next(folder.rglob(LOG_FILE), None)  # of any shard
        found = f"there is a staging store in {existing.parent}" if existing else f"the folder {folder} is not empty"
        raise ConfigurationError(f"{found}: add --replace, which sets it aside")
    replacement = replacement_folder_of(folder)
    with ExitStack() as stack:
        with _os_errors_mapped(folder):
            make_private_folder(folder)
            stack.callback(OwnerLock(folder).release)
            stack.callback(shutil.rmtree, replacement, ignore_errors=True)
            shutil.rmtree(replacement, ignore_errors=True)
        store = _SqliteReplacement(replacement, wall, shard=shard)
        store.open(replayer)
        try:
            yield store
        finally:
            store.close()
        crash_point("rebuild.filled")
        with _os_errors_mapped(folder):
            set_aside = folder.with_name(f"{folder.name}.replaced-{wall()}")
            if has_contents:
                folder.rename(set_aside)
            else:
                shutil.rmtree(folder)
            crash_point("rebuild.set_aside")
            try:
                replacement.rename(folder)
            except OSError:
                if has_contents:
                    set_aside.rename(folder)
                raise


def _folder_named(url: str) -> Path:
    """Return the folder that a `sqlite://` URL names."""
    return Path("/") / url.removeprefix("sqlite://").lstrip("/")


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


@contextmanager
def _os_errors_mapped(folder: Path) -> Iterator[None]:
    """Raise StagingUnavailableError for an OSError in the `with` block."""
    try:
        yield
    except OSError as exc:
        raise StagingUnavailableError(f"the staging folder {folder} cannot be replaced: {exc}") from exc

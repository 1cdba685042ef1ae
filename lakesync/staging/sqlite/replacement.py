"""Builds a new SQLite store in a folder beside the store in use, and then gives it the name of that folder.

`staging.store_urls` calls it for a rebuild from the lake. A crash before the rename leaves the old store as it was.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from lakesync.model.crash_points import crash_point
from lakesync.model.errors import ConfigurationError, StagingUnavailableError
from lakesync.model.secrets import make_private_folder
from lakesync.staging.head import Head
from lakesync.staging.records import GatewayConfig
from lakesync.staging.restored_log import ReplacementStore, Restoring, RestoringCommit
from lakesync.staging.sqlite.commit import SqliteCommit
from lakesync.staging.sqlite.files import LOG_FILE, OwnerLock, replacement_folder_of
from lakesync.staging.sqlite.store import SqliteStore
from lakesync.staging.store.push import Replayer

T = TypeVar("T")


class _RestoringCommit(SqliteCommit, RestoringCommit):
    """The commit of a store that is being rebuilt: it also writes log rows and configuration as they were."""

    def _move_head(self, head: Head) -> None:
        self._journal.set_head(head)

    def restore_config(self, config: GatewayConfig) -> None:
        """Store schemas and rules with the versions that they had in the lost store."""
        for table, registered in config.schemas.items():
            self._journal.put_schema(self.gateway, table, registered.version, registered.schema)
        for table, version in config.retired.items():
            self._journal.put_schema(self.gateway, table, version, None)
        self._journal.put_config(self.gateway, config)


class _ReplacementFolder(SqliteStore):
    """A new store, in a folder that has not got its final name yet."""

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def wall(self) -> Callable[[], int]:
        return self._wall

    def run(self, gateway: str, job: Callable[[Restoring], T]) -> T:
        opened = self._open
        return opened.owner.submit(
            lambda _: job(_RestoringCommit(opened.journal, opened.state, gateway, alone=True)), writes=True
        ).result()


@contextmanager
def nested_replacement(
    store: ReplacementStore, name: str, shard: str, replayer: Replayer
) -> Iterator[_ReplacementFolder]:
    """Yield a shard's new store in a folder inside that of another new store, which is renamed with its contents.

    Args:
        store: the new store whose folder contains it.
        name: the name of the folder inside.
        shard: the shard's name.
        replayer: opening a store needs a replayer, although a new store has nothing to replay.
    """
    assert isinstance(store, _ReplacementFolder)
    nested = _ReplacementFolder(store.folder / name, store.wall, shard=shard)
    nested.open(replayer)
    try:
        yield nested
    finally:
        nested.close()


@contextmanager
def replacement_folder(
    shard: str, url: str, wall: Callable[[], int], replayer: Replayer, *, replace: bool
) -> Iterator[_ReplacementFolder]:
    """Yield a new store in a folder beside the URL's; when the `with` block ends, it becomes the store of the URL.

    If the block raises, the new store is deleted and the old one stays. `staging.store_urls.replacement_stores` calls
    this.

    Args:
        shard: the shard's name.
        url: `sqlite:///FOLDER`.
        wall: returns the server's wall time in milliseconds since 1970.
        replayer: opening a store needs a replayer, although a new store has nothing to replay.
        replace: whether an existing store may be replaced: its folder is renamed to `FOLDER.replaced-MILLISECONDS`.

    Raises:
        ConfigurationError: a store exists and `replace` is false.
        StagingUnavailableError: another process owns the folder, or it cannot be written.
    """
    folder = Path("/") / url.removeprefix("sqlite://").lstrip("/")
    existing = next(folder.rglob(LOG_FILE), None)
    if existing is not None and not replace:
        raise ConfigurationError(f"there is a staging store in {existing.parent}: add --replace, which sets it aside")
    replacement = replacement_folder_of(folder)
    with ExitStack() as ending:
        with _os_errors_mapped(folder):
            make_private_folder(folder)
            ending.callback(OwnerLock(folder).release)
            ending.callback(shutil.rmtree, replacement, ignore_errors=True)
            shutil.rmtree(replacement, ignore_errors=True)
        store = _ReplacementFolder(replacement, wall, shard=shard)
        store.open(replayer)
        try:
            yield store
        finally:
            store.close()
        crash_point("rebuild.filled")
        with _os_errors_mapped(folder):
            if existing is not None:
                folder.rename(folder.with_name(f"{folder.name}.replaced-{wall()}"))
            else:
                shutil.rmtree(folder)
            crash_point("rebuild.set_aside")
            replacement.rename(folder)


@contextmanager
def _os_errors_mapped(folder: Path) -> Iterator[None]:
    """Raise StagingUnavailableError for an OSError in the `with` block."""
    try:
        yield
    except OSError as exc:
        raise StagingUnavailableError(f"the staging folder {folder} cannot be made again: {exc}") from exc

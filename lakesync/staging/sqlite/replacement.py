"""Builds a SQLite store in a folder beside the one in use, and then renames it to that one's name.

`staging.replacement` calls it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from lakesync.model.crash_points import crash_point
from lakesync.model.errors import ConfigurationError, StagingUnavailableError
from lakesync.model.private_files import make_private_folder
from lakesync.staging.head import Head
from lakesync.staging.records import GatewayConfig
from lakesync.staging.restored_log import ReplacementStore, Restoring, RestoringCommit
from lakesync.staging.sqlite.commit import SqliteCommit
from lakesync.staging.sqlite.files import LOG_FILE, OwnerLock, draft_of
from lakesync.staging.sqlite.store import SqliteStore
from lakesync.staging.store.push import Replayer

T = TypeVar("T")


class _RestoringCommit(SqliteCommit, RestoringCommit):
    def _move_head(self, head: Head) -> None:
        self._journal.set_head(head)

    def restore_config(self, config: GatewayConfig) -> None:
        for table, registered in config.schemas.items():
            self._journal.put_schema(self.gateway, table, registered.version, registered.schema)
        for table, version in config.retired.items():
            self._journal.put_schema(self.gateway, table, version, None)
        self._journal.put_config(self.gateway, config)


class _ReplacementFolder(SqliteStore):
    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def wall(self) -> Callable[[], int]:
        return self._wall

    def run(self, gateway: str, work: Callable[[Restoring], T]) -> T:
        opened = self._open
        return opened.owner.submit(
            lambda _: work(_RestoringCommit(opened.journal, opened.state, gateway, alone=True)), writes=True
        ).result()


@contextmanager
def inside_of(store: ReplacementStore, name: str, shard: str, replayer: Replayer) -> Iterator[_ReplacementFolder]:
    """Yield a shard's store in a folder inside another replacement, with which it is put in place.

    Args:
        store: the replacement that contains it.
        name: of the folder.
        shard: the shard.
        replayer: of the store.
    """
    assert isinstance(store, _ReplacementFolder)
    made = _ReplacementFolder(store.folder / name, store.wall, shard=shard)
    made.open(replayer)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def replacement_folder(
    shard: str, url: str, wall: Callable[[], int], replayer: Replayer, *, replace: bool
) -> Iterator[_ReplacementFolder]:
    """Yield a store in a folder beside the URL's; see `staging.replacement.replacement_stores`.

    Args:
        shard: the shard.
        url: `sqlite:///FOLDER`.
        wall: returns the server's wall time in milliseconds since 1970.
        replayer: of the store.
        replace: whether an existing store is renamed.

    Raises:
        ConfigurationError: a store exists and `replace` is false.
        StagingUnavailableError: the folder has an owner, or cannot be written.
    """
    folder = Path("/") / url.removeprefix("sqlite://").lstrip("/")
    there = next(folder.rglob(LOG_FILE), None)
    if there is not None and not replace:
        raise ConfigurationError(f"there is a staging store in {there.parent}: add --replace, which sets it aside")
    draft = draft_of(folder)
    with ExitStack() as ending:
        with _mapped(folder):
            make_private_folder(folder)
            ending.callback(OwnerLock(folder).release)
            ending.callback(shutil.rmtree, draft, ignore_errors=True)
            shutil.rmtree(draft, ignore_errors=True)
        store = _ReplacementFolder(draft, wall, shard=shard)
        store.open(replayer)
        try:
            yield store
        finally:
            store.close()
        crash_point("rebuild.filled")
        with _mapped(folder):
            if there is not None:
                folder.rename(folder.with_name(f"{folder.name}.replaced-{wall()}"))
            else:
                shutil.rmtree(folder)
            crash_point("rebuild.set_aside")
            draft.rename(folder)


@contextmanager
def _mapped(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise StagingUnavailableError(f"the staging folder {folder} cannot be made again: {exc}") from exc

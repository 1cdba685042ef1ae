"""Copies of a running store's files, as a power cut would leave them."""

from __future__ import annotations

import shutil
from pathlib import Path

from lakesync.staging.sqlite import SqliteStore


def copy_at_once(store: SqliteStore, where: Path) -> None:
    """Copy the files of a running store into `where` while nothing writes to them.

    Files that are copied one after another during a write-behind or a checkpoint are inconsistent: with a `state.db`
    from before a checkpoint and a log that was restarted after it, the transferred rows are in neither.
    """
    store._open.owner.submit(lambda _: copy_in_owner(store, where), writes=False).result()


def copy_in_owner(store: SqliteStore, where: Path) -> None:
    """As `copy_at_once`, called by the thread that owns the store."""
    with store._open.state.without_checkpoints():
        shutil.copytree(store.folder, where, ignore=shutil.ignore_patterns("*-shm", "*.lock"), dirs_exist_ok=True)

"""A store's files as a power cut leaves them: those of one moment, though its threads go on."""

from __future__ import annotations

import shutil
from pathlib import Path

from lakesync.staging.sqlite import SqliteStore


def copy_at_once(store: SqliteStore, where: Path) -> None:
    """Copy the files of a living store into `where`, made where it is missing, while nothing writes to them.

    Files that are copied one after another while a write-behind or a checkpoint runs are of no moment: of a
    `state.db` from before a checkpoint and a log that was begun anew after it, what was carried over is in neither.
    """
    opened = store._open

    def copy(_: bool) -> None:
        with opened.state.without_checkpoints():
            shutil.copytree(store._folder, where, ignore=shutil.ignore_patterns("*-shm", "*.lock"), dirs_exist_ok=True)

    opened.owner.submit(copy, writes=False).result()

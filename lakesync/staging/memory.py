"""Staging that lasts as long as its process: for tests, trials and gateways whose adapter keeps everything.

It is the SQLite store over a folder in memory (`/dev/shm`, where the machine has room there, else the temporary
folder), so it keeps every promise of staging but that of outliving the process, and takes as much memory as its files:
what waits for a flush, which backpressure bounds, ids, and the rows themselves.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.sqlite import SqliteStore

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 where Linux keeps files in memory
_WANTED_BYTES = 512 << 20
_PREFIX = "lakesync-memory-"
_LOCK_FILE = "owner.lock"

_named: dict[str, tempfile.TemporaryDirectory[str]] = {}
_lock = threading.Lock()


class MemoryStore(SqliteStore):
    """A store whose data is gone when it is closed or, if it has a name, when the process ends.

    Stores of the same name, one open at a time, are one after another in the same data, as after a restart.
    """

    def __init__(self, wall: Callable[[], int], name: str | None = None, shard: str = MAIN_SHARD) -> None:
        """Args:
        wall: the server's clock in milliseconds.
        name: None for data that ends with this store.
        shard: what the streams of new gateways are called.
        """
        if name is None:
            folder = _make()
            self._folder_of_its_own: tempfile.TemporaryDirectory[str] | None = folder
        else:
            with _lock:
                if name not in _named:
                    _named[name] = _make()
                folder = _named[name]
            self._folder_of_its_own = None
        super().__init__(Path(folder.name), wall, shard=shard)

    def close(self) -> None:
        """Finish what was submitted; data without a name is gone then."""
        super().close()
        if self._folder_of_its_own is not None:
            self._folder_of_its_own.cleanup()


def _make() -> tempfile.TemporaryDirectory[str]:
    """A new folder, removed at the end of the process at the latest, by the next one if this one is killed."""
    home = _home()
    for left in home.glob(f"{_PREFIX}*"):
        if _abandoned(left):
            shutil.rmtree(left, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-", dir=home, ignore_cleanup_errors=True)


def _home() -> Path:
    if os.access(_SHARED_MEMORY, os.W_OK) and shutil.disk_usage(_SHARED_MEMORY).free >= _WANTED_BYTES:
        return _SHARED_MEMORY
    return Path(tempfile.gettempdir())


def _abandoned(folder: Path) -> bool:
    """Whether no process has the folder: its maker is gone, and nobody holds the lock in it."""
    pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
    if not pid.isdigit() or Path(f"/proc/{pid}").exists():
        return False
    try:
        file = os.open(folder / _LOCK_FILE, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True

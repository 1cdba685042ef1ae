"""The store behind `memory://`: it loses its data when the process ends. `open_store` creates it.

It is for tests, and for gateways that restore their data from an adapter (a database or object store) with all deltas.
It is a SQLite store in a folder in memory (`/dev/shm` if that has space, otherwise the temporary folder). It gives
every guarantee of staging except that data survives the process. It needs memory for its files: deltas that are not
flushed (copied to the lake), whose size is limited; the ids of all deltas; and all rows. A *gateway* is one app's
stream of changes; a *shard* is a store with some of its tables.
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

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 Linux keeps files in memory there
_WANTED_BYTES = 512 << 20
"""Free bytes that `/dev/shm` must have; a small one, as in containers, would fill up."""
_PREFIX = "lakesync-memory-"
"""Folder names are this, the name of the process that created them, `-`, and a random part."""
_LOCK_FILE = "owner.lock"
"""The file in its folder that a `SqliteStore` locks while it is open."""

_named: dict[str, tempfile.TemporaryDirectory[str]] = {}
"""Folders of stores with a name, by name."""
_lock = threading.Lock()
"""Guards `_named`."""


class MemoryStore(SqliteStore):
    """A store whose data is deleted when it is closed or, if it has a name, when the process ends.

    A store opened under the name of an earlier one has its data, as after a restart. Only one may be open at a time.
    """

    def __init__(self, wall: Callable[[], int], name: str | None = None, shard: str = MAIN_SHARD) -> None:
        """Create the folder.

        Args:
            wall: returns the server's wall time in milliseconds since 1970.
            name: the name in `memory://NAME`, whose data stays until the process ends; None deletes it with this store.
            shard: name of the shard that the store serves; gateways that are created in it belong to this shard.
        """
        if name is None:
            folder = _new_folder()
            self._folder_of_its_own: tempfile.TemporaryDirectory[str] | None = folder
        else:
            with _lock:
                if name not in _named:
                    _named[name] = _new_folder()
                folder = _named[name]
            self._folder_of_its_own = None
        super().__init__(Path(folder.name), wall, shard=shard)

    def close(self) -> None:
        """Run the functions that were submitted before, and close; the data of a store without a name is deleted."""
        super().close()
        if self._folder_of_its_own is not None:
            self._folder_of_its_own.cleanup()


def _new_folder() -> tempfile.TemporaryDirectory[str]:
    """Create a folder. It is removed when this process ends; if it is killed, another process removes it later."""
    parent = _parent_folder()
    for folder in parent.glob(f"{_PREFIX}*"):
        if _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
    prefix = f"{_PREFIX}{_process_name(str(os.getpid()))}-"
    return tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)


def _parent_folder() -> Path:
    """Return the folder in which stores are created."""
    if os.access(_SHARED_MEMORY, os.W_OK) and shutil.disk_usage(_SHARED_MEMORY).free >= _WANTED_BYTES:
        return _SHARED_MEMORY
    return Path(tempfile.gettempdir())


def _process_name(pid: str) -> str | None:
    """Return a process's id with the time of its start, as ids are used again; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # after the process's name in brackets, which may contain spaces: field 22, in ticks since the machine started, see
    # proc(5)
    start = stat.rpartition(")")[2].split()[19]
    return f"{pid}.{start}"


def _is_abandoned(folder: Path) -> bool:
    """Return whether no process uses the folder: its creator has ended, and its lock, if there is one, is free."""
    creator = folder.name.removeprefix(_PREFIX).partition("-")[0]
    pid = creator.partition(".")[0]
    if not pid.isdigit() or _process_name(pid) == creator:
        return False
    try:
        file = os.open(folder / _LOCK_FILE, os.O_RDWR)
    except FileNotFoundError:  # the creator ended before it opened the store
        return True
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # it is locked, or its file system has no locks
        return False
    finally:
        os.close(file)
    return True

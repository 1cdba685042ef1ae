"""Creates files and folders that no other local user may read, because they contain customers' data or secrets.

The staging store on SQLite, and the commands that write to the data folder of `lakesync up`, call it.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
"""The permissions of the group and of all other users."""
UMASK = _OTHERS
"""The umask that every process sets that writes to the data folder."""


def make_private_folder(folder: Path) -> None:
    """Create a folder, or make an existing one private.

    Raises:
        OSError: it cannot be created, or belongs to another user.
    """
    folder.mkdir(0o700, parents=True, exist_ok=True)
    _close(folder)


def make_private_file(path: Path) -> None:
    """Create an empty file, or make an existing one private.

    Raises:
        OSError: it cannot be created, or belongs to another user.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    _close(path)


def replace_private_file(path: Path, content: bytes) -> None:
    """Replace a file as a whole: after a crash or an error it has its earlier content, or all of the new one.

    Args:
        path: the file, which need not exist; its folder must.
        content: the new content.

    Raises:
        OSError: the content cannot be written.
    """
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def _close(path: Path) -> None:
    """Remove the permissions of the group and of all other users."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS:
        path.chmod(mode & ~_OTHERS)

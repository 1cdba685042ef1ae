"""Creates files and folders that no other local user may read, because they contain customers' data or secrets.

The staging store on SQLite, and the commands that write to the data folder of `lakesync up`, call it.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

UMASK = stat.S_IRWXG | stat.S_IRWXO
"""The permissions of the group and of all other users. Every process that writes to the data folder sets them as its
umask, so that files of libraries are private too."""


def make_private_folder(folder: Path) -> None:
    """Create a folder, or make an existing one private.

    Raises:
        OSError: it cannot be created, or belongs to another user.
    """
    folder.mkdir(0o700, parents=True, exist_ok=True)
    _remove_permissions(folder)


def make_private_file(path: Path) -> None:
    """Create an empty file, or make an existing one private.

    Raises:
        OSError: it cannot be created, or belongs to another user.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    _remove_permissions(path)


def replace_private_file(path: Path, content: bytes) -> None:
    """Replace a file as a whole: after a crash or an error it has its earlier content, or all of the new one.

    The new file is private.

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


def _remove_permissions(path: Path) -> None:
    """Remove the permissions of the group and of all other users."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & UMASK:
        path.chmod(mode & ~UMASK)

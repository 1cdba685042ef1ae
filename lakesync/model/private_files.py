"""Folders and files of the data folder, which no other local user may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
UMASK = _OTHERS
"""Of every process that writes into the data folder."""


def make_private_folder(folder: Path) -> None:
    """Make a folder where it is missing, and close an existing one to other users.

    Raises:
        OSError: it cannot be made, or belongs to another user.
    """
    folder.mkdir(0o700, parents=True, exist_ok=True)
    _close(folder)


def make_private_file(path: Path) -> None:
    """Make an empty file where it is missing, and close an existing one to other users.

    Raises:
        OSError: it cannot be made, or belongs to another user.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    _close(path)


def _close(path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS:
        path.chmod(mode & ~_OTHERS)

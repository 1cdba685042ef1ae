"""Where the data of earlier versions is unpacked.

Iceberg's metadata names files by absolute paths, so a lake opens only at the path at which it was created.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent
_SAFE: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python 3.11 before 3.11.4, as in Debian 12, does not support filters."""
PLACE = Path("/tmp/lakesync-old-data")  # noqa: S108 the lock keeps others out


@contextlib.contextmanager
def sole_user() -> Iterator[Path]:
    """Create the folder, empty, and keep other runs from it until the end."""
    with PLACE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(PLACE, ignore_errors=True)
        PLACE.mkdir(mode=0o700)
        try:
            yield PLACE
        finally:
            shutil.rmtree(PLACE, ignore_errors=True)


@contextlib.contextmanager
def unpacked(version: str) -> Iterator[Path]:
    """A project's folder as that version left it: its settings, `lakesync-data`, and the file of the client alice."""
    with sole_user() as folder:
        with tarfile.open(FIXTURES / version / "project.tar.xz") as archive:
            archive.extractall(folder, **_SAFE)  # noqa: S202 made by this project
        yield folder

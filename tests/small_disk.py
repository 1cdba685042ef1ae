"""File systems with little space, on which a disk really fills up."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, mebibytes: int) -> Iterator[Path]:
    """Mount a file system in a new folder, which every user may enter; skip the test if this machine cannot."""
    folder.mkdir(exist_ok=True)
    options = f"size={mebibytes}m,mode=755"
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if mount.returncode:
        pytest.skip(f"this machine cannot mount a small file system: {mount.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)

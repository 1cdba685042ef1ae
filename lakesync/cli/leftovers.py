"""Ends the processes of an earlier `lakesync up` on the same data folder that was killed before it could."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import psutil

from lakesync.cli.services import MARKER


def end(folder: Path, *, grace: float = 5.0) -> list[int]:
    """End every process that carries the folder's mark, but for this one and those above it; their ids.

    The caller holds the folder's lock, so none of them belongs to a living `lakesync up`. The mark is inherited, so it
    also finds processes that left their group, and no other program's that got a reused id.
    """
    me = psutil.Process()
    spared = {os.getpid(), *(parent.pid for parent in me.parents())}
    found = [process for process in psutil.process_iter() if process.pid not in spared and _carries(process, folder)]
    for process in found:
        _try(process.terminate)
    _, alive = psutil.wait_procs(found, timeout=grace)
    for process in alive:
        _try(process.kill)
    psutil.wait_procs(alive, timeout=grace)
    return [process.pid for process in found]


def _carries(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.environ().get(MARKER) == str(folder)
    except (psutil.Error, OSError):
        return False


def _try(action: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        action()

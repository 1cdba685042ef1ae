"""Deletes the frames of superseded checkpoints, once no client can still be downloading them.

`lakehouse.checkpoints.publication` calls it after each new checkpoint.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.fs as pafs

from lakehouse.file_systems import place

if TYPE_CHECKING:
    from lakesync.staging.records import Checkpoint

KEPT_HOURS = 24.0
"""How long the frames are kept after a newer checkpoint was published. No download takes so long."""

_FOLDER = re.compile(r"(\d+)-(\d+)")
_HOUR_NS = 3_600_000_000_000


class _Folder(NamedTuple):
    epoch: int
    arrival: int
    path: str


def drop_old_frames(directory_uri: str, newest: Checkpoint, now_ms: int, kept_hours: float = KEPT_HOURS) -> list[str]:
    """Delete the frames of a gateway's superseded checkpoints, and return the names of the deleted folders.

    A checkpoint is superseded once the frames of the next one were written. Frames that a killed run left are treated
    in the same way. The newest checkpoint and later frames are kept.

    Args:
        directory_uri: the folder of all frames.
        newest: the gateway's newest published checkpoint.
        now_ms: the clock by which files are dated, in milliseconds.
        kept_hours: hours for which superseded frames are kept.
    """
    system, root = place(f"{directory_uri.rstrip('/')}/{newest.gateway}")
    before = now_ms * 1_000_000 - round(kept_hours * _HOUR_NS)
    here = (newest.epoch, newest.arrival)
    folders = sorted(folder for folder in _folders(system, root) if (folder.epoch, folder.arrival) <= here)
    removed = []
    for folder, successor in pairwise(folders):
        if (written := _written_ns(system, successor.path)) is not None and written < before:
            system.delete_dir(folder.path)
            removed.append(folder.path.rpartition("/")[2])
    return removed


def _folders(system: Any, root: str) -> list[_Folder]:
    selector = pafs.FileSelector(root, allow_not_found=True)
    found = ((info.path, _FOLDER.fullmatch(info.base_name)) for info in system.get_file_info(selector))
    return [_Folder(int(match[1]), int(match[2]), path) for path, match in found if match]


def _written_ns(system: Any, path: str) -> int | None:
    """Return when the newest file of a folder was written, in nanoseconds; None if it has no file."""
    infos = system.get_file_info(pafs.FileSelector(path, recursive=True))
    if not any(info.is_file for info in infos):
        return None
    newest: int = max(info.mtime_ns for info in infos if info.mtime_ns is not None)
    return newest

"""Frames of cuts that are not handed out any more: kept while somebody may still be reading them, then removed."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.fs as pafs

from lakehouse.file_systems import place

if TYPE_CHECKING:
    from lakesync.staging.records import Cut

KEPT_HOURS = 24.0
"""After a newer cut took its place. Nobody reads one checkpoint for so long."""

_FOLDER = re.compile(r"(\d+)-(\d+)")
_HOUR_NS = 3_600_000_000_000


class _Folder(NamedTuple):
    epoch: int
    arrival: int
    path: str


def drop_old_frames(directory_uri: str, newest: Cut, now_ms: int, kept_hours: float = KEPT_HOURS) -> list[str]:
    """Remove what was superseded long ago: the folders removed, by name.

    A cut counts as superseded when the frames of the next one were written; what a run that died left is below the
    newest cut too. Neither the newest cut nor anything above it is touched.

    Args:
        directory_uri: as `make_cut` takes it.
        newest: of one gateway, published.
        now_ms: the machine's clock, by which the files are dated.
        kept_hours: how long the frames of a superseded cut stay.
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
    """When the newest file below was put there, a linked one as its folder says; None where there is none."""
    infos = system.get_file_info(pafs.FileSelector(path, recursive=True))
    if not any(info.is_file for info in infos):
        return None
    newest: int = max(info.mtime_ns for info in infos if info.mtime_ns is not None)
    return newest

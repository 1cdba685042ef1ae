"""Object store in a local folder: for one machine, for tests, and for mounted file systems.

An object is written to a scratch file, synced, and renamed; then the folders of its path are synced. So a crash leaves
either the old or the new object. Concurrent writers of one key are arbitrated by `link`, which fails if the name
exists. `registry.open_adapter` creates a `LocalDisk` for a `file://` URI; `ObjectDeltas` stores changes of rows in it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from lakesync.adapters.object_store.base import ObjectInfo, ObjectPage, check_key
from lakesync.adapters.uri import path_of
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import AdapterError, NotFoundError, ValidationError

_SCRATCH = ".lakesync-scratch"
"""Folder of files that are being written. A file that a crash leaves there is never listed."""


class LocalDisk:
    """The object store protocol `LakeAdapter` over a folder; the protocol documents the methods."""

    def __init__(self, folder: Path | str) -> None:
        """Set the folder.

        Args:
            folder: created on the first write if it does not exist.
        """
        self.folder = Path(folder).expanduser().absolute()

    @classmethod
    def of(cls, uri: str) -> LocalDisk:
        """Open `file:///ABSOLUTE/FOLDER`.

        Raises:
            ConfigurationError: the URI has no absolute path.
        """
        return cls(path_of(uri))

    def put_object(self, key: str, data: bytes, *, if_absent: bool = False) -> bool:
        """Write a whole object durably."""
        path = self._path(key)
        with _convert_errors(f"object {key!r} cannot be written in {self.folder}"):
            placed = not (if_absent and path.is_file()) and self._write(path, data, if_absent=if_absent)
            self._sync_folders(path.parent)  # also if another writer has placed the object: it may not have synced yet
        return placed

    def get_object(self, key: str) -> bytes:
        """Return an object's content."""
        path = self._path(key)
        with _convert_errors(f"object {key!r} cannot be read in {self.folder}"):
            try:
                return path.read_bytes()
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                raise self._not_found(key) from None

    def head_object(self, key: str) -> ObjectInfo:
        """Return an object's metadata."""
        path = self._path(key)
        with _convert_errors(f"object {key!r} cannot be read in {self.folder}"):
            info = _info(key, path)
            if info is None:
                raise self._not_found(key)
            return info

    def list_objects(self, prefix: str = "", *, after: str = "", limit: int = 1000) -> ObjectPage:
        """List objects whose key starts with `prefix` and is greater than `after`, in order."""
        found: list[ObjectInfo] = []
        with _convert_errors(f"the objects in {self.folder} cannot be listed"):
            for key, path in _walk(self.folder, "", prefix, after):
                info = _info(key, path)
                if info is None:
                    continue  # deleted meanwhile
                if len(found) == limit:
                    return ObjectPage(tuple(found), has_more=True)
                found.append(info)
        return ObjectPage(tuple(found), has_more=False)

    def delete_object(self, key: str) -> None:
        """Delete an object if it exists."""
        path = self._path(key)
        with _convert_errors(f"object {key!r} cannot be removed in {self.folder}"):
            try:
                path.unlink()
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                return
            _sync(path.parent)

    def delete_objects(self, keys: Collection[str]) -> None:
        """Delete several objects."""
        for key in keys:
            self.delete_object(key)

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _path(self, key: str) -> Path:
        """Return the file of an object; keys in the scratch folder are rejected."""
        path = self.folder / check_key(key)
        if key.partition("/")[0] == _SCRATCH:
            raise ValidationError(f"object key {key!r} starts with {_SCRATCH!r}, which is reserved: choose another key")
        return path

    def _not_found(self, key: str) -> NotFoundError:
        return NotFoundError(f"there is no object {key!r} in {self.folder}")

    def _write(self, path: Path, data: bytes, *, if_absent: bool) -> bool:
        """Write a scratch file and rename it, so that readers see the whole object or none."""
        scratch = self._write_scratch(data)
        try:
            crash_point("local.before_place")  # tests kill the process here
            placed = self._move_into_place(scratch, path, if_absent=if_absent)
        finally:
            scratch.unlink(missing_ok=True)
        crash_point("local.after_place")
        return placed

    def _write_scratch(self, data: bytes) -> Path:
        """Write a file into the scratch folder and sync it."""
        scratch = self.folder / _SCRATCH / uuid.uuid4().hex
        scratch.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return scratch

    @staticmethod
    def _move_into_place(scratch: Path, path: Path, *, if_absent: bool) -> bool:
        """Give a scratch file its final name. Return False if `if_absent` is set and the name exists."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if not if_absent:
            scratch.replace(path)
            return True
        try:
            path.hardlink_to(scratch)
        except FileExistsError:
            if path.is_dir():
                raise
            return False
        return True

    def _sync_folders(self, folder: Path) -> None:
        """Sync every folder from the object's up to the parent of the store's own, because any of them may be new."""
        while folder != self.folder.parent:
            _sync(folder)
            folder = folder.parent
        _sync(folder)


def _sync(folder: Path) -> None:
    """Sync a folder, so that names that were added or removed in it survive a crash."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _walk(folder: Path, folder_key: str, prefix: str, after: str) -> Iterator[tuple[str, Path]]:
    """Yield `(key, path)` of the files below a folder, in key order. Skips folders outside the range.

    `folder_key` is what their keys begin with: empty, or ending with a slash.
    """
    try:
        with os.scandir(folder) as scan:
            entries = [(entry.name + "/" * entry.is_dir(), entry.path) for entry in scan]
    except FileNotFoundError:
        return
    for name, path in sorted(entries):
        key = folder_key + name
        if key == f"{_SCRATCH}/":
            continue
        if not name.endswith("/"):
            if key.startswith(prefix) and key > after:
                yield key, Path(path)
            continue
        may_have_prefix = key.startswith(prefix) or prefix.startswith(key)
        may_be_after = key > after or after.startswith(key)
        if may_have_prefix and may_be_after:
            yield from _walk(Path(path), key, prefix, after)


def _info(key: str, path: Path) -> ObjectInfo | None:
    """Return the metadata of an object; None if there is no file at its path."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not path.is_file():
        return None
    etag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return ObjectInfo(key, status.st_size, status.st_mtime_ns // 1_000_000, etag)


@contextmanager
def _convert_errors(what: str) -> Iterator[None]:
    """Convert errors of the operating system to `AdapterError`."""
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise AdapterError(f"{what}: one object's key is a folder of another ({error})") from error
    except OSError as error:
        raise AdapterError(f"{what}: {error}") from error

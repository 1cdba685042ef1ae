"""The object store protocol `LakeAdapter`, and the check of object keys that all implementations share.

`local.py` and `s3.py` implement it. `ObjectDeltas` stores deltas (changes of rows) in an object store. With
`[flush] queue`, the flush queue is in one too (`lakesync.flush.object_queue`); otherwise it is in the staging store.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from lakesync.model.errors import ValidationError

MAX_KEY_BYTES = 1024
"""Size of a key, at most: S3's limit."""
MAX_PART_BYTES = 255
"""Size of a part between two slashes, at most: the limit of file systems for a name."""


class ObjectInfo(msgspec.Struct, frozen=True):
    """Metadata of an object."""

    key: str
    size: int
    """Bytes."""
    modified_ms: int
    """Milliseconds since 1970."""
    etag: str
    """Changes when the content changes, as far as the store detects it."""


class ObjectPage(msgspec.Struct, frozen=True):
    """One page of a listing."""

    objects: tuple[ObjectInfo, ...]
    has_more: bool
    """Whether objects follow after the last of these."""


class LakeAdapter(Protocol):
    """An object store: whole objects under keys whose parts are separated by `/`.

    The name is that of the same interface in LakeSync for TypeScript. A key has 1 to 1,024 bytes of UTF-8. Its parts
    are not empty and not `.` or `..`; no key is a folder of another key. Reads are strongly consistent: every later
    call sees what an earlier call wrote (as in S3 since 2020).
    """

    def put_object(self, key: str, data: bytes, *, if_absent: bool = False) -> bool:
        """Write a whole object durably. Readers see either the old or the new content.

        Args:
            key: the object's key.
            data: the content.
            if_absent: keep an existing object (`If-None-Match: *`). One of several concurrent writers wins.

        Returns:
            Whether `data` was written.

        Raises:
            ValidationError: the key is invalid.
            AdapterError: the object may or may not have been written.
        """

    def get_object(self, key: str) -> bytes:
        """Return an object's content.

        Raises:
            NotFoundError: there is no object with this key.
            AdapterError: the store cannot be read.
        """

    def head_object(self, key: str) -> ObjectInfo:
        """Return an object's metadata. Raises the errors of `get_object`."""

    def list_objects(self, prefix: str = "", *, after: str = "", limit: int = 1000) -> ObjectPage:
        """List objects in the order of the UTF-8 bytes of their keys.

        Args:
            prefix: only keys that start with it.
            after: only keys that are greater.
            limit: objects per page.

        Raises:
            AdapterError: the store cannot be read.
        """

    def delete_object(self, key: str) -> None:
        """Delete an object durably. Does nothing if it does not exist.

        Raises:
            AdapterError: the object may or may not be deleted.
        """

    def delete_objects(self, keys: Collection[str]) -> None:
        """Delete several objects. After a failure some of them may be deleted."""

    def close(self) -> None:
        """Close all connections. No other method is called afterwards."""


def check_key(key: str) -> str:
    """Return the key unchanged if S3, its imitations and local file systems all accept it.

    So objects can be copied from one store to another.

    Raises:
        ValidationError: the key is invalid; the message says why.
    """
    fault = _fault(key)
    if fault is not None:
        raise ValidationError(f"object key {key!r} {fault}")
    return key


def _fault(key: str) -> str | None:
    """Return what is wrong with a key, as the end of a sentence; None if it is valid."""
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode: remove lone surrogates"
    if not 0 < size <= MAX_KEY_BYTES:
        return f"has {size} bytes: use 1 to {MAX_KEY_BYTES}"
    if "\0" in key:
        return "contains a NUL character: remove it"
    for part in key.split("/"):
        if part in ("", ".", ".."):
            return f"has the part {part!r}: use a name between two slashes"
        if len(part.encode()) > MAX_PART_BYTES:
            return f"has a part of {len(part.encode())} bytes, the maximum is {MAX_PART_BYTES}: add slashes"
    return None

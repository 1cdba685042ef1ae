"""What an object store is to LakeSync: `base.py` says what holds of every backend."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec


class ObjectInfo(msgspec.Struct, frozen=True):
    """An object without its content."""

    key: str
    size: int
    """Bytes."""
    modified_ms: int
    etag: str
    """Another one for another content, as far as the store can tell."""


class ObjectPage(msgspec.Struct, frozen=True):
    """A part of a listing."""

    objects: tuple[ObjectInfo, ...]
    more: bool
    """There are further ones after the last of these."""


class LakeAdapter(Protocol):
    """An object store: whole objects under keys, `/` between their parts.

    A key has 1 to 1,024 bytes of UTF-8 and parts that are neither empty nor `.` nor `..`; no key may be another's
    folder. What a call wrote, every later call of anyone sees (as S3 promises since 2020).
    """

    def put_object(self, key: str, data: bytes, *, if_absent: bool = False) -> bool:
        """Write an object whole and durably; readers see the old one, or the new one.

        Args:
            key: where.
            data: the content.
            if_absent: leave an object that is there as it is (`If-None-Match: *`). Of several writers one wins.

        Returns:
            Whether `data` was written.

        Raises:
            ValidationError: the key cannot be one.
            AdapterError: it may or may not be there now.
        """

    def get_object(self, key: str) -> bytes:
        """An object's content.

        Raises:
            NotFoundError: there is no such object.
            AdapterError: the store cannot be read.
        """

    def head_object(self, key: str) -> ObjectInfo:
        """An object without its content; raises as `get_object`."""

    def list_objects(self, prefix: str = "", *, after: str = "", limit: int = 1000) -> ObjectPage:
        """Objects whose key starts with `prefix` and is above `after`, in order of their keys' UTF-8 bytes.

        Raises:
            AdapterError: the store cannot be read.
        """

    def delete_object(self, key: str) -> None:
        """Remove an object, durably; nothing when it is not there.

        Raises:
            AdapterError: it may or may not be gone.
        """

    def delete_objects(self, keys: Collection[str]) -> None:
        """Remove objects; a failure leaves some of them removed."""

    def close(self) -> None:
        """Release connections; nothing else is called afterwards."""

"""Followers' marks in an object store: an object a follower, written after what it speaks of.

There are no transactions. What a follower writes is named by its batch and written once (`If-None-Match`), so what a
crash left without a mark is found there by whoever writes it again.
"""

from __future__ import annotations

from urllib.parse import quote

from lakesync.adapters.base import Mark
from lakesync.adapters.object_store import LakeAdapter
from lakesync.model.errors import IntegrityError, NotFoundError

_PREFIX = "marks"


def read_mark(objects: LakeAdapter, name: str) -> str | None:
    """A mark; None where it was never written."""
    try:
        return objects.get_object(_key(name)).decode()
    except NotFoundError:
        return None


def check_mark(objects: LakeAdapter, mark: Mark) -> None:
    """That a mark is where the caller found it, or where it is to go.

    Raises:
        IntegrityError: it is not.
    """
    found = read_mark(objects, mark.name)
    if found not in (mark.was, mark.now):
        raise IntegrityError(
            f"the mark {mark.name!r} is {found!r} and was thought to be {mark.was!r}: another run has moved it, "
            "so begin again where it is now"
        )


def write_mark(objects: LakeAdapter, mark: Mark) -> None:
    """Write a mark."""
    objects.put_object(_key(mark.name), mark.now.encode())


def _key(name: str) -> str:
    return f"{_PREFIX}/{quote(name, safe='')}"

"""Validation of object keys: keys that S3, its imitations and local file systems all accept.

Every `LakeAdapter` (an object store) calls it, so that objects can be copied from one store to another.
"""

from __future__ import annotations

from lakesync.model.errors import ValidationError

MAX_KEY_BYTES = 1024
MAX_PART_BYTES = 255
"""Size of a part between two slashes, at most: the limit of file systems for a name."""


def check_key(key: str) -> str:
    """Return the key unchanged if every object store accepts it.

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

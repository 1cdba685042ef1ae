"""Validation of object keys. Every `LakeAdapter` calls it."""

from __future__ import annotations

from lakesync.model.errors import ValidationError

MAX_KEY_BYTES = 1024
MAX_PART_BYTES = 255
"""The limit of file systems for a name."""


def check_key(key: str) -> str:
    """Return the key if every object store accepts it.

    Raises:
        ValidationError: the key is invalid.
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

"""What may be the key of an object."""

from __future__ import annotations

from lakesync.model.errors import ValidationError

MAX_KEY_BYTES = 1024
MAX_PART_BYTES = 255
"""What file systems take as a name."""


def check_key(key: str) -> str:
    """The key itself, when it is one that every store takes.

    Raises:
        ValidationError: it is not.
    """
    fault = _fault(key)
    if fault is not None:
        raise ValidationError(f"object key {key!r} {fault}")
    return key


def _fault(key: str) -> str | None:
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return "is no Unicode text: leave lone surrogates out"
    if not 0 < size <= MAX_KEY_BYTES:
        return f"has {size} bytes, 1 to {MAX_KEY_BYTES} are taken"
    if "\0" in key:
        return "holds a NUL character: leave it out"
    for part in key.split("/"):
        if part in ("", ".", ".."):
            return f"has the part {part!r}: name every part between two slashes"
        if len(part.encode()) > MAX_PART_BYTES:
            return f"has a part of {len(part.encode())} bytes, at most {MAX_PART_BYTES} are taken: put slashes in"
    return None

"""The checksum by which a destination is compared with the lake: 32 bits of an MD5, which every database has."""

from __future__ import annotations

import hashlib


def checksum(text: str) -> int:
    """Return the first eight hexadecimal digits of the MD5 of a text's UTF-8 bytes, as an integer."""
    return int(hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:8], 16)

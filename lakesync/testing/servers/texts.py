"""Escapes in texts, as JQL and SOQL have them."""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}


def unescaped(text: str) -> str:
    """Return what a text between quotation marks says."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _NAMED.get(found[2], found[2]), text)

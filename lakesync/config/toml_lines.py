"""Where in a settings file a setting stands, for messages about it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

_TABLE = re.compile(r"\s*\[\[?([^\]]+)\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"\s*([^=#\[{]+?)\s*=")


def line_of(text: str, name: Sequence[str]) -> int | None:
    """The line on which a TOML file says something of a setting; None where it does not.

    Args:
        name: its section and key.
    """
    best, line = 0, None
    for number, path in _said(text):
        shared = min(len(path), len(name))
        if list(path[:shared]) == list(name[:shared]) and shared > best:
            best, line = shared, number
    return line


def _said(text: str) -> Iterator[tuple[int, list[str]]]:
    """Each line that begins a table or a value, and its whole name."""
    table: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if found := _TABLE.fullmatch(line.rstrip("\r")):
            table = _names(found[1])
            yield number, table
        elif found := _KEY.match(line):
            yield number, [*table, *_names(found[1])]


def _names(key: str) -> list[str]:
    """The parts of a key, quotes taken off."""
    try:
        found: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        return [key]
    names = []
    while isinstance(found, dict):
        name, found = next(iter(found.items()))
        names.append(name)
    return names

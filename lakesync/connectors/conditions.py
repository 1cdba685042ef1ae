"""A user's filter as one condition among ours: brackets and quotation marks that match, so that nothing leaves it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lakesync.exceptions import ConfigurationError

_PIECE = re.compile(r"""\s+|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[()]|[^\s"'()]+""")


def condition(text: str, setting: str, *, stop: tuple[str, str] | None = None) -> str:
    """The filter without what stands from two words on, outside of brackets, such as ORDER BY.

    Args:
        setting: whose value it is, for the message.

    Raises:
        ConfigurationError: its quotation marks or brackets do not match.
    """
    depth, kept, words = 0, "", list(_pieces(text, setting))
    for place, word in enumerate(words):
        if depth == 0 and stop is not None and (word.upper(), _next(words, place)) == stop:
            break
        depth += (word == "(") - (word == ")")
        if depth < 0:
            raise ConfigurationError(f"{setting} {text!r} closes a bracket that it has not opened: mend the filter")
        kept += word
    if depth:
        raise ConfigurationError(f"{setting} {text!r} opens a bracket that it does not close: mend the filter")
    return kept.strip()


def _pieces(text: str, setting: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        found = _PIECE.match(text, at)
        if found is None:
            raise ConfigurationError(f"{setting} {text!r} has a quotation mark without its other one: mend the filter")
        yield found.group()
        at = found.end()


def _next(words: list[str], place: int) -> str:
    return next((word.upper() for word in words[place + 1 :] if not word.isspace()), "")

"""A user's JQL and our own conditions in one query."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lakesync.exceptions import ConfigurationError

_PIECE = re.compile(r"""\s+|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[()]|[^\s"'()]+""")


def combined(user: str | None, *conditions: str, order: str) -> str:
    """A query of what matches a user's filter and the conditions, in an order of ours.

    The filter is one bracketed condition, so that an OR in it frees nothing; its own ORDER BY is dropped.

    Raises:
        ConfigurationError: the filter's quotes or brackets do not match, so that it would not stay one condition.
    """
    filter_ = _without_order(user) if user is not None else ""
    parts = [f"({filter_})"] if filter_ else []
    return f"{' AND '.join([*parts, *conditions])} ORDER BY {order}"


def quoted(value: str) -> str:
    """A value as a JQL text."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _without_order(user: str) -> str:
    depth, kept, words = 0, "", list(_pieces(user))
    for place, word in enumerate(words):
        if depth == 0 and word.upper() == "ORDER" and _next_word(words, place).upper() == "BY":
            break
        depth += (word == "(") - (word == ")")
        if depth < 0:
            raise ConfigurationError(f"jql {user!r} closes a bracket that it has not opened: mend the filter")
        kept += word
    if depth:
        raise ConfigurationError(f"jql {user!r} opens a bracket that it does not close: mend the filter")
    return kept.strip()


def _pieces(user: str) -> Iterator[str]:
    at = 0
    while at < len(user):
        found = _PIECE.match(user, at)
        if found is None:
            raise ConfigurationError(f"jql {user!r} has a quotation mark without its other one: mend the filter")
        yield found.group()
        at = found.end()


def _next_word(words: list[str], place: int) -> str:
    return next((word for word in words[place + 1 :] if not word.isspace()), "")

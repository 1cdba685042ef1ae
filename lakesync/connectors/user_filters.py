"""Filters written by users, embedded as one condition in a generated query.

Brackets and quotation marks must be balanced, so that the filter cannot change the rest of the query.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from lakesync.model.errors import ConfigurationError

_TOKEN = re.compile(r"""\s+|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[()]|(?:[^\s"'()\\]|\\.)+""")
"""A token. Outside of quotation marks a backslash escapes the next character, as in JQL."""


def balanced_condition(text: str, setting: str, *, stop: tuple[str, str] | None = None) -> str:
    """Return the filter up to two given words outside of brackets, such as ORDER BY.

    Args:
        text: the filter.
        setting: the setting's name, for the message.
        stop: the two words.

    Raises:
        ConfigurationError: quotation marks or brackets are not balanced.
    """
    depth, kept, words = 0, list[str](), list(_tokens(text, setting))
    for place, word in enumerate(words):
        if depth == 0 and stop is not None and (word.upper(), _next(words, place)) == stop:
            break
        depth += (word == "(") - (word == ")")
        if depth < 0:
            raise ConfigurationError(f"{setting} {text!r} closes a bracket that is not open: correct the filter")
        kept.append(word)
    if depth:
        raise ConfigurationError(f"{setting} {text!r} does not close a bracket: correct the filter")
    while kept and kept[-1].isspace():  # but not a space that a backslash keeps
        kept.pop()
    return "".join(kept).lstrip()


def escape(text: str, special: re.Pattern[str], names: Mapping[str, str]) -> str:
    """Escape special characters in a text.

    Args:
        text: the text.
        special: matches each character to escape.
        names: the letters of escapes other than `u` and four hexadecimal digits.
    """
    return special.sub(lambda found: "\\" + names.get(found[0], f"u{ord(found[0]):04x}"), text)


ESCAPES = {each: each for each in "\"'\\"} | {"\n": "n", "\r": "r", "\t": "t"}
"""The escapes that JQL and SOQL share."""


def _tokens(text: str, setting: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ConfigurationError(f"{setting} {text!r} has an unmatched quotation mark: correct the filter")
        yield found.group()
        at = found.end()


def _next(words: list[str], place: int) -> str:
    return next((word.upper() for word in words[place + 1 :] if not word.isspace()), "")

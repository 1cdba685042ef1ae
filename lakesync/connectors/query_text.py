"""Texts in queries of the languages JQL (Jira) and SOQL (Salesforce): the user's filter, and strings.

A user's filter becomes one condition of a query, in parentheses (`balanced_condition`). Its own parentheses and
quotation marks must be balanced, so that it cannot change the rest of the query. `escape` escapes a text in a string of
a query. The connectors for Jira and Salesforce call this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lakesync.model.errors import ConfigurationError

_TOKEN = re.compile(r"""\s+|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[()]|(?:[^\s"'()\\]|\\.)+""", re.DOTALL)
"""A token: whitespace, a quoted text, a parenthesis, or anything up to one of these.

Outside of quotation marks too, a backslash escapes the next character, as in JQL.
"""


def balanced_condition(text: str, setting: str, *, stop: tuple[str, str] | None = None) -> str:
    """Return a filter without leading and trailing whitespace, and without what follows `stop`.

    Args:
        text: the filter.
        setting: the setting's name, for the message.
        stop: two words in upper case, such as `("ORDER", "BY")`. The filter ends before these words, in any case, where
            they follow each other outside of parentheses. None keeps the whole filter.

    Raises:
        ConfigurationError: quotation marks or parentheses are not balanced.
    """
    depth, kept, tokens = 0, list[str](), list(_tokens(text, setting))
    for index, part in enumerate(tokens):
        if depth == 0 and stop is not None and (part.upper(), _next_word(tokens, index)) == stop:
            break
        depth += (part == "(") - (part == ")")
        if depth < 0:
            raise ConfigurationError(f"{setting} {text!r} closes a parenthesis that is not open: correct the filter")
        kept.append(part)
    if depth:
        raise ConfigurationError(f"{setting} {text!r} does not close a parenthesis: correct the filter")
    while kept and kept[-1].isspace():  # a token, so never a space that a backslash escapes
        kept.pop()
    return "".join(kept).lstrip()


_SHORT_ESCAPES = {each: each for each in "\"'\\"} | {"\n": "n", "\r": "r", "\t": "t"}
"""Character → what follows the backslash in JQL and SOQL. Others become `\\uXXXX`."""


def escape(text: str, special: re.Pattern[str]) -> str:
    r"""Escape special characters in a text: a line break as `\n`, a NUL as `\u0000`.

    Args:
        text: the text.
        special: matches each character to escape. It must match none above U+FFFF, which do not fit `\uXXXX`.
    """
    return special.sub(lambda found: "\\" + _SHORT_ESCAPES.get(found[0], f"u{ord(found[0]):04x}"), text)


def _tokens(text: str, setting: str) -> Iterator[str]:
    """Yield all tokens of a filter.

    Raises:
        ConfigurationError: a quotation mark is not closed, or a backslash escapes no character.
    """
    start = 0
    while start < len(text):
        found = _TOKEN.match(text, start)
        if found is None:
            fault = "a backslash that escapes no character" if text[start] == "\\" else "an unmatched quotation mark"
            raise ConfigurationError(f"{setting} {text!r} has {fault}: correct the filter")
        yield found.group()
        start = found.end()


def _next_word(tokens: list[str], index: int) -> str:
    """Return the next token that is not whitespace, in upper case; empty at the end."""
    return next((token.upper() for token in tokens[index + 1 :] if not token.isspace()), "")

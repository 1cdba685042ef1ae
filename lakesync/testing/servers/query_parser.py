"""What the parsers of JQL and SOQL, the query languages of the fake Jira and Salesforce servers, have in common.

The subpackages `jira` and `salesforce` each have a subclass of `QueryParser`, which adds the comparisons of its
language, and its errors.
"""

from __future__ import annotations

import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

Record = TypeVar("Record")
"""What a query searches."""
T = TypeVar("T")


class Condition(NamedTuple, Generic[Record]):
    """A condition of a query."""

    matches: Callable[[Record], bool]
    """Whether a record matches it."""
    bound: int = 0
    """No record of an earlier time matches; 0 for no bound."""


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
"""The comparison of each sign."""
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
"""An escape in a string literal: a code unit, or a single character."""
_NAMED_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def split(query: str, token: re.Pattern[str], error: Callable[[int], Exception]) -> list[str]:
    """Split a query into tokens; strings keep their quotes.

    Args:
        query: the query.
        token: matches a token, in one group of several.
        error: returns the exception for a position at which no token begins.
    """
    tokens, position = [], 0
    while position < len(query.rstrip()):
        match = token.match(query, position)
        if match is None:
            raise error(position)
        tokens.append(next(group for group in match.groups() if group is not None))
        position = match.end()
    return tokens


def unescape(text: str) -> str:
    r"""Replace the escapes in a string literal (`\n`, `\'`, `\u00e9`) by the characters they mean."""
    return _ESCAPE.sub(
        lambda match: chr(int(match[1], 16)) if match[1] else _NAMED_ESCAPES.get(match[2], match[2]), text
    )


class QueryParser(ABC, Generic[Record]):
    """A recursive descent parser of a query's tokens.

    `parse_or` parses OR, `parse_and` AND, and `parse_term` NOT, brackets and comparisons. Of the conditions joined by
    OR, the least bound applies; of those joined by AND, the greatest. A method raises what `unexpected` returns if the
    next token is another one than it expects.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        """Start before the first token."""
        self._tokens = tokens
        self._position = 0

    @abstractmethod
    def unexpected(self, token: str | None, expected: str) -> Exception:
        """Return the error for a token that is not expected.

        Args:
            token: the token; None at the end of the query.
            expected: a description of what is expected.
        """

    @abstractmethod
    def parse_comparison(self) -> Condition[Record]:
        """Parse a condition without AND, OR, NOT and brackets."""

    def next_word(self) -> str:
        """Return the next token in upper case without consuming it; empty at the end."""
        return self._tokens[self._position].upper() if self._position < len(self._tokens) else ""

    def take(self) -> str:
        """Consume and return the next token."""
        if self._position == len(self._tokens):
            raise self.unexpected(None, "a field, value or operator")
        self._position += 1
        return self._tokens[self._position - 1]

    def take_word(self, *words: str) -> bool:
        """Consume the next token if it is one of some words; return whether it was."""
        is_word = self.next_word() in words
        self._position += is_word
        return is_word

    def expect(self, word: str) -> None:
        """Consume the next token, which must be a certain word."""
        token = self.take()
        if token.upper() != word:
            raise self.unexpected(token, f"'{word}'")

    def expect_end(self) -> None:
        """Check that no token is left."""
        if self._position < len(self._tokens):
            raise self.unexpected(self._tokens[self._position], "operator")

    def parse_or(self) -> Condition[Record]:
        """Parse conditions joined by OR, or a single one."""
        conditions = [self.parse_and()]
        while self.take_word("OR"):
            conditions.append(self.parse_and())
        if len(conditions) == 1:
            return conditions[0]
        tests, bounds = zip(*conditions, strict=True)
        return Condition(lambda record: any(test(record) for test in tests), min(bounds))

    def parse_and(self) -> Condition[Record]:
        """Parse conditions joined by AND, or a single one."""
        conditions = [self.parse_term()]
        while self.take_word("AND"):
            conditions.append(self.parse_term())
        if len(conditions) == 1:
            return conditions[0]
        tests, bounds = zip(*conditions, strict=True)
        return Condition(lambda record: all(test(record) for test in tests), max(bounds))

    def parse_term(self) -> Condition[Record]:
        """Parse a negation, a condition in brackets, or a comparison."""
        if self.take_word("NOT"):
            negated = self.parse_term().matches
            return Condition(lambda record: not negated(record))
        if self.take_word("("):
            inner = self.parse_or()
            self.expect(")")
            return inner
        return self.parse_comparison()

    def parse_list(self, parse_value: Callable[[str], T]) -> list[T]:
        """Parse the list after IN, with `parse_value` for each token of it."""
        self.expect("(")
        values = [parse_value(self.take())]
        while not self.take_word(")"):
            self.expect(",")
            values.append(parse_value(self.take()))
        return values

    def parse_order(self, parse_field: Callable[[str], T]) -> tuple[tuple[T, bool], ...]:
        """Parse ORDER BY, if it is next; return each field with whether it is descending."""
        if not self.take_word("ORDER"):
            return ()
        self.expect("BY")
        order = []
        while True:
            field = parse_field(self.take())
            is_descending = self.next_word() == "DESC"
            self.take_word("ASC", "DESC")
            order.append((field, is_descending))
            if not self.take_word(","):
                return tuple(order)

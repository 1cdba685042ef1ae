"""A parser and evaluator of JQL for the fake Jira site's search.

It supports what connectors and users' filters need: comparisons, IN, AND, OR, NOT, brackets and ORDER BY.
"""

from __future__ import annotations

import heapq
import operator
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from itertools import islice
from typing import Any, NamedTuple

from lakesync.testing.servers import unescape
from lakesync.testing.servers.jira.site import Issue

_TOKEN = re.compile(r"""\s*(?:("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(!=|>=|<=|[=<>(),])|([^\s=<>!(),"']+))""")
"""A quoted string, a sign, or a word."""
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_TEXT_FIELDS: dict[str, Callable[[Issue], Any]] = {
    "project": lambda issue: issue.project,
    "key": lambda issue: issue.key,
    "issuekey": lambda issue: issue.key,
    "status": lambda issue: issue.fields["status"],
    "priority": lambda issue: issue.fields["priority"],
    "issuetype": lambda issue: issue.fields["issuetype"],
    "labels": lambda issue: issue.fields["labels"],
}
"""Field in a condition → its text, or a list of texts."""
_TIME_FIELDS: dict[str, Callable[[Issue], int]] = {
    "updated": lambda issue: issue.updated,
    "created": lambda issue: issue.created,
}
"""Field in a condition → its time, in milliseconds since 1970."""
_ORDERS: dict[str, Callable[[Issue], Any]] = {
    **_TIME_FIELDS,
    "key": lambda issue: (issue.project, int(issue.key.rpartition("-")[2])),
    "id": lambda issue: int(issue.id),
}
"""Field in ORDER BY → its sort key."""

_UPDATED_THEN_KEY = ((_ORDERS["updated"], False), (_ORDERS["key"], False))
"""The order of the search index, in which matching issues need no sort."""

Test = Callable[[Issue], bool]
"""Whether an issue matches a condition."""
Condition = tuple[Test, int]
"""A test, and a lower bound: no issue that was updated before this time (in milliseconds since 1970) passes the test.
0 if there is no bound."""


class JqlError(ValueError):
    """A query that the API rejects. The message is the one that Jira sends."""


class Query(NamedTuple):
    """A parsed query."""

    matches: Test
    bounded: bool
    """Whether the query has a condition. Jira rejects a search without one."""
    order: tuple[tuple[Callable[[Issue], Any], bool], ...]
    """The sort keys of ORDER BY, each with whether it is descending."""
    since: int
    """No issue that was updated before this time matches, in milliseconds since 1970; 0 if there is no bound."""

    def select(self, issues: Sequence[Issue], limit: int) -> list[Issue]:
        """Return the first matching issues in the order of ORDER BY.

        Args:
            issues: the search index, sorted by time of update, then by key.
            limit: the maximal number of issues.
        """
        not_older = issues[bisect_left(issues, self.since, key=_TIME_FIELDS["updated"]) :]
        matching = filter(self.matches, not_older)
        if self.order == _UPDATED_THEN_KEY:
            return list(islice(matching, limit))
        if not any(descending for _, descending in self.order):
            keys = [key for key, _ in self.order]
            return heapq.nsmallest(limit, matching, key=lambda issue: (*[key(issue) for key in keys], int(issue.id)))
        selected = sorted(matching, key=lambda issue: int(issue.id))
        for key, descending in reversed(self.order):
            selected.sort(key=key, reverse=descending)
        return selected[:limit]


def parse(jql: str, utc_offset_minutes: int = 0) -> Query:
    """Parse a query.

    Args:
        jql: the query. A time in it has no zone; it is in the account's zone.
        utc_offset_minutes: the account's time zone.

    Raises:
        JqlError: the syntax is wrong, or the query names an unknown field.
    """
    return _Parser(jql, timezone(timedelta(minutes=utc_offset_minutes))).query()


class _Parser:
    """A recursive descent parser of a query's tokens.

    `_parse_or` parses OR, `_parse_and` AND, and `_parse_term` NOT, brackets and comparisons.
    """

    def __init__(self, jql: str, zone: timezone) -> None:
        self._tokens = _split(jql)
        self._position = 0
        self._zone = zone

    def query(self) -> Query:
        """Parse the whole query."""
        test: Test | None = None
        since = 0
        if self._next_word() not in ("ORDER", ""):
            test, since = self._parse_or()
        order = self._parse_order() if self._next_word() == "ORDER" else ()
        if self._position < len(self._tokens):
            raise JqlError(f"Error in the JQL Query: Expecting operator but got '{self._tokens[self._position]}'.")
        return Query(test or (lambda _: True), test is not None, order, since)

    def _next_word(self) -> str:
        """Return the next token in upper case without consuming it; empty at the end."""
        return self._tokens[self._position].upper() if self._position < len(self._tokens) else ""

    def _take(self) -> str:
        """Consume and return the next token."""
        if self._position == len(self._tokens):
            raise JqlError("Error in the JQL Query: Expecting a field, value or operator but got the end of the query.")
        self._position += 1
        return self._tokens[self._position - 1]

    def _parse_or(self) -> Condition:
        """Parse conditions joined by OR; an issue may pass any test, so the least bound applies."""
        parts = [self._parse_and()]
        while self._next_word() == "OR":
            self._take()
            parts.append(self._parse_and())
        tests = [test for test, _ in parts]
        return (
            parts[0]
            if len(parts) == 1
            else (lambda issue: any(test(issue) for test in tests), min(bound for _, bound in parts))
        )

    def _parse_and(self) -> Condition:
        """Parse conditions joined by AND; an issue must pass all tests, so the greatest bound applies."""
        parts = [self._parse_term()]
        while self._next_word() == "AND":
            self._take()
            parts.append(self._parse_term())
        tests = [test for test, _ in parts]
        return (
            parts[0]
            if len(parts) == 1
            else (lambda issue: all(test(issue) for test in tests), max(bound for _, bound in parts))
        )

    def _parse_term(self) -> Condition:
        if self._next_word() == "NOT":
            self._take()
            negated, _ = self._parse_term()
            return lambda issue: not negated(issue), 0
        if self._next_word() == "(":
            self._take()
            inner = self._parse_or()
            if self._take() != ")":
                raise JqlError("Error in the JQL Query: Expecting ')' before the end of the query.")
            return inner
        return self._parse_comparison()

    def _parse_comparison(self) -> Condition:
        field = self._take().lower()
        if field not in _TEXT_FIELDS and field not in _TIME_FIELDS:
            raise JqlError(f"Field '{field}' does not exist or you do not have permission to view it.")
        sign = self._take()
        negated = sign.upper() == "NOT"
        if negated:
            sign = self._take()
        if sign.upper() == "IN":
            values = self._parse_list()
            return lambda issue: (_texts(field, issue).isdisjoint(values)) == negated, 0
        if sign not in _COMPARE or negated:
            raise JqlError(f"Error in the JQL Query: The operator '{sign}' is not supported by the '{field}' field.")
        if field in _TIME_FIELDS:
            compare, moment = _COMPARE[sign], self._parse_time(_unquoted(self._take()))
            since = moment if field == "updated" and sign in (">=", ">", "=") else 0
            return lambda issue: compare(_TIME_FIELDS[field](issue), moment), since
        if sign not in ("=", "!="):
            raise JqlError(f"Error in the JQL Query: The operator '{sign}' is not supported by the '{field}' field.")
        value = _unquoted(self._take()).lower()
        return lambda issue: (value in _texts(field, issue)) == (sign == "="), 0

    def _parse_list(self) -> set[str]:
        """Parse the list after IN."""
        if self._take() != "(":
            raise JqlError("Error in the JQL Query: Expecting '(' after IN.")
        values = set()
        while True:
            values.add(_unquoted(self._take()).lower())
            if (end := self._take()) == ")":
                return values
            if end != ",":
                raise JqlError(f"Error in the JQL Query: Expecting ',' but got '{end}'.")

    def _parse_time(self, text: str) -> int:
        """Return a time in milliseconds since 1970. It is given as such a number, or as date and time."""
        if re.fullmatch(r"-?\d+", text):
            return int(text)
        for form in ("%Y-%m-%d %H:%M", "%Y/%m/%d %H:%M", "%Y-%m-%d", "%Y/%m/%d"):
            try:
                moment = datetime.strptime(text, form).replace(tzinfo=self._zone)
            except ValueError:
                continue
            return int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * 1000
        raise JqlError(f"Date value '{text}' for field 'updated' is invalid.")

    def _parse_order(self) -> tuple[tuple[Callable[[Issue], Any], bool], ...]:
        self._take()
        if self._take().upper() != "BY":
            raise JqlError("Error in the JQL Query: Expecting 'BY' after 'ORDER'.")
        order = []
        while True:
            field = self._take().lower()
            if field not in _ORDERS:
                raise JqlError(f"Field '{field}' does not exist or you do not have permission to view it.")
            descending = self._next_word() == "DESC"
            if self._next_word() in ("ASC", "DESC"):
                self._take()
            order.append((_ORDERS[field], descending))
            if self._next_word() != ",":
                return tuple(order)
            self._take()


def _split(jql: str) -> list[str]:
    """Split a query into tokens; quoted strings keep their quotes."""
    tokens, position = [], 0
    while position < len(jql.rstrip()):
        match = _TOKEN.match(jql, position)
        if match is None:
            raise JqlError(f"Error in the JQL Query: The character '{jql[position:].strip()[:1]}' is a reserved one.")
        tokens.append(next(group for group in match.groups() if group is not None))
        position = match.end()
    return tokens


def _unquoted(token: str) -> str:
    """Return the text that a token stands for."""
    return unescape(token[1:-1]) if token[:1] in "\"'" and len(token) > 1 else token


def _texts(field: str, issue: Issue) -> set[str]:
    """Return a field's values as texts in lower case, because JQL ignores case."""
    value = (_TEXT_FIELDS.get(field) or _TIME_FIELDS[field])(issue)
    return {str(each).lower() for each in (value if isinstance(value, list) else [value])}

"""As much of JQL as connectors and users' filters need: comparisons, AND, OR, NOT, brackets, ORDER BY."""

from __future__ import annotations

import heapq
import operator
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from itertools import islice
from typing import Any, NamedTuple

from lakesync.testing.servers.http import unescaped
from lakesync.testing.servers.jira.site import Issue

_TOKEN = re.compile(r"""\s*(?:("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(!=|>=|<=|[=<>(),])|([^\s=<>!(),"']+))""")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_TEXTS: dict[str, Callable[[Issue], Any]] = {
    "project": lambda issue: issue.project,
    "key": lambda issue: issue.key,
    "issuekey": lambda issue: issue.key,
    "status": lambda issue: issue.fields["status"],
    "priority": lambda issue: issue.fields["priority"],
    "issuetype": lambda issue: issue.fields["issuetype"],
    "labels": lambda issue: issue.fields["labels"],
}
_TIMES: dict[str, Callable[[Issue], int]] = {
    "updated": lambda issue: issue.updated,
    "created": lambda issue: issue.created,
}
_ORDERS: dict[str, Callable[[Issue], Any]] = {
    **_TIMES,
    "key": lambda issue: (issue.project, int(issue.key.rpartition("-")[2])),
    "id": lambda issue: int(issue.id),
}

_AS_UPDATED = ((_ORDERS["updated"], False), (_ORDERS["key"], False))

Test = Callable[[Issue], bool]
Bounded = tuple[Test, int]
"""A test, and the time before which no issue that passes was updated."""


class JqlError(ValueError):
    """What the API says of a query that it does not take."""


class Query(NamedTuple):
    """A query that was read."""

    matches: Test
    bounded: bool
    """Whether it restricts the search at all."""
    order: tuple[tuple[Callable[[Issue], Any], bool], ...]
    """What to sort by, and whether downwards."""
    since: int
    """No issue that was updated before matches."""

    def select(self, issues: Sequence[Issue], most: int) -> list[Issue]:
        """Return the first of the issues that match, in order.

        Args:
            issues: by when they were updated, then by key.
            most: the most issues.
        """
        rest = issues[bisect_left(issues, self.since, key=_TIMES["updated"]) :]
        matching = filter(self.matches, rest)
        if self.order == _AS_UPDATED:
            return list(islice(matching, most))
        if not any(down for _, down in self.order):
            orders = [by for by, _ in self.order]
            return heapq.nsmallest(most, matching, key=lambda issue: (*[by(issue) for by in orders], int(issue.id)))
        found = sorted(matching, key=lambda issue: int(issue.id))
        for by, down in reversed(self.order):
            found.sort(key=by, reverse=down)
        return found[:most]


def parse(jql: str, utc_offset_minutes: int = 0) -> Query:
    """Read a query; a time without a zone is one of the account's own.

    Raises:
        JqlError: it is not of the language, or names a field that is not known.
    """
    return _Parser(jql, timezone(timedelta(minutes=utc_offset_minutes))).query()


class _Parser:
    def __init__(self, jql: str, zone: timezone) -> None:
        self._tokens = _tokens(jql)
        self._at = 0
        self._zone = zone

    def query(self) -> Query:
        test: Test | None = None
        since = 0
        if self._word() not in ("ORDER", ""):
            test, since = self._any()
        order = self._order() if self._word() == "ORDER" else ()
        if self._at < len(self._tokens):
            raise JqlError(f"Error in the JQL Query: Expecting operator but got '{self._tokens[self._at]}'.")
        return Query(test or (lambda _: True), test is not None, order, since)

    def _word(self) -> str:
        return self._tokens[self._at].upper() if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        if self._at == len(self._tokens):
            raise JqlError("Error in the JQL Query: Expecting a field, value or operator but got the end of the query.")
        self._at += 1
        return self._tokens[self._at - 1]

    def _any(self) -> Bounded:
        parts = [self._all()]
        while self._word() == "OR":
            self._take()
            parts.append(self._all())
        tests = [test for test, _ in parts]
        return (
            parts[0]
            if len(parts) == 1
            else (lambda issue: any(test(issue) for test in tests), min(b for _, b in parts))
        )

    def _all(self) -> Bounded:
        parts = [self._one()]
        while self._word() == "AND":
            self._take()
            parts.append(self._one())
        tests = [test for test, _ in parts]
        return (
            parts[0]
            if len(parts) == 1
            else (lambda issue: all(test(issue) for test in tests), max(b for _, b in parts))
        )

    def _one(self) -> Bounded:
        if self._word() == "NOT":
            self._take()
            negated, _ = self._one()
            return lambda issue: not negated(issue), 0
        if self._word() == "(":
            self._take()
            inner = self._any()
            if self._take() != ")":
                raise JqlError("Error in the JQL Query: Expecting ')' before the end of the query.")
            return inner
        return self._comparison()

    def _comparison(self) -> Bounded:
        field = self._take().lower()
        if field not in _TEXTS and field not in _TIMES:
            raise JqlError(f"Field '{field}' does not exist or you do not have permission to view it.")
        sign = self._take()
        negated = sign.upper() == "NOT"
        if negated:
            sign = self._take()
        if sign.upper() == "IN":
            values = self._list()
            return lambda issue: (_texts(field, issue).isdisjoint(values)) == negated, 0
        if sign not in _COMPARE or negated:
            raise JqlError(f"Error in the JQL Query: The operator '{sign}' is not supported by the '{field}' field.")
        if field in _TIMES:
            compare, moment = _COMPARE[sign], self._moment(_unquoted(self._take()))
            since = moment if field == "updated" and sign in (">=", ">", "=") else 0
            return lambda issue: compare(_TIMES[field](issue), moment), since
        if sign not in ("=", "!="):
            raise JqlError(f"Error in the JQL Query: The operator '{sign}' is not supported by the '{field}' field.")
        value = _unquoted(self._take()).lower()
        return lambda issue: (value in _texts(field, issue)) == (sign == "="), 0

    def _list(self) -> set[str]:
        if self._take() != "(":
            raise JqlError("Error in the JQL Query: Expecting '(' after IN.")
        values = set()
        while True:
            values.add(_unquoted(self._take()).lower())
            if (end := self._take()) == ")":
                return values
            if end != ",":
                raise JqlError(f"Error in the JQL Query: Expecting ',' but got '{end}'.")

    def _moment(self, text: str) -> int:
        if re.fullmatch(r"-?\d+", text):
            return int(text)
        for form in ("%Y-%m-%d %H:%M", "%Y/%m/%d %H:%M", "%Y-%m-%d", "%Y/%m/%d"):
            try:
                at = datetime.strptime(text, form).replace(tzinfo=self._zone)
            except ValueError:
                continue
            return int((at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * 1000
        raise JqlError(f"Date value '{text}' for field 'updated' is invalid.")

    def _order(self) -> tuple[tuple[Callable[[Issue], Any], bool], ...]:
        self._take()
        if self._take().upper() != "BY":
            raise JqlError("Error in the JQL Query: Expecting 'BY' after 'ORDER'.")
        order = []
        while True:
            field = self._take().lower()
            if field not in _ORDERS:
                raise JqlError(f"Field '{field}' does not exist or you do not have permission to view it.")
            down = self._word() == "DESC"
            if self._word() in ("ASC", "DESC"):
                self._take()
            order.append((_ORDERS[field], down))
            if self._word() != ",":
                return tuple(order)
            self._take()


def _tokens(jql: str) -> list[str]:
    tokens, at = [], 0
    while at < len(jql.rstrip()):
        found = _TOKEN.match(jql, at)
        if found is None:
            raise JqlError(f"Error in the JQL Query: The character '{jql[at:].strip()[:1]}' is a reserved one.")
        tokens.append(next(group for group in found.groups() if group is not None))
        at = found.end()
    return tokens


def _unquoted(token: str) -> str:
    return unescaped(token[1:-1]) if token[:1] in "\"'" and len(token) > 1 else token


def _texts(field: str, issue: Issue) -> set[str]:
    value = (_TEXTS.get(field) or _TIMES[field])(issue)
    return {str(each).lower() for each in (value if isinstance(value, list) else [value])}

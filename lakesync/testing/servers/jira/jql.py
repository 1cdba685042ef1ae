"""A parser and evaluator of JQL, Jira's query language, for the search of the fake Jira site (`lakesync.testing`).

The route `search` calls it. It supports what connectors and users' filters need: comparisons, IN, AND, OR, NOT,
brackets and ORDER BY. A *bound* is a time before which no matching issue was updated. The search skips older issues,
because it has them sorted by time of update.
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from itertools import islice
from typing import Any, NamedTuple

from lakesync.testing.servers.jira.site import Issue
from lakesync.testing.servers.query_parser import COMPARE, Condition, QueryParser, split, unescape

_TOKEN = re.compile(r"""\s*(?:("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(!=|>=|<=|[=<>(),])|([^\s=<>!(),"']+))""")
"""A quoted string, a sign, or a word."""
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


class JqlError(ValueError):
    """A query that the API rejects. The message is the one that Jira sends."""


class Query(NamedTuple):
    """A parsed query."""

    matches: Callable[[Issue], bool]
    """Whether an issue matches the condition."""
    has_condition: bool
    """Whether the query has a condition. Jira rejects a search without one."""
    order: tuple[tuple[Callable[[Issue], Any], bool], ...]
    """The sort keys of ORDER BY, each with whether it is descending."""
    since: int
    """No issue that was updated before this time matches, in milliseconds since 1970; 0 if there is no bound."""

    def select(self, issues: Sequence[Issue], limit: int) -> list[Issue]:
        """Return the first matching issues in the order of ORDER BY, then by id.

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
        JqlError: the syntax or a date is wrong, or the query has an unknown field or an operator that its field lacks.
    """
    return _Parser(jql, timezone(timedelta(minutes=utc_offset_minutes))).query()


class _Parser(QueryParser[Issue]):
    """Parses JQL. The bound of a condition is a time of update, in milliseconds since 1970."""

    def __init__(self, jql: str, zone: timezone) -> None:
        super().__init__(_split(jql))
        self._zone = zone

    def query(self) -> Query:
        """Parse the whole query."""
        has_condition = self.next_word() not in ("ORDER", "")
        condition = self.parse_or() if has_condition else Condition[Issue](lambda _: True)
        order = self.parse_order(_order_of)
        self.expect_end()
        return Query(condition.matches, has_condition, order, condition.bound)

    def unexpected(self, token: str | None, expected: str) -> JqlError:
        """Return Jira's error."""
        found = "the end of the query" if token is None else f"'{token}'"
        return JqlError(f"Error in the JQL Query: Expecting {expected} but got {found}.")

    def parse_comparison(self) -> Condition[Issue]:
        """Parse a comparison of a field with a value, a time or a list."""
        field = _unquoted(self.take()).lower()
        if field not in _TEXT_FIELDS and field not in _TIME_FIELDS:
            raise JqlError(f"Field '{field}' does not exist or you do not have permission to view it.")
        negated = self.take_word("NOT")
        sign = self.take()
        if sign.upper() == "IN":
            values = self.parse_list(_unquoted)
            lowered = {value.lower() for value in values}
            return Condition(lambda issue: _texts(field, issue).isdisjoint(lowered) == negated)
        if sign not in COMPARE or negated or (field in _TEXT_FIELDS and sign not in ("=", "!=")):
            raise JqlError(f"Error in the JQL Query: The operator '{sign}' is not supported by the '{field}' field.")
        if field in _TIME_FIELDS:
            compare, moment = COMPARE[sign], self._parse_time(field, _unquoted(self.take()))
            since = moment if field == "updated" and sign in (">=", ">", "=") else 0
            return Condition(lambda issue: compare(_TIME_FIELDS[field](issue), moment), since)
        value = _unquoted(self.take()).lower()
        return Condition(lambda issue: (value in _texts(field, issue)) == (sign == "="))

    def _parse_time(self, field: str, text: str) -> int:
        """Return the time that a field is compared with, in milliseconds since 1970.

        Args:
            field: the field.
            text: milliseconds since 1970 in digits; or a date, perhaps with a time, in the account's zone.
        """
        if re.fullmatch(r"-?\d+", text):
            return int(text)
        for form in ("%Y-%m-%d %H:%M", "%Y/%m/%d %H:%M", "%Y-%m-%d", "%Y/%m/%d"):
            try:
                moment = datetime.strptime(text, form).replace(tzinfo=self._zone)
            except ValueError:
                continue
            return int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * 1000
        raise JqlError(f"Date value '{text}' for field '{field}' is invalid.")


def _order_of(field: str) -> Callable[[Issue], Any]:
    """Return the sort key of a field in ORDER BY."""
    if field.lower() not in _ORDERS:
        raise JqlError(f"Field '{field.lower()}' does not exist or you do not have permission to view it.")
    return _ORDERS[field.lower()]


def _split(jql: str) -> list[str]:
    """Split a query into tokens; quoted strings keep their quotes."""

    def error(position: int) -> JqlError:
        return JqlError(f"Error in the JQL Query: The character '{jql[position:].strip()[:1]}' is a reserved one.")

    return split(jql, _TOKEN, error)


def _unquoted(token: str) -> str:
    """Return the text that a token denotes."""
    return unescape(token[1:-1]) if token[:1] in "\"'" and len(token) > 1 else token


def _texts(field: str, issue: Issue) -> set[str]:
    """Return a field's values as texts in lower case, because JQL ignores case."""
    value = (_TEXT_FIELDS.get(field) or _TIME_FIELDS[field])(issue)
    return {str(each).lower() for each in (value if isinstance(value, list) else [value])}

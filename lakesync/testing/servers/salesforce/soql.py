"""A parser and evaluator of SOQL for the queries of the fake Salesforce server (`lakesync.testing.servers.salesforce`).

It supports what connectors and users' filters need: SELECT, COUNT(), WHERE, ORDER BY and LIMIT.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from lakesync.testing.servers import unescape
from lakesync.testing.servers.salesforce.org import FIELDS, RELATIONS, TIMES, Record, SalesforceOrg

_TOKEN = re.compile(
    r"""\s*(?:('(?:[^'\\]|\\.)*')|(!=|<>|>=|<=|[=<>(),])"""
    r"""|(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)|\d{4}-\d\d-\d\d)|([^\s=<>!(),']+))"""
)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}

Test = Callable[[Record], bool]
"""Whether a record matches a condition."""


class SoqlError(ValueError):
    """A query that the API rejects, with the error code and message that Salesforce sends."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Query(NamedTuple):
    """A parsed query."""

    kind: str
    """The object after FROM, such as `Account`."""
    fields: tuple[str, ...]
    """Empty for `COUNT()`."""
    matches: Test
    order: tuple[tuple[str, bool], ...]
    """The fields of ORDER BY, each with whether it is descending."""
    limit: int | None

    def select(self, org: SalesforceOrg, *, deleted: bool) -> list[Record]:
        """Return the matching records in the order of ORDER BY.

        Args:
            org: the organisation.
            deleted: whether to include the recycle bin (`queryAll`).
        """
        selected = [each for each in org.visible(self.kind, deleted=deleted) if self.matches(each)]
        selected.sort(key=lambda each: each.id)
        for name, descending in reversed(self.order):
            selected.sort(
                key=lambda each, name=name: _sort_key(org.field_of(each, name)),  # type: ignore[misc]
                reverse=descending,
            )
        return selected[: self.limit]


def parse(soql: str, org: SalesforceOrg) -> Query:
    """Parse a query.

    Args:
        soql: the query.
        org: the organisation, whose records the conditions read.

    Raises:
        SoqlError: the syntax is wrong (MALFORMED_QUERY), or the object (INVALID_TYPE) or a field (INVALID_FIELD) is
            unknown.
    """
    return _Parser(soql, org).query()


class _Parser:
    """A recursive descent parser of a query's tokens.

    `_parse_or` parses OR, `_parse_and` AND, and `_parse_term` NOT, brackets and comparisons.
    """

    def __init__(self, soql: str, org: SalesforceOrg) -> None:
        self._tokens = _split(soql)
        self._position = 0
        self._org = org
        self._kind = ""

    def query(self) -> Query:
        """Parse the whole query."""
        self._expect("SELECT")
        names = [self._take()]
        if names[0].upper() == "COUNT":
            self._expect("(")
            self._expect(")")
            names = []
        while self._next_word() == ",":
            self._take()
            names.append(self._take())
        self._expect("FROM")
        self._kind = self._take()
        if self._kind not in FIELDS:
            raise SoqlError("INVALID_TYPE", f"sObject type '{self._kind}' is not supported.")
        fields = tuple(self._field(name) for name in names)
        test: Test = lambda _: True  # noqa: E731 without WHERE every record matches
        if self._next_word() == "WHERE":
            self._take()
            test = self._parse_or()
        order = self._parse_order() if self._next_word() == "ORDER" else ()
        limit = None
        if self._next_word() == "LIMIT":
            self._take()
            if not (count := self._take()).isdecimal():
                raise SoqlError("MALFORMED_QUERY", f"unexpected token: '{count}'")
            limit = int(count)
        if self._position < len(self._tokens):
            raise SoqlError("MALFORMED_QUERY", f"unexpected token: '{self._tokens[self._position]}'")
        return Query(self._kind, fields, test, order, limit)

    def _next_word(self) -> str:
        """Return the next token in upper case without consuming it; empty at the end."""
        return self._tokens[self._position].upper() if self._position < len(self._tokens) else ""

    def _take(self) -> str:
        """Consume and return the next token."""
        if self._position == len(self._tokens):
            raise SoqlError("MALFORMED_QUERY", "unexpected end of the query")
        self._position += 1
        return self._tokens[self._position - 1]

    def _expect(self, word: str) -> None:
        """Consume the next token, which must be a certain word."""
        if (token := self._take()).upper() != word:
            raise SoqlError("MALFORMED_QUERY", f"unexpected token: '{token}'")

    def _field(self, name: str) -> str:
        """Return a field's name as the object spells it; that of a related object's field, unchecked, as given."""
        relation, dot, _ = name.partition(".")
        known = {each.lower(): each for each in FIELDS[self._kind]}
        if dot and RELATIONS.get(relation) in FIELDS[self._kind]:
            return name
        if name.lower() not in known:
            raise SoqlError("INVALID_FIELD", f"No such column '{name}' on entity '{self._kind}'.")
        return known[name.lower()]

    def _parse_or(self) -> Test:
        parts = [self._parse_and()]
        while self._next_word() == "OR":
            self._take()
            parts.append(self._parse_and())
        return lambda record: any(part(record) for part in parts)

    def _parse_and(self) -> Test:
        parts = [self._parse_term()]
        while self._next_word() == "AND":
            self._take()
            parts.append(self._parse_term())
        return lambda record: all(part(record) for part in parts)

    def _parse_term(self) -> Test:
        if self._next_word() == "NOT":
            self._take()
            inner = self._parse_term()
            return lambda record: not inner(record)
        if self._next_word() == "(":
            self._take()
            inner = self._parse_or()
            self._expect(")")
            return inner
        return self._parse_comparison()

    def _parse_comparison(self) -> Test:
        name = self._field(self._take())
        sign = self._take().upper()
        negated = sign == "NOT"
        if negated:
            sign = self._take().upper()
        if sign == "IN":
            values = self._parse_list()
            for value in values:
                _check_time(name, value)
            return lambda record: (_comparable(self._org.field_of(record, name)) in values) != negated
        if sign == "LIKE" and not negated:
            text = str(_value(self._take()))
            pattern = re.compile(re.escape(text).replace("%", ".*").replace("_", "."), re.IGNORECASE | re.DOTALL)
            return lambda record: pattern.fullmatch(str(self._org.field_of(record, name) or "")) is not None
        if sign not in _COMPARE or negated:
            raise SoqlError("MALFORMED_QUERY", f"unexpected token: '{sign}'")
        value, compare = _value(self._take()), _COMPARE[sign]
        _check_time(name, value)
        if name in TIMES and isinstance(value, float):
            time_ms = TIMES[name]  # faster than formatting and parsing the time: organisations have a million records
            return lambda record: compare(time_ms(record) / 1000, value)

        def test(record: Record) -> bool:
            actual = _comparable(self._org.field_of(record, name))
            if actual is None or value is None:  # as at Salesforce, null compares only with = and !=
                return compare(actual, value) if sign in ("=", "!=", "<>") else False
            try:
                return compare(actual, value)
            except TypeError:
                return False

        return test

    def _parse_list(self) -> list[Any]:
        """Parse the list after IN."""
        self._expect("(")
        values = []
        while True:
            values.append(_value(self._take()))
            if (end := self._take()) == ")":
                return values
            if end != ",":
                raise SoqlError("MALFORMED_QUERY", f"unexpected token: '{end}'")

    def _parse_order(self) -> tuple[tuple[str, bool], ...]:
        self._take()
        self._expect("BY")
        order = []
        while True:
            name = self._field(self._take())
            descending = self._next_word() == "DESC"
            if self._next_word() in ("ASC", "DESC"):
                self._take()
            order.append((name, descending))
            if self._next_word() != ",":
                return tuple(order)
            self._take()


def _split(soql: str) -> list[str]:
    """Split a query into tokens; strings keep their quotes."""
    tokens, position = [], 0
    while position < len(soql.rstrip()):
        match = _TOKEN.match(soql, position)
        if match is None:
            raise SoqlError(
                "MALFORMED_QUERY", f"line 1:{position} no viable alternative at character '{soql[position]}'"
            )
        tokens.append(next(group for group in match.groups() if group is not None))
        position = match.end()
    return tokens


def _value(token: str) -> Any:
    """Return the value of a literal in the form of `_comparable`."""
    if token.startswith("'"):
        return unescape(token[1:-1])
    lowered = token.lower()
    if lowered in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[lowered]
    if re.fullmatch(r"-?\d+(\.\d+)?", token):
        return float(token)
    if re.match(r"\d{4}-\d\d-\d\d", token):
        return _comparable(token)
    raise SoqlError("MALFORMED_QUERY", f"unexpected token: '{token}'")


def _check_time(field: str, value: Any) -> None:
    """Check that a time field is compared with a time or null, not with a date or a text.

    Raises:
        SoqlError: it is compared with another value (INVALID_FIELD).
    """
    if field in TIMES and not (value is None or isinstance(value, float)):
        raise SoqlError(
            "INVALID_FIELD",
            f"value of filter criterion for field '{field}' must be of type dateTime and should not be enclosed in"
            " quotes",
        )


def _comparable(value: Any) -> Any:
    """Return times as seconds since 1970 and numbers as floats, so that they compare; other values unchanged."""
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT.*", value):
        return datetime.fromisoformat(value).timestamp()
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def _sort_key(value: Any) -> tuple[bool, Any]:
    """Return the value by which ORDER BY sorts; null is first."""
    return (value is not None, _comparable(value) if value is not None else 0)

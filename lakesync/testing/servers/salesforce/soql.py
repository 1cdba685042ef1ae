"""A parser and evaluator of SOQL, Salesforce's query language, for the fake Salesforce server of `lakesync.testing`.

The routes of queries and query jobs call it. It supports what connectors and users' filters need: SELECT, COUNT(),
WHERE, ORDER BY and LIMIT.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from lakesync.testing.servers.query_parser import COMPARE, Condition, QueryParser, split, unescape
from lakesync.testing.servers.salesforce.org import FIELDS, RELATIONS, TIMES, Record, SalesforceOrg

_TOKEN = re.compile(
    r"""\s*(?:('(?:[^'\\]|\\.)*')|(!=|<>|>=|<=|[=<>(),])"""
    r"""|(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)|\d{4}-\d\d-\d\d)|([^\s=<>!(),']+))"""
)
"""A string in quotes, a sign, a time or date, or a word."""
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {**COMPARE, "<>": operator.ne}


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
    matches: Callable[[Record], bool]
    """Whether a record matches the condition."""
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


class _Parser(QueryParser[Record]):
    """Parses SOQL. No condition has a bound."""

    def __init__(self, soql: str, org: SalesforceOrg) -> None:
        super().__init__(_split(soql))
        self._org = org
        self._kind = ""

    def query(self) -> Query:
        """Parse the whole query."""
        self.expect("SELECT")
        names = [self.take()]
        if names[0].upper() == "COUNT":
            self.expect("(")
            self.expect(")")
            names = []
        while self.take_word(","):
            names.append(self.take())
        self.expect("FROM")
        self._kind = self.take()
        if self._kind not in FIELDS:
            raise SoqlError("INVALID_TYPE", f"sObject type '{self._kind}' is not supported.")
        fields = tuple(self._field(name) for name in names)
        matches = self.parse_or().matches if self.take_word("WHERE") else lambda _: True
        order = self.parse_order(self._field)
        limit = None
        if self.take_word("LIMIT"):
            if not (count := self.take()).isdecimal():
                raise self.unexpected(count, "a number")
            limit = int(count)
        self.expect_end()
        return Query(self._kind, fields, matches, order, limit)

    def unexpected(self, token: str | None, expected: str) -> SoqlError:  # noqa: ARG002 Salesforce does not send it
        """Return Salesforce's error."""
        return SoqlError(
            "MALFORMED_QUERY", "unexpected end of the query" if token is None else f"unexpected token: '{token}'"
        )

    def parse_comparison(self) -> Condition[Record]:
        """Parse a comparison of a field with a value, a pattern or a list."""
        name = self._field(self.take())
        negated = self.take_word("NOT")
        sign = self.take().upper()
        if sign == "IN":
            values = self.parse_list(_value)
            for value in values:
                _check_time(name, value)
            return Condition(lambda record: (_comparable(self._org.field_of(record, name)) in values) != negated)
        if sign == "LIKE" and not negated:
            text = str(_value(self.take()))
            pattern = re.compile(re.escape(text).replace("%", ".*").replace("_", "."), re.IGNORECASE | re.DOTALL)
            return Condition(lambda record: pattern.fullmatch(str(self._org.field_of(record, name) or "")) is not None)
        if sign not in _COMPARE or negated:
            raise self.unexpected(sign, "an operator")
        value, compare = _value(self.take()), _COMPARE[sign]
        _check_time(name, value)
        if name in TIMES and isinstance(value, float):
            time_ms = TIMES[name]  # faster than formatting and parsing the time: organisations have a million records
            return Condition(lambda record: compare(time_ms(record) / 1000, value))

        def test(record: Record) -> bool:
            actual = _comparable(self._org.field_of(record, name))
            if actual is None or value is None:  # as at Salesforce, null compares only with = and !=
                return compare(actual, value) if sign in ("=", "!=", "<>") else False
            try:
                return compare(actual, value)
            except TypeError:
                return False

        return Condition(test)

    def _field(self, name: str) -> str:
        """Return a field's name as the object spells it; that of a related object's field, unchecked, as given."""
        relation, dot, _ = name.partition(".")
        known = {each.lower(): each for each in FIELDS[self._kind]}
        if dot and RELATIONS.get(relation) in FIELDS[self._kind]:
            return name
        if name.lower() not in known:
            raise SoqlError("INVALID_FIELD", f"No such column '{name}' on entity '{self._kind}'.")
        return known[name.lower()]


def _split(soql: str) -> list[str]:
    """Split a query into tokens; strings keep their quotes."""

    def error(position: int) -> SoqlError:
        return SoqlError("MALFORMED_QUERY", f"line 1:{position} no viable alternative at character '{soql[position]}'")

    return split(soql, _TOKEN, error)


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
    """Return the value by which ORDER BY sorts; null is first, and with DESC last."""
    return (value is not None, _comparable(value) if value is not None else 0)

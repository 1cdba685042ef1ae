"""Sync rules decide which rows a client sees: their types, parser and presets, and the meaning of their filters.

A gateway is one app's stream of changes, with rules of its own. The rules consist of *buckets*. A bucket has tables,
and filters that compare a row's columns with constants or with the *claims* (fields) of a client's token. A client sees
the rows that are in a bucket for its claims.

The gateway's start, its admin routes and `lakesync rules` call `parse_rules`. `lakesync rules test`, sources (databases
from which clients pull) and checkpoints (all rows, for a client's first sync) ask `matches` about each row. Flows
(copies from one database to another) ask `holds` about each condition. For other pulls the gateway does not evaluate
rows: it looks them up by *bucket keys* (`rules.keys`), whose tests compare them with `matches`.

Values are compared as text: a string as it is, everything else as canonical JSON. `gt`, `lt`, `gte` and `lte` compare
numbers if both texts are decimal numbers, otherwise code points; they use the first ORDER_CHARS characters.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard, get_args

import msgspec

from lakesync.model.delta import jcs, jcs_raw
from lakesync.model.errors import ValidationError
from lakesync.model.schema import is_identifier
from lakesync.model.types import Claims, Operator

CLAIM_PREFIX = "jwt:"
"""The beginning of a filter's value that names a claim, as in `jwt:team`."""
MAX_NAME_CHARS = 64
"""The most characters of a bucket's name."""
MAX_INEQUALITY_FILTERS = 3
"""The most filters of a bucket that compare with a claim by another operator than `eq` or `in`. Each makes the keys
longer by which the gateway indexes the bucket's rows."""
ORDER_CHARS = 64
"""How many characters `gt`, `lt`, `gte` and `lte` compare. It is limited because a bucket key contains them."""

_OPERATORS = get_args(Operator)
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "lt": operator.lt,
    "gte": operator.ge,
    "lte": operator.le,
}
"""What the operators compare that need an order."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""A decimal number, as `gt`, `lt`, `gte` and `lte` recognise it."""
_decode_text = msgspec.json.Decoder(str).decode


class Filter(msgspec.Struct, frozen=True):
    """A condition on one column of a row."""

    column: str
    op: Operator
    value: str
    """What the column is compared with: a constant, or `jwt:` and the name of a claim."""

    @property
    def claim(self) -> str | None:
        """The claim that the column is compared with; None for a constant."""
        return self.value.removeprefix(CLAIM_PREFIX) if self.value.startswith(CLAIM_PREFIX) else None

    @property
    def is_equality(self) -> bool:
        """Whether the operator is `eq` or `in`, which mean the same."""
        return self.op in ("eq", "in")


class Bucket(msgspec.Struct, frozen=True):
    """A part of the rules: the rows of some tables that satisfy every filter."""

    name: str
    tables: tuple[str, ...]
    """The tables; empty for all tables."""
    filters: tuple[Filter, ...]

    def covers(self, table: str) -> bool:
        """Return whether rows of a table can be in the bucket."""
        return not self.tables or table in self.tables


class SyncRules(msgspec.Struct, frozen=True):
    """The rules of one gateway. A client sees the rows of all buckets; without buckets, every client sees every row."""

    version: int
    """A number that the author of the rules chooses. The gateway numbers changes of rules by itself."""
    buckets: tuple[Bucket, ...]

    def covers(self, table: str) -> bool:
        """Return whether any client may see rows of a table."""
        return not self.buckets or any(bucket.covers(table) for bucket in self.buckets)


def parse_rules(obj: Any) -> SyncRules:
    """Parse rules.

    Args:
        obj: a decoded JSON object, `{version, buckets}`.

    Raises:
        ValidationError: it has another form; the message has the index and name of the invalid part.
    """
    if not isinstance(obj, dict):
        raise ValidationError("sync rules are not a JSON object: send {version, buckets}")
    version = obj.get("version")
    if isinstance(version, float) and version.is_integer():
        version = int(version)  # JSON does not distinguish 1.0 from 1
    if type(version) is not int or version < 1:
        raise ValidationError(f'version {version!r} is not a positive integer: send {{"version": 1, "buckets": […]}}')
    buckets = tuple(_bucket(item, index) for index, item in enumerate(_list(obj, "buckets", "sync rules")))
    index_of_name: dict[str, int] = {}
    for index, bucket in enumerate(buckets):
        first = index_of_name.setdefault(bucket.name, index)
        if first != index:
            raise ValidationError(f"buckets[{index}] has the name {bucket.name!r} of buckets[{first}]: rename one")
    return SyncRules(version, buckets)


def all_rows_rules() -> SyncRules:
    """Return rules that show every row to every client."""
    return SyncRules(1, ())


def user_scoped(column: str, tables: tuple[str, ...] = ()) -> SyncRules:
    """Return rules that show a client the rows whose `column` is the client id, the claim `sub`.

    Args:
        column: the column that is compared with the client id.
        tables: the tables with visible rows; empty for all.
    """
    return SyncRules(1, (Bucket("user", tables, (Filter(column, "eq", "jwt:sub"),)),))


def matches(rules: SyncRules, table: str, values: Mapping[str, Any], claims: Claims) -> bool:
    """Return whether a client may see a row that is not deleted.

    Args:
        rules: the active rules.
        table: the row's table.
        values: column → value, as Python decodes JSON. A filter on a missing column is never satisfied.
        claims: the client's claims. A filter on a claim that is missing or an empty list is never satisfied, not even
            with `neq`.
    """
    if not rules.buckets:
        return True
    return any(_in_bucket(bucket, table, values, claims) for bucket in rules.buckets)


def holds(op: Operator, text: str, operands: Sequence[str]) -> bool:
    """Return whether a filter's comparison is true; always False without operands.

    Args:
        op: `eq` and `in` mean that the text is one of the operands, `neq` that it is none of them. The others compare
            with the first operand only, as the TypeScript implementation of the protocol does.
        text: the column's value, as `text_of` returns it.
        operands: what to compare with, as `operands_of` returns it.
    """
    if not operands:
        return False
    if op in ("eq", "in"):
        return text in operands
    if op == "neq":
        return text not in operands
    left, right = text[:ORDER_CHARS], operands[0][:ORDER_CHARS]
    if _NUMBER.fullmatch(left) and _NUMBER.fullmatch(right):
        return _ORDERS[op](float(left), float(right))
    return _ORDERS[op](left, right)


def operands_of(condition: Filter, claims: Claims) -> Sequence[str]:
    """Return what a filter compares a row's column with.

    Args:
        condition: the filter.
        claims: the client's claims.

    Returns:
        The filter's constant, or the values of the claim that it names; empty if the client lacks the claim.
    """
    name = condition.claim
    if name is None:
        return (condition.value,)
    value = claims.get(name)
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else value


def text_of(value: Any) -> str:
    """Return the text by which a decoded JSON value is compared."""
    return value if isinstance(value, str) else jcs(value)


def text_of_raw(raw: msgspec.Raw) -> str:
    """Return the text by which a JSON value is compared, given its encoded JSON.

    Raises:
        ValidationError: the value has no canonical form; accepted values have one.
    """
    text = bytes(raw)
    if text[:1] == b'"':
        return text[1:-1].decode() if b"\\" not in text else _decode_text(text)
    return jcs_raw(text)


def _bucket(obj: Any, position: int) -> Bucket:
    """Parse a bucket; a ValidationError begins with its `position` in the list."""
    where = f"buckets[{position}]"
    if not isinstance(obj, dict):
        raise ValidationError(f"{where} is not a JSON object: send {{name, tables, filters}}")
    name = obj.get("name")
    if not isinstance(name, str) or not name:
        raise ValidationError(f"{where}: name {name!r} is not a text, or is empty")
    if len(name) > MAX_NAME_CHARS:
        raise ValidationError(f"{where}: name has {len(name)} characters, at most {MAX_NAME_CHARS} are allowed")
    where = f"{where} {name!r}"
    tables = _list(obj, "tables", where)
    for index, table in enumerate(tables):
        if not isinstance(table, str) or not is_identifier(table):
            raise ValidationError(f"{where}: tables[{index}] {table!r} is not a table name")
    filters = tuple(
        _filter(item, f"{where}: filters[{index}]") for index, item in enumerate(_list(obj, "filters", where))
    )
    inequalities = sum(item.claim is not None and not item.is_equality for item in filters)
    if inequalities > MAX_INEQUALITY_FILTERS:
        raise ValidationError(
            f"{where}: {inequalities} filters compare with claims by other operators than eq and in, "
            f"at most {MAX_INEQUALITY_FILTERS} are allowed: split the bucket"
        )
    return Bucket(name, tuple(tables), filters)


def _filter(obj: Any, where: str) -> Filter:
    """Parse a filter; a ValidationError begins with `where`, the filter's place in the rules."""
    if not isinstance(obj, dict):
        raise ValidationError(f"{where} is not a JSON object: send {{column, op, value}}")
    column, op, value = obj.get("column"), obj.get("op"), obj.get("value")
    if not isinstance(column, str) or not is_identifier(column):
        raise ValidationError(f"{where}: column {column!r} is not a column name")
    if not _is_operator(op):
        raise ValidationError(f"{where} on {column!r}: op {op!r} is unknown: use one of {', '.join(_OPERATORS)}")
    if not isinstance(value, str):
        raise ValidationError(f"{where} on {column!r}: value {value!r} is not a string: write numbers as text too")
    if value == CLAIM_PREFIX:
        raise ValidationError(f"{where} on {column!r}: value {value!r} names no claim")
    return Filter(column, op, value)


def _is_operator(op: object) -> TypeGuard[Operator]:
    """Return whether a decoded JSON value is one of the operators."""
    return op in _OPERATORS


def _list(obj: dict[str, Any], name: str, where: str) -> list[Any]:
    """Return the list under a key; raises ValidationError if it is missing or no list."""
    value = obj.get(name)
    if not isinstance(value, list):
        raise ValidationError(f"{where}: {name} is not a list")
    return value


def _in_bucket(bucket: Bucket, table: str, values: Mapping[str, Any], claims: Claims) -> bool:
    """Return whether a row is in a bucket for a client with these claims; see `matches`."""
    if not bucket.covers(table):
        return False
    return all(
        condition.column in values
        and holds(condition.op, text_of(values[condition.column]), operands_of(condition, claims))
        for condition in bucket.filters
    )

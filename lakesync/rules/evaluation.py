"""The meaning of filters, and direct evaluation of rules for one row: `lakesync rules test` and sources use it.

The gateway itself evaluates rules through bucket keys (`rules.keys`), whose tests use `matches` as the oracle. Values
are compared as text: a string as it is, everything else as canonical JSON. `gt`, `lt`, `gte` and `lte` compare numbers
if both texts are decimal numbers, otherwise code points; they use the first ORDER_CHARS characters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lakesync.model.delta import jcs, jcs_raw
from lakesync.model.types import Claims
from lakesync.rules.model import Bucket, Filter, Operator, SyncRules

ORDER_CHARS = 64
"""`gt`, `lt`, `gte` and `lte` compare this many characters, so that a value fits into a bucket key."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_decode_text = msgspec.json.Decoder(str).decode


def matches(rules: SyncRules, table: str, values: Mapping[str, Any], claims: Claims) -> bool:
    """Return whether a client may see a visible row.

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
            with the first operand only, as the reference (the TypeScript system) does.
        text: the column's value, as `text_of` returns it.
        operands: what to compare with, as `operands_of` returns it.
    """
    if not operands:
        return False
    if op in ("eq", "in"):
        return text in operands
    if op == "neq":
        return text not in operands
    return _compare_order(op, text[:ORDER_CHARS], operands[0][:ORDER_CHARS])


def operands_of(condition: Filter, claims: Claims) -> Sequence[str]:
    """Return what a filter compares with: its constant, or the claim's values; empty if the claim is missing."""
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
    """Return the text by which a JSON value is compared, given its encoded JSON."""
    text = bytes(raw)
    if text[:1] == b'"':
        return text[1:-1].decode() if b"\\" not in text else _decode_text(text)
    return jcs_raw(text)


def _in_bucket(bucket: Bucket, table: str, values: Mapping[str, Any], claims: Claims) -> bool:
    if bucket.tables and table not in bucket.tables:
        return False
    return all(
        condition.column in values
        and holds(condition.op, text_of(values[condition.column]), operands_of(condition, claims))
        for condition in bucket.filters
    )


def _compare_order(op: Operator, left: str, right: str) -> bool:
    """Compare as numbers if both texts are decimal numbers, otherwise by code points."""
    if _NUMBER.fullmatch(left) and _NUMBER.fullmatch(right):
        return _compare(op, float(left), float(right))
    return _compare(op, left, right)


def _compare(op: Operator, left: Any, right: Any) -> bool:
    if op == "gt":
        return bool(left > right)
    if op == "lt":
        return bool(left < right)
    if op == "gte":
        return bool(left >= right)
    return bool(left <= right)

"""Bucket keys: a row is in some keys, a client may see some keys, and a row is visible where the two meet.

A key is a JSON list, `[bucket#digest, [texts compared for equality], [texts to be looked at]]`; the digest is of what
the bucket says. Filters on constants decide alone whether a row has the bucket's key. A filter by equality on a claim
puts the row's text into the key, which the client's claims then spell out. Any other filter on a claim puts the row's
text in too, behind the others: the client's keys are then found among those in use, by their prefix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product

import msgspec

from lakesync.rules.evaluation import ORDER_CHARS, holds, operands_of, text_of_raw
from lakesync.rules.model import Bucket, Filter, SyncRules
from lakesync.types import Claims, ColumnValue

EVERYTHING = "*"
"""The one key where there are no buckets."""

_MAX_TEXT_BYTES = 64
_MAX_GROUP_BYTES = 256


class BucketIndex:
    """The keys of one set of rules. Every key starts with `[` or is `*`, and is at most 2,000 bytes long."""

    def __init__(self, rules: SyncRules) -> None:
        self._plans = [_Plan(bucket) for bucket in rules.buckets]
        self._claims = frozenset(
            condition.claim for bucket in rules.buckets for condition in bucket.filters if condition.claim is not None
        )
        self._columns = frozenset(condition.column for bucket in rules.buckets for condition in bucket.filters)

    def reads(self, cells: Iterable[ColumnValue]) -> bool:
        """Whether any row's keys depend on any of these columns."""
        return bool(self._columns) and any(cell.column in self._columns for cell in cells)

    @property
    def everything(self) -> bool:
        """Whether there are no rules: every visible row is in the one key `*`."""
        return not self._plans

    def row_keys(self, table: str, values: Mapping[str, msgspec.Raw]) -> frozenset[str]:
        """The keys that a visible row of `table` with these column values is in."""
        if not self._plans:
            return _ALL
        texts = _Texts(values)
        return frozenset(key for plan in self._plans if (key := plan.row_key(table, texts)) is not None)

    def client_keys(self, claims: Claims, existing: Callable[[str], Iterable[str]]) -> frozenset[str]:
        """The keys that a client with these claims may see.

        Args:
            claims: the client's claims.
            existing: the keys in use that start with a prefix; asked only for buckets that compare a claim by other
                than equality.
        """
        if not self._plans:
            return _ALL
        return frozenset(key for plan in self._plans for key in plan.client_keys(claims, existing))

    def client_prefixes(self, claims: Claims) -> frozenset[str]:
        """What keys begin with that a client with these claims may come to see, besides those of `client_keys`.

        `prefix_of` gives a key's own.
        """
        return frozenset(prefix for plan in self._plans if plan.looked_at for prefix in plan.client_prefixes(claims))

    def relevant(self, claims: Claims) -> Claims:
        """The claims that the rules read."""
        return {name: value for name, value in claims.items() if name in self._claims}


class _Texts:
    """A row's compared texts, each made once."""

    __slots__ = ("_known", "_values")

    def __init__(self, values: Mapping[str, msgspec.Raw]) -> None:
        self._values = values
        self._known: dict[str, str | None] = {}

    def get(self, column: str) -> str | None:
        if column not in self._known:
            value = self._values.get(column)
            self._known[column] = None if value is None else text_of_raw(value)
        return self._known[column]


class _Plan:
    """One bucket, its filters sorted by what they do to keys."""

    def __init__(self, bucket: Bucket) -> None:
        self.label = _label(bucket)
        self.tables = frozenset(bucket.tables)
        self.constant = [item for item in bucket.filters if item.claim is None]
        self.equal = [item for item in bucket.filters if item.claim is not None and item.equality]
        self.looked_at = [item for item in bucket.filters if item.claim is not None and not item.equality]

    def row_key(self, table: str, texts: _Texts) -> str | None:
        if self.tables and table not in self.tables:
            return None
        for condition in self.constant:
            text = texts.get(condition.column)
            if text is None or not holds(condition.op, text, (condition.value,)):
                return None
        equal: list[str] = []
        for condition in self.equal:
            text = texts.get(condition.column)
            if text is None:
                return None
            equal.append(text)
        parts: list[_Part] = []
        for condition in self.looked_at:
            text = texts.get(condition.column)
            if text is None:
                return None
            parts.append(_part(condition, text))
        return self._prefix(equal) + (_json(parts)[1:] + "]" if self.looked_at else "")

    def client_keys(self, claims: Claims, existing: Callable[[str], Iterable[str]]) -> Iterator[str]:
        operands = [operands_of(condition, claims) for condition in self.looked_at]
        if not all(operands):
            return
        for prefix in self.client_prefixes(claims):
            if not self.looked_at:
                yield prefix
                continue
            for key in existing(prefix):
                if self._shows(key, operands):
                    yield key

    def client_prefixes(self, claims: Claims) -> Iterator[str]:
        choices = [dict.fromkeys(operands_of(condition, claims)) for condition in self.equal]
        return map(self._prefix, product(*choices))

    def _shows(self, key: str, operands: Sequence[Sequence[str]]) -> bool:
        parts = _decode(key)[2]
        return all(
            _part_holds(condition, part, values)
            for condition, part, values in zip(self.looked_at, parts, operands, strict=True)
        )

    def _prefix(self, equal: Sequence[str]) -> str:
        """The whole key where nothing is to be looked at, else the key up to what is."""
        group = _json(equal)
        if len(group.encode()) > _MAX_GROUP_BYTES:
            group = f'"{hashlib.sha256(group.encode()).hexdigest()}"'
        return f"[{_json(self.label)},{group}{',[' if self.looked_at else ']'}"


def prefix_of(key: str) -> str | None:
    """A key up to what is to be looked at; None where nothing is."""
    if not key.startswith("[") or len(parts := _decode_any(key)) < 3:
        return None
    return f"[{_json(parts[0])},{_json(parts[1])},["


def _label(bucket: Bucket) -> str:
    """A bucket's name with a digest of what it says: a key never comes to mean something else."""
    said = (sorted(bucket.tables), [(item.column, item.op, item.value) for item in bucket.filters])
    return f"{bucket.name}#{hashlib.sha256(_encode(said)).hexdigest()[:12]}"


_Part = str | list[str]
"""A text, or in a list the digest of a long one."""

_ALL = frozenset((EVERYTHING,))
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[str, str | list[str], list[_Part]]).decode
_decode_any = msgspec.json.Decoder(list[str | list[_Part]]).decode


def _json(value: object) -> str:
    return _encode(value).decode()


def _part(condition: Filter, text: str) -> _Part:
    """What a key keeps of a text that is to be looked at."""
    if condition.op != "neq":
        return text[:ORDER_CHARS]
    if len(text.encode()) <= _MAX_TEXT_BYTES:
        return text
    return [hashlib.sha256(text.encode()).hexdigest()]


def _part_holds(condition: Filter, part: _Part, operands: Sequence[str]) -> bool:
    if condition.op == "neq":
        return all(_part(condition, operand) != part for operand in operands)
    return isinstance(part, str) and holds(condition.op, part, operands)

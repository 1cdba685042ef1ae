"""Bucket keys: a row is in some keys, a client may see some keys, and a row is visible where the two meet.

A key is a JSON list, `[bucket#digest, [texts compared for equality], [texts to be looked at]]`; the digest is of what
the bucket says. Filters on constants decide alone whether a row has the bucket's key. A filter by equality on a claim
puts the row's text into the key, which the client's claims then spell out. Any other filter on a claim puts the row's
text in too, behind the others: the client's keys are then found among those in use, by their prefix. So they are where
the lists in a client's claims would multiply to more than `MOST_SPELLED` keys of one bucket.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod

import msgspec

from lakesync.model.types import Claims
from lakesync.rules.evaluation import ORDER_CHARS, holds, operands_of, text_of_raw
from lakesync.rules.model import Bucket, Filter, SyncRules

EVERYTHING = "*"
"""The one key where there are no buckets."""

_MAX_TEXT_BYTES = 64
_MAX_GROUP_BYTES = 256
MOST_SPELLED = 1000
"""Keys of one bucket that are spelled out from a client's claims, whether they are in use or not."""


class BucketIndex:
    """The keys of one set of rules. Every key starts with `[` or is `*`, and is at most 2,000 bytes long."""

    def __init__(self, rules: SyncRules, most_spelled: int = MOST_SPELLED) -> None:
        self._plans = [_Plan(bucket, most_spelled) for bucket in rules.buckets]
        self._claims = frozenset(
            condition.claim for bucket in rules.buckets for condition in bucket.filters if condition.claim is not None
        )
        self.columns = frozenset(condition.column for bucket in rules.buckets for condition in bucket.filters)
        """The columns that the keys of rows depend on; beside the table they depend on nothing else."""

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
                than equality, or that the claims give too many keys of.
        """
        if not self._plans:
            return _ALL
        return frozenset(key for plan in self._plans for key in plan.client_keys(claims, existing))

    def client_prefixes(self, claims: Claims) -> frozenset[str]:
        """What keys begin with that a client with these claims may come to see, besides those of `client_keys`.

        `prefixes_of` gives a key's own.
        """
        return frozenset(prefix for plan in self._plans for prefix in plan.awaited(claims))

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

    def __init__(self, bucket: Bucket, most_spelled: int) -> None:
        self.most_spelled = most_spelled
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
        choices = self._choices(claims)
        if self._are_many(choices):
            known = self._known_groups(choices, found := list(existing(self._start)))
            yield from (key for key in found if known(key) and self._shows(key, operands))
            return
        for prefix in map(self._prefix, product(*choices)):
            if not self.looked_at:
                yield prefix
                continue
            for key in existing(prefix):
                if self._shows(key, operands):
                    yield key

    def awaited(self, claims: Claims) -> Iterable[str]:
        """What keys begin with that have to be in use before a client with these claims is known to see them."""
        choices = self._choices(claims)
        if self._are_many(choices):
            return (self._start,)
        return map(self._prefix, product(*choices)) if self.looked_at else ()

    def _choices(self, claims: Claims) -> list[Mapping[str, None]]:
        """The texts that each filter by equality lets through."""
        return [dict.fromkeys(operands_of(condition, claims)) for condition in self.equal]

    def _are_many(self, choices: Sequence[Mapping[str, None]]) -> bool:
        """Whether the texts multiply to more keys than are spelled out."""
        return prod(map(len, choices)) > self.most_spelled

    @property
    def _start(self) -> str:
        """What each of its keys begins with."""
        return f"[{_json(self.label)},"

    def _known_groups(self, choices: Sequence[Mapping[str, None]], keys: Iterable[str]) -> Callable[[str], bool]:
        """Whether a key in use is of texts that the filters by equality let through, looked up filter by filter."""
        hashed: set[str] = set()
        if any(isinstance(_decode_any(key)[1], str) for key in keys):  # of texts so long that keys have their digest
            hashed = {_json(group) for texts in product(*choices) if isinstance(group := _group(texts), str)}

        def is_known(key: str) -> bool:
            group = _decode_any(key)[1]
            if isinstance(group, str):
                return _json(group) in hashed
            return all(text in allowed for text, allowed in zip(group, choices, strict=True))

        return is_known

    def _shows(self, key: str, operands: Sequence[Sequence[str]]) -> bool:
        if not self.looked_at:
            return True
        parts = _decode(key)[2]
        return all(
            _part_holds(condition, part, values)
            for condition, part, values in zip(self.looked_at, parts, operands, strict=True)
        )

    def _prefix(self, equal: Sequence[str]) -> str:
        """The whole key where nothing is to be looked at, else the key up to what is."""
        return f"{self._start}{_json(_group(equal))}{',[' if self.looked_at else ']'}"


def prefixes_of(key: str) -> tuple[str, ...]:
    """A key's bucket, and the key up to what is to be looked at, where something is; nothing of other keys."""
    if not key.startswith("["):
        return ()
    parts = _decode_any(key)
    start = f"[{_json(parts[0])},"
    return (start,) if len(parts) < 3 else (start, f"{start}{_json(parts[1])},[")


def _group(equal: Sequence[str]) -> Sequence[str] | str:
    """What a key keeps of the texts compared for equality: of long ones a digest."""
    spelled = _json(equal).encode()
    return equal if len(spelled) <= _MAX_GROUP_BYTES else hashlib.sha256(spelled).hexdigest()


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

"""Bucket keys: rows have keys, a client's claims give it keys, and the client sees the rows with one of its keys.

Sync rules decide which rows a client sees. They consist of *buckets*: tables, and filters that compare a row's columns
with constants or with *claims*, the fields of a client's token (`rules.model`). The *feed*, from which clients pull
changes, is indexed by bucket keys, so that a pull reads only what its client may see. The gateway computes the keys of
a row when it commits a push or the rules change, and those of a client when it pulls; `docs/feed.md` explains them.

A key is a JSON list: `[bucket#digest, [texts of equality filters], [texts of inequality filters]]`. The digest is that
of the bucket's definition; a text is a row's value as filters compare it. By a bucket `mine` with a filter that
compares `team` with the claim `jwt:team`, a row whose `team` is `red` has the key `["mine#01f4c768972d",["red"]]`, and
so has a client whose claim `team` is `red`. Each filter has one of three effects:

- A filter on a constant decides whether a row has a key of the bucket at all.
- An *equality filter* (`eq` or `in`) on a claim puts the row's text in the key. A client's keys can be computed from
  its claims.
- An *inequality filter* (any other operator) on a claim puts the row's text at the end of the key. A client's keys are
  searched for among the keys that rows have, by the prefix before these texts.

Keys are also searched for if claims are lists, and more than `MAX_COMPUTED_KEYS` keys of one bucket would be computed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice, product
from math import prod

import msgspec
import structlog

from lakesync.model.types import Claims
from lakesync.rules.model import ORDER_CHARS, Bucket, Filter, SyncRules, holds, operands_of, text_of_raw

_log = structlog.get_logger("rules")

EVERYTHING = "*"
"""The only key if the rules have no buckets: every client sees every row."""

_MAX_TEXT_BYTES = 64
"""A longer text of a `neq` filter is replaced by its digest (SHA-256), so that keys stay short."""
_MAX_GROUP_BYTES = 256
"""If the texts of a key's equality filters are longer than this, as a JSON list, their digest replaces them."""
_MAX_PREFIXES = 10_000
"""The most keys, or prefixes of keys, in the cache of one bucket."""
MAX_COMPUTED_KEYS = 1000
"""The most keys of one bucket that are computed from a client's claims. Instead of more, the keys of existing rows are
searched."""


_MAX_DIGESTS = 100_000
"""The most digests of long texts that are computed from a client's claims when keys are searched. They take about 0.2 s
of the store's thread."""


class BucketIndex:
    """Computes the keys of rows and clients by one set of rules.

    Every key starts with `[` or is `*`, and has at most 2,000 bytes.
    """

    def __init__(self, rules: SyncRules, max_computed_keys: int = MAX_COMPUTED_KEYS) -> None:
        """Prepare the rules.

        Args:
            rules: the rules.
            max_computed_keys: see `MAX_COMPUTED_KEYS`; tests set a lower number.
        """
        self._rules = rules
        self._buckets = [_BucketKeys(bucket, max_computed_keys) for bucket in rules.buckets]
        self._claims = frozenset(
            condition.claim for bucket in rules.buckets for condition in bucket.filters if condition.claim is not None
        )
        self.columns = frozenset(condition.column for bucket in rules.buckets for condition in bucket.filters)
        """The columns on which the keys of rows depend, apart from the table."""

    @property
    def shows_all_rows(self) -> bool:
        """Whether the rules have no buckets, so that every visible row has the key `*`."""
        return not self._buckets

    def covers_table(self, table: str) -> bool:
        """Return whether a row of this table can be in a bucket."""
        return self._rules.covers(table)

    def row_keys(self, table: str, values: Mapping[str, msgspec.Raw]) -> frozenset[str]:
        """Return the keys of a visible row.

        Args:
            table: the row's table.
            values: the row's values as JSON, by column.
        """
        if not self._buckets:
            return _ALL
        texts = _Texts(values)
        return frozenset(key for bucket in self._buckets if (key := bucket.row_key(table, texts)) is not None)

    def client_keys(self, claims: Claims, existing: Callable[[str], Iterable[str]]) -> frozenset[str]:
        """Return the keys of the rows that a client may see.

        Args:
            claims: the client's claims.
            existing: returns the keys that rows have and that start with a prefix. Called only for buckets whose keys
                cannot be computed from the claims.
        """
        if not self._buckets:
            return _ALL
        return frozenset(key for bucket in self._buckets for key in bucket.client_keys(claims, existing))

    def client_keys_among(self, claims: Claims, keys: Collection[str]) -> frozenset[str]:
        """Return the keys that a client may see, as if no other keys than these were in use.

        Args:
            claims: the client's claims.
            keys: the keys of some rows.
        """
        return self.client_keys(claims, lambda prefix: [key for key in keys if key.startswith(prefix)])

    def client_prefixes(self, claims: Claims) -> frozenset[str]:
        """Return prefixes of keys that the client may see once a row has them, and that cannot be computed now.

        When a row gets a new key, `prefixes_of` returns the key's prefixes. They lead to the connected clients that may
        see the row.
        """
        return frozenset(prefix for bucket in self._buckets for prefix in bucket.client_prefixes(claims))

    def claims_read(self, claims: Claims) -> Claims:
        """Return the claims that the rules read. Clients with equal values in these see the same rows."""
        return {name: value for name, value in claims.items() if name in self._claims}


class _Texts:
    """The texts by which a row's values are compared, each computed once."""

    __slots__ = ("_known", "_values")

    def __init__(self, values: Mapping[str, msgspec.Raw]) -> None:
        self._values = values
        self._known: dict[str, str | None] = {}
        """Column → its text, None for a column without a value; the texts that were computed so far."""

    def get(self, column: str) -> str | None:
        """Return the text of a column; None if the row has no value in it."""
        if column not in self._known:
            value = self._values.get(column)
            self._known[column] = None if value is None else text_of_raw(value)
        return self._known[column]


class _BucketKeys:
    """The keys of one bucket, whose filters are grouped by their effect on keys."""

    def __init__(self, bucket: Bucket, max_computed_keys: int) -> None:
        """Group the filters of a bucket; for `max_computed_keys` see `BucketIndex`."""
        self.max_computed_keys = max_computed_keys
        self.label = _label(bucket)
        self.tables = frozenset(bucket.tables)
        # the filters on constants, the equality filters and the inequality filters
        self.constant = [item for item in bucket.filters if item.claim is None]
        self.equal = [item for item in bucket.filters if item.claim is not None and item.is_equality]
        self.inequalities = [item for item in bucket.filters if item.claim is not None and not item.is_equality]
        self._start = f"[{_json(self.label)},"
        """The prefix of all keys of the bucket."""
        self._prefix = lru_cache(_MAX_PREFIXES)(self._new_prefix)
        """Like `_new_prefix`. Many rows share a key; with the cache it is also one string in memory."""

    def row_key(self, table: str, texts: _Texts) -> str | None:
        """Return the bucket's key of a row; None if the row is not in the bucket.

        Args:
            table: the row's table.
            texts: the row's values.
        """
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
        for condition in self.inequalities:
            text = texts.get(condition.column)
            if text is None:
                return None
            parts.append(_part(condition, text))
        return self._prefix(tuple(equal)) + (_json(parts)[1:] + "]" if self.inequalities else "")

    def client_keys(self, claims: Claims, existing: Callable[[str], Iterable[str]]) -> Iterator[str]:
        """Yield the bucket's keys that a client may see; see `BucketIndex.client_keys`."""
        operands = [operands_of(condition, claims) for condition in self.inequalities]
        if not all(operands):
            return
        choices = self._choices(claims)
        if self._is_above_limit(choices):  # search the keys of rows, instead of computing the keys of the claims
            in_use = list(existing(self._start))
            has_equal_texts = self._accepts_equal_texts(choices, in_use)
            yield from (key for key in in_use if has_equal_texts(key) and self._accepts_other_texts(key, operands))
            return
        for prefix in map(self._prefix, product(*choices)):
            if not self.inequalities:
                yield prefix
                continue
            for key in existing(prefix):
                if self._accepts_other_texts(key, operands):
                    yield key

    def client_prefixes(self, claims: Claims) -> Iterable[str]:
        """Return the bucket's part of `BucketIndex.client_prefixes`."""
        choices = self._choices(claims)
        if self._is_above_limit(choices):
            return (self._start,)
        return map(self._prefix, product(*choices)) if self.inequalities else ()

    def _choices(self, claims: Claims) -> list[Mapping[str, None]]:
        """Return the texts that each equality filter accepts, without duplicates and in order."""
        return [dict.fromkeys(operands_of(condition, claims)) for condition in self.equal]

    def _is_above_limit(self, choices: Sequence[Mapping[str, None]]) -> bool:
        """Return whether these texts can be combined to more keys than `max_computed_keys`."""
        return prod(map(len, choices)) > self.max_computed_keys

    def _accepts_equal_texts(self, choices: Sequence[Mapping[str, None]], keys: Iterable[str]) -> Callable[[str], bool]:
        """Return a function that returns whether the equality filters accept the texts in a key.

        Args:
            choices: the texts that each equality filter accepts.
            keys: the keys for which the function will be called.
        """
        digests: set[str] = set()
        if any(isinstance(_decode_any(key)[1], str) for key in keys):  # keys of long texts contain a digest
            digests = self._digests(choices)

        def is_accepted(key: str) -> bool:
            group = _decode_any(key)[1]
            if isinstance(group, str):
                return group in digests
            return all(text in allowed for text, allowed in zip(group, choices, strict=True))

        return is_accepted

    def _digests(self, choices: Sequence[Mapping[str, None]]) -> set[str]:
        """Return the digests of the combinations of texts that are long enough to have one.

        If there are more than `_MAX_DIGESTS`, none is returned, so that one client cannot occupy the store.
        """
        found = {_digest(texts) for texts in islice(_long_combinations(choices), _MAX_DIGESTS + 1)}
        if len(found) <= _MAX_DIGESTS:
            return found
        _log.warning("rows with long texts are not shown: the lists in a client's claims multiply", bucket=self.label)
        return set()

    def _accepts_other_texts(self, key: str, operands: Sequence[Sequence[str]]) -> bool:
        """Return whether the inequality filters accept the texts in a key.

        Args:
            key: a key of this bucket.
            operands: what each of these filters compares with.
        """
        if not self.inequalities:
            return True
        parts = _decode(key)[2]
        return all(
            _part_holds(condition, part, values)
            for condition, part, values in zip(self.inequalities, parts, operands, strict=True)
        )

    def _new_prefix(self, equal: tuple[str, ...]) -> str:
        """Return the whole key if there are no inequality filters, otherwise the key up to their texts.

        Args:
            equal: the texts of the equality filters, in the order of the filters.
        """
        return f"{self._start}{_group(equal)}{',[' if self.inequalities else ']'}"


def prefixes_of(key: str) -> tuple[str, ...]:
    """Return the prefixes by which `BucketIndex.client_prefixes` may name a key.

    They are the prefix of all keys of the bucket and, if the bucket has inequality filters, the key up to their texts.
    The key `*` has no prefixes.
    """
    if not key.startswith("["):
        return ()
    parts = _decode_any(key)
    start = f"[{_json(parts[0])},"
    has_inequalities = len(parts) == 3
    return (start, f"{start}{_json(parts[1])},[") if has_inequalities else (start,)


def _long_combinations(choices: Sequence[Iterable[str]]) -> Iterator[bytes]:
    """Yield, as JSON, the combinations of one text of each list that are longer than `_MAX_GROUP_BYTES`.

    Each list is tried from its longest text on, and left once even the longest texts of the lists after it do not make
    the combination long enough. So the cost grows with the number of results, not with that of all combinations.

    Args:
        choices: the lists, none of them empty.
    """
    encoded = [sorted(map(_encode, texts), key=len, reverse=True) for texts in choices]
    # for each list, and the end: the size of the longest texts of the lists from there on, each with its comma
    longest = [sum(len(texts[0]) + 1 for texts in encoded[start:]) for start in range(len(encoded) + 1)]

    def extend(start: tuple[bytes, ...], size: int) -> Iterator[bytes]:
        index = len(start)
        if index == len(encoded):
            yield b"[" + b",".join(start) + b"]"
            return
        for text in encoded[index]:
            size_with_text = size + len(text) + 1
            if size_with_text + longest[index + 1] < _MAX_GROUP_BYTES:  # a list has one bracket more than commas
                return  # the texts that follow are not longer
            yield from extend((*start, text), size_with_text)

    return extend((), 0)


def _group(equal: Sequence[str]) -> str:
    """Return the part of a key for the texts of equality filters, as JSON: the texts, or a digest if they are long."""
    encoded = _encode(equal)
    return encoded.decode() if len(encoded) <= _MAX_GROUP_BYTES else f'"{_digest(encoded)}"'


def _digest(encoded: bytes) -> str:
    """Return the digest that takes the place of long texts, or of a bucket's definition, in a key."""
    return hashlib.sha256(encoded).hexdigest()


def _label(bucket: Bucket) -> str:
    """Return a bucket's name with a digest of its definition, so that a key never changes its meaning."""
    definition = (sorted(bucket.tables), [(item.column, item.op, item.value) for item in bucket.filters])
    return f"{bucket.name}#{_digest(_encode(definition))[:12]}"


_Part = str | list[str]
"""The part of a key for one inequality filter: a text, or a list with the digest of a long text."""

_ALL = frozenset((EVERYTHING,))
"""The keys of every row and client if the rules have no buckets."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[str, str | list[str], list[_Part]]).decode
"""Decodes a key of a bucket with inequality filters."""
_decode_any = msgspec.json.Decoder(list[str | list[_Part]]).decode
"""Decodes a key of any bucket, without checking how many parts it has."""


def _json(value: object) -> str:
    """Return a value as compact JSON, the spelling that keys have."""
    return _encode(value).decode()


def _part(condition: Filter, text: str) -> _Part:
    """Return the part of a key for an inequality filter, given the row's text."""
    if condition.op != "neq":
        return text[:ORDER_CHARS]  # order filters compare no more characters
    encoded = text.encode()
    return text if len(encoded) <= _MAX_TEXT_BYTES else [_digest(encoded)]


def _part_holds(condition: Filter, part: _Part, operands: Sequence[str]) -> bool:
    """Return whether an inequality filter accepts the text that a key's part encodes."""
    if condition.op == "neq":
        return all(_part(condition, operand) != part for operand in operands)
    return isinstance(part, str) and holds(condition.op, part, operands)

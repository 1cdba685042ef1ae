"""The values of many rows by column, as SQLite takes them; no object is made of a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, cast

import msgspec

from lakesync.model.errors import ValidationError
from lakesync.model.schema import ColumnType
from lakesync.model.types import RowDelta
from lakesync.wire.pages import PageDelta, cells_of, flat

Value = bytes | memoryview | msgspec.Raw
Types = Mapping[str, Mapping[str, ColumnType]]
"""What the columns of each table hold."""

_NOTHING = type(None)
_FITTING: dict[ColumnType, frozenset[type]] = {
    "string": frozenset({str, _NOTHING}),
    "number": frozenset({int, float, _NOTHING}),
    "boolean": frozenset({bool, _NOTHING}),
    "null": frozenset({_NOTHING}),
}
_DECODED: dict[ColumnType, Any] = {
    "string": str | None,
    "number": int | float | None,
    "boolean": bool | None,
    "null": None,
    "json": msgspec.Raw,
}
_LEAST, _MOST = -(2**63), 2**63 - 1024
"""Within them, a number is one that SQLite holds as it is."""
_AT_ONCE = 100
"""Deltas whose columns are decoded together: they stay in the processor's own memory."""
_HALF = b"\\u"
"""Without it, no JSON text has half a surrogate pair, which is no text."""
_decode = msgspec.json.Decoder().decode
_column_of, _value_of = attrgetter("column"), attrgetter("value")


class MisfitError(Exception):
    """A table has no schema, lacks a column, or a type does not hold a value: these rows go the other way."""


class Columns(NamedTuple):
    """Deltas that have the same columns."""

    names: tuple[str, ...]
    places: Sequence[int]
    """Which of those asked about they are."""
    values: list[Any]
    """As JSON: of the first, then of the second, and so on."""


def by_columns(deltas: Sequence[RowDelta]) -> Iterable[Columns]:
    """Deltas by the names of their columns.

    Raises:
        MisfitError: their columns cannot be read.
    """
    names: list[str] = []
    values: list[Any] = []
    widths: list[int] = []
    try:
        for some in cells_of(deltas):
            cells = flat(some)
            names += map(_column_of, cells)
            values += map(_value_of, cells)
            widths += map(len, some)
    except ValidationError:
        raise MisfitError from None
    first = names[: widths[0]] if widths else []
    if set(widths) <= {len(first)} and names == first * len(deltas):
        return [Columns(tuple(first), range(len(deltas)), values)]
    found: dict[tuple[str, ...], Columns] = {}
    start = 0
    for place, width in enumerate(widths):
        key = tuple(names[start : start + width])
        one = found.setdefault(key, Columns(key, [], []))
        cast("list[int]", one.places).append(place)
        one.values.extend(values[start : start + width])
        start += width
    return found.values()


class Read(NamedTuple):
    """Deltas that have the same columns."""

    names: tuple[str, ...]
    columns: list[Sequence[Any]]
    """Their values by column, as SQLite takes them."""


def read_alike(deltas: Sequence[RowDelta], types: Mapping[str, ColumnType]) -> Read | None:
    """A page's deltas, decoded by what their columns hold; None where that is not seen so: some have other columns
    than the first, or a value is not of its column's type.
    """
    texts = [delta.cells for delta in cast("Sequence[RowDelta | PageDelta]", deltas) if isinstance(delta, PageDelta)]
    if not texts or len(texts) < len(deltas):
        return None
    try:
        names = tuple(map(_column_of, deltas[0].columns))
    except ValidationError:
        return None
    if not names or not all(name in types for name in names) or len(set(names)) < len(names):
        return None
    kinds = [types[name] for name in names]
    decode = _decoder(tuple(zip(names, kinds, strict=True)))
    values: list[Any] = []
    escaped = False
    try:
        for start in range(0, len(texts), _AT_ONCE):
            text = b"[" + b",".join(texts[start : start + _AT_ONCE]) + b"]"
            escaped = escaped or _HALF in text
            values += map(_value_of, chain.from_iterable(decode(text)))
        columns = [values[place :: len(names)] for place in range(len(names))]
        return Read(names, [_as_held(kind, found, escaped=escaped) for kind, found in zip(kinds, columns, strict=True)])
    except (msgspec.MsgspecError, UnicodeError, RecursionError, MisfitError):
        return None


def read_column(kind: ColumnType, values: Sequence[Value]) -> Sequence[Any]:
    """The values of a column, which are JSON.

    Raises:
        MisfitError: one is not of the column's type.
    """
    joined = b",".join(values)
    escaped = _HALF in joined
    try:
        found: list[Any] = _decode(b"[" + joined + b"]")
        if len(found) != len(values):
            raise MisfitError
        if kind == "json":
            return _as_held(kind, values, escaped=escaped)
        if not set(map(type, found)) <= _FITTING[kind]:
            raise MisfitError
        return _as_held(kind, found, escaped=escaped)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise MisfitError from None


def _as_held(kind: ColumnType, values: Sequence[Any], *, escaped: bool) -> Sequence[Any]:
    """Values of a column as SQLite takes them: of its type already, or, of a JSON column, text.

    Raises:
        MisfitError, UnicodeError: one of them is not kept as it is.
    """
    if kind == "json":
        if escaped:
            raise MisfitError
        return [None if (text := bytes(value).strip()) == b"null" else text.decode() for value in values]
    if kind == "string" and escaped:
        "".join([value for value in values if value is not None]).encode()
    if kind == "number":
        numbers = [value for value in values if value is not None]
        if numbers and (min(numbers) < _LEAST or max(numbers) > _MOST):
            raise MisfitError
    if kind == "boolean":  # sqlite3 takes long over what is no int, float, str or bytearray
        return [None if value is None else int(value) for value in values]
    return values


@lru_cache(256)
def _decoder(columns: tuple[tuple[str, ColumnType], ...]) -> Any:
    """Reads lists of deltas' columns, which are these in this order."""
    cells = [
        msgspec.defstruct("Cell", [("value", _DECODED[kind])], tag_field="column", tag=name, frozen=True, gc=False)
        for name, kind in columns
    ]
    return msgspec.json.Decoder(list[tuple[tuple(cells)]]).decode  # type: ignore[misc]

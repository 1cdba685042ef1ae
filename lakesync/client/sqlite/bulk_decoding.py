"""Decoding the column values of many deltas at once, column by column, for pages and checkpoints.

A delta is a change of some columns of one row; its values are JSON. They are decoded to the form in which sqlite3 binds
them, without a Python object for each row, which makes storing large pages and checkpoints faster. Values that SQLite
would change are rejected with `NotBulkWritableError`; the callers then merge the rows one by one. `row_groups`,
`bulk_changes` and `sync.checkpoint_load` call this module.
"""

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
from lakesync.wire.pages import PageDelta, cells_of

TableTypes = Mapping[str, Mapping[str, ColumnType]]
"""Table → column → the column's type."""

JsonValue = bytes | memoryview | msgspec.Raw
"""JSON text."""

_NONE = type(None)
_PYTHON_TYPES: dict[ColumnType, frozenset[type]] = {
    "string": frozenset({str, _NONE}),
    "number": frozenset({int, float, _NONE}),
    "boolean": frozenset({bool, _NONE}),
    "null": frozenset({_NONE}),
}
"""The types of decoded values that a column stores unchanged."""
_MSGSPEC_TYPES: dict[ColumnType, Any] = {
    "string": str | None,
    "number": int | float | None,
    "boolean": bool | None,
    "null": None,
    "json": msgspec.Raw,
}
"""The types by which msgspec checks values while it decodes them."""
_MIN_NUMBER, _MAX_NUMBER = -(2**63), 2**63 - 1024
"""SQLite stores numbers in this range unchanged. The upper limit is the largest double below 2^63."""
_DELTAS_DECODED_TOGETHER = 100
"""Deltas decoded by one call: few enough to stay in the processor's cache."""
_UNICODE_ESCAPE = b"\\u"
"""Half of a surrogate pair has no UTF-8 form, so JSON can contain it only as an escape that begins like this."""
_column_of, _value_of = attrgetter("column"), attrgetter("value")
_decode = msgspec.json.Decoder().decode


class NotBulkWritableError(Exception):
    """These rows must be merged row by row: a schema or a column is missing, or a value has another type."""


class ColumnGroup(NamedTuple):
    """Deltas that write the same columns in the same order."""

    names: tuple[str, ...]
    indexes: Sequence[int]
    """The deltas' indexes in the argument of `group_by_columns`."""
    values: list[Any]
    """JSON values: those of the first delta, then those of the second, and so on."""


def group_by_columns(deltas: Sequence[RowDelta]) -> Iterable[ColumnGroup]:
    """Group deltas by the names of their columns.

    Raises:
        NotBulkWritableError: the columns of a delta are not valid JSON.
    """
    names: list[str] = []
    values: list[Any] = []
    widths: list[int] = []
    try:
        for chunk in cells_of(deltas):
            cells = list(chain.from_iterable(chunk))
            names += map(_column_of, cells)
            values += map(_value_of, cells)
            widths += map(len, chunk)
    except ValidationError:
        raise NotBulkWritableError from None
    first = names[: widths[0]] if widths else []
    if set(widths) <= {len(first)} and names == first * len(deltas):  # all write the same columns, the usual case
        return [ColumnGroup(tuple(first), range(len(deltas)), values)]
    groups: dict[tuple[str, ...], ColumnGroup] = {}
    start = 0
    for index, width in enumerate(widths):
        key = tuple(names[start : start + width])
        group = groups.setdefault(key, ColumnGroup(key, [], []))
        cast("list[int]", group.indexes).append(index)
        group.values.extend(values[start : start + width])
        start += width
    return groups.values()


class DecodedColumns(NamedTuple):
    """The decoded columns of deltas that all write the same columns."""

    names: tuple[str, ...]
    columns: list[Sequence[Any]]
    """The values of each column, as SQLite binds them."""


def decode_uniform(deltas: Sequence[RowDelta], types: Mapping[str, ColumnType]) -> DecodedColumns | None:
    """Decode deltas of a page that all write the same columns, with a decoder made for these columns.

    Args:
        deltas: deltas of one table.
        types: column → type, of all columns of the table.

    Returns:
        The columns; None if a delta writes other columns than the first, or a value has another type than its column.
        Then use `group_by_columns` and `decode_column`, which are slower and find out which values cannot be stored.
    """
    mixed = cast("Sequence[RowDelta | PageDelta]", deltas)
    texts = [delta.columns_json for delta in mixed if isinstance(delta, PageDelta)]
    if not texts or len(texts) < len(deltas):
        return None
    try:
        names = tuple(map(_column_of, deltas[0].columns))
    except ValidationError:
        return None
    if not names or not all(name in types for name in names) or len(set(names)) < len(names):
        return None
    kinds = [types[name] for name in names]
    decode = _uniform_decoder(tuple(zip(names, kinds, strict=True)))
    values: list[Any] = []
    has_escapes = False
    try:
        for start in range(0, len(texts), _DELTAS_DECODED_TOGETHER):
            text = b"[" + b",".join(texts[start : start + _DELTAS_DECODED_TOGETHER]) + b"]"
            has_escapes = has_escapes or _UNICODE_ESCAPE in text
            values += map(_value_of, chain.from_iterable(decode(text)))
        columns = [values[index :: len(names)] for index in range(len(names))]
        bound = [_sql_values(kind, column, has_escapes) for kind, column in zip(kinds, columns, strict=True)]
        return DecodedColumns(names, bound)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, NotBulkWritableError):
        return None


def decode_column(kind: ColumnType, values: Sequence[JsonValue]) -> Sequence[Any]:
    """Decode the JSON values of a column to the form in which sqlite3 binds them.

    Args:
        kind: the column's type.
        values: JSON values, one for each row.

    Raises:
        NotBulkWritableError: a value has another type, or SQLite would change it.
    """
    joined = b",".join(values)
    has_escapes = _UNICODE_ESCAPE in joined
    try:
        decoded: list[Any] = _decode(b"[" + joined + b"]")
        if len(decoded) != len(values):  # a "value" such as `1,2` has a comma, so it is not one value
            raise NotBulkWritableError
        if kind == "json":
            return _sql_values(kind, values, has_escapes)
        if not set(map(type, decoded)) <= _PYTHON_TYPES[kind]:
            raise NotBulkWritableError
        return _sql_values(kind, decoded, has_escapes)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise NotBulkWritableError from None


def _sql_values(kind: ColumnType, values: Sequence[Any], has_escapes: bool) -> Sequence[Any]:
    """Return the values of a column in the form in which sqlite3 binds them.

    Args:
        kind: the column's type.
        values: decoded values of this type; JSON text for a JSON column.
        has_escapes: whether the JSON text had Unicode escapes, which may encode half of a surrogate pair.

    Raises:
        NotBulkWritableError, UnicodeError: SQLite would change a value.
    """
    if kind == "json":
        if has_escapes:
            raise NotBulkWritableError
        return [None if (text := bytes(value).strip()) == b"null" else text.decode() for value in values]
    if kind == "string" and has_escapes:  # raises UnicodeError for half of a surrogate pair
        "".join([value for value in values if value is not None]).encode()
    if kind == "number":
        numbers = [value for value in values if value is not None]
        if numbers and (min(numbers) < _MIN_NUMBER or max(numbers) > _MAX_NUMBER):
            raise NotBulkWritableError
    if kind == "boolean":  # sqlite3 is slow for types other than int, float, str and bytearray
        return [None if value is None else int(value) for value in values]
    return values


@lru_cache(256)
def _uniform_decoder(columns: tuple[tuple[str, ColumnType], ...]) -> Any:
    """Return a decoder for a JSON list of deltas' columns that all have these names and types, in this order.

    Each column is a tagged struct whose tag is the name, so that msgspec checks names, order and types itself.
    """
    cells = [
        msgspec.defstruct(
            "Cell", [("value", _MSGSPEC_TYPES[kind])], tag_field="column", tag=name, frozen=True, gc=False
        )
        for name, kind in columns
    ]
    return msgspec.json.Decoder(list[tuple[tuple(cells)]]).decode  # type: ignore[misc]

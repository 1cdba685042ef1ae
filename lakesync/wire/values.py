"""Checks column values when they come in, so that later code can rely on valid JSON with a canonical form."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lakesync.model.delta import jcs_raw
from lakesync.model.errors import Rejection, ValidationError
from lakesync.model.types import RowDelta

_SCALARS = frozenset({str, bool, int, float, type(None)})
_SAFELY_FINITE = 1e300
_decode = msgspec.json.Decoder().decode


def check_values(deltas: Sequence[RowDelta]) -> None:
    """Reject values without a canonical form: bad UTF-8, lone surrogates, numbers beyond doubles, deep nesting.

    Raises:
        ValidationError: names every delta with such a value.
    """
    if _all_plain([cell.value for delta in deltas for cell in delta.columns]):
        return
    rejected = []
    for place, delta in enumerate(deltas):
        for cell in delta.columns:
            try:
                jcs_raw(cell.value)
            except ValidationError as error:
                message = f"deltas[{place}], column {cell.column!r}: {error}"
                rejected.append(Rejection(delta.delta_id, ValidationError.code, message))
                break
    if rejected:
        raise ValidationError(rejected[0].message, rejected)


def _all_plain(texts: Sequence[msgspec.Raw]) -> bool:
    """Return whether all values are scalars that are certainly valid; otherwise each is checked."""
    joined = b",".join(texts)
    if b"\\u" in joined:
        return False
    try:
        values = _decode(b"[" + joined + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    kinds = set(map(type, values))
    if len(values) != len(texts) or not kinds <= _SCALARS:
        return False
    numbers = [value for value in values if type(value) is int or type(value) is float]
    return not numbers or (min(numbers) >= -_SAFELY_FINITE and max(numbers) <= _SAFELY_FINITE)

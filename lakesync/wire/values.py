"""Column values at the edge: raw JSON text that everything behind can read."""

from __future__ import annotations

from collections.abc import Sequence

from lakesync.delta import jcs_raw
from lakesync.exceptions import Rejection, ValidationError
from lakesync.types import RowDelta


def check_values(deltas: Sequence[RowDelta]) -> None:
    """Refuse values that have no canonical form: bad UTF-8, lone surrogates, numbers beyond doubles, too deep ones.

    Raises:
        ValidationError: with every delta that holds one.
    """
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

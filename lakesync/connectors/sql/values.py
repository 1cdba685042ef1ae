"""A database's values as JSON, nothing of them rounded: what JSON's numbers cannot hold is refused with its column."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, NoReturn

from lakesync.model.errors import ConfigurationError

_EXACT = 2**53


def as_json(value: Any, column: str) -> Any:
    """A value as JSON has it: times as ISO 8601, instants in UTC, bytes as base64.

    Raises:
        ConfigurationError: it is a number that no double holds.
    """
    match value:
        case None | bool() | str():
            return value
        case int():
            if abs(value) > _EXACT:
                _refuse(value, column)
            return value
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return _decimal(value, column)
        case datetime():
            return instant(value)
        case date() | time():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(bytes(value)).decode()
        case list() | tuple():
            return [as_json(each, column) for each in value]
        case Mapping():
            return {str(name): as_json(each, column) for name, each in value.items()}
    return str(value)


def instant(value: datetime) -> str:
    """A time as ISO 8601: with `Z` where it knows its zone, without where it does not."""
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"


def _decimal(value: Decimal, column: str) -> float | int | None:
    if not value.is_finite():
        return None
    double = float(value)
    if Decimal(repr(double)) != value:
        _refuse(value, column)
    return int(double) if double.is_integer() and abs(double) <= _EXACT else double


def _refuse(value: Any, column: str) -> NoReturn:
    raise ConfigurationError(
        f"column {column!r} holds {value}, which a JSON number cannot hold exactly: cast it to text in the query"
    )

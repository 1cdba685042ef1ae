"""Converts database values to JSON without rounding."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, NoReturn

from lakesync.model.errors import ConfigurationError

_EXACT = 2**53


def to_json_value(value: Any, column: str) -> Any:
    """Convert a value: times to ISO 8601 (in UTC if they have a zone), bytes to base64.

    Args:
        value: the driver's value.
        column: its column, for the message.

    Raises:
        ConfigurationError: a number cannot be represented exactly as a double.
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
            return format_time(value)
        case date() | time():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(bytes(value)).decode()
        case list() | tuple():
            return [to_json_value(each, column) for each in value]
        case Mapping():
            return {str(name): to_json_value(each, column) for name, each in value.items()}
    return str(value)


def format_time(value: datetime) -> str:
    """Format a time as ISO 8601, with `Z` if it has a time zone."""
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
        f"column {column!r} holds {value}, which a JSON number cannot represent exactly: cast it to text in the query"
    )

"""Converts values from database drivers to JSON. `SqlSource` calls it for every value of a polled row."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, NoReturn

from lakesync.model.errors import ConfigurationError

_MAX_EXACT_INTEGER = 2**53
"""Up to here, every integer can be represented as a double."""


def to_json_value(value: Any, column: str) -> Any:
    """Convert a value: times to ISO 8601 (in UTC if they have a zone), bytes to base64.

    Args:
        value: the driver's value. NaN and infinite numbers become null.
        column: its column, for the message.

    Raises:
        ConfigurationError: a number cannot be represented exactly as a double, in which JSON readers store numbers.
    """
    match value:
        case None | bool() | str():
            return value
        case int():
            if abs(value) > _MAX_EXACT_INTEGER:
                _raise_inexact(value, column)
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
    """Convert a decimal as `to_json_value` does."""
    if not value.is_finite():
        return None
    double = float(value)
    if Decimal(repr(double)) != value:
        _raise_inexact(value, column)
    return int(double) if double.is_integer() and abs(double) <= _MAX_EXACT_INTEGER else double


def _raise_inexact(value: Any, column: str) -> NoReturn:
    """Raise the error for a number that a double cannot represent."""
    raise ConfigurationError(
        f"column {column!r} has {value}, which a JSON number cannot represent exactly: cast it to text in the query"
    )

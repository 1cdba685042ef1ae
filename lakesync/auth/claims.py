"""Claims by path: `app_metadata.team` is `team` in the object `app_metadata`. The checks and sync rules use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakesync.model.types import Claims

MAX_DEPTH = 8
"""Levels of nested objects that a path can reach."""
MAX_PATHS = 256
"""Most nested values of a token that get a path, so that a cached token stays small."""
MAX_PATH_CHARS = 256


def flatten_claims(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return every claim of a payload by its path, including objects.

    A claim named `a.b` hides `b` in the object `a`, because the outer level has precedence. Names that contain full
    stops, such as Auth0's `https://example.com/team`, are kept unchanged.
    """
    found: dict[str, Any] = dict(payload)
    most = len(found) + MAX_PATHS
    level: list[tuple[str, Mapping[str, Any]]] = [("", payload)]
    for _ in range(MAX_DEPTH - 1):
        inner = [
            (f"{prefix}{name}.", value)
            for prefix, holder in level
            for name, value in holder.items()
            if isinstance(value, Mapping) and len(prefix) + len(name) < MAX_PATH_CHARS
        ]
        if not inner:
            break
        for prefix, holder in inner:
            for name, value in holder.items():
                if len(prefix) + len(name) <= MAX_PATH_CHARS and len(found) < most:
                    found.setdefault(prefix + name, value)
        level = inner
    return found


def string_values(value: Any) -> tuple[str, ...] | None:
    """Return the strings of a claim that is a string or a list of strings; None for any other type."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    return None


def rule_claims(values: Mapping[str, Any]) -> Claims:
    """Return the claims that sync rules can read: strings and lists of strings, by path."""
    return {
        path: value
        for path, value in values.items()
        if isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))
    }

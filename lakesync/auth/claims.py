"""Claims by path: `app_metadata.team` is the claim `team` in the object `app_metadata`. The token checks call it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakesync.model.types import Claims

MAX_DEPTH = 8
"""Levels of nested objects that a path can reach."""
MAX_PATHS = 256
"""Nested values of a token that get a path, at most, so that a cached token stays small. Further ones are ignored."""
MAX_PATH_CHARS = 256
"""A value whose path would be longer is ignored."""


def flatten_claims(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return every claim of a payload by its path, including objects.

    A claim named `a.b` hides `b` in the object `a`, because the outer level has precedence. So names that contain dots,
    such as Auth0's `https://example.com/team`, can be used as paths.
    """
    claims: dict[str, Any] = dict(payload)
    max_claims = len(claims) + MAX_PATHS
    level: list[tuple[str, Mapping[str, Any]]] = [("", payload)]
    for _ in range(MAX_DEPTH - 1):
        inner = [
            (f"{prefix}{name}.", value)
            for prefix, parent in level
            for name, value in parent.items()
            if isinstance(value, Mapping) and len(prefix) + len(name) < MAX_PATH_CHARS
        ]
        if not inner:
            break
        for prefix, parent in inner:
            for name, value in parent.items():
                if len(prefix) + len(name) <= MAX_PATH_CHARS and len(claims) < max_claims:
                    claims.setdefault(prefix + name, value)
        level = inner
    return claims


def string_values(value: Any) -> tuple[str, ...] | None:
    """Return the strings of a claim that is a string or a list of strings; None for any other type."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    return None


def rule_claims(claims: Mapping[str, Any]) -> Claims:
    """Return the claims that sync rules can read, by path: strings and lists of strings."""
    return {
        path: value
        for path, value in claims.items()
        if isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))
    }

"""Claims by path: `app_metadata.team` names `team` in the object `app_metadata`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakesync.model.types import Claims

MAX_DEPTH = 8
"""Objects in objects that paths lead into."""
MAX_PATHS = 256
"""Values in objects that have a path; those after them have none, so that a remembered token stays small."""
MAX_PATH_CHARS = 256


def by_path(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return every value of a token's payload by its path, objects among them.

    A claim whose own name is `a.b` hides `b` in the object `a`: a name at an outer level beats a path into it. Names
    with full stops at one level, such as Auth0's `https://example.com/team`, are kept as they are.
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


def texts_of(value: Any) -> tuple[str, ...] | None:
    """Return the texts of a claim that is a text or a list of texts; None where it is neither."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    return None


def rule_claims(values: Mapping[str, Any]) -> Claims:
    """Return what sync rules read as `jwt:PATH`: texts and lists of texts."""
    return {
        path: value
        for path, value in values.items()
        if isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))
    }

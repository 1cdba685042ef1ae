"""A request's headers, looked up one at a time without making an object of them all."""

from __future__ import annotations

from starlette.types import Scope


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of a name in lower case, as ASGI has them; None where there is none."""
    for known, value in scope["headers"]:
        if known == name:
            text: str = value.decode("latin-1")
            return text
    return None

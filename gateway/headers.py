"""Looks up the headers of an HTTP or WebSocket request directly in its ASGI scope.

Routes and middleware call it for every request, instead of Starlette's `Headers` object, which takes three times as
long.
"""

from __future__ import annotations

from starlette.types import Scope


def header(scope: Scope, name: bytes) -> str | None:
    """Return the value of the first header with a name; None if the request has no such header.

    Args:
        scope: the request's ASGI scope.
        name: the header's name in lower case.
    """
    for known, value in scope["headers"]:
        if known == name:
            text: str = value.decode("latin-1")
            return text
    return None


def all_headers(scope: Scope, name: bytes) -> list[str]:
    """Return the values of all headers with a name, in their order, to detect a header that is sent twice.

    Args:
        scope: the request's ASGI scope.
        name: the headers' name in lower case.
    """
    return [value.decode("latin-1") for known, value in scope["headers"] if known == name]

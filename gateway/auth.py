"""How a request shows a token: the `Authorization` header."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.requests import Request

from lakesync.model.errors import AuthError


def authorization(headers: Headers) -> str | None:
    """The one `Authorization` header; None where there is none.

    Raises:
        AuthError: there are several, of which a proxy may have looked at another.
    """
    given = headers.getlist("authorization")
    if len(given) > 1:
        raise AuthError("the request has several Authorization headers; send one")
    return given[0] if given else None


def bearer(authorization: str | None) -> str | None:
    """The token in an `Authorization` header; None when there is no header.

    Raises:
        AuthError: the header is of another form.
    """
    if authorization is None:
        return None
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise AuthError("the Authorization header must read 'Bearer TOKEN'")
    return token.strip()


def shows(request: Request, expected: str) -> bool:
    """Whether a request shows a token that is no JWT.

    Raises:
        AuthError: its header is of another form.
    """
    token = bearer(authorization(request.headers))
    return token is not None and hmac.compare_digest(token.encode(), expected.encode())

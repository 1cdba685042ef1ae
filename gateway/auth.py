"""Who calls: JWT (HS256) with `sub`, `gw`, `exp` and `role`, verified once and remembered until it expires."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jwt
import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request

from lakesync.exceptions import AuthError
from lakesync.identity import is_importer, user_of
from lakesync.types import Claims
from lakesync.validation import check_id

Role = Literal["client", "admin"]

ALGORITHM = "HS256"
REMEMBERED_TOKENS = 10_000
MAX_TOKEN_CHARS = 8192
CLOCK_SKEW_SECONDS = 5
"""How far the clock of whoever made a token may be ahead: `iat` and `nbf` are good as much earlier."""
LAST_SECOND = 253_402_300_799
"""The end of the year 9999: a token that expires later was not meant to expire."""


class Identity(msgspec.Struct, frozen=True):
    """What a verified token says."""

    client_id: str
    gateway: str
    role: Role
    claims: Claims
    """The string and list-of-string claims, which sync rules read as `jwt:NAME`."""
    expires: float
    """Seconds since the epoch."""


class TokenVerifier:
    """Checks tokens against one secret, or two while secrets are rotated."""

    def __init__(self, secrets: Sequence[str], now: Callable[[], float] = time.time) -> None:
        self._secrets = tuple(secrets)
        self._now = now
        self._verified: dict[str, Identity] = {}

    def verify(self, token: str) -> Identity:
        """The identity that a token proves.

        Raises:
            AuthError: it is malformed, expired, signed by another secret or algorithm, or lacks a claim.
        """
        identity = self._verified.get(token)
        if identity is None:
            if len(token) > MAX_TOKEN_CHARS:
                raise AuthError(f"the token has {len(token)} characters, at most {MAX_TOKEN_CHARS} are taken")
            identity = _identity(self._payload(token))
            while len(self._verified) >= REMEMBERED_TOKENS:
                del self._verified[next(iter(self._verified))]
            self._verified[token] = identity
        if identity.expires <= self._now():
            self._verified.pop(token, None)
            raise AuthError("the token has expired; ask for a new one")
        return identity

    def _payload(self, token: str) -> dict[str, Any]:
        for secret in self._secrets:
            try:
                return jwt.decode(
                    token,
                    secret,
                    algorithms=[ALGORITHM],
                    leeway=CLOCK_SKEW_SECONDS,
                    options={"require": ["sub", "gw", "exp"], "verify_exp": False, "verify_aud": False},
                )
            except jwt.InvalidSignatureError:
                continue
            except (jwt.InvalidTokenError, RecursionError, ValueError) as error:
                raise AuthError(f"the token cannot be used: {error}") from error
        raise AuthError("the token was signed by another secret; ask for a new one")


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


def _identity(payload: dict[str, Any]) -> Identity:
    for name in ("sub", "gw"):
        if not isinstance(payload[name], str) or not payload[name]:
            raise AuthError(f"the token's claim {name!r} must be a string that is not empty")
    fault = check_id("the token's sub", payload["sub"])
    if fault is None and is_importer(payload["sub"]):
        fault = f"the token's sub is {payload['sub']!r}, an id that imports have: use {user_of(payload['sub'])!r}"
    if fault is not None:
        raise AuthError(fault)
    role = payload.get("role", "client")
    if role not in ("client", "admin"):
        raise AuthError(f"the token's role {role!r} is unknown; known are 'client' and 'admin'")
    expires = payload["exp"]
    if isinstance(expires, bool) or not isinstance(expires, int | float) or not 0 <= expires <= LAST_SECOND:
        raise AuthError("the token's claim 'exp' must be a number of seconds since 1970, before the year 10000")
    return Identity(payload["sub"], payload["gw"], role, _claims(payload), float(expires))


def _claims(payload: dict[str, Any]) -> Claims:
    claims: Claims = {}
    for name, value in payload.items():
        if isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            claims[name] = value
    try:
        msgspec.json.encode(claims)
    except UnicodeEncodeError as error:
        raise AuthError("a claim of the token holds a lone surrogate, which is no Unicode text") from error
    return claims

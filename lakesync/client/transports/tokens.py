"""The token that a transport shows, renewed in time where it can be."""

from __future__ import annotations

import base64
import binascii
import time
from typing import Any

import msgspec

from lakesync.client.transports.base import Token
from lakesync.exceptions import AuthError, ConfigurationError

_AHEAD = 30.0
"""Seconds before its end at which a token is renewed."""


def claims(token: str) -> dict[str, Any]:
    """What a JWT says, unverified: that is the gateway's business. Empty where it is no JWT."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        body = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        found = msgspec.json.decode(body)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def checked(token: str) -> str:
    """The token, as it can stand in a header.

    Raises:
        AuthError: it holds what no token does. It is not repeated: most of it may be one.
    """
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise AuthError("the token holds a space, a line's end or a letter that no token has: take it out of there")
    return token


class TokenHolder:
    """A token that is given, or is asked for: at first, when it is about to expire, and when it was refused."""

    def __init__(self, token: Token | None) -> None:
        self._provider = token if callable(token) else None
        self._token = None if token is None or callable(token) else token

    def replace(self, token: Token) -> None:
        """Show another one."""
        self._provider = token if callable(token) else None
        self._token = None if callable(token) else token

    @property
    def renewable(self) -> bool:
        """Whether a refused token can be replaced by asking."""
        return self._provider is not None

    def current(self) -> str | None:
        """The token to show now; None where none is needed.

        Raises:
            ConfigurationError: the provider gave no text.
            AuthError: it cannot be a token.
        """
        if self._provider is not None and (self._token is None or self._is_old(self._token)):
            self.renew()
        return None if self._token is None else checked(self._token)

    def renew(self) -> None:
        """Ask for a new one."""
        if self._provider is not None:
            given = self._provider()
            if not isinstance(given, str) or not given:
                raise ConfigurationError(f"the token provider gave {given!r}: let it return a token")
            self._token = given

    @staticmethod
    def _is_old(token: str) -> bool:
        expires = claims(token).get("exp")
        return isinstance(expires, int | float) and expires < time.time() + _AHEAD

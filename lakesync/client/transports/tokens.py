"""The token that a transport shows, renewed in time where it can be."""

from __future__ import annotations

import base64
import binascii
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from lakesync.client.errors import UnreachableError
from lakesync.client.transports.base import Token
from lakesync.model.errors import AuthError, ConfigurationError

_AHEAD = 30.0
"""Seconds before its end at which a token is renewed; half of its time where that is less."""
_AGAIN = 5.0
"""Seconds after which a provider that failed is asked again, while its last token is good."""


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
    """A token that is given, or is asked for: at first, when it is about to expire, and when it was refused.

    Threads may share it. The provider is called by one of them at a time; the others wait, and take what it gave.
    """

    def __init__(self, token: Token | None) -> None:
        self._lock = threading.RLock()
        self._provider: Callable[[], str] | None = None
        self._token: str | None = None
        self._renew_at: float | None = None
        """By this machine's clock; None: the token is renewed when it is refused."""
        if token is not None:
            self.replace(token)

    def replace(self, token: Token) -> None:
        """Show another one."""
        with self._lock:
            self._provider = token if callable(token) else None
            self._token = None if callable(token) else token
            self._renew_at = None

    @property
    def renewable(self) -> bool:
        """Whether a refused token can be replaced by asking."""
        return self._provider is not None

    def current(self) -> str | None:
        """The token to show now; None where none is needed.

        Raises:
            ConfigurationError: the provider gave no text.
            AuthError: it cannot be a token.
            UnreachableError: the provider could not reach whoever makes tokens.
        """
        with self._lock:
            if self._provider is not None and (self._token is None or self._is_due()):
                self._ask(self._provider)
            return None if self._token is None else checked(self._token)

    def renew(self, refused: str | None) -> None:
        """Ask for a new one in place of one that was refused, unless another thread has done so meanwhile.

        Raises:
            ConfigurationError, UnreachableError: as `current`.
        """
        with self._lock:
            if self._provider is not None and self._token == refused:
                self._token = None
                self._ask(self._provider)

    def _ask(self, provider: Callable[[], str]) -> None:
        try:
            given = provider()
        except OSError as error:  # as those of requests, httpx and urllib for a network that is away
            if self._token is not None and not self._has_expired(self._token):
                self._renew_at = time.time() + _AGAIN
                return
            raise UnreachableError(f"the token provider failed: {error!r}") from error
        if not isinstance(given, str) or not given:
            raise ConfigurationError(f"the token provider gave {given!r}: let it return a token")
        self._token = given
        expires = claims(given).get("exp")
        left = expires - time.time() if isinstance(expires, int | float) else 0.0
        # a token that has expired already, by a clock that may be wrong, is shown: the gateway's clock decides
        self._renew_at = None if left <= 0 else time.time() + left - min(_AHEAD, left / 2)

    def _is_due(self) -> bool:
        return self._renew_at is not None and time.time() >= self._renew_at

    @staticmethod
    def _has_expired(token: str) -> bool:
        expires = claims(token).get("exp")
        return isinstance(expires, int | float) and expires <= time.time()

"""The token that a transport sends, and its renewal."""

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

_RENEW_BEFORE = 30.0
"""Seconds before its expiry at which a token is renewed; half of its lifetime if that is less."""
_RETRY_AFTER = 5.0
"""Seconds after which a provider that failed is called again while the old token is valid."""


def claims(token: str) -> dict[str, Any]:
    """Return the claims of a JWT without verifying it, which is the gateway's task; an empty dict if it is no JWT."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        body = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        found = msgspec.json.decode(body)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def check_token(token: str) -> str:
    """Check that a token can be sent in a header, and return it.

    Raises:
        AuthError: it contains an invalid character. The message does not repeat it, because it is a secret.
    """
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise AuthError("the token contains a space, a line break or a character outside of ASCII: remove it")
    return token


class TokenHolder:
    """A fixed token, or a provider that is called first, before the token expires, and after it was rejected.

    Thread-safe. One thread at a time calls the provider; the others wait and use its token.
    """

    def __init__(self, token: Token | None) -> None:
        self._lock = threading.RLock()
        self._provider: Callable[[], str] | None = None
        self._token: str | None = None
        self._renew_at: float | None = None
        """In seconds of this machine's clock; None: only after the token was rejected."""
        if token is not None:
            self.replace(token)

    def replace(self, token: Token) -> None:
        """Use another token or provider."""
        with self._lock:
            self._provider = token if callable(token) else None
            self._token = None if callable(token) else token
            self._renew_at = None

    @property
    def renewable(self) -> bool:
        """Whether there is a provider that can replace a rejected token."""
        return self._provider is not None

    def current(self) -> str | None:
        """Return the token to send now; None if the gateway needs none.

        Raises:
            ConfigurationError: the provider did not return a string.
            AuthError: it cannot be a token.
            UnreachableError: the provider failed with an OSError, for example without a network.
        """
        with self._lock:
            if self._provider is not None and (self._token is None or self._is_due()):
                self._call_provider(self._provider)
            return None if self._token is None else check_token(self._token)

    def renew(self, rejected: str | None) -> None:
        """Call the provider after a token was rejected, unless another thread has renewed it meanwhile.

        Args:
            rejected: the token that was sent.

        Raises:
            ConfigurationError, UnreachableError: as for `current`.
        """
        with self._lock:
            if self._provider is not None and self._token == rejected:
                self._token = None
                self._call_provider(self._provider)

    def _call_provider(self, provider: Callable[[], str]) -> None:
        try:
            token = provider()
        except OSError as error:  # requests, httpx and urllib raise it without a network
            if self._token is not None and not self._has_expired(self._token):
                self._renew_at = time.time() + _RETRY_AFTER
                return
            raise UnreachableError(f"the token provider failed: {error!r}") from error
        if not isinstance(token, str) or not token:
            raise ConfigurationError(f"the token provider returned {token!r}: return a token")
        self._token = token
        expires = claims(token).get("exp")
        left = expires - time.time() if isinstance(expires, int | float) else 0.0
        # a token that looks expired is sent: this machine's clock may be wrong, and the gateway's decides
        self._renew_at = None if left <= 0 else time.time() + left - min(_RENEW_BEFORE, left / 2)

    def _is_due(self) -> bool:
        return self._renew_at is not None and time.time() >= self._renew_at

    @staticmethod
    def _has_expired(token: str) -> bool:
        expires = claims(token).get("exp")
        return isinstance(expires, int | float) and expires <= time.time()

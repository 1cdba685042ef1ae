"""The token that a client sends with each request to the gateway server. Transports use it.

A token is a JWT. The app passes a fixed one, or a *provider*: a function that returns a token that is valid now.
`TokenHolder` has the token and renews it. The command line uses `claims` and `check_token` too, and
`client.factory` uses `claims`.
"""

from __future__ import annotations

import base64
import binascii
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from lakesync.client.errors import UnreachableError
from lakesync.client.transports.cancellable_calls import CancellableCalls
from lakesync.model.errors import AuthError, ConfigurationError

T = TypeVar("T")
Token = str | Callable[[], str]
"""A JWT, or a function that returns one that is valid now."""
_RENEW_BEFORE_SECONDS = 30.0
"""Seconds before its expiry at which a token is renewed; half of its remaining lifetime if that is less."""
_RETRY_SECONDS = 5.0
"""Seconds after which a provider that failed is called again, while the old token is still valid."""


class TokenHolder:
    """A transport's token: fixed, or from a provider.

    The provider is called before the first request, before its token expires, and after the gateway rejected it. It may
    take long, as when it waits for a user to log in. So it runs in a thread of its own, and `cancel` and `replace` end
    the wait for it. Thread-safe: one thread at a time calls the provider; the others wait and use its token.
    """

    def __init__(self, token: Token | None) -> None:
        """Use a token or a provider; None if the gateway needs no token."""
        self._lock = threading.Lock()
        """Held while a field is read or changed."""
        self._calls = CancellableCalls()
        self._provider: _Provider | None = None
        self._token: str | None = None
        self._renew_at: float | None = None
        """When to call the provider again, in seconds since 1970; None: only after the token was rejected."""
        if token is not None:
            self.replace(token)

    def replace(self, token: Token) -> None:
        """Use another token or provider, also for calls of `current` that wait for the earlier provider."""
        with self._lock:
            self._provider = _Provider(token) if callable(token) else None
            self._token = None if callable(token) else token
            self._renew_at = None
        self.cancel()

    def cancel(self) -> None:
        """Make calls of `current` that wait for the provider raise `UnreachableError`. Any thread may call it.

        The provider's call continues, and its token is used by later requests.
        """
        self._calls.cancel_all()

    @property
    def renewable(self) -> bool:
        """Whether there is a provider that can replace a rejected token."""
        return self._provider is not None

    def current(self) -> str | None:
        """Return the token to send now; None if the gateway needs none.

        Raises:
            ConfigurationError: the provider did not return a string, or returned an empty one.
            AuthError: the token contains a character that a header cannot have.
            UnreachableError: the provider raised an OSError, as without a network, and there is no valid token; or
                `cancel` was called.
        """
        while True:
            with self._lock:
                token, provider = self._token, self._provider
                if provider is None or not self._is_due():
                    return None if token is None else check_token(token)
            try:
                self._calls.run(partial(self._renew_from, provider))
            except UnreachableError:
                with self._lock:
                    if self._provider is provider:
                        raise

    def send(self, request: Callable[[str | None], T]) -> T:
        """Send a request with the token. If the gateway rejects the token and a provider can replace it, send it again.

        Args:
            request: sends the request with a token, or without one for None, and returns the result.

        Raises:
            AuthError: the gateway rejects the token.
            ConfigurationError, UnreachableError: as for `current`.
        """
        token = self.current()
        try:
            return request(token)
        except AuthError:
            if not self.renewable:
                raise
        self.renew(token)
        return request(self.current())

    def renew(self, rejected: str | None) -> None:
        """Replace a token that the gateway rejected, unless another thread has replaced it meanwhile.

        Args:
            rejected: the token that was sent.

        Raises:
            ConfigurationError, UnreachableError: as for `current`.
        """
        with self._lock:
            if self._provider is not None and self._token == rejected:
                self._token = None
        self.current()  # requests a new one if the token was dropped

    def _renew_from(self, provider: _Provider) -> None:
        """Store the provider's token and when to renew it, unless another thread has done so or replaced the provider.

        After an OSError, a token that is still valid is kept.

        Raises:
            ConfigurationError, UnreachableError: as for `current`.
        """
        with provider.lock:
            with self._lock:
                if self._provider is not provider or not self._is_due():
                    return
            try:
                token = provider.call()
            except OSError as error:  # requests, httpx and urllib raise it without a network
                with self._lock:
                    if self._token is not None and not _has_expired(self._token):
                        self._renew_at = time.time() + _RETRY_SECONDS
                        return
                raise UnreachableError(f"the token provider failed: {error!r}") from error
            renew_at = _renewal_time(token)
            with self._lock:
                if self._provider is provider:
                    self._token, self._renew_at = token, renew_at

    def _is_due(self) -> bool:
        """Return whether the provider must be called: there is no token, or it is time to renew it."""
        return self._token is None or (self._renew_at is not None and time.time() >= self._renew_at)


class _Provider:
    """A function that the app has passed. `replace` creates another one, also for the same function."""

    def __init__(self, function: Callable[[], str]) -> None:
        self._function = function
        self.lock = threading.Lock()
        """Held while the function is called."""

    def call(self) -> str:
        """Return the function's token.

        Raises:
            ConfigurationError: the function did not return a string, or returned an empty one.
        """
        token = self._function()
        if not isinstance(token, str) or not token:  # the message does not quote the value: bytes may be a token
            returned = "an empty string" if isinstance(token, str) else f"a value of type {type(token).__name__}"
            raise ConfigurationError(f"the token provider returned {returned}: return a token as a string")
        return token


def claims(token: str) -> dict[str, Any]:
    """Return the claims of a JWT without verifying it, because only the gateway can; an empty dict if it is no JWT."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        body = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        decoded = msgspec.json.decode(body)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def check_token(token: str) -> str:
    """Check that a token can be sent in a header, and return it.

    Raises:
        AuthError: the token contains an invalid character. The message does not quote it, because it is a secret.
    """
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise AuthError("the token contains a space, a line break or a character outside of ASCII: remove it")
    return token


def _renewal_time(token: str) -> float | None:
    """Return when to renew a new token, in seconds since 1970; None: only after the gateway rejected it."""
    expires = _expiry(token)
    if expires is None or _has_expired(token):  # this machine's clock may be wrong, and the gateway's decides
        return None
    return expires - min(_RENEW_BEFORE_SECONDS, (expires - time.time()) / 2)


def _has_expired(token: str) -> bool:
    """Return whether a token has expired by this machine's clock; False for one without an expiry."""
    expires = _expiry(token)
    return expires is not None and expires <= time.time()


def _expiry(token: str) -> float | None:
    """Return when a token expires, in seconds since 1970; None if it does not say so."""
    expires = claims(token).get("exp")
    return expires if isinstance(expires, int | float) else None

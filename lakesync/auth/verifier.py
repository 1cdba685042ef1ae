"""Verification of tokens (JWTs) for the gateway and for `lakesync token inspect`.

A token is signed by one of the server's own secrets, or by a key of a configured issuer (a login provider), which
publishes its keys. Verified tokens are cached until they expire, or until their issuer no longer publishes the key that
signed them. `lakesync.auth.checks` has the checks themselves. A *claim* is a field of a token, and a *gateway* one
app's stream of changes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from lakesync.auth.checks import (
    CHECKS,
    Finding,
    Identity,
    TokenChecks,
    TokenParts,
    TokenRejectedError,
    decode_parts,
    quote,
)
from lakesync.auth.issuers import Issuer
from lakesync.auth.keys import REFRESH_SECONDS, Key, KeysUnavailableError

log = structlog.get_logger("gateway")

CACHED_TOKENS = 10_000
"""Verified tokens in memory, at most; above it the oldest is dropped."""
_CHECK_NAMES = [name for name, _ in CHECKS]
"""The checks of `CHECKS`, in their order. `form` and `issuer` come before them."""


class TokenVerifier:
    """Verifies tokens of several issuers. Use it in the event loop's thread."""

    def __init__(
        self,
        secrets: Sequence[str] = (),
        now: Callable[[], float] = time.time,
        *,
        issuers: Sequence[Issuer] = (),
        sole_gateway: str | None = None,
    ) -> None:
        """Create the verifier; no keys are fetched yet.

        Args:
            secrets: HS256 secrets of the server's own tokens: one, or two during a rotation.
            now: returns the time in seconds since 1970.
            issuers: the configured issuers; a token's claim `iss` selects one. A token with another `iss`, or none,
                must be signed by a secret.
            sole_gateway: the id of the server's only gateway, which tokens need not name; None if it may have several.
        """
        self._own_issuer = Issuer.of_secrets(secrets) if secrets else None
        self._issuers = tuple(issuers)
        self._now = now
        self._sole_gateway = sole_gateway
        self._verified: dict[str, Identity] = {}
        """Encoded token → what it says, as a cache."""
        self.on_withdrawn: Callable[[frozenset[Key]], None] = lambda _: None
        """Called with keys that an issuer no longer publishes, after their tokens were removed from the cache. The
        server sets it, to close the connections of these tokens."""
        for issuer in self._issuers:
            issuer.key_set.on_removed = self._evict

    async def identify(self, token: str) -> Identity:
        """Verify a token, and return whose it is.

        If no known key signed it, the keys of each issuer that may have are fetched, at most every ten seconds.

        Raises:
            TokenRejectedError: the token fails a check.
        """
        try:
            return self.verify(token)
        except TokenRejectedError as error:
            if not error.stale:
                raise
            await asyncio.gather(*(key_set.refresh() for key_set in error.stale))
        return self.verify(token)

    def verify(self, token: str) -> Identity:
        """Like `identify`, but with the known keys only: no keys are fetched.

        Raises:
            TokenRejectedError: the token fails a check.
        """
        identity = self._verified.get(token)
        if identity is None:
            identity = self._identity_of(decode_parts(token))
            while len(self._verified) >= CACHED_TOKENS:
                del self._verified[next(iter(self._verified))]
            self._verified[token] = identity
        elif identity.expires <= self._now():
            self._verified.pop(token, None)
            raise TokenRejectedError("exp", "it expired; request a new one")
        return identity

    def findings(self, token: str) -> list[Finding]:
        """Return the result of every check of a token, to explain why it is accepted or rejected. No keys are fetched.

        If several issuers may have issued the token, these are the results of the issuer with which most checks pass.
        """
        try:
            parts = decode_parts(token)
        except TokenRejectedError as error:
            return [Finding("form", "failed", error.reason), *_skipped("form", ["issuer", *_CHECK_NAMES])]
        form = Finding("form", "ok", f"{len(token)} characters")
        known = f"[[gateway.issuers]] has {', '.join(quote(each.issuer) for each in self._issuers) or 'no issuer'}"
        try:
            candidates = self._candidates(parts)
        except TokenRejectedError as error:
            detail = f"{error.reason}; {known}"
            return [form, Finding("issuer", "failed", detail), *_skipped("issuer", _CHECK_NAMES)]
        results = [list(self._checks_of(parts, issuer).findings()) for issuer in candidates]
        best = max(range(len(results)), key=lambda index: sum(finding.state == "ok" for finding in results[index]))
        issuer_name, iss = candidates[best].issuer, parts.payload.get("iss")
        if issuer_name is not None:
            detail = quote(issuer_name)
        else:
            detail = "the server's own secret" + ("" if iss is None else f": its iss is {quote(iss)}, and {known}")
        return [form, Finding("issuer", "ok", detail), *results[best]]

    def is_in_use(self, key: Key) -> bool:
        """Return whether a key is among the known keys of any issuer."""
        return any(key in issuer.key_set.keys for issuer in (*self._issuers, *filter(None, [self._own_issuer])))

    async def keep_keys_fresh(self) -> None:
        """Fetch the keys of every issuer now and every five minutes, until the task is cancelled."""
        key_sets = [issuer.key_set for issuer in self._issuers if issuer.is_refreshable]
        while key_sets:
            await asyncio.gather(*(each.refresh() for each in key_sets))
            await asyncio.sleep(REFRESH_SECONDS)

    def load_keys(self, token: str) -> list[str]:
        """Fetch the keys of a token's issuer now, in this thread; `lakesync token inspect` calls it before `findings`.

        Returns:
            The reasons of fetches that failed.
        """
        failed: list[str] = []
        try:
            candidates = self._candidates(decode_parts(token))
        except TokenRejectedError:
            return failed
        for issuer in candidates:
            try:
                issuer.key_set.keys = tuple(issuer.key_set.load())
            except KeysUnavailableError as error:
                failed.append(f"{issuer.issuer}: {error}")
        return failed

    def _identity_of(self, parts: TokenParts) -> Identity:
        """Return the identity by the first issuer that accepts the token.

        Raises:
            TokenRejectedError: no issuer accepts it. It is the error of the issuer with which most checks passed, with
                the stale keys of all of them.
        """
        errors: list[TokenRejectedError] = []
        for issuer in self._candidates(parts):
            try:
                return self._checks_of(parts, issuer).identity()
            except TokenRejectedError as error:
                errors.append(error)
        best = max(errors, key=lambda error: _CHECK_NAMES.index(error.check))
        best.stale = tuple(key_set for error in errors for key_set in error.stale)
        raise best

    def _checks_of(self, parts: TokenParts, issuer: Issuer) -> TokenChecks:
        """Return the checks of a token with an issuer's settings, at the current time."""
        return TokenChecks(parts, issuer, self._now(), self._sole_gateway)

    def _candidates(self, parts: TokenParts) -> list[Issuer]:
        """Return the issuers that may have issued a token: those with its `iss`, else the server's own secrets."""
        claim = parts.payload.get("iss")
        with_iss = [issuer for issuer in self._issuers if issuer.issuer == claim]
        if with_iss:
            return with_iss
        if self._own_issuer is not None:
            return [self._own_issuer]
        what = "it has no iss" if claim is None else f"its iss {quote(claim)} is not an issuer of this gateway"
        raise TokenRejectedError("issuer", what)

    def _evict(self, keys: frozenset[Key]) -> None:
        """Remove the tokens that these keys signed from the cache."""
        for token in [token for token, identity in self._verified.items() if identity.key in keys]:
            del self._verified[token]
        self.on_withdrawn(keys)


def _skipped(prerequisite: str, checks: Sequence[str]) -> list[Finding]:
    """Return the findings of checks that cannot run because an earlier one failed."""
    return [Finding(check, "skipped", f"needs the check '{prerequisite}'") for check in checks]

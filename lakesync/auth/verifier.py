"""Verification of tokens for a gateway. Verified tokens are cached until they expire or their key is withdrawn."""

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
    TokenRefusedError,
    UnknownKeyError,
    decode_parts,
    quote,
)
from lakesync.auth.issuers import Issuer
from lakesync.auth.keys import REFRESH_SECONDS, Key, KeysUnavailableError

log = structlog.get_logger("gateway")

CACHED_TOKENS = 10_000
_CHECK_NAMES = [name for name, _ in CHECKS]


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
            now: returns seconds since the epoch.
            issuers: selected by a token's `iss`. A token with any other `iss`, or none, must be signed by a secret.
            sole_gateway: the server's only gateway, which tokens need not name.
        """
        self._own = Issuer.of_secrets(secrets) if secrets else None
        self._issuers = tuple(issuers)
        self._now = now
        self._sole = sole_gateway
        self._verified: dict[str, Identity] = {}
        self.on_withdrawn: Callable[[frozenset[Key]], None] = _ignore
        """Called with keys that an issuer withdrew, after their tokens left the cache."""
        for issuer in self._issuers:
            issuer.key_set.on_removed = self._evict

    async def identify(self, token: str) -> Identity:
        """Return the caller of a token. An unknown key is looked up at the issuer, at most every ten seconds.

        Raises:
            TokenRefusedError: the token fails a check.
        """
        try:
            return self.verify(token)
        except UnknownKeyError as error:
            if not error.issuer.is_refreshable:
                raise
            await error.issuer.key_set.refresh()
        return self.verify(token)

    def verify(self, token: str) -> Identity:
        """Return the caller of a token, by the known keys.

        Raises:
            TokenRefusedError: the token fails a check.
        """
        identity = self._verified.get(token)
        if identity is None:
            identity = self._check(decode_parts(token))
            while len(self._verified) >= CACHED_TOKENS:
                del self._verified[next(iter(self._verified))]
            self._verified[token] = identity
        elif identity.expires <= self._now():
            self._verified.pop(token, None)
            raise TokenRefusedError("exp", "it expired; request a new one")
        return identity

    def findings(self, token: str) -> list[Finding]:
        """Return the result of every check of a token, by the known keys."""
        try:
            parts = decode_parts(token)
        except TokenRefusedError as error:
            return [Finding("form", "failed", _reason(error)), *_skipped("form", ["issuer", *_CHECK_NAMES])]
        found = [Finding("form", "ok", f"{len(token)} characters")]
        try:
            candidates = self._candidates(parts)
        except TokenRefusedError as error:
            known = ", ".join(quote(each.issuer) for each in self._issuers) or "no issuer"
            detail = f"{_reason(error)}; [[gateway.issuers]] has {known}"
            return [*found, Finding("issuer", "failed", detail), *_skipped("issuer", _CHECK_NAMES)]
        tries = [list(self._checks(parts, issuer).findings()) for issuer in candidates]
        best = max(range(len(tries)), key=lambda index: sum(finding.state == "ok" for finding in tries[index]))
        named = candidates[best].issuer
        detail = "the server's own secret" if named is None else quote(named)
        return [*found, Finding("issuer", "ok", detail), *tries[best]]

    def is_in_use(self, key: Key) -> bool:
        """Return whether an issuer still has a key."""
        return any(key in issuer.key_set.keys for issuer in (*self._issuers, *filter(None, [self._own])))

    async def keep_keys_fresh(self) -> None:
        """Fetch the keys of every issuer now and every five minutes, until the task is cancelled."""
        key_sets = [issuer.key_set for issuer in self._issuers if issuer.is_refreshable]
        while key_sets:
            await asyncio.gather(*(each.refresh() for each in key_sets))
            await asyncio.sleep(REFRESH_SECONDS)

    def load_keys(self, token: str) -> list[str]:
        """Fetch the keys of a token's issuer now, in this thread.

        Returns:
            The reasons of fetches that failed.
        """
        failed: list[str] = []
        try:
            candidates = self._candidates(decode_parts(token))
        except TokenRefusedError:
            return failed
        for issuer in candidates:
            try:
                issuer.key_set.keys = tuple(issuer.key_set.load())
            except KeysUnavailableError as error:
                failed.append(f"{issuer.issuer}: {error}")
        return failed

    def _check(self, parts: TokenParts) -> Identity:
        refused: list[TokenRefusedError] = []
        for issuer in self._candidates(parts):
            try:
                return self._checks(parts, issuer).identity()
            except TokenRefusedError as error:
                refused.append(error)
        raise max(refused, key=lambda error: _CHECK_NAMES.index(error.check))

    def _checks(self, parts: TokenParts, issuer: Issuer) -> TokenChecks:
        return TokenChecks(parts, issuer, self._now(), self._sole)

    def _candidates(self, parts: TokenParts) -> list[Issuer]:
        """Return the issuers that may have issued a token: those with its `iss`, else the server's own secrets."""
        named = parts.payload.get("iss")
        found = [issuer for issuer in self._issuers if issuer.issuer == named]
        if found:
            return found
        if self._own is not None:
            return [self._own]
        what = "it has no iss" if named is None else f"its iss {quote(named)} is not an issuer of this gateway"
        raise TokenRefusedError("issuer", what)

    def _evict(self, keys: frozenset[Key]) -> None:
        for token in [token for token, identity in self._verified.items() if identity.key in keys]:
            del self._verified[token]
        self.on_withdrawn(keys)


def _skipped(condition: str, checks: Sequence[str]) -> list[Finding]:
    return [Finding(check, "skipped", f"needs the check '{condition}'") for check in checks]


def _reason(error: TokenRefusedError) -> str:
    return str(error).partition(": ")[2]


def _ignore(_: frozenset[Key]) -> None:
    """The default of `on_withdrawn`."""

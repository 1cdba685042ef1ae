"""Verification of tokens: each is verified once and remembered until it expires or its key is withdrawn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from lakesync.auth.checks import (
    CHECKS,
    Examination,
    Finding,
    Identity,
    TokenParts,
    TokenRefusedError,
    UnknownKeyError,
    parts_of,
    shown,
)
from lakesync.auth.issuers import Issuer
from lakesync.auth.keys import REFRESH_SECONDS, Key, KeysUnavailableError

log = structlog.get_logger("gateway")

REMEMBERED_TOKENS = 10_000
_CHECK_NAMES = [name for name, _ in CHECKS]


class TokenVerifier:
    """Verifies tokens of several issuers. Belongs to the event loop's thread."""

    def __init__(
        self,
        secrets: Sequence[str] = (),
        now: Callable[[], float] = time.time,
        *,
        issuers: Sequence[Issuer] = (),
        sole_gateway: str | None = None,
    ) -> None:
        """Nothing is fetched yet.

        Args:
            secrets: of the server's own tokens, HS256: one, or two while they are rotated.
            now: seconds since the epoch.
            issuers: found by a token's `iss`. A token of any other `iss`, or of none, must be signed by a secret.
            sole_gateway: the server's only gateway, which tokens need not name.
        """
        self._own = Issuer.of_secrets(secrets) if secrets else None
        self._issuers = tuple(issuers)
        self._now = now
        self._sole = sole_gateway
        self._verified: dict[str, Identity] = {}
        self.on_withdrawn: Callable[[frozenset[Key]], None] = _ignore
        """Called with keys that an issuer has withdrawn, after the tokens that they signed were forgotten."""
        for issuer in self._issuers:
            issuer.source.on_removed = self._forget

    async def identify(self, token: str) -> Identity:
        """Return the identity that a token proves; of an unknown key the issuer is asked, at most every ten seconds.

        Raises:
            TokenRefusedError: it fails a check.
        """
        try:
            return self.verify(token)
        except UnknownKeyError as error:
            if not error.issuer.is_remote:
                raise
            await error.issuer.source.refresh()
        return self.verify(token)

    def verify(self, token: str) -> Identity:
        """Return the identity that a token proves by the keys that are known.

        Raises:
            TokenRefusedError: it fails a check.
        """
        identity = self._verified.get(token)
        if identity is None:
            identity = self._examined(parts_of(token))
            while len(self._verified) >= REMEMBERED_TOKENS:
                del self._verified[next(iter(self._verified))]
            self._verified[token] = identity
        elif identity.expires <= self._now():
            self._verified.pop(token, None)
            raise TokenRefusedError("exp", "it has expired; ask for a new one")
        return identity

    def findings(self, token: str) -> list[Finding]:
        """Return how a token fares in every check, by the keys that are known."""
        try:
            parts = parts_of(token)
        except TokenRefusedError as error:
            return [Finding("form", "failed", _reason(error)), *_skipped("form", ["issuer", *_CHECK_NAMES])]
        found = [Finding("form", "ok", f"{len(token)} characters")]
        try:
            candidates = self._candidates(parts)
        except TokenRefusedError as error:
            known = ", ".join(shown(each.issuer) for each in self._issuers) or "none is set"
            detail = f"{_reason(error)}; [[gateway.issuers]] has {known}"
            return [*found, Finding("issuer", "failed", detail), *_skipped("issuer", _CHECK_NAMES)]
        tries = [list(self._examination(parts, issuer).findings()) for issuer in candidates]
        best = max(range(len(tries)), key=lambda place: sum(finding.state == "ok" for finding in tries[place]))
        named = candidates[best].issuer
        detail = "signed by a secret of the server's own" if named is None else shown(named)
        return [*found, Finding("issuer", "ok", detail), *tries[best]]

    def holds(self, key: Key) -> bool:
        """Whether a key is still in use."""
        return any(key in issuer.source.keys for issuer in (*self._issuers, *filter(None, [self._own])))

    async def keep_keys_fresh(self) -> None:
        """Fetch the keys of every issuer now and every five minutes, until cancelled."""
        remote = [issuer.source for issuer in self._issuers if issuer.is_remote]
        while remote:
            await asyncio.gather(*(source.refresh() for source in remote))
            await asyncio.sleep(REFRESH_SECONDS)

    def load_keys(self, token: str) -> list[str]:
        """Fetch the keys of a token's issuer now, in this thread; why that failed, where it did."""
        failed: list[str] = []
        try:
            candidates = self._candidates(parts_of(token))
        except TokenRefusedError:
            return failed
        for issuer in candidates:
            try:
                issuer.source.keys = tuple(issuer.source.load())
            except KeysUnavailableError as error:
                failed.append(f"{issuer.issuer}: {error}")
        return failed

    def _examined(self, parts: TokenParts) -> Identity:
        refused: list[TokenRefusedError] = []
        for issuer in self._candidates(parts):
            try:
                return self._examination(parts, issuer).identity()
            except TokenRefusedError as error:
                refused.append(error)
        raise max(refused, key=lambda error: _CHECK_NAMES.index(error.check))

    def _examination(self, parts: TokenParts, issuer: Issuer) -> Examination:
        return Examination(parts, issuer, self._now(), self._sole)

    def _candidates(self, parts: TokenParts) -> list[Issuer]:
        """The issuers that a token may be of: never one of another `iss`."""
        named = parts.payload.get("iss")
        found = [issuer for issuer in self._issuers if issuer.issuer == named]
        if found:
            return found
        if self._own is not None:
            return [self._own]
        what = "it has no iss" if named is None else f"its iss {shown(named)} is not an issuer of this gateway"
        raise TokenRefusedError("issuer", what)

    def _forget(self, keys: frozenset[Key]) -> None:
        for token in [token for token, identity in self._verified.items() if identity.key in keys]:
            del self._verified[token]
        self.on_withdrawn(keys)


def _skipped(condition: str, checks: Sequence[str]) -> list[Finding]:
    return [Finding(check, "skipped", f"needs the check '{condition}'") for check in checks]


def _reason(error: TokenRefusedError) -> str:
    return str(error).partition(": ")[2]


def _ignore(_: frozenset[Key]) -> None:
    """Nobody is interested."""

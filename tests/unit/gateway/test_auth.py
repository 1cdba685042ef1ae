"""Tokens are verified once and cached, with a bound, until they expire."""

from __future__ import annotations

import time

import jwt
import pytest

from lakesync.auth import CLOCK_SKEW_SECONDS, TokenVerifier, verifier
from lakesync.model.errors import AuthError

SECRET = "a secret of at least thirty-two bytes"


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def token(**claims: object) -> str:
    return jwt.encode({"sub": "alice", "gw": "gw", "exp": 2000, **claims}, SECRET, algorithm="HS256")


def test_a_token_is_verified_once(monkeypatch):
    verifying = TokenVerifier([SECRET], Clock(1000))
    given = token()
    first = verifying.verify(given)
    monkeypatch.setattr(verifier, "decode_parts", None)
    assert verifying.verify(given) is first


def test_a_remembered_token_expires():
    clock = Clock(1000)
    verifying = TokenVerifier([SECRET], clock)
    given = token()
    verifying.verify(given)
    clock.now = 1999.9
    verifying.verify(given)
    clock.now = 2000
    for _ in range(2):
        with pytest.raises(AuthError, match="expired"):
            verifying.verify(given)


@pytest.mark.parametrize("claim", ["iat", "nbf"])
def test_the_clock_of_a_tokens_issuer_may_be_slightly_ahead(claim):
    verifying = TokenVerifier([SECRET])
    verifying.verify(token(exp=time.time() + 60, **{claim: time.time() + CLOCK_SKEW_SECONDS - 1}))
    with pytest.raises(AuthError, match="not yet valid"):
        verifying.verify(token(exp=time.time() + 60, **{claim: time.time() + 60}))
    with pytest.raises(AuthError, match="expired"):
        verifying.verify(token(exp=time.time() - 1))


def test_the_token_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(verifier, "CACHED_TOKENS", 3)
    verifying = TokenVerifier([SECRET], Clock(1000))
    for n in range(10):
        assert verifying.verify(token(n=str(n))).claims["n"] == str(n)
    assert len(verifying._verified) == 3


def test_claims_are_strings_and_lists_of_strings():
    claims = TokenVerifier([SECRET], Clock(1000)).verify(token(a="x", b=["y"], c=1, d=["z", 1], e={})).claims
    assert claims == {"sub": "alice", "gw": "gw", "a": "x", "b": ["y"]}


def test_the_secret_is_not_accepted_as_a_token():
    with pytest.raises(AuthError):
        TokenVerifier([SECRET]).verify(SECRET)

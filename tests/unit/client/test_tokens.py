"""When a client asks for a new token: in time, when one was refused, and one request at a time."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jwt
import pytest

from lakesync.client.errors import UnreachableError
from lakesync.client.transports.tokens import TokenHolder
from lakesync.model.errors import ConfigurationError

SECRET = "a secret of at least thirty-two bytes"


def token(seconds, name="alice"):
    return jwt.encode({"sub": name, "exp": time.time() + seconds}, SECRET, "HS256")


class Provider:
    """Gives tokens one after another, and notes how it was asked."""

    def __init__(self, *lifetimes):
        self.lifetimes = list(lifetimes)
        self.asked = 0
        self.at_once = 0
        self.most_at_once = 0
        self.failure = None

    def __call__(self):
        self.asked += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.failure is not None:
                raise self.failure
            lifetime = self.lifetimes[min(self.asked, len(self.lifetimes)) - 1]
            return token(lifetime, f"n{self.asked}")
        finally:
            self.at_once -= 1


def test_a_good_token_is_asked_for_once():
    provider = Provider(3600)
    held = TokenHolder(provider)
    assert held.current() == held.current()
    assert provider.asked == 1


def test_a_token_is_renewed_half_a_minute_before_its_end(monkeypatch):
    provider = Provider(100, 3600)
    held = TokenHolder(provider)
    now = time.time()
    first = held.current()
    monkeypatch.setattr(time, "time", lambda: now + 65)
    assert held.current() == first
    monkeypatch.setattr(time, "time", lambda: now + 75)
    assert held.current() != first
    assert provider.asked == 2


def test_a_token_that_is_short_lived_is_renewed_at_half_of_its_time(monkeypatch):
    provider = Provider(20)
    held = TokenHolder(provider)
    now = time.time()
    held.current()
    monkeypatch.setattr(time, "time", lambda: now + 9)
    held.current()
    assert provider.asked == 1
    monkeypatch.setattr(time, "time", lambda: now + 11)
    held.current()
    assert provider.asked == 2


def test_a_clock_that_is_ahead_does_not_ask_for_each_request():
    provider = Provider(-3600)
    held = TokenHolder(provider)
    assert len({held.current() for _ in range(10)}) == 1
    assert provider.asked == 1
    held.renew(held.current())
    assert provider.asked == 2


def test_threads_whose_token_was_refused_ask_once_and_take_the_same():
    provider = Provider(3600)
    held = TokenHolder(provider)
    refused = held.current()
    together = threading.Barrier(8)

    def again(_):
        together.wait()
        held.renew(refused)
        return held.current()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(again, range(8)))) == 1
    assert (provider.asked, provider.most_at_once) == (2, 1)


def test_threads_that_start_together_ask_once():
    provider = Provider(3600)
    held = TokenHolder(provider)
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: held.current(), range(8)))) == 1
    assert provider.asked == 1


def test_a_provider_that_is_away_does_not_end_a_token_that_is_still_good(monkeypatch):
    provider = Provider(100, 3600)
    held = TokenHolder(provider)
    now = time.time()
    first = held.current()
    provider.failure = ConnectionError("offline")
    monkeypatch.setattr(time, "time", lambda: now + 75)
    assert [held.current() for _ in range(5)] == [first] * 5
    assert provider.asked == 2
    monkeypatch.setattr(time, "time", lambda: now + 101)
    with pytest.raises(UnreachableError, match="offline") as raised:
        held.current()
    assert raised.value.retryable
    provider.failure = None
    assert held.current() != first


def test_what_a_provider_raises_beside_that_is_the_apps_own():
    provider = Provider(3600)
    provider.failure = KeyError("logged out")
    with pytest.raises(KeyError, match="logged out"):
        TokenHolder(provider).current()
    for given in ("", None, 7):
        with pytest.raises(ConfigurationError, match="let it return a token"):
            TokenHolder(lambda given=given: given).current()


def test_a_token_that_is_given_is_not_asked_for():
    held = TokenHolder(token(-1))
    assert held.current() == held.current()
    assert not held.renewable
    held.replace(Provider(3600))
    assert held.renewable
    assert TokenHolder(None).current() is None

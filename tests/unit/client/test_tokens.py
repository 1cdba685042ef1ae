"""When a client requests a new token: in time, after a rejection, and once at a time."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jwt
import pytest

from lakesync.client.errors import UnreachableError
from lakesync.client.transports.http import HttpTransport
from lakesync.client.transports.tokens import TokenHolder
from lakesync.model.errors import ConfigurationError

DEADLINE = 60
SECRET = "a secret of at least thirty-two bytes"


def token(seconds, name="alice"):
    return jwt.encode({"sub": name, "exp": time.time() + seconds}, SECRET, "HS256")


class Provider:
    """Returns one token after another, and records its calls."""

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


def test_a_valid_token_is_requested_once():
    provider = Provider(3600)
    held = TokenHolder(provider)
    assert held.current() == held.current()
    assert provider.asked == 1


def test_a_token_is_renewed_half_a_minute_before_it_expires(monkeypatch):
    provider = Provider(100, 3600)
    held = TokenHolder(provider)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    first = held.current()
    monkeypatch.setattr(time, "time", lambda: now + 65)
    assert held.current() == first
    monkeypatch.setattr(time, "time", lambda: now + 75)
    assert held.current() != first
    assert provider.asked == 2


def test_a_short_lived_token_is_renewed_at_half_of_its_lifetime(monkeypatch):
    provider = Provider(20)
    held = TokenHolder(provider)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    held.current()
    monkeypatch.setattr(time, "time", lambda: now + 9)
    held.current()
    assert provider.asked == 1
    monkeypatch.setattr(time, "time", lambda: now + 11)
    held.current()
    assert provider.asked == 2


def test_a_clock_that_is_ahead_does_not_renew_the_token_for_each_request():
    provider = Provider(-3600)
    held = TokenHolder(provider)
    assert len({held.current() for _ in range(10)}) == 1
    assert provider.asked == 1
    held.renew(held.current())
    assert provider.asked == 2


def test_threads_with_a_rejected_token_renew_it_once():
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


def test_threads_that_start_together_request_one_token():
    provider = Provider(3600)
    held = TokenHolder(provider)
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: held.current(), range(8)))) == 1
    assert provider.asked == 1


def test_a_failing_provider_does_not_invalidate_a_valid_token(monkeypatch):
    provider = Provider(100, 3600)
    held = TokenHolder(provider)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
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


def test_other_errors_of_a_provider_are_raised_unchanged():
    provider = Provider(3600)
    provider.failure = KeyError("logged out")
    with pytest.raises(KeyError, match="logged out"):
        TokenHolder(provider).current()
    for given in ("", None, 7):
        with pytest.raises(ConfigurationError, match="return a token"):
            TokenHolder(lambda given=given: given).current()


@pytest.mark.parametrize("ends_wait", ["cancel", "replace", "replace by the same function"])
def test_the_wait_for_a_provider_ends_at_once(ends_wait):
    called, answer, asked = threading.Event(), threading.Event(), []

    def provider():
        asked.append(1)
        if len(asked) == 2:
            return "again"
        called.set()
        answer.wait()
        return token(3600, "late")

    transport = HttpTransport("http://127.0.0.1:9", "g", provider)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(transport.tokens.current)
        called.wait()
        try:
            if ends_wait == "replace":
                transport.set_token("new")
                assert waiting.result(DEADLINE) == "new"
            elif ends_wait == "replace by the same function":
                transport.set_token(provider)
                assert waiting.result(DEADLINE) == "again"
            else:
                transport.cancel_requests()
                with pytest.raises(UnreachableError, match="cancelled"):
                    waiting.result(DEADLINE)
        finally:
            answer.set()
            transport.close()
    if ends_wait == "cancel":
        assert jwt.decode(transport.tokens.current(), SECRET, ["HS256"])["sub"] == "late"
    else:
        assert transport.tokens.current() in ("new", "again")
    assert len(asked) == 1 + (ends_wait == "replace by the same function")


def test_a_fixed_token_is_not_renewed():
    held = TokenHolder(token(-1))
    assert held.current() == held.current()
    assert not held.renewable
    held.replace(Provider(3600))
    assert held.renewable
    assert TokenHolder(None).current() is None


@pytest.mark.parametrize(("returned", "described"), [(token(3600).encode(), "type bytes"), ("", "an empty string")])
def test_the_error_about_a_wrong_token_does_not_contain_it(returned, described):
    with pytest.raises(ConfigurationError, match=described) as raised:
        TokenHolder(lambda: returned).current()
    assert "eyJ" not in str(raised.value)

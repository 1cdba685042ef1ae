"""The rate limit of each client."""

from __future__ import annotations

import pytest

from gateway import admission
from gateway.admission import RateLimiter
from lakesync.model.errors import RateLimitedError


def test_a_burst_is_accepted_and_further_requests_wait_for_the_next_window():
    now = 100.0
    rate = RateLimiter(2, lambda: now)
    for _ in range(20):
        rate.check("gw", "greedy")
    now = 103.5
    with pytest.raises(RateLimitedError) as refused:
        rate.check("gw", "greedy")
    assert refused.value.retry_after == 6.5
    rate.check("gw", "modest")
    rate.check("other", "greedy")
    now = 110.0
    rate.check("gw", "greedy")


def test_memory_for_clients_is_bounded(monkeypatch):
    monkeypatch.setattr(admission, "MAX_CLIENTS", 50)
    rate = RateLimiter(1, lambda: 100.0)
    for n in range(1000):
        rate.check("gw", f"client-{n}")
        assert len(rate._counts) <= 50

"""The request rate limit of each client; HTTP requests and WebSocket messages have one each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from lakesync.model.errors import RateLimitedError

MAX_CLIENTS = 100_000
"""Clients counted in one window."""

_WINDOW_SECONDS = 10


class RateLimiter:
    """Limits the requests a second of each client, averaged over ten seconds so that a burst passes.

    It counts in fixed windows and drops all counts at a window's end. A window that reaches `MAX_CLIENTS` clients ends
    early, which bounds the memory.
    """

    def __init__(self, per_second: float, now: Callable[[], float] = time.monotonic) -> None:
        """Create the limiter.

        Args:
            per_second: requests a second of one client.
            now: clock, in seconds.
        """
        self._allowed = max(1, round(per_second * _WINDOW_SECONDS))
        self._now = now
        self._counts: Counter[tuple[str, str]] = Counter()
        self._ends = 0.0

    def check(self, gateway: str, client_id: str) -> None:
        """Count one request of a client.

        Args:
            gateway: id of the gateway.
            client_id: of the client.

        Raises:
            RateLimitedError: the client is above its limit.
        """
        now = self._now()
        if now >= self._ends or len(self._counts) >= MAX_CLIENTS:
            self._counts, self._ends = Counter(), now + _WINDOW_SECONDS
        self._counts[gateway, client_id] += 1
        if self._counts[gateway, client_id] > self._allowed:
            raise RateLimitedError(
                f"more than {self._allowed} requests in {_WINDOW_SECONDS} s; wait before the next",
                retry_after=self._ends - now,
            )

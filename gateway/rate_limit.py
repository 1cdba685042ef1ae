"""Limits the request rate of each client. HTTP requests and WebSocket messages each have a limiter."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from lakesync.model.errors import RateLimitedError

MAX_CLIENTS = 100_000
"""Number of clients that are counted in one window, at most."""

_WINDOW_SECONDS = 10


class RateLimiter:
    """Limits each client's requests per second, averaged over ten seconds so that bursts are allowed.

    It counts in fixed windows and drops all counts at a window's end. A window with `MAX_CLIENTS` clients ends early,
    which bounds the memory.
    """

    def __init__(self, per_second: float, now: Callable[[], float] = time.monotonic) -> None:
        """Create the limiter.

        Args:
            per_second: allowed requests per second of one client.
            now: returns the time in seconds.
        """
        self._allowed = max(1, round(per_second * _WINDOW_SECONDS))
        self._now = now
        self._counts: Counter[tuple[str, str]] = Counter()
        self._ends = 0.0

    def check(self, gateway: str, client_id: str) -> None:
        """Count one request of a client, and reject it if the client is above its limit.

        Args:
            gateway: the gateway's id.
            client_id: the client's id.

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

"""Decides which requests are served: none while the server starts or stops, and not more of a client than its rate.

A gateway is one app's stream of changes; a server has many. The HTTP middleware and the WebSocket route ask the
server's `RequestGate` whether requests are accepted at all. `GatewayServer` opens it after the start, and drains it at
the end: it waits for requests in flight. A `RateLimiter` counts the requests of each client. A server has one for HTTP
requests, which authentication checks, and one for WebSocket messages.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from lakesync.model.errors import RateLimitedError

STARTING = "starting: the gateway opens its store and replays the log after a crash; try again soon"
"""Why requests are rejected while the server starts."""
STOPPING = "draining: the gateway is stopping; repeat the request elsewhere or later"
"""Why requests are rejected while the server stops."""


class RequestGate:
    """Counts the requests in flight and knows whether new ones are accepted. Use it from the event loop's thread.

    `GatewayServer` calls `close_for_startup`, `open` and, at the end, `drain`; between them, each request calls
    `request_started` and `request_ended`.
    """

    def __init__(self) -> None:
        self.in_flight = 0
        self.is_draining = False
        self.rejection_reason: str | None = None
        """Why new requests are rejected; None while they are accepted."""
        self._idle = asyncio.Event()
        self._idle.set()

    def close_for_startup(self) -> None:
        """Reject requests until `open` is called."""
        self.rejection_reason = STARTING

    def open(self) -> None:
        """Accept requests from now on, unless the server is stopping already."""
        self.rejection_reason = STOPPING if self.is_draining else None

    def request_started(self) -> None:
        """Count a request or WebSocket message as begun."""
        self.in_flight += 1
        self._idle.clear()

    def request_ended(self) -> None:
        """Count a request or WebSocket message as finished."""
        self.in_flight -= 1
        if not self.in_flight:
            self._idle.set()

    async def drain(self, seconds: float) -> bool:
        """Reject new requests and wait for those in flight.

        Args:
            seconds: the longest time to wait.

        Returns:
            Whether all requests in flight have ended.
        """
        self.is_draining = True
        self.rejection_reason = STOPPING
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


MAX_CLIENTS = 100_000
"""Number of clients that are counted in one window, at most."""
_WINDOW_SECONDS = 10
"""Length of a window, after which counts start again at 0."""


class RateLimiter:
    """Limits each client's requests per second, averaged over ten seconds so that bursts are allowed.

    It counts in fixed windows of ten seconds, and drops all counts at a window's end. A window with `MAX_CLIENTS`
    clients ends early, which bounds the memory.
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
        """`(gateway id, client id)` → requests in the current window."""
        self._ends = 0.0
        """When the current window ends, by `now`."""

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

"""The gate before the routes: it rejects requests while the server starts or stops, and counts those in flight.

The HTTP middleware and the WebSocket route check it before they serve. `GatewayServer` opens and drains it.
"""

from __future__ import annotations

import asyncio

STARTING = "starting: the gateway opens its store and replays the log after a crash; try again soon"
"""Why requests are rejected while the server starts."""
STOPPING = "draining: the gateway is stopping; repeat the request elsewhere or later"
"""Why requests are rejected while the server stops."""


class RequestGate:
    """Counts the requests in flight and knows whether new ones are accepted. Use it from the event loop's thread."""

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

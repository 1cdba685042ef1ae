"""How the server starts and stops: when work is turned away, and how what is in flight is finished."""

from __future__ import annotations

import asyncio

STARTING = "starting: the gateway opens its store and replays what a crash left; try again soon"
STOPPING = "draining: the gateway is stopping; repeat the request elsewhere or later"


class Drain:
    """Counts the requests in flight; owned by the event loop's thread."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.draining = False
        self.refusing: str | None = None
        """Why work is turned away; None while it is taken."""
        self._idle = asyncio.Event()
        self._idle.set()

    def starting(self) -> None:
        """Turn work away until `started`."""
        self.refusing = STARTING

    def started(self) -> None:
        """Take work."""
        self.refusing = STOPPING if self.draining else None

    def enter(self) -> None:
        """A request begins."""
        self.in_flight += 1
        self._idle.clear()

    def leave(self) -> None:
        """A request has ended."""
        self.in_flight -= 1
        if not self.in_flight:
            self._idle.set()

    async def finish(self, seconds: float) -> bool:
        """Turn new requests away and wait for those in flight, at most `seconds`; whether all of them ended."""
        self.draining = True
        self.refusing = STOPPING
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

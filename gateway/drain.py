"""How the server stops: what is in flight is finished, what comes anew is turned away."""

from __future__ import annotations

import asyncio


class Drain:
    """Counts the requests in flight; owned by the event loop's thread."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.draining = False
        self._idle = asyncio.Event()
        self._idle.set()

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
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

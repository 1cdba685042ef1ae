"""When to try again."""

from __future__ import annotations

from collections.abc import Callable

FIRST_DELAY = 1.0
LONGEST_DELAY = 30.0


class Lane:
    """One kind of request: exponential delays after failures, 1 s to 30 s, spread over their upper half."""

    def __init__(self, monotonic: Callable[[], float], spread: Callable[[], float]) -> None:
        """Args: monotonic: seconds; spread: a number from 0 to 1, at random."""
        self._monotonic = monotonic
        self._spread = spread
        self._failures = 0
        self._due = 0.0

    def delay(self) -> float:
        """Seconds until a request may be made; 0 when it may be made now."""
        return max(0.0, self._due - self._monotonic())

    def failed(self, at_least: float | None = None) -> None:
        """Wait longer than last time, and no less than the gateway asked for."""
        longest = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(self._failures, 10))
        self._failures += 1
        delay = longest * (1 + self._spread()) / 2
        self._due = self._monotonic() + max(delay, at_least or 0.0)

    def succeeded(self) -> None:
        """Start anew."""
        self._failures = 0
        self._due = 0.0

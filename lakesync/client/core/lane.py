"""When to try again."""

from __future__ import annotations

from collections.abc import Callable

from lakesync.client.core.limits import RetryPolicy


class Lane:
    """One kind of request: delays after failures, as the policy has them."""

    def __init__(
        self, monotonic: Callable[[], float], spread: Callable[[], float], policy: RetryPolicy | None = None
    ) -> None:
        """Args: monotonic: seconds; spread: a number from 0 to 1, at random."""
        self._monotonic = monotonic
        self._spread = spread
        self._policy = policy or RetryPolicy()
        self._failures = 0
        self._due = 0.0

    def delay(self) -> float:
        """Seconds until a request may be made; 0 when it may be made now."""
        return max(0.0, self._due - self._monotonic())

    @property
    def longest_delay(self) -> float:
        """Seconds between requests of which nothing is expected to change."""
        return self._policy.longest_delay

    def failed(self, at_least: float | None = None) -> None:
        """Wait longer than last time, and no less than the gateway asked for."""
        longest = min(self._policy.longest_delay, self._policy.first_delay * 2.0 ** min(self._failures, 10))
        self._failures += 1
        delay = longest * (1 + self._spread()) / 2
        self._due = self._monotonic() + max(delay, at_least or 0.0)

    def succeeded(self) -> None:
        """Start anew."""
        self._failures = 0
        self._due = 0.0

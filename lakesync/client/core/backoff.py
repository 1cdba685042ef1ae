"""Exponential backoff with jitter: when a failed request may be sent again."""

from __future__ import annotations

from collections.abc import Callable

from lakesync.client.core.limits import RetryPolicy


class Backoff:
    """The retry delays of one kind of request, such as pushes or pulls."""

    def __init__(
        self, monotonic: Callable[[], float], jitter: Callable[[], float], policy: RetryPolicy | None = None
    ) -> None:
        """Start without a delay.

        Args:
            monotonic: returns seconds.
            jitter: returns a random number from 0 to 1.
            policy: the shortest and the longest delay.
        """
        self._monotonic = monotonic
        self._jitter = jitter
        self._policy = policy or RetryPolicy()
        self._failures = 0
        self._due = 0.0

    def delay(self) -> float:
        """Return the seconds until a request may be sent; 0 if it may be sent now."""
        return max(0.0, self._due - self._monotonic())

    @property
    def longest_delay(self) -> float:
        """Seconds to wait after an error that a retry alone will not fix."""
        return self._policy.longest_delay

    def failed(self, at_least: float | None = None) -> None:
        """Record a failure and double the delay.

        Args:
            at_least: seconds that the gateway asked for (`Retry-After`).
        """
        longest = min(self._policy.longest_delay, self._policy.first_delay * 2.0 ** min(self._failures, 10))
        self._failures += 1
        delay = longest * (1 + self._jitter()) / 2
        self._due = self._monotonic() + max(delay, at_least or 0.0)

    def reset(self) -> None:
        """Clear the delay, after a success or when the network is back."""
        self._failures = 0
        self._due = 0.0

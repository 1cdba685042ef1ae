"""For tests of this project and of apps: `ManualClock`, pytest fixtures, Hypothesis strategies, fake servers."""

from __future__ import annotations


class ManualClock:
    """A wall clock that stands still until a test sets it. It is passed to `HLC`, `Engine` or a fake server."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        """Set the time, in milliseconds since 1970."""
        self.now_ms = now_ms

    def __call__(self) -> int:
        """Return the time, in milliseconds since 1970."""
        return self.now_ms

    def advance(self, ms: int) -> int:
        """Advance by milliseconds, or back if negative, and return the new time."""
        self.now_ms += ms
        return self.now_ms

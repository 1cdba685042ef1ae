"""A wall clock that tests set and advance."""

from __future__ import annotations


class ManualClock:
    """Called, it gives milliseconds since the Unix epoch, as `HLC` wants its wall clock."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        """The time, in milliseconds."""
        return self.now_ms

    def advance(self, ms: int) -> int:
        """Advance by milliseconds, or back if negative; return the new time."""
        self.now_ms += ms
        return self.now_ms

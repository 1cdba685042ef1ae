"""The clock that stamps edits."""

from __future__ import annotations

from collections.abc import Callable

from lakesync.model.hlc import COUNTER_BITS, HLC, MAX_DRIFT_MS


class EditClock:
    """A hybrid logical clock above everything that the gateway sent, whatever this machine's wall clock says.

    The gateway vouches for what it sends, so its stamps are followed however far ahead they are.
    """

    def __init__(self, wall: Callable[[], int], last: int, seen: int) -> None:
        """Args: wall: milliseconds; last, seen: as in `Position`."""
        self._wall = wall
        self._hlc = HLC(wall, last)
        self.seen = seen

    @property
    def last(self) -> int:
        """The highest hlc handed out or seen."""
        return self._hlc.last

    def now(self, at: int | None = None) -> int:
        """A new hlc, for a change made now or `at` a wall time in milliseconds; above all before it."""
        if at is not None:
            self._hlc = HLC(self._wall, max(at << COUNTER_BITS, self._hlc.last + 1))
            return self._hlc.last
        return self._hlc.now()

    def observe(self, stamp: int) -> None:
        """Go on from an hlc that the gateway sent or accepted."""
        self.go_on(stamp, stamp)

    def go_on(self, last: int, seen: int) -> None:
        """Hand out nothing below what another of this client's clocks did. Args: as for the clock itself."""
        self.seen = max(self.seen, seen)
        if last > self._hlc.last:
            self._hlc = HLC(self._wall, last)

    def limit(self) -> int:
        """The highest hlc that the gateway would take now, if its clock is this machine's."""
        return (max(self._wall(), self.seen >> COUNTER_BITS) + MAX_DRIFT_MS + 1 << COUNTER_BITS) - 1

    def turn_back(self, last: int) -> None:
        """Go on from `last` or what was seen, if that is higher: what was handed out above it is worth nothing."""
        self._hlc = HLC(self._wall, max(last, self.seen))

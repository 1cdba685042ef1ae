"""The hybrid logical clock (hlc) that stamps a client's edits: 48 bits of milliseconds and a 16-bit counter."""

from __future__ import annotations

from collections.abc import Callable

from lakesync.model.hlc import COUNTER_BITS, HLC, MAX_DRIFT_MS


class EditClock:
    """A hybrid logical clock that stays above every stamp the gateway sent, whatever the local wall clock says.

    Stamps from the gateway are trusted however far ahead they are, because the gateway checks every push for drift.
    """

    def __init__(self, wall: Callable[[], int], last: int, gateway_hlc: int) -> None:
        """Continue from stored values.

        Args:
            wall: returns this machine's time in milliseconds since 1970.
            last: the highest hlc issued to an edit or observed in a page (`Position.hlc`).
            gateway_hlc: the highest hlc that the gateway sent or accepted (`Position.gateway_hlc`).
        """
        self._wall = wall
        self._hlc = HLC(wall, last)
        self.gateway_hlc = gateway_hlc
        """The highest hlc that the gateway sent or accepted."""

    @property
    def last(self) -> int:
        """The highest hlc issued or observed."""
        return self._hlc.last

    def now(self, at_ms: int | None = None) -> int:
        """Return a new hlc, above all earlier ones.

        Args:
            at_ms: when the change was made, in milliseconds of this machine's clock; None for now.
        """
        if at_ms is not None:
            self._hlc = HLC(self._wall, max(at_ms << COUNTER_BITS, self._hlc.last + 1))
            return self._hlc.last
        return self._hlc.now()

    def observe(self, hlc: int) -> None:
        """Advance past an hlc that the gateway sent or accepted."""
        self.advance(hlc, hlc)

    def advance(self, last: int, gateway_hlc: int) -> None:
        """Advance past what another connection of this client issued and observed.

        Args:
            last: the highest hlc that it issued or observed.
            gateway_hlc: the highest hlc that the gateway sent to it or accepted from it.
        """
        self.gateway_hlc = max(self.gateway_hlc, gateway_hlc)
        if last > self._hlc.last:
            self._hlc = HLC(self._wall, last)

    def limit(self) -> int:
        """Return the highest hlc that the gateway accepts now, if its clock agrees with this machine's.

        The gateway rejects stamps more than MAX_DRIFT_MS ahead of its clock (CLOCK_DRIFT).
        """
        return (max(self._wall(), self.gateway_hlc >> COUNTER_BITS) + MAX_DRIFT_MS + 1 << COUNTER_BITS) - 1

    def turn_back(self, last: int) -> None:
        """Continue from `last`, or from `gateway_hlc` if that is higher.

        Call it after the local clock was ahead. Edits with higher stamps must get new ones.
        """
        self._hlc = HLC(self._wall, max(last, self.gateway_hlc))

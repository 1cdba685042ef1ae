"""When a part that is still behind may be asked for again: after pauses that grow while its mark does not move."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from lakesync.analysis.marks import Lag

FIRST_PAUSE = 5.0
"""Seconds after the first request; twice as long after each further one."""
LONGEST_PAUSE = 40.0
"""For the first `PROMPT` requests, so that what failed for some minutes goes on within one."""
PROMPT = 10
LATER_PAUSE = 300.0
"""After that: somebody has to mend something."""


class Attempt(msgspec.Struct, frozen=True):
    """Requests for a part since its mark moved."""

    mark: int
    count: int
    at: float
    """When the latest one was made, in seconds since 1970."""

    @property
    def pause(self) -> float:
        """Seconds from the latest request to the next."""
        return min(FIRST_PAUSE * 2 ** (self.count - 1), LONGEST_PAUSE) if self.count <= PROMPT else LATER_PAUSE

    @property
    def next_ms(self) -> int:
        """When the next one is made if the mark does not move, in milliseconds since 1970."""
        return round((self.at + self.pause) * 1000)


@dataclass(frozen=True)
class Waiting:
    """A part that is behind and not to be asked for yet."""

    lag: Lag
    count: int
    left: float
    """Seconds."""

    def __str__(self) -> str:
        """Say what, how often it was asked for, and when it is again."""
        times = "once" if self.count == 1 else f"{self.count} times"
        return f"{self.lag.key} was requested {times} and is still behind; the next request is in {self.left:.0f} s"


class Attempts:
    """The requests that a sensor made, kept in its cursor.

    A mark that has moved since the latest request starts anew: the part is not failing.
    """

    def __init__(self, cursor: str | None) -> None:
        """Args: cursor: the sensor's; one of another form counts as none."""
        try:
            self._made = msgspec.json.decode(cursor or "{}", type=dict[str, Attempt])
        except msgspec.MsgspecError:
            self._made = {}

    def of(self, lag: Lag) -> Attempt | None:
        """The requests for a part that did not move its mark; None where there is none."""
        made = self._made.get(lag.key)
        return made if made is not None and made.mark == lag.mark else None

    def ready(self, lags: Iterable[Lag]) -> tuple[list[Lag], list[Waiting]]:
        """Divide parts that are behind into those to be asked for now, and those that have to wait."""
        now = time.time()
        ready, waiting = [], []
        for lag in lags:
            made = self.of(lag)
            left = made.at + made.pause - now if made is not None else 0.0
            if made is None or not 0 < left <= made.pause:  # a clock that was put back holds nothing up
                ready.append(lag)
            else:
                waiting.append(Waiting(lag, made.count, left))
        return ready, waiting

    @property
    def by_part(self) -> Mapping[str, Attempt]:
        """Key of a part → the requests since its mark moved, as of the latest request."""
        return self._made

    def requested(self, asked: Iterable[Lag], others: Iterable[Lag] = ()) -> str:
        """Return the cursor after a request.

        Args:
            asked: the parts for which it was made.
            others: further parts that are behind, whose earlier requests are kept.
        """
        now, kept = time.time(), {}
        for lag in asked:
            made = self.of(lag)
            kept[lag.key] = Attempt(lag.mark, made.count + 1 if made is not None else 1, now)
        for lag in others:
            made = self.of(lag)
            if made is not None and lag.key not in kept:
                kept[lag.key] = made
        return msgspec.json.encode(kept).decode()

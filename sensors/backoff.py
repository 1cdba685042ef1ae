"""Backoff of the sensors' requests: a part whose mark does not move is requested again after growing pauses.

All sensors that request runs use it. The requests are kept in the sensor's cursor.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from lakesync.analysis.marks import Lag

FIRST_PAUSE = 5.0
"""Seconds between the first two requests. Each further pause is twice as long."""
LONGEST_PAUSE = 40.0
"""Seconds at most for the first `PROMPT` requests, so that work continues within a minute after the fault is mended."""
PROMPT = 90
"""Number of requests with pauses of at most `LONGEST_PAUSE`: an hour."""
LATER_PAUSE = 300.0
"""Seconds between later requests. A part that fails for good would otherwise make 2,000 runs a day."""


def pause(count: int) -> float:
    """Return the seconds from the latest of several requests in vain to the next.

    Args:
        count: number of requests, 1 or more.
    """
    return min(FIRST_PAUSE * 2 ** (count - 1), LONGEST_PAUSE) if count <= PROMPT else LATER_PAUSE


class Attempt(msgspec.Struct, frozen=True):
    """Requests of runs for a part since its mark moved."""

    mark: int
    count: int
    at: float
    """Time of the latest one, in seconds since 1970."""

    @property
    def pause(self) -> float:
        """Seconds from the latest request to the next."""
        return pause(self.count)

    @property
    def next_ms(self) -> int:
        """When the next one is made if the mark does not move, in milliseconds since 1970."""
        return round((self.at + self.pause) * 1000)


@dataclass(frozen=True)
class Delayed:
    """A part that is behind, and whose next request must wait."""

    lag: Lag
    count: int
    left: float
    """Seconds until the next request."""

    def __str__(self) -> str:
        """Return the part, the number of its requests and the time to the next one, for a skipped tick."""
        times = "once" if self.count == 1 else f"{self.count} times"
        return f"{self.lag.key} was requested {times} and is still behind; the next request is in {self.left:.0f} s"


class Attempts:
    """The requests that a sensor made, kept in its cursor.

    A part whose mark has moved since the latest request is not failing, so its count starts again.
    """

    def __init__(self, cursor: str | None) -> None:
        """Read the requests.

        Args:
            cursor: the sensor's cursor. One of another format is ignored.
        """
        try:
            self._made = msgspec.json.decode(cursor or "{}", type=dict[str, Attempt])
        except msgspec.MsgspecError:
            self._made = {}

    def of(self, lag: Lag) -> Attempt | None:
        """Return the requests for a part since its mark moved; None if it was not requested."""
        made = self._made.get(lag.key)
        return made if made is not None and made.mark == lag.mark else None

    def ready(self, lags: Iterable[Lag]) -> tuple[list[Lag], list[Delayed]]:
        """Divide parts that are behind into those to request now and those whose next request must wait."""
        now = time.time()
        ready, delayed = [], []
        for lag in lags:
            made = self.of(lag)
            left = made.at + made.pause - now if made is not None else 0.0
            if made is None or not 0 < left <= made.pause:  # a clock that was set back must not delay requests
                ready.append(lag)
            else:
                delayed.append(Delayed(lag, made.count, left))
        return ready, delayed

    @property
    def by_part(self) -> Mapping[str, Attempt]:
        """Key of a part → the requests since its mark moved, as of the latest request."""
        return self._made

    def requested(self, asked: Iterable[Lag], others: Iterable[Lag] = ()) -> str:
        """Return the cursor after a request.

        Args:
            asked: the parts that were requested.
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

"""Decides for which parts a sensor may request a run now: while a part makes no progress, the pauses grow (backoff).

A part is what a run updates: a table, checkpoint, destination, connector and so on. Its mark says how far it is. A
sensor requests runs for parts that are behind, each described by a *lag*. All sensors that request runs ask `Attempts`,
which they get from `PipelineLags.record_attempts`. It is stored in the sensor's cursor, a text that Dagster keeps from
tick to tick; a tick is one evaluation of a sensor. So the pauses continue after a restart.

`skip_during_outage` decorates the functions of sensors and schedules that read staging (the gateways' database) or the
lake, so that an outage does not fail their ticks.
"""

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import dagster as dg
import msgspec

from lakesync.analysis.lags import Lag
from lakesync.model.backoff import doubled_wait
from lakesync.model.errors import LakeUnavailableError, StagingUnavailableError

_Context = TypeVar("_Context")
"""What Dagster passes to the function of a sensor or schedule."""
_Result = TypeVar("_Result")
FIRST_PAUSE_SECONDS = 5.0
"""Seconds between the first two requests. Each further pause is twice as long, up to `LONGEST_EARLY_PAUSE_SECONDS`."""
LONGEST_EARLY_PAUSE_SECONDS = 40.0
"""Longest pause between the first `EARLY_REQUESTS` requests, in seconds. So work continues within a minute after a
fault ends."""
EARLY_REQUESTS = 90
"""Number of requests with pauses of at most `LONGEST_EARLY_PAUSE_SECONDS`. Together they take about an hour."""
LATE_PAUSE_SECONDS = 300.0
"""Seconds between later requests. With shorter pauses, a part that always fails would cause 2,000 runs a day."""


def skip_during_outage(evaluate: Callable[[_Context], _Result]) -> Callable[[_Context], _Result | dg.SkipReason]:
    """Decorate a sensor's or schedule's function: a tick that cannot reach staging or the lake is skipped.

    The next tick compares the marks again, so a skipped tick loses nothing. `lakesync status` reports sensors whose
    ticks are skipped for long.

    Args:
        evaluate: evaluates one tick.
    """

    @functools.wraps(evaluate)
    def evaluated(context: _Context) -> _Result | dg.SkipReason:
        try:
            return evaluate(context)
        except (StagingUnavailableError, LakeUnavailableError) as error:
            return dg.SkipReason(str(error))

    return evaluated


def pause_after(count: int) -> float:
    """Return the seconds to wait before the next request for a part whose mark has not moved.

    Args:
        count: number of requests so far, 1 or more.
    """
    if count > EARLY_REQUESTS:
        return LATE_PAUSE_SECONDS
    return doubled_wait(FIRST_PAUSE_SECONDS, LONGEST_EARLY_PAUSE_SECONDS, count - 1)


class Attempt(msgspec.Struct, frozen=True):
    """The run requests for a part since its mark last moved."""

    mark: int
    """The part's mark at the requests."""
    count: int
    """Number of requests."""
    at: float
    """Time of the latest request, in seconds since 1970."""

    @property
    def pause(self) -> float:
        """Seconds from the latest request to the next."""
        return pause_after(self.count)

    @property
    def next_ms(self) -> int:
        """When the next request is made if the mark does not move, in milliseconds since 1970."""
        return round((self.at + self.pause) * 1000)


@dataclass(frozen=True)
class Delayed:
    """A part that is behind, and whose next request must wait."""

    lag: Lag
    """The part, and how far it is behind."""
    count: int
    """Number of requests so far."""
    seconds_left: float
    """Seconds until the next request."""

    def __str__(self) -> str:
        """Return the part, the number of its requests and the time to the next one, as the reason of a skipped tick."""
        times = "once" if self.count == 1 else f"{self.count} times"
        return (
            f"{self.lag.key} was requested {times} and is still behind; the next request is in "
            f"{self.seconds_left:.0f} s"
        )


class Attempts:
    """The run requests that a sensor made, as its cursor stores them.

    If a part's mark has moved since the latest request, its runs make progress, so its count starts again.
    """

    def __init__(self, cursor: str | None) -> None:
        """Read the requests.

        Args:
            cursor: the sensor's cursor; None before its first request. A cursor of another format is ignored.
        """
        try:
            self._attempts = msgspec.json.decode(cursor or "{}", type=dict[str, Attempt])
        except msgspec.MsgspecError:
            self._attempts = {}

    def of(self, lag: Lag) -> Attempt | None:
        """Return the requests for a part since its mark moved; None before the first."""
        attempt = self._attempts.get(lag.key)
        return attempt if attempt is not None and attempt.mark == lag.mark else None

    def divide(self, lags: Iterable[Lag]) -> tuple[list[Lag], list[Delayed]]:
        """Divide parts that are behind into those to request now and those whose next request must wait.

        Args:
            lags: the parts that are behind.

        Returns:
            The parts that are ready for a request, and the delayed ones, both in the order of `lags`.
        """
        now = time.time()
        ready, delayed = [], []
        for lag in lags:
            attempt = self.of(lag)
            left = attempt.at + attempt.pause - now if attempt is not None else 0.0
            # more than the pause is left only if the clock was set back; that must not delay the request
            if attempt is not None and 0 < left <= attempt.pause:
                delayed.append(Delayed(lag, attempt.count, left))
            else:
                ready.append(lag)
        return ready, delayed

    @property
    def by_part(self) -> Mapping[str, Attempt]:
        """Key of a part → its requests, as of the latest one."""
        return self._attempts

    def cursor_after(self, requested: Iterable[Lag], behind: Iterable[Lag] = ()) -> str:
        """Return the sensor's cursor after a request.

        Args:
            requested: the parts for which runs are requested now.
            behind: all parts that are behind. The earlier requests for those that are not requested now stay.
        """
        now = time.time()
        attempts = {lag.key: attempt for lag in behind if (attempt := self.of(lag)) is not None}
        for lag in requested:
            attempt = self.of(lag)
            attempts[lag.key] = Attempt(lag.mark, attempt.count + 1 if attempt is not None else 1, now)
        return msgspec.json.encode(attempts).decode()

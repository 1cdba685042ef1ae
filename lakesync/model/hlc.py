"""Hybrid logical clock: 64 bits, of which 48 are wall milliseconds since the Unix epoch and 16 a counter.

The algorithm is that of Kulkarni, Demirbas et al., "Logical Physical Clocks" (2014). Both parts are packed into one
integer, so that an overflow of the counter carries into the wall part. Clients stamp their deltas (changes of rows)
with it; the engine checks these stamps, and gives each commit a timestamp of its own in the same format, the *arrival*.

Two functions return wall time in milliseconds: `wall_clock` is this machine's clock, which clients and adapters use;
`OffsetClock.now_ms` is that of gateways and the pipeline, which tests can shift while their processes run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from lakesync.model.errors import ClockDriftError

COUNTER_BITS = 16
"""Number of low bits that are the counter."""
MAX_COUNTER = (1 << COUNTER_BITS) - 1
"""The highest counter."""
MAX_WALL_MS = (1 << 48) - 1
"""The highest wall time, in milliseconds since 1970."""
MAX_DRIFT_MS = 5000
"""The most milliseconds by which another clock may be ahead of the local one."""


def encode(wall_ms: int, counter: int) -> int:
    """Return the hlc of a wall time and a counter.

    Args:
        wall_ms: milliseconds since 1970.
        counter: from 0 to `MAX_COUNTER`.

    Raises:
        ValueError: one of them does not fit its bits.
    """
    if not 0 <= wall_ms <= MAX_WALL_MS:
        raise ValueError(f"wall time {wall_ms} ms is outside 0 to {MAX_WALL_MS}")
    if not 0 <= counter <= MAX_COUNTER:
        raise ValueError(f"counter {counter} is outside 0 to {MAX_COUNTER}")
    return wall_ms << COUNTER_BITS | counter


def decode(hlc: int) -> tuple[int, int]:
    """Return the wall time, in milliseconds since 1970, and the counter of an hlc."""
    return wall_of(hlc), hlc & MAX_COUNTER


def wall_of(hlc: int) -> int:
    """Return the wall time of an hlc or of an arrival, in milliseconds since 1970."""
    return hlc >> COUNTER_BITS


def start_of(wall_ms: int) -> int:
    """Return the lowest hlc of a wall time, which is given in milliseconds since 1970."""
    return wall_ms << COUNTER_BITS


def iso_time(wall_ms: float) -> str:
    """Return a wall time, in milliseconds since 1970, as ISO 8601 text in UTC: `2026-11-21T10:00:00.000Z`."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def wall_clock() -> int:
    """Return this machine's wall time, in milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


class HLC:
    """A clock that always increases, whatever its wall clock does. Use it from one thread."""

    def __init__(self, wall: Callable[[], int] = wall_clock, last: int = 0) -> None:
        """Create the clock.

        Args:
            wall: returns wall time in milliseconds since 1970.
            last: the highest hlc that the clock returned or received before; 0 for a new clock.
        """
        self._wall = wall
        self._last = last

    @property
    def last(self) -> int:
        """The highest hlc so far."""
        return self._last

    def now(self) -> int:
        """Return a new hlc, above all earlier ones."""
        self._last = max(start_of(self._wall()), self._last + 1)
        return self._last

    def receive(self, remote: int) -> int:
        """Return a new hlc, above all earlier ones and above one that was received.

        Args:
            remote: the hlc in a message from another clock.

        Raises:
            ClockDriftError: `remote` is more than MAX_DRIFT_MS ahead of the wall clock; the clock is unchanged.
        """
        wall = self._wall()
        ahead = wall_of(remote) - wall
        if ahead > MAX_DRIFT_MS:
            raise ClockDriftError(
                f"hlc {remote} is {ahead} ms ahead of this clock, {MAX_DRIFT_MS} are allowed: set the sender's clock"
            )
        self._last = max(start_of(wall), self._last + 1, remote + 1)
        return self._last


_RECHECK_SECONDS = 0.02
"""Seconds between two checks of the offset file, at least: it is not read for every request."""


class OffsetClock:
    """The system's clock plus an offset from a file, so that tests can shift the clock of a running server.

    The file contains milliseconds. While it is missing or incomplete, the last offset stays.
    """

    def __init__(self, offset_file: Path | None = None) -> None:
        """Create the clock.

        Args:
            offset_file: the file with the offset, which need not exist; None for no offset.
        """
        self._file = offset_file
        self._offset = 0
        self._version: tuple[int, int] | None = None
        """Modification time and inode of the file when it was last read; None before that."""
        self._checked = float("-inf")
        """The time of the last check, by `time.monotonic`."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC, with the offset."""
        if self._file is not None:
            self._refresh(self._file)
        return wall_clock() + self._offset

    def _refresh(self, file: Path) -> None:
        """Read the offset if the file has changed, at most every `_RECHECK_SECONDS`."""
        now = time.monotonic()
        if now - self._checked < _RECHECK_SECONDS:
            return
        self._checked = now
        try:
            status = file.stat()
            version = (status.st_mtime_ns, status.st_ino)
            if version != self._version:
                self._offset = int(file.read_text("ascii"))
                self._version = version
        except (OSError, ValueError):
            return

"""Reports the progress of storms and soaks in lines, which can be read in a terminal, in a log file and in CI."""

from __future__ import annotations

import sys
import time

_SECONDS = 10.0
"""Seconds between two lines, at least."""


class ProgressLines:
    """Prints how much of a long run is done, on stderr."""

    def __init__(self, unit: str, total: int | None = None) -> None:
        """Begin to measure the time.

        Args:
            unit: what is counted, in the plural.
            total: the number at the end; None if it is not known.
        """
        self._unit = unit
        self._of_total = "" if total is None else f" of {total:,}"
        self._began = self._printed = time.monotonic()
        self._done = 0

    def advance(self, number: int = 1) -> None:
        """Count what is done, and print a line if the last one is older than ten seconds."""
        self._done += number
        now = time.monotonic()
        if now - self._printed >= _SECONDS:
            self._printed = now
            print(
                f"{self._done:,}{self._of_total} {self._unit} after {now - self._began:.0f} s",
                file=sys.stderr,
                flush=True,
            )

"""The server's wall clock, for arrivals and checks of clock drift; a file can shift it in tests of whole systems."""

from __future__ import annotations

import time
from pathlib import Path

_RECHECK_SECONDS = 0.02


class WallClock:
    """The system's clock plus an offset from a file.

    The file contains milliseconds. It is checked at most every 20 ms, and read if it has changed. While it is missing
    or incomplete, the last offset stays.
    """

    def __init__(self, offset_file: Path | None = None) -> None:
        """Create the clock; `offset_file` may be missing."""
        self._file = offset_file
        self._offset = 0
        self._version: tuple[int, int] | None = None
        self._checked = float("-inf")

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC, with the offset."""
        if self._file is not None:
            self._refresh(self._file)
        return time.time_ns() // 1_000_000 + self._offset

    def _refresh(self, file: Path) -> None:
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

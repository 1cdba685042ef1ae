"""Runs SQLite's checkpoints of `state.db` in a thread of its own.

They copy its write-ahead log to the file, which takes long.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import structlog

from lakesync.staging.sqlite.files import connect

_CACHE_MIB = 1
_log = structlog.get_logger(__name__)


class Checkpointer:
    """A thread with its own connection that only runs checkpoints."""

    def __init__(self, path: Path) -> None:
        """Start the thread."""
        self._sql = connect(path, _CACHE_MIB)
        self._wanted = threading.Event()
        self.under_way = threading.Lock()
        """Held during a checkpoint."""
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"checkpoints of {path.name}", daemon=True)
        self._thread.start()

    def want(self) -> None:
        """Request a checkpoint, after a commit."""
        self._wanted.set()

    def stop(self) -> None:
        """Finish the current checkpoint, and end the thread."""
        self._stopped = True
        self._wanted.set()
        self._thread.join()
        self._sql.close()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._stopped:
                return
            try:
                with self.under_way:
                    self._sql.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            except sqlite3.Error:
                _log.warning("no checkpoint: the next one does it all", exc_info=True)

"""Decides when rows and entries in memory are written to `state.db`, and how much at a time.

The owner thread calls it between groups of commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import NamedTuple

import structlog

from lakesync.model.crash_points import crash_point
from lakesync.staging.head import Head
from lakesync.staging.sqlite.journal import Journal
from lakesync.staging.sqlite.recovery import Recovery, Shard
from lakesync.staging.sqlite.state import State

_SECONDS_AT_A_TIME = 0.1
"""Pushes wait at most so long for a part of the frozen layer to be written, unless the limits are exceeded."""
_MANY = 0.75
"""Above this fraction of the allowed rows, more rows are expected."""
_EARLY = 1.25
"""The frozen layer is written this many times as fast as necessary."""

_log = structlog.get_logger(__name__)


class WriteBehindLimits(NamedTuple):
    """How much of the journal may be missing in `state.db`: about what a restart replays."""

    seconds: float = 10.0
    rows: int = 20_000
    bytes: int = 64 << 20
    """Of deltas as JSON."""


class WriteBehind:
    """Tracks how far `state.db` is, and writes it. All methods belong to the owner thread."""

    def __init__(self, journal: Journal, state: State, recovery: Recovery, allowed: WriteBehindLimits) -> None:
        self._journal = journal
        self._state = state
        self._recovery = recovery
        self._allowed = allowed
        self._moved: set[str] = set()
        """Gateways with commits that neither the file nor the frozen layer contains."""
        self._frozen: dict[str, Head] = {}
        """Heads, at the end of the frozen layer, of the gateways that it changes."""
        self._frozen_bytes = 0
        """The journal's `unpacked_bytes` at that point."""
        self._frozen_rows = 0
        self._frozen_at = 0.0
        self._waited = WriteBehindLimits(0, 0, 0)
        """What else was waiting when a part was last written."""
        self._held: dict[Shard, int] = {}
        self.durable: dict[Shard, int] = {}
        """The seq up to which `state.db` contains the log even after a crash of the machine."""

    def note(self, gateways: Iterable[str]) -> None:
        """Record that the journal was committed with changes of these gateways."""
        self._moved.update(gateways)

    @property
    def full(self) -> bool:
        """Whether more rows or bytes are in memory alone than allowed, without the frozen layer."""
        waits = self._waits()
        return waits.rows > self._allowed.rows or waits.bytes > self._allowed.bytes

    def _waits(self) -> WriteBehindLimits:
        size = self._journal.unpacked_bytes - self._frozen_bytes
        return WriteBehindLimits(monotonic() - self._frozen_at, self._state.waiting, size)

    @property
    def any(self) -> bool:
        """Whether the journal contains anything that the state's file does not."""
        return bool(self._moved or self._frozen) or not self._state.intact

    def ensure(self) -> None:
        """Rebuild the state from the journal if it was lost: SQLite may end a transaction by itself.

        Raises:
            IntegrityError: bodies that are needed were trimmed.
            sqlite3.Error: a database cannot be written.
        """
        if not self._state.intact:
            self._held = self._recovery.recover()
            self.durable = {}  # what was read may be only in the system's page cache
            self._frozen = {}
            self._moved = {
                head.gateway
                for head in self._journal.heads.values()
                if head.last_seq > self._held.get((head.gateway, head.shard), 0)
            }

    def lose(self, exc: Exception) -> None:
        """Discard the state after an error; `ensure` rebuilds it."""
        _log.warning("state lost, it is made again from the journal", error=str(exc))
        self._state.rollback()

    @contextmanager
    def _or_lost(self) -> Iterator[None]:
        """Discard the state if the block raises."""
        try:
            yield
        except Exception as exc:
            self.lose(exc)
            raise

    def write(self) -> None:
        """Write everything in the journal to the state, durably.

        Raises:
            sqlite3.Error: the state cannot be written; it is rebuilt from the journal before its next use.
        """
        self.ensure()
        with self._or_lost():
            self._write_all()
            self._state.sync_wal()
        self.durable.update(self._held)

    def try_write(self) -> None:
        """Call `write`; log an error and go on, because the journal contains everything."""
        self._try(self.write)

    def try_write_on(self) -> bool:
        """Write a part; return False while more of the frozen layer is left."""
        return self._try(self._write_on) is not False

    @property
    def may_go_on(self) -> bool:
        """Whether `write_beside` has anything to write: the frozen layer contains committed groups only."""
        return self._state.frozen and self._state.intact and not self._state.guarded

    def write_beside(self, over: Callable[[], bool]) -> None:
        """Write parts of the frozen layer until `over` returns true; they are committed later."""

        def write() -> None:
            with self._or_lost():
                while not over() and not self._state.write_on():
                    pass

        self._try(write)

    def _write_on(self) -> bool:
        self.ensure()
        with self._or_lost():
            if not self._frozen:
                self._frozen, self._moved = self._heads(), set()
                self._frozen_bytes, self._frozen_at = self._journal.unpacked_bytes, monotonic()
                self._frozen_rows = self._state.waiting
                self._state.freeze()
                self._waited = self._waits()
            until, pause = self._left_after(), monotonic() + _SECONDS_AT_A_TIME
            while not self._state.write_on():
                if self._state.left <= until or (monotonic() > pause and not self.full):
                    return False
            if self._state.wrote_more:  # a read caused more than the frozen layer to be written
                self._write_all()
            else:
                self._hold(self._frozen)
        return True

    def _left_after(self) -> float:
        """Return how much of the frozen layer may be left, so that it is written before the limits are reached again.

        Rows that are overwritten again and again are soon all in memory, and their number stops growing; they do not
        hurry.
        """
        waited, self._waited = self._waited, self._waits()
        came = [
            (now - before) / max(most - now, 1e-9)
            for now, before, most in zip(self._waited, waited, self._allowed, strict=True)
        ]
        most = self._allowed.rows
        if self._frozen_rows < most and self._waited.rows < _MANY * most:
            came[1] = 0.0
        return self._state.left * (1 - _EARLY * max(came))

    def _write_all(self) -> None:
        self._state.write_all()
        heads, self._moved = self._heads(), set()
        self._hold(heads)

    def _heads(self) -> dict[str, Head]:
        return {gateway: self._journal.heads[gateway] for gateway in {*self._moved, *self._frozen}}

    def _hold(self, heads: dict[str, Head]) -> None:
        """Commit the state, which was written up to these heads."""
        crash_point("staging.before_write_behind")
        self._state.commit((head, head.last_seq) for head in heads.values())
        self._held.update({(head.gateway, head.shard): head.last_seq for head in heads.values()})
        self._frozen = {}
        crash_point("staging.after_write_behind")

    def _try(self, write: Callable[[], bool | None]) -> bool | None:
        try:
            return write()
        except Exception:
            _log.warning("state not written behind", folder=str(self._journal.path.parent), exc_info=True)
            return None

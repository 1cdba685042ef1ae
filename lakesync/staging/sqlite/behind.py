"""Writing `state.db` behind the journal: at once where it must be durable, else bit by bit."""

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
"""So long pushes wait at most for a part of what is frozen, unless too much waits."""
_MANY = 0.75
"""With this part of the rows that may wait, more are expected."""
_EARLY = 1.25
"""What is frozen is written so many times as fast as it has to be."""

_log = structlog.get_logger(__name__)


class WriteBehind(NamedTuple):
    """How far the state may be behind the journal before more of it is written: what a restart replays, about."""

    seconds: float = 10.0
    rows: int = 20_000
    bytes: int = 64 << 20
    """Of deltas as JSON."""


class Behind:
    """Knows how far `state.db` is. All methods belong to the owner thread."""

    def __init__(self, journal: Journal, state: State, recovery: Recovery, allowed: WriteBehind) -> None:
        self._journal = journal
        self._state = state
        self._recovery = recovery
        self._allowed = allowed
        self._moved: set[str] = set()
        """Gateways that the file is behind with, apart from what is frozen."""
        self._frozen: dict[str, Head] = {}
        """Heads of the gateways that moved, where the frozen part of the state ends."""
        self._frozen_bytes = 0
        """The journal's `unpacked_bytes` there."""
        self._frozen_rows = 0
        self._frozen_at = 0.0
        self._waited = WriteBehind(0, 0, 0)
        """What waited besides when a bit was written last."""
        self._held: dict[Shard, int] = {}
        self.durable: dict[Shard, int] = {}
        """The seq up to which `state.db` is known to hold the log, whatever happens to the machine."""

    def note(self, gateways: Iterable[str]) -> None:
        """The journal was committed, and these gateways moved."""
        self._moved.update(gateways)

    @property
    def full(self) -> bool:
        """Whether more rows or bytes wait in memory alone than may, apart from what is being written."""
        waits = self._waits()
        return waits.rows > self._allowed.rows or waits.bytes > self._allowed.bytes

    def _waits(self) -> WriteBehind:
        size = self._journal.unpacked_bytes - self._frozen_bytes
        return WriteBehind(monotonic() - self._frozen_at, self._state.waiting, size)

    @property
    def any(self) -> bool:
        """Whether the journal holds anything that the state's file does not."""
        return bool(self._moved or self._frozen) or not self._state.intact

    def ensure(self) -> None:
        """Make the state again from the journal where it was lost; SQLite may end a transaction on its own.

        Raises:
            IntegrityError: bodies that are needed were trimmed.
            sqlite3.Error: a database cannot be written.
        """
        if not self._state.intact:
            self._held = self._recovery.recover()
            self.durable = {}  # what was read may be in the system's page cache alone
            self._frozen = {}
            self._moved = {
                head.gateway
                for head in self._journal.heads.values()
                if head.last_seq > self._held.get((head.gateway, head.shard), 0)
            }

    def lose(self, exc: Exception) -> None:
        """The state is of no use any more: `ensure` makes it again."""
        _log.warning("state lost, it is made again from the journal", error=str(exc))
        self._state.rollback()

    @contextmanager
    def _or_lost(self) -> Iterator[None]:
        """Where what is done to the state fails, it is lost."""
        try:
            yield
        except Exception as exc:
            self.lose(exc)
            raise

    def write(self) -> None:
        """Make the state durable as far as the journal is.

        Raises:
            sqlite3.Error: it cannot be written; it is made again from the journal before anything else happens.
        """
        self.ensure()
        with self._or_lost():
            self._write_all()
            self._state.harden()
        self.durable.update(self._held)

    def try_write(self) -> None:
        """`write`, put off where it cannot be done: the journal holds everything."""
        self._try(self.write)

    def try_write_on(self) -> bool:
        """Write a bit; False while there is more of what the journal held when this began."""
        return self._try(self._write_on) is not False

    @property
    def may_go_on(self) -> bool:
        """Whether there is anything for `write_beside`: what was frozen is of groups that were committed."""
        return self._state.frozen and self._state.intact and not self._state.guarded

    def write_beside(self, over: Callable[[], bool]) -> None:
        """Write bits of what is frozen, to be committed later, until something else is over."""

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
            if self._state.settled:  # a reading had more written than what was frozen
                self._write_all()
            else:
                self._hold(self._frozen)
        return True

    def _left_after(self) -> float:
        """How much may be left of what is frozen, so that it is written before as much waits again as may.

        Rows that are overwritten again and again are soon all there, and then no more come: they are no hurry.
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
        self._state.settle()
        heads, self._moved = self._heads(), set()
        self._hold(heads)

    def _heads(self) -> dict[str, Head]:
        return {gateway: self._journal.heads[gateway] for gateway in {*self._moved, *self._frozen}}

    def _hold(self, heads: dict[str, Head]) -> None:
        """Commit the state, which was written up to there."""
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

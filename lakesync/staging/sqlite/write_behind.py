"""Write-behind: decides when rows and entries in memory are written to `state.db`, and how much at a time.

The store's owner thread calls it between transactions, and `GroupCommit` also while it waits for the disk. Committed
rows are in memory first; after a crash they are rebuilt from the log in `log.db`. The *frozen layer* is the part of
them that is being written to the file. No commit changes it, so that it can be written in small parts, between which
pushes are served. A *head* has a gateway's counters, among them the number of its last log row.
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
"""The most seconds that pushes wait for a part of the frozen layer to be written, unless the limits are exceeded."""
_MANY = 0.75
"""The fraction of the allowed rows in memory above which the number of rows is expected to grow further."""
_EARLY = 1.25
"""How many times as fast as necessary the frozen layer is written, so that it is done before the limits are reached."""

_log = structlog.get_logger(__name__)


class WriteBehindLimits(NamedTuple):
    """How many committed changes may be missing in `state.db`. A restart has to replay about as many from the log."""

    seconds: float = 10.0
    """Age of the oldest change."""
    rows: int = 20_000
    """Number of changed rows."""
    bytes: int = 64 << 20
    """Size of the deltas, as JSON."""


class WriteBehind:
    """Writes committed rows to `state.db`, and tracks how far the file is. Only the owner thread calls its methods."""

    def __init__(self, journal: Journal, state: State, recovery: Recovery, allowed: WriteBehindLimits) -> None:
        self._journal = journal
        self._state = state
        self._recovery = recovery
        self._allowed = allowed
        self._moved: set[str] = set()
        """Ids of gateways with commits that neither the file nor the frozen layer contains."""
        self._frozen: dict[str, Head] = {}
        """By gateway that the frozen layer changes: the gateway's head when the layer was frozen."""
        self._frozen_bytes = 0
        """The journal's `unpacked_bytes` when the layer was frozen."""
        self._frozen_rows = 0
        """Number of rows of the frozen layer."""
        self._frozen_at = 0.0
        """The monotonic time when the layer was frozen."""
        self._waited = WriteBehindLimits(0, 0, 0)
        """The result of `_waits` when `_left_after` was last called; it shows how fast changes come."""
        self._held: dict[Shard, int] = {}
        """By gateway and shard, the number of the last log row whose changes the file contains. A power cut may undo
        the newest of them."""
        self.durable: dict[Shard, int] = {}
        """By gateway and shard, the number of the last log row whose changes the file contains even after a power cut.
        Only log rows up to here may be trimmed."""

    def note(self, gateways: Iterable[str]) -> None:
        """Record that a transaction with changes of these gateways was committed."""
        self._moved.update(gateways)

    @property
    def full(self) -> bool:
        """Whether more rows or bytes than allowed are only in memory, the frozen layer not counted."""
        waits = self._waits()
        return waits.rows > self._allowed.rows or waits.bytes > self._allowed.bytes

    def _waits(self) -> WriteBehindLimits:
        """Return age, rows and bytes of the changes in memory that are not in the frozen layer."""
        size = self._journal.unpacked_bytes - self._frozen_bytes
        return WriteBehindLimits(monotonic() - self._frozen_at, self._state.waiting, size)

    @property
    def any(self) -> bool:
        """Whether the log contains anything that `state.db` does not."""
        return bool(self._moved or self._frozen) or not self._state.intact

    def ensure(self) -> None:
        """Rebuild the rows in memory from the log if they were lost: SQLite may end a transaction by itself.

        Raises:
            IntegrityError: log bodies that are needed were trimmed.
            sqlite3.Error: a database cannot be read or written.
        """
        if not self._state.intact:
            self._held = self._recovery.recover()
            self.durable = {}  # what the file contains may be only in the system's page cache
            self._frozen = {}
            self._moved = {
                head.gateway
                for head in self._journal.heads.values()
                if head.last_seq > self._held.get((head.gateway, head.shard), 0)
            }

    def lose(self, exc: Exception) -> None:
        """Discard the rows in memory after an error; `ensure` rebuilds them from the log.

        Args:
            exc: the error, which is logged.
        """
        _log.warning("state lost, it is made again from the journal", error=str(exc))
        self._state.rollback()

    @contextmanager
    def _or_lost(self) -> Iterator[None]:
        """Discard the rows in memory if the `with` block raises."""
        try:
            yield
        except Exception as exc:
            self.lose(exc)
            raise

    def write(self) -> None:
        """Write everything that is committed to `state.db`, and wait until it would survive a power cut.

        Raises:
            sqlite3.Error: the file cannot be written; rows are rebuilt from the log before their next use.
        """
        self.ensure()
        with self._or_lost():
            self._write_all()
            self._state.sync_wal()
        self.durable.update(self._held)

    def try_write(self) -> None:
        """Call `write`; an error is only logged, because the log contains everything."""
        self._try(self.write)

    def try_write_on(self) -> bool:
        """Write some rows from memory to the file.

        Returns:
            False while the frozen layer has more; True if it is written, or after an error, which is only logged.
        """
        return self._try(self._write_on) is not False

    @property
    def may_go_on(self) -> bool:
        """Whether `write_beside` may write: there is a frozen layer, and the current group has not used the file.

        If the group has used the file, its writes are in savepoints, which other writes must not join.
        """
        return self._state.frozen and self._state.intact and not self._state.guarded

    def write_beside(self, over: Callable[[], bool]) -> None:
        """Write parts of the frozen layer while a commit of `log.db` waits for the disk. Errors are only logged.

        The parts are committed to `state.db` later, by `try_write_on` or `write`.

        Args:
            over: returns whether the commit of `log.db` has ended, so that writing must stop.
        """

        def write() -> None:
            with self._or_lost():
                while not over() and not self._state.write_on():
                    pass

        self._try(write)

    def _write_on(self) -> bool:
        """Write a part of the frozen layer; if there is none, freeze the committed rows first.

        Returns:
            Whether all of the frozen layer is written and committed.
        """
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
                    return False  # enough for now: jobs run before the next part
            if self._state.wrote_more:  # a read has written newer rows too, so the file must be committed with these
                self._write_all()
            else:
                self._hold(self._frozen)
        return True

    def _left_after(self) -> float:
        """Return how many rows of the frozen layer may be left after this part.

        It is computed from the rate at which changes came since the last part, so that the frozen layer is written
        before the changes that wait behind it reach a limit. For example, if the changes since the last part used a
        tenth of the room that was left below a limit, then an eighth of the layer (`_EARLY` times a tenth) is written
        now. The limit that would be reached first decides.

        The number of rows is ignored while the same rows are overwritten again and again: all of them are soon in
        memory, and their number stops growing. That is assumed while the rows are far from their limit.
        """
        waited, self._waited = self._waited, self._waits()
        # for age, rows and bytes: what came since the last part, in proportion to what may still come
        came = [
            (now - before) / max(most - now, 1e-9)
            for now, before, most in zip(self._waited, waited, self._allowed, strict=True)
        ]
        most = self._allowed.rows
        if self._frozen_rows < most and self._waited.rows < _MANY * most:
            came[1] = 0.0
        return self._state.left * (1 - _EARLY * max(came))

    def _write_all(self) -> None:
        """Write all layers to the file, and commit it."""
        self._state.write_all()
        heads, self._moved = self._heads(), set()
        self._hold(heads)

    def _heads(self) -> dict[str, Head]:
        """Return the current heads of the gateways with changes that the file does not contain."""
        return {gateway: self._journal.heads[gateway] for gateway in {*self._moved, *self._frozen}}

    def _hold(self, heads: dict[str, Head]) -> None:
        """Commit the file, and note that it contains the changes up to these heads.

        Args:
            heads: by gateway, the head up to whose last log row the file was written.
        """
        crash_point("staging.before_write_behind")
        self._state.commit((head, head.last_seq) for head in heads.values())
        self._held.update({(head.gateway, head.shard): head.last_seq for head in heads.values()})
        self._frozen = {}
        crash_point("staging.after_write_behind")

    def _try(self, write: Callable[[], bool | None]) -> bool | None:
        """Call a function; log its error and return None instead of raising."""
        try:
            return write()
        except Exception:
            _log.warning("state not written behind", folder=str(self._journal.path.parent), exc_info=True)
            return None

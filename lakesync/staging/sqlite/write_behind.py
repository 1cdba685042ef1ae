"""Write-behind: decides when rows and entries in memory are written to `state.db`, and how much at a time.

The store's owner thread calls it between transactions, and `GroupCommit` also while a commit waits for the disk.
Committed rows are in memory first; after a crash they are rebuilt from the log in `log.db`. The *frozen layer* is the
part of them that is being written to the file. No commit changes it, so that it can be written in small parts, between
which pushes are served. A *feed entry* says when a row joined and left a bucket of the sync rules, and a *move* is a
change of an entry; it is *explicit* if it does not follow from a changed row. A *gateway* is one app's stream of
changes; its *head* has its counters, among them the number of its last log row. A *shard* is a store with some of its
tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
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
_GROWING_ABOVE = 0.75
"""The fraction of the allowed rows in memory above which the number of rows is expected to grow further."""
_SPEED_FACTOR = 1.25
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


class _Pending(NamedTuple):
    """The changes in memory that are not in the frozen layer, in the units of `WriteBehindLimits`."""

    seconds: float
    rows: int
    bytes: int


class WriteBehind:
    """Writes committed rows to `state.db`, and tracks how far the file is. Only the owner thread calls its methods."""

    def __init__(self, journal: Journal, state: State, recovery: Recovery, limits: WriteBehindLimits) -> None:
        self._journal = journal
        self._state = state
        self._recovery = recovery
        self._limits = limits
        self._changed_gateways: set[str] = set()
        """Ids of gateways with commits that neither the file nor the frozen layer contains."""
        self._frozen: dict[str, Head] = {}
        """By gateway that the frozen layer changes: the gateway's head when the layer was frozen."""
        self._frozen_bytes = 0
        """The journal's `unpacked_bytes` (bytes of all deltas since the start, as JSON) when the layer was frozen, or
        later when all changes were written."""
        self._frozen_rows = 0
        """Number of rows of the frozen layer."""
        self._frozen_parts = 0.0
        """Number of parts in which the frozen layer is written."""
        self._frozen_at = 0.0
        """The monotonic time when the layer was frozen, or later when all changes were written."""
        self._applied: dict[Shard, int] = {}
        """By gateway and shard, the number of the last log row whose changes the file contains. A power cut may undo
        the newest of them."""
        self.durable: dict[Shard, int] = {}
        """By gateway and shard, the number of the last log row whose changes the file contains even after a power cut.
        Only the bodies of log rows up to here may be trimmed (deleted), because a replay needs the others."""

    def note_commit(self, gateways: Iterable[str]) -> None:
        """Record that a transaction with changes of these gateways was committed."""
        self._changed_gateways.update(gateways)

    @property
    def is_full(self) -> bool:
        """Whether more rows or bytes than allowed are only in memory, the frozen layer not counted."""
        pending = self._pending()
        return pending.rows > self._limits.rows or pending.bytes > self._limits.bytes

    def _pending(self) -> _Pending:
        """Return the changes in memory that are not in the frozen layer."""
        size = self._journal.unpacked_bytes - self._frozen_bytes
        return _Pending(monotonic() - self._frozen_at, self._state.unfrozen_rows, size)

    @property
    def has_pending(self) -> bool:
        """Whether the log contains anything that `state.db` does not."""
        return bool(self._changed_gateways or self._frozen) or not self._state.is_intact

    def recover_if_lost(self) -> None:
        """Rebuild the rows in memory from the log, if they were discarded or SQLite ended its transaction by itself.

        The store calls it when it opens, and before each use of the rows.

        Raises:
            IntegrityError: log bodies that are needed were trimmed.
            sqlite3.Error: a database cannot be read or written.
        """
        if not self._state.is_intact:
            self._applied = self._recovery.recover()
            self.durable = {}  # what the file contains may be only in the system's page cache
            self._frozen = {}
            self._changed_gateways = {
                head.gateway
                for head in self._journal.heads.values()
                if head.last_seq > self._applied.get((head.gateway, head.shard), 0)
            }

    def discard_memory(self, exc: Exception) -> None:
        """Discard the rows in memory after an error. Before their next use, `recover_if_lost` rebuilds them.

        Args:
            exc: the error, which is logged.
        """
        _log.warning("rows in memory discarded: they are rebuilt from the log", error=str(exc))
        with suppress(sqlite3.Error):  # the recovery repeats it
            self._state.rollback()

    @contextmanager
    def _discarding_on_error(self) -> Iterator[None]:
        """Discard the rows in memory if the `with` block raises."""
        try:
            yield
        except Exception as exc:
            self.discard_memory(exc)
            raise

    def write(self) -> None:
        """Write everything that is committed to `state.db`, and wait until it would survive a power cut.

        Raises:
            sqlite3.Error: the file cannot be written; rows are rebuilt from the log before their next use.
        """
        self.recover_if_lost()
        with self._discarding_on_error():
            self._write_all()
            self._state.sync_wal()
        self.durable.update(self._applied)

    def try_write(self) -> None:
        """Call `write`; an error is only logged, because the log contains everything."""
        self._try(self.write)

    def try_write_part(self, *, busy: bool = False) -> bool:
        """Write some rows from memory to the file.

        Args:
            busy: whether jobs are run too. Then only as many rows are written as the plan demands.

        Returns:
            False while the frozen layer has more; True if it is written, or after an error, which is only logged.
        """
        return self._try(lambda: self._write_part(busy=busy)) is not False  # None after an error

    @property
    def can_write_during_commit(self) -> bool:
        """Whether `write_during_commit` may be called: there is a frozen layer, and the group has not used the file.

        If the group has used the file, its writes are in savepoints, which other writes must not join.
        """
        return self._state.has_frozen_layer and self._state.is_intact and not self._state.has_savepoints

    def write_during_commit(self, commit_ended: Callable[[], bool]) -> None:
        """Write parts of the frozen layer, as the plan demands, while a commit of `log.db` waits for the disk.

        Errors are only logged.

        The parts are committed to `state.db` later, by `try_write_part` or `write`.

        Args:
            commit_ended: returns whether the commit of `log.db` has ended, so that writing must stop.
        """

        def write() -> None:
            with self._discarding_on_error():
                while self._is_behind_plan and not commit_ended() and not self._state.write_part():
                    pass

        self._try(write)

    def _write_part(self, *, busy: bool) -> bool:
        """Write a part of the frozen layer; if no layer is frozen, freeze the committed rows first.

        Args:
            busy: whether jobs are run too.

        Returns:
            Whether all of the frozen layer is written and committed.
        """
        self.recover_if_lost()
        with self._discarding_on_error():
            if not self._frozen:
                self._frozen, self._changed_gateways = self._heads(), set()
                self._frozen_bytes, self._frozen_at = self._journal.unpacked_bytes, monotonic()
                self._frozen_rows = self._state.unfrozen_rows
                self._state.freeze()
                self._frozen_parts = self._state.frozen_left
            deadline = monotonic() + _SECONDS_AT_A_TIME
            if busy and self._state.frozen_left and not self._is_behind_plan:
                return False
            while not self._state.write_part():
                if not self._is_behind_plan or (monotonic() > deadline and not self.is_full):
                    return False  # enough for now: jobs run before the next part
            if self._state.wrote_unfrozen:  # a read has written some newer rows too, so all of them must be written
                self._write_all()
            else:
                self._commit_up_to(self._frozen)
        return True

    @property
    def _is_behind_plan(self) -> bool:
        """Whether more of the frozen layer should be written by now.

        The plan spreads the layer evenly, so that no push waits long: at most the fraction `1 - 1.25 * used` of the
        layer may be left, where `used` is the fraction of a limit that the changes since the freeze have reached. So
        the layer is written before they reach the limit. Of age, rows and bytes, the largest fraction counts.

        The number of rows is ignored while the same rows are overwritten again and again: all of them are soon in
        memory, and their number stops growing. That is assumed while the rows are far from their limit. If they grow
        further, the layer is spread over what is left up to the limit.
        """
        now = self._pending()
        seconds, rows, size = (part / max(most, 1e-9) for part, most in zip(now, self._limits, strict=True))
        if self._frozen_rows < self._limits.rows:
            rows = (rows - _GROWING_ABOVE) / (1 - _GROWING_ABOVE)
        return self._state.frozen_left > self._frozen_parts * (1 - _SPEED_FACTOR * max(seconds, rows, size))

    def _write_all(self) -> None:
        """Write all layers to the file, and commit it."""
        self._state.write_all()
        self._frozen_bytes, self._frozen_at = self._journal.unpacked_bytes, monotonic()
        heads, self._changed_gateways = self._heads(), set()
        self._commit_up_to(heads)

    def _heads(self) -> dict[str, Head]:
        """Return the current heads of the gateways with changes that the file does not contain."""
        return {gateway: self._journal.heads[gateway] for gateway in {*self._changed_gateways, *self._frozen}}

    def _commit_up_to(self, heads: dict[str, Head]) -> None:
        """Commit the file, and note that it contains the changes up to these heads.

        Args:
            heads: by gateway, the head up to whose last log row the file was written.
        """
        crash_point("staging.before_write_behind")
        self._state.commit((head, head.last_seq) for head in heads.values())
        self._applied.update({(head.gateway, head.shard): head.last_seq for head in heads.values()})
        self._frozen = {}
        crash_point("staging.after_write_behind")

    def _try(self, write: Callable[[], bool | None]) -> bool | None:
        """Call a function; log its error and return None instead of raising."""
        try:
            return write()
        except Exception:
            _log.warning(
                "rows not written to state.db: the write is repeated",
                folder=str(self._journal.path.parent),
                exc_info=True,
            )
            return None

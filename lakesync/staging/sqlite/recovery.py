"""Replays log rows that are missing in `state.db`, after a crash or when the file's transaction was lost.

`WriteBehind.ensure` calls it when the store is opened, and whenever the file is not intact.
"""

from __future__ import annotations

from lakesync.model.errors import IntegrityError
from lakesync.staging.head import Head
from lakesync.staging.sqlite.commit import SqliteCommit
from lakesync.staging.sqlite.journal import Journal
from lakesync.staging.sqlite.state import Applied, State
from lakesync.staging.store.push import Replayer

_MAX_ROWS_IN_MEMORY = 100_000
"""Changed rows in memory above which a replay writes them to the file."""
_NOTHING = Applied(0, 0, 0)

Shard = tuple[str, str]
"""Gateway and shard."""


class Recovery:
    """Replays the log into rows and entries. Only the thread that owns the store calls its methods."""

    def __init__(self, journal: Journal, state: State, replayer: Replayer) -> None:
        """Create it.

        Args:
            journal: the store's log.
            state: the store's rows and entries.
            replayer: applies a log row's deltas to rows; normally the engine.
        """
        self._journal = journal
        self._state = state
        self._replayer = replayer

    def recover(self) -> dict[Shard, int]:
        """Apply all log rows that are missing in the file.

        Replayed rows are in memory and become durable with the next write to the file, so that a full disk does not
        prevent reads.

        Returns:
            The number of the last log row that the file durably contains, by gateway and shard.

        Raises:
            IntegrityError: log bodies that are needed were trimmed.
            sqlite3.Error: a database cannot be read or written.
        """
        self._state.rollback()
        heads = list(self._journal.heads.values())
        applied = self._state.applied()
        if any(_is_of_other_log(head, applied) for head in heads):
            self._state.empty()
            applied = {}
        for head in heads:
            self._check_bodies(head, applied.get((head.gateway, head.shard), _NOTHING))
        progress: dict[Shard, tuple[Head, int]] = {}
        self._state.restart()
        try:
            for head in heads:
                self._catch_up(head, applied.get((head.gateway, head.shard), _NOTHING), progress)
        except BaseException:
            self._journal.rollback()
            self._state.rollback()
            raise
        return {shard: each.seq for shard, each in applied.items()}

    def _check_bodies(self, head: Head, applied: Applied) -> None:
        """Check that every log row that has to be replayed still has its body."""
        if applied.seq < head.trimmed_seq:
            raise IntegrityError(
                f"{self._state.path} holds gateway {head.gateway!r} up to log row {applied.seq}, but bodies up to row "
                f"{head.trimmed_seq} are already trimmed and cannot be replayed: put this store's own "
                f"{self._state.path.name} back, or rebuild staging from the lake"
            )

    def _catch_up(self, head: Head, applied: Applied, progress: dict[Shard, tuple[Head, int]]) -> None:
        """Replay log rows above `applied`, then re-index if rules changed.

        Around a change of rules, all rows are written to the file. So all log rows that are replayed here were pushed
        under the active rules.

        Args:
            head: the gateway's head.
            applied: the position in the gateway's log up to which the file is written.
            progress: is updated: the position that each gateway has reached in the open transaction, for commits in
                between.
        """
        stale = applied.rules_version != head.config.rules_version
        commit = SqliteCommit(self._journal, self._state, head.gateway)
        self._journal.begin()
        for entry in self._journal.entries_above(head, applied.seq):
            self._replayer.replay(commit, entry)
            if not stale:
                progress[head.gateway, head.shard] = (head, entry.seq)
                self._state.publish()
                if self._state.waiting > _MAX_ROWS_IN_MEMORY:
                    self._state.write_all()
                    self._state.commit(progress.values())
        if stale:
            self._replayer.reindex(commit)
        self._journal.commit()
        if stale:
            progress[head.gateway, head.shard] = (head, head.last_seq)
            self._state.publish()
            self._state.write_all()
            self._state.commit(progress.values())


def _is_of_other_log(head: Head, applied: dict[Shard, Applied]) -> bool:
    """Return whether the file was written from another log: that of another epoch, or one with more log rows."""
    position = applied.get((head.gateway, head.shard))
    return position is not None and (position.epoch != head.epoch or position.seq > head.last_seq)

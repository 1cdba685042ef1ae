"""Rebuilds the state from the journal, after a crash and when its transaction was lost."""

from __future__ import annotations

from lakesync.model.errors import IntegrityError
from lakesync.staging.head import Head
from lakesync.staging.sqlite.commit import SqliteCommit
from lakesync.staging.sqlite.journal import Journal
from lakesync.staging.sqlite.state import Applied, State
from lakesync.staging.store.push import Replayer

_ROWS_AT_ONCE = 100_000
_NOTHING = Applied(0, 0, 0)

Shard = tuple[str, str]
"""Gateway and shard."""


class Recovery:
    """Replays the journal into the state. All methods belong to the owner thread."""

    def __init__(self, journal: Journal, state: State, replayer: Replayer) -> None:
        self._journal = journal
        self._state = state
        self._replayer = replayer

    def recover(self) -> dict[Shard, int]:
        """Bring the state up to the journal; return the seq up to which its file contains each shard.

        Replayed rows become durable with the next write-behind, so a full disk does not prevent reads.

        Raises:
            IntegrityError: bodies that are needed were trimmed.
            sqlite3.Error: a database cannot be written.
        """
        self._state.rollback()
        heads = list(self._journal.heads.values())
        held = self._state.applied()
        if any(_of_another_life(head, held) for head in heads):
            self._state.empty()
            held = {}
        for head in heads:
            self._check_bodies(head, held.get((head.gateway, head.shard), _NOTHING))
        progress: dict[Shard, tuple[Head, int]] = {}
        self._state.restart()
        try:
            for head in heads:
                self._catch_up(head, held.get((head.gateway, head.shard), _NOTHING), progress)
        except BaseException:
            self._journal.rollback()
            self._state.rollback()
            raise
        return {shard: applied.seq for shard, applied in held.items()}

    def _check_bodies(self, head: Head, applied: Applied) -> None:
        if applied.seq < head.trimmed_seq:
            raise IntegrityError(
                f"{self._state.path} holds gateway {head.gateway!r} up to log row {applied.seq}, but bodies up to row "
                f"{head.trimmed_seq} are already trimmed and cannot be replayed: put this store's own "
                f"{self._state.path.name} back, or rebuild staging from the lake"
            )

    def _catch_up(self, head: Head, applied: Applied, progress: dict[Shard, tuple[Head, int]]) -> None:
        """Replay log rows above `applied`, then re-index if rules changed.

        A change of rules is a commit with the state written before and after it. So all rows that are replayed here
        were pushed under the active rules.

        Args:
            head: of the gateway.
            applied: how far the file is.
            progress: how far the open transaction is with each shard, for commits in between.
        """
        stale = applied.rules_version != head.config.rules_version
        commit = SqliteCommit(self._journal, self._state, head.gateway)
        self._journal.begin()
        for entry in self._journal.entries_above(head, applied.seq):
            self._replayer.replay(commit, entry)
            if not stale:
                progress[head.gateway, head.shard] = (head, entry.seq)
                self._state.publish()
                if self._state.waiting > _ROWS_AT_ONCE:
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


def _of_another_life(head: Head, held: dict[Shard, Applied]) -> bool:
    """Return whether the state belongs to another epoch, or is ahead of the journal."""
    applied = held.get((head.gateway, head.shard))
    return applied is not None and (applied.epoch != head.epoch or applied.seq > head.last_seq)

"""Replays log rows that are missing in `state.db`, after a crash or when the file's transaction was lost.

`log.db` has a log row for each push. Its *body*, the encoded deltas (changes of rows), stays there until they are in
the lake and it is *trimmed* (deleted). `state.db` has the merged rows and feed entries that follow from the log, and
may be behind. `WriteBehind.recover_if_lost` calls `Recovery.recover` when the store is opened, and whenever an error
has discarded the rows in memory. A *gateway* is one app's stream of changes. Its *head* has its counters, such as the
number of its last log row, and its *epoch*, the time of its creation, which differs in another log.
"""

from __future__ import annotations

from lakesync.model.errors import IntegrityError
from lakesync.staging.head import Head
from lakesync.staging.sqlite.commit import SqliteCommit
from lakesync.staging.sqlite.journal import Journal
from lakesync.staging.sqlite.state import State
from lakesync.staging.sqlite.state_file import Applied
from lakesync.staging.store.push import Replayer

_MAX_ROWS_IN_MEMORY = 100_000
"""Changed rows in memory above which a replay writes them to the file."""
_NOTHING = Applied(0, 0)
"""The position of a shard of which the file contains nothing."""

Shard = tuple[str, str]
"""A gateway's id, and the name of a shard (a store for some of its tables)."""


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
        """Apply all log rows that are missing in the file. If the file belongs to another log, it is emptied first.

        Replayed rows stay in memory, as far as they fit, and are written later, so that a full disk does not prevent
        reads.

        Returns:
            The number of the last log row whose changes the file contained before the replay, by gateway and shard.

        Raises:
            IntegrityError: log bodies that are needed were trimmed.
            sqlite3.Error: a database cannot be read or written.
        """
        self._state.rollback()
        heads = list(self._journal.heads.values())
        applied = self._state.applied()
        is_of_other_log = _is_of_other_log(heads, applied)
        if is_of_other_log:
            applied = {}
        for head in heads:
            self._check_bodies(head, applied.get((head.gateway, head.shard), _NOTHING))
        if is_of_other_log:  # only now: a file that cannot be replayed must be kept
            self._state.empty()
        progress: dict[Shard, tuple[Head, int]] = {}
        self._state.restart()
        try:
            for head in heads:
                self._catch_up(head, applied.get((head.gateway, head.shard), _NOTHING), progress)
        except BaseException:
            self._state.rollback()
            self._journal.rollback()
            raise
        return {shard: each.seq for shard, each in applied.items()}

    def _check_bodies(self, head: Head, applied: Applied) -> None:
        """Check that every log row that has to be replayed still has its body.

        Args:
            head: the gateway's head.
            applied: the position in the gateway's log up to which the file is written; `_NOTHING` if it was written
                from another log.

        Raises:
            IntegrityError: bodies that are needed were trimmed.
        """
        if applied.seq < head.trimmed_seq:
            raise IntegrityError(
                f"{self._state.path} lacks log rows {applied.seq + 1} to {head.trimmed_seq} of gateway "
                f"{head.gateway!r}, or was written from another {self._journal.path.name}; the bodies of these rows "
                f"are trimmed and cannot be replayed: put {self._state.path.name} and {self._journal.path.name} of one "
                "copy back, or rebuild staging from the lake by `lakesync staging rebuild --from-lake --replace`"
            )

    def _catch_up(self, head: Head, applied: Applied, progress: dict[Shard, tuple[Head, int]]) -> None:
        """Replay a gateway's log rows above `applied`.

        Args:
            head: the gateway's head.
            applied: the position in the gateway's log up to which the file is written.
            progress: the position that each gateway has reached in the open transaction; this method updates it, and
                commits it with the rows if there are too many rows in memory.
        """
        commit = SqliteCommit(self._journal, self._state, head.gateway, alone=True)  # nothing else has the store
        self._journal.begin()
        for entry in self._journal.entries_above(head, applied.seq):
            self._replayer.replay(commit, entry)
            progress[head.gateway, head.shard] = (head, entry.seq)
            self._state.publish()  # moves the replayed rows to the committed ones in memory
            if self._state.unfrozen_rows > _MAX_ROWS_IN_MEMORY:
                self._state.write_all()
                self._state.commit(progress.values())
        self._journal.commit()


def _is_of_other_log(heads: list[Head], applied: dict[Shard, Applied]) -> bool:
    """Return whether the file was written from another log.

    Then the log lacks a gateway of the file, or has it with another epoch, or with fewer rows than are applied.

    Args:
        heads: the gateways' heads, of the present log.
        applied: the positions in the log up to which the file is written.
    """
    by_shard = {(head.gateway, head.shard): head for head in heads}
    for shard, position in applied.items():
        head = by_shard.get(shard)
        if head is None or position.epoch != head.epoch or position.seq > head.last_seq:
            return True
    return False

"""Rows that are overwritten again and again: merged when somebody looks at them, not at every push."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lakesync.staging.records import DELETED, StoredRow
from lakesync.types import RowDelta

WRITERS_KEPT = 8
"""Writers remembered a row; one that fell out is treated as unsure."""

_DEEPEST = 4
"""Deltas a row that wait to be merged into it, at most: they take memory."""
_NEVER = 1 << 63
"""Above every hlc."""


class HotRow(msgspec.Struct, gc=False):
    """A row; or the row before, and a delta that overwrote some of it.

    A delta that overwrites is newer than all that the row had, has columns, is of a sender who sees the row, and leaves
    the row in its buckets.
    """

    newest: int
    """The greatest hlc that the row has; what is above it is newer than all."""
    keys: tuple[str, ...]
    """The row's bucket keys."""
    depth: int
    _row: StoredRow | None
    _before: HotRow | None = None
    _delta: RowDelta | None = None
    _at: int = 0

    @staticmethod
    def of(row: StoredRow) -> HotRow:
        """A row with nothing to be merged into it."""
        live = row.state.live
        return HotRow(live[-1].hlc if live else _NEVER, row.keys, 0, row)

    def overwritten(self, delta: RowDelta, at: int) -> HotRow:
        """The row after a delta that overwrites some of it, at the arrival `at`."""
        if self.depth == _DEEPEST:
            self.merged()
        return HotRow(delta.hlc, self.keys, self.depth + 1, None, self, delta, at)

    def merged(self) -> StoredRow:
        """The row, not to be changed."""
        row, before, at = self._row, self, []
        while (row := before._row) is None:
            assert before._before is not None
            assert before._delta is not None
            at.append((before._delta, before._at))
            before = before._before
        if at:
            at.reverse()
            self._row = row = overwrite(row, at)
            self._before, self._delta, self.depth = None, None, 0
        return row


def overwrite(row: StoredRow, deltas: Sequence[tuple[RowDelta, int]]) -> StoredRow:
    """A row after deltas, each of which overwrites some of it at its arrival; bucket keys are left as they were."""
    state = row.state.overwritten([delta for delta, _ in deltas])
    touched = row.touched.copy()
    after = StoredRow(
        row.table, row.row_id, deltas[-1][1], state, touched, row.writers.copy(), row.writers_floor, row.keys
    )
    for delta, at in deltas:
        for cell in delta.columns:
            touched[cell.column] = at
        note_writer(after, delta.client_id, at, inserted=delta.op == "INSERT")
    return after


def note_writer(row: StoredRow, client_id: str, at: int, *, inserted: bool = False, deleted: bool = False) -> None:
    """Note in a row who wrote it: whether it deleted its own copy, and whether it inserted it after that."""
    writers = row.writers
    known = writers.pop(client_id, None)
    place = DELETED if deleted else known[0] if known is not None else 0
    if inserted and place >= DELETED:
        place = at
    writers[client_id] = (place, at)  # behind the others: they stand in order of their latest deltas
    if len(writers) > WRITERS_KEPT:
        row.writers_floor = max(row.writers_floor, writers.pop(next(iter(writers)))[1])

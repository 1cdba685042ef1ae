"""Rows in memory: made and merged when somebody looks at them, not at every push."""

from __future__ import annotations

from sys import intern

import msgspec

from lakesync.model.merge import LiveDelta, RowState
from lakesync.model.types import ColumnValue, RowDelta
from lakesync.staging.records import DELETED, StoredRow
from lakesync.wire.json import decode_deltas, encode_delta

WRITERS_KEPT = 8
"""Writers remembered a row; one that fell out is treated as unsure."""

_MOST_NOTED = 32
"""Deltas that overwrite the same columns of a row and are merged at once, at most: who wrote each takes memory."""
_COLUMN_BYTES = len('{"column":"a","value":1}')
_NEVER = 1 << 63
"""Above every hlc."""


class _Wrote(msgspec.Struct, frozen=True, gc=False):
    """Who wrote a delta that waits. There are many of them at a time, which the garbage collector need not look at."""

    client_id: str
    at: int
    """Its arrival."""
    before: _Wrote | None
    """The same of the one before it that waits."""
    waiting: int
    """How many wait up to it."""


class Birth(msgspec.Struct, frozen=True, gc=False):
    """The INSERT by which a row is born, of a sender who sees the row."""

    spelled: bytes
    """As it is sent."""
    client_id: str


class HotRow(msgspec.Struct, gc=False):
    """A row; or the row before, and what the newest of some deltas that overwrote the same columns of it says.

    The row before may be the INSERT by which a row is born, of a sender who sees the row. A delta that overwrites is an
    UPDATE, newer than all that the row had, of a sender who sees the row, and leaves the row in its buckets. Values may
    be views that keep a request's body in memory, until the row is merged.
    """

    newest: int
    """The greatest hlc that the row has; what is above it is newer than all."""
    keys: tuple[str, ...]
    """The row's bucket keys."""
    stayed: int
    """The arrival of a `stay` move in all of them that no `Move` tells of; 0 where there is none."""
    born: int
    """The arrival of a `join` move into all of them that no `Move` tells of, before `stayed`; 0 where there is none."""
    _row: StoredRow | RowDelta | Birth
    _columns: tuple[str, ...] = ()
    """Those that wait to be merged."""
    _cells: tuple[ColumnValue, ...] = ()
    _delta_id: str = ""
    _wrote: _Wrote | None = None
    """Of the newest delta that waits."""

    @staticmethod
    def of(row: StoredRow, stayed: int = 0, born: int = 0) -> HotRow:
        """A row with nothing to be merged into it."""
        live = row.state.live
        return HotRow(live[-1].hlc if live else _NEVER, row.keys, stayed, born, row)

    @staticmethod
    def of_birth(delta: RowDelta, keys: tuple[str, ...], at: int, spelled: bytes | None = None) -> HotRow:
        """A row by its first delta, an INSERT with columns, of a sender who sees the row under one of `keys`.

        Args:
            delta: the INSERT.
            keys: the row's bucket keys.
            at: its arrival.
            spelled: the delta as it is sent, where that was made already.
        """
        return HotRow(delta.hlc, keys, 0, at, delta if spelled is None else Birth(spelled, intern(delta.client_id)))

    @property
    def birth(self) -> Birth | None:
        """The INSERT that the row is, unless more is known of it; it arrived at `born`."""
        if isinstance(self._row, RowDelta):
            self.rest()
        return self._row if isinstance(self._row, Birth) and self._wrote is None else None

    @property
    def unmerged_columns(self) -> tuple[str, ...]:
        """The columns whose newest values wait to be merged; the row has them already."""
        return self._columns

    @property
    def most_columns(self) -> int:
        """How many columns the row has at most, as far as that can be said without merging it."""
        row = self._row
        if isinstance(row, StoredRow):
            there = sum([len(part.columns) for part in row.state.live])
        else:
            there = len(row.columns) if isinstance(row, RowDelta) else len(row.spelled) // _COLUMN_BYTES
        return there + len(self._columns)

    def rest(self) -> None:
        """Hold a birth as it is sent, which is little: while its parts are at hand, and nothing else needs them."""
        if isinstance(self._row, RowDelta):
            self._row = Birth(encode_delta(self._row), intern(self._row.client_id))

    def overwritten(self, delta: RowDelta, columns: tuple[str, ...], at: int, client_id: str) -> HotRow:
        """The row after a delta that overwrites some of it.

        Args:
            delta: newer than `newest`.
            columns: the names of its columns.
            at: its arrival.
            client_id: its writer, as one text for all deltas of a push.
        """
        row, before = self._row, self._wrote
        if before is not None:
            if self._columns != columns or before.waiting == _MOST_NOTED:
                row, before = self.merged(), None
            elif before.client_id == client_id:
                before = before.before
        wrote = _Wrote(client_id, at, before, 1 if before is None else before.waiting + 1)
        return HotRow(delta.hlc, self.keys, at, self.born, row, columns, delta.columns, delta.delta_id, wrote)

    def merged(self) -> StoredRow:
        """The row, not to be changed."""
        row, wrote = self._row, self._wrote
        if isinstance(row, Birth):
            row = decode_birth(row.spelled)
        if isinstance(row, RowDelta):
            row = self._row = born_row(row, self.keys, self.born)
        if wrote is not None:
            client_id, at = wrote.client_id, wrote.at
            columns = {name: cell.value.copy() for name, cell in zip(self._columns, self._cells, strict=True)}
            newest = LiveDelta(self.newest, client_id, self._delta_id, columns, len(columns))
            after = row.after(row.state.below(newest), at)
            after.touched.update(dict.fromkeys(columns, at))
            _note_updates(after, wrote)
            row = self._row = after
            self._columns, self._cells, self._wrote = (), (), None
        return row


def decode_birth(spelled: bytes) -> RowDelta:
    """An INSERT that was kept as it is sent."""
    (delta,) = decode_deltas(b"[%b]" % spelled)
    return delta


def born_row(delta: RowDelta, keys: tuple[str, ...], at: int) -> StoredRow:
    """A row by its first delta, an INSERT with columns that arrived at `at`, of a sender who sees the row."""
    columns = {cell.column: cell.value.copy() for cell in delta.columns}
    stamp, touched = delta.stamp, dict.fromkeys(columns, at)
    state = RowState([LiveDelta(*stamp, delta.delta_id, columns, len(columns))], None, stamp)
    return StoredRow(delta.table, delta.row_id, at, state, touched, {delta.client_id: (at, at)}, keys=keys)


def overwrite(row: StoredRow, delta: RowDelta, at: int) -> StoredRow:
    """A row after a delta that overwrites some of it at its arrival; bucket keys are left as they were."""
    after = row.after(row.state.overwritten(delta), at)
    after.touched.update(dict.fromkeys([cell.column for cell in delta.columns], at))
    note_writer(after, delta.client_id, at, inserted=delta.op == "INSERT")
    return after


def note_writer(row: StoredRow, client_id: str, at: int, *, inserted: bool = False, deleted: bool = False) -> None:
    """Note in a row who wrote it: whether it deleted its own copy, and whether it inserted it after that."""
    writers = row.writers
    known = writers.pop(client_id, None)
    place = DELETED if deleted else known[0] if known is not None else 0
    if inserted and place >= DELETED:
        place = at
    elif place == DELETED and not deleted:
        place = -at  # astray: it may have made a row of this alone
    writers[client_id] = (place, at)  # behind the others: they stand in order of their latest deltas
    if len(writers) > WRITERS_KEPT:
        row.writers_floor = max(row.writers_floor, writers.pop(next(iter(writers)))[1])


def _note_updates(row: StoredRow, newest: _Wrote) -> None:
    """`note_writer` for each UPDATE that waits, the oldest first: there are many of them to a row."""
    writers, floor = row.writers, row.writers_floor
    waiting = []
    wrote: _Wrote | None = newest
    while wrote is not None:
        waiting.append(wrote)
        wrote = wrote.before
    for each in reversed(waiting):
        client_id, at = each.client_id, each.at
        known = writers.pop(client_id, None)
        if known is not None:
            writers[client_id] = (-at if known[0] == DELETED else known[0], at)
            continue
        writers[client_id] = (0, at)
        if len(writers) > WRITERS_KEPT:
            floor = max(floor, writers.pop(next(iter(writers)))[1])
    row.writers_floor = floor

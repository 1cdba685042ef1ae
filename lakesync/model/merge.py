"""The merge of deltas into the state of a row: per column, the value with the greatest stamp wins (last writer wins).

A *delta* is an INSERT, UPDATE or DELETE of some columns of one row. Its *stamp* is (hlc, client id): the writer's
timestamp (a hybrid logical clock) and id. A row's state maps each live column to a *cell*: its value and its *origin*,
the delta that wrote it. Of all values that a column was ever given, it has the one with the greatest stamp; of values
with equal stamps, which only a faulty client writes, `_order` decides. The *tombstone* is the greatest stamp of a
DELETE: it deletes every column whose stamp is smaller or equal.

A column's value and the tombstone are maxima, so the state depends only on the set of deltas, not on their order or
repetition. It is a map of last-writer-wins registers in the sense of Shapiro et al., "A comprehensive study of CRDTs"
(2011). `docs/spec.md` has this law as M1 to M5. The gateway, clients and adapters merge rows with this code; the lake's
merges of whole tables (`lakehouse.tables`, `analysis.merge_sql`) follow the same law.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from sys import intern

import msgspec
from msgspec import Raw

from lakesync.model.delta import jcs_raw
from lakesync.model.types import RowDelta, Stamp

_MAX_INTERNED = 4096
"""The most tuples of column names that `intern_names` caches."""


class LiveDelta(msgspec.Struct, array_like=True, gc=False):
    """A delta that wrote the current values of some columns of a row: it *owns* these, and has no others.

    Rows are stored and sent in this form.
    """

    hlc: int
    """The writer's timestamp."""
    client_id: str
    delta_id: str
    columns: dict[str, Raw]
    """The values that it owns, as JSON texts, by column."""
    width: int
    """How many columns the delta had when it was pushed."""

    @property
    def whole(self) -> bool:
        """Whether the delta still owns all of its columns, because none was overwritten or deleted since."""
        return len(self.columns) == self.width

    @property
    def stamp(self) -> Stamp:
        """The stamp that merges compare."""
        return (self.hlc, self.client_id)


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The delta that wrote some columns of a row, without their values. The columns' cells share one object."""

    hlc: int
    client_id: str
    delta_id: str
    width: int
    """How many columns the delta had when it was pushed."""
    columns: tuple[str, ...]
    """The names of the columns that it may own, in the delta's order, as `intern_names` returns them."""

    @property
    def stamp(self) -> Stamp:
        """The stamp that merges compare."""
        return (self.hlc, self.client_id)


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The effect of one merge."""

    won: tuple[str, ...]
    """Columns of the delta that got its values."""
    lost: tuple[str, ...]
    """Columns of the delta that another delta owns, or that are deleted."""
    changed: bool
    """Whether the state changed."""
    was_visible: bool
    """Whether the row was visible before; see `RowState.visible`."""
    visible: bool
    """Whether the row is visible now."""


class Cell(msgspec.Struct, frozen=True, gc=False):
    """A live column of a row."""

    origin: Origin
    value: Raw
    """The value as JSON text."""
    at: int
    """The arrival (the gateway's own timestamp of a commit) at which the value last changed; 0 if it is not tracked.
    Also the arrival at which another client's value last lost to it, so that the loser is sent the winning value."""


class RowState(msgspec.Struct, gc=False, eq=False):  # noqa: PLW1641 mutable, so not hashable
    """The merged state of one row; `RowState()` for a row that was never written."""

    cells: dict[str, Cell] = {}
    """The live columns."""
    tombstone: Stamp | None = None
    """The greatest stamp of a DELETE."""
    inserted: Stamp | None = None
    """The greatest stamp of an INSERT, if it is above the tombstone."""
    newest: int = -1
    """The highest hlc of any delta that was merged into this object, also of one that lost; -1 for none. After a state
    was stored and read again, it is the highest hlc of the stamps that were stored."""

    @staticmethod
    def of(
        live: Iterable[LiveDelta],
        tombstone: Stamp | None = None,
        inserted: Stamp | None = None,
        touched: Mapping[str, int] | None = None,
    ) -> RowState:
        """Build a state from the parts in which a store keeps it.

        Args:
            live: the value of `RowState.live`: the deltas that own columns. No two own the same column.
            tombstone: the greatest stamp of a DELETE.
            inserted: the greatest stamp of an INSERT, if it is above the tombstone.
            touched: the value of `RowState.touched`: `Cell.at` by column; None if it is not tracked.
        """
        cells: dict[str, Cell] = {}
        at_of = (touched or {}).get
        newest = max([stamp[0] for stamp in (tombstone, inserted) if stamp is not None], default=-1)
        for delta in live:
            newest = max(newest, delta.hlc)
            names = intern_names(tuple(delta.columns))
            origin = Origin(delta.hlc, delta.client_id, delta.delta_id, delta.width, names)
            for name, value in delta.columns.items():
                cells[name] = Cell(origin, value, at_of(name, 0))
        return RowState(cells, tombstone, inserted, newest)

    @staticmethod
    def of_insert(delta: RowDelta, at: int) -> RowState:
        """Return the state of a new row after one INSERT; the same as `RowState().merge`, but faster.

        Args:
            delta: the INSERT; it has no column twice.
            at: its arrival.
        """
        names = intern_names(tuple([column.column for column in delta.columns]))
        origin = Origin(delta.hlc, intern(delta.client_id), delta.delta_id, len(names), names)
        cells = {name: Cell(origin, column.value.copy(), at) for name, column in zip(names, delta.columns, strict=True)}
        return RowState(cells, None, delta.stamp, delta.hlc)

    def __eq__(self, other: object) -> bool:
        """Return whether the merged states are equal, and changed at the same arrivals.

        Fields cannot be compared: a state that was read from a store may have a lower `newest`, and its origins name
        only the columns that they still own.
        """
        if not isinstance(other, RowState):
            return NotImplemented
        mine = (self.tombstone, self.inserted, self.touched, self.live)
        return mine == (other.tombstone, other.inserted, other.touched, other.live)

    def __ne__(self, other: object) -> bool:
        """Negate `__eq__`; by itself a Struct without `eq` compares identities here."""
        return not self == other

    @property
    def visible(self) -> bool:
        """Whether the row exists for clients (M2): it has a live column, or an INSERT above the tombstone."""
        return bool(self.cells) or self.inserted is not None

    @property
    def origins(self) -> list[Origin]:
        """The deltas that own columns, each once, in order of (hlc, client id, delta id, width)."""
        return sorted({id(cell.origin): cell.origin for cell in self.cells.values()}.values(), key=_identity)

    @property
    def live(self) -> list[LiveDelta]:
        """The deltas that own columns, in order of (hlc, client id, delta id, width); each has the columns it owns.

        The columns of a whole delta are in its own order, so that it has its original id. Those of another delta are in
        the order of their names, so that the result does not depend on the order of merges.
        """
        owners: list[LiveDelta] = []
        cells = self.cells
        for origin in self.origins:
            owned = {
                name: cells[name].value for name in origin.columns if name in cells and cells[name].origin is origin
            }
            is_whole = len(owned) == origin.width
            if owners and _identity(owners[-1]) == _identity(origin):
                # A faulty client used one id for two deltas. Stored, they would be equal, so they become one.
                owned, is_whole = owners.pop().columns | owned, False
            columns = owned if is_whole else dict(sorted(owned.items()))
            owners.append(LiveDelta(origin.hlc, origin.client_id, origin.delta_id, columns, origin.width))
        return owners

    @property
    def touched(self) -> dict[str, int]:
        """`Cell.at` by column, without those that are 0."""
        return {name: cell.at for name, cell in self.cells.items() if cell.at}

    def value(self, column: str) -> Raw | None:
        """Return a live column's value; None if the row does not have the column."""
        cell = self.cells.get(column)
        return None if cell is None else cell.value

    def values(self) -> dict[str, Raw]:
        """Return each live column's value."""
        return {name: cell.value for name, cell in self.cells.items()}

    def copy(self) -> RowState:
        """Return a state that can be merged into without changing this one."""
        return RowState(self.cells.copy(), self.tombstone, self.inserted, self.newest)

    def touch(self, columns: Iterable[str], at: int) -> None:
        """Set `Cell.at` of columns: the arrival at which they changed, or at which another value lost to theirs.

        Args:
            columns: names of live columns.
            at: the arrival.
        """
        for name in columns:
            cell = self.cells[name]
            self.cells[name] = Cell(cell.origin, cell.value, at)

    def merge(self, delta: RowDelta, at: int = 0) -> Outcome:
        """Merge one delta, in place. Columns of a DELETE are ignored.

        Values are copied, so that a row does not keep a request's body in memory. A column that the delta loses keeps
        its `Cell.at`: the caller calls `touch` for `Outcome.lost` if the delta's client must be sent the winning value.

        Args:
            delta: a delta of this row; it has no column twice.
            at: the delta's arrival, for `Cell.at` of the columns that it wins; 0 if arrivals are not tracked.

        Returns:
            What the delta changed.

        Raises:
            ValidationError: values with equal stamps must be compared, and one is not JSON. A push is checked before,
                so this does not happen there. The state may contain a part of the delta then, so drop it.
        """
        op = delta.op
        self.newest = max(self.newest, delta.hlc)
        was_visible = bool(self.cells) or self.inserted is not None
        inserts = False
        if op != "UPDATE" or self.tombstone is not None:
            stamp = (delta.hlc, delta.client_id)
            if self.tombstone is not None and stamp <= self.tombstone:
                dead = () if op == "DELETE" else tuple([column.column for column in delta.columns])
                return Outcome((), dead, False, was_visible, was_visible)
            if op == "DELETE":
                self._set_tombstone(stamp)
                return Outcome((), (), True, was_visible, self.visible)
            inserts = op == "INSERT" and (self.inserted is None or stamp > self.inserted)
            if inserts:
                self.inserted = stamp
        won, lost = self._claim(delta, at)
        changed = inserts or bool(won)
        return Outcome(won, lost, changed, was_visible, was_visible or changed)

    def overwrite(self, origin: Origin, values: Sequence[Raw], at: int) -> None:
        """Merge an INSERT or UPDATE that is newer than the whole state, in place, without comparisons.

        `StoredRow` calls it for *unmerged* deltas: those that a stored row keeps beside its state until it is read. The
        delta's hlc must be above `newest`. So it wins all of its columns, as it would in `merge`. The caller sets
        `inserted`.

        Args:
            origin: the delta; its `columns` are as `intern_names` returns them.
            values: the values of its columns, in the order of `origin.columns`. They are copied.
            at: its arrival.
        """
        self.newest = origin.hlc
        for name, value in zip(origin.columns, values, strict=True):
            self.cells[name] = Cell(origin, value.copy(), at)

    def _claim(self, delta: RowDelta, at: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Merge the columns of an INSERT or UPDATE: those that it wins get its values.

        Args:
            delta: the delta; it is above the tombstone.
            at: its arrival.

        Returns:
            The columns that it won, and those that it lost. A column that it owned before is in neither: the delta was
            repeated.
        """
        cells, columns, hlc = self.cells, delta.columns, delta.hlc
        names = intern_names(tuple([column.column for column in delta.columns]))
        origin = Origin(hlc, intern(delta.client_id), delta.delta_id, len(names), names)
        not_won: list[str] = []
        lost: list[str] = []
        for name, column in zip(names, columns, strict=False):
            cell = cells.get(name)
            if cell is not None and hlc <= cell.origin.hlc:
                order = -1 if hlc < cell.origin.hlc else _order(origin, column.value, cell)
                if order <= 0:
                    not_won.append(name)
                    if order < 0:
                        lost.append(name)
                    continue
            cells[name] = Cell(origin, column.value.copy(), at)
        return (tuple([name for name in names if name not in not_won]) if not_won else names), tuple(lost)

    def _set_tombstone(self, stamp: Stamp) -> None:
        """Set the tombstone, and delete the columns and the INSERT with a smaller or equal stamp."""
        self.tombstone = stamp
        for name in [name for name, cell in self.cells.items() if cell.origin.stamp <= stamp]:
            del self.cells[name]
        if self.inserted is not None and self.inserted <= stamp:
            self.inserted = None


class StoredState(msgspec.Struct, array_like=True, gc=False):
    """The stored form of a state: the deltas that own columns, the tombstone, and the INSERT; see `RowState`."""

    live: list[LiveDelta] = []
    """As `RowState.live`."""
    tombstone: Stamp | None = None
    inserted: Stamp | None = None

    @staticmethod
    def of(state: RowState) -> StoredState:
        """Return the stored form of a state."""
        return StoredState(state.live, state.tombstone, state.inserted)

    def state(self, touched: Mapping[str, int] | None = None) -> RowState:
        """Return the state.

        Args:
            touched: the value of `RowState.touched`.
        """
        return RowState.of(self.live, self.tombstone, self.inserted, touched)


def encode_state(state: RowState) -> bytes:
    """Encode a state as compact JSON; values keep the text in which they were pushed."""
    return _encode(StoredState.of(state))


def decode_state(data: bytes) -> RowState:
    """Decode the output of `encode_state`; values are views that keep `data` alive.

    Raises:
        msgspec.DecodeError: `data` has another form.
    """
    return _decode(data).state()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StoredState).decode
_interned: dict[tuple[str, ...], tuple[str, ...]] = {}
"""The cache of `intern_names`: each tuple is the key and the value."""


def intern_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return one tuple object for all equal tuples of column names.

    Rows keep such a tuple for each of their origins, so this saves memory; and equal names are found by identity.
    """
    cached = _interned.get(names)
    if cached is None:
        if len(_interned) >= _MAX_INTERNED:
            _interned.clear()
        cached = _interned.setdefault(names, tuple([intern(name) for name in names]))
    return cached


def _order(origin: Origin, value: Raw, cell: Cell) -> int:
    """Compare a new value of a column with the one that it has.

    Of values with equal stamps, the one with the greater canonical JSON text (JCS) wins, in code point order. If these
    texts are equal too, the value is the same. Then delta id, width and original text decide which delta owns the
    column, so that all replicas agree on that.

    Args:
        origin: the delta of the new value.
        value: the new value.
        cell: the column's cell, with the value that it has.

    Returns:
        A number above 0 if the new value wins, below 0 if it loses, 0 if both are of the same delta.
    """
    if origin.stamp != cell.origin.stamp:
        return 1 if origin.stamp > cell.origin.stamp else -1
    new_text, old_text = bytes(value), bytes(cell.value)
    new = (jcs_raw(new_text), origin.delta_id, origin.width, new_text)
    old = (jcs_raw(old_text), cell.origin.delta_id, cell.origin.width, old_text)
    return (new > old) - (new < old)


def _identity(each: Origin | LiveDelta) -> tuple[int, str, str, int]:
    """Return what identifies a delta among those of a row; it is also their sort key."""
    return (each.hlc, each.client_id, each.delta_id, each.width)

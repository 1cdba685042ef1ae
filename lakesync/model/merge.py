"""The merge of deltas into rows: per column, the value with the greatest stamp wins (last writer wins).

A row's state maps each live column to a cell: its value and its origin, the delta that wrote it. Of all values that a
column was ever given, it has the greatest by (hlc, client id, JCS text, delta id). A tombstone deletes every column
with a smaller stamp. Both are maxima, so the state depends only on the set of deltas, not on their order or repetition:
it is a map of last-writer-wins registers in the sense of Shapiro et al., "A comprehensive study of CRDTs" (2011).

Server and client merge rows with this code; the lake's Arrow kernel follows the same law.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from sys import intern

import msgspec
from msgspec import Raw

from lakesync.model.delta import jcs_raw
from lakesync.model.types import ColumnValue, RowDelta, Stamp

_LAYOUTS_KEPT = 4096


class LiveDelta(msgspec.Struct, array_like=True, gc=False):
    """A delta that owns columns of a row, with those columns only."""

    hlc: int
    client_id: str
    delta_id: str
    columns: dict[str, Raw]
    width: int
    """How many columns the delta had originally."""

    @property
    def whole(self) -> bool:
        """Whether it still owns all of its columns."""
        return len(self.columns) == self.width

    @property
    def stamp(self) -> Stamp:
        """The stamp that merges compare."""
        return (self.hlc, self.client_id)


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The delta that wrote some columns of a row; their cells share it."""

    hlc: int
    client_id: str
    delta_id: str
    width: int
    """How many columns the delta had originally."""
    columns: tuple[str, ...]
    """The columns that it may own, in the delta's order."""

    @property
    def stamp(self) -> Stamp:
        """The stamp that merges compare."""
        return (self.hlc, self.client_id)


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The effect of one merge."""

    won: tuple[str, ...]
    """Columns that the delta owns now and did not own before."""
    lost: tuple[str, ...]
    """Columns of the delta that another delta owns, or that are deleted."""
    changed: bool
    """Whether the state changed."""
    was_visible: bool
    visible: bool


class Cell(msgspec.Struct, frozen=True, gc=False):
    """A live column of a row."""

    origin: Origin
    value: Raw
    at: int
    """The arrival at which the value last changed or an older value lost; 0 if it is not tracked."""


class RowState(msgspec.Struct, gc=False, eq=False):  # noqa: PLW1641 mutable, so not hashable
    """The merged state of one row; that of a row that was never written is `RowState()`."""

    cells: dict[str, Cell] = {}
    """The live columns."""
    tombstone: Stamp | None = None
    """The greatest stamp of a DELETE."""
    inserted: Stamp | None = None
    """The greatest stamp of an INSERT, if it is above the tombstone."""
    newest: int = -1
    """The highest hlc in it."""

    @staticmethod
    def of(
        parts: Iterable[LiveDelta],
        tombstone: Stamp | None = None,
        inserted: Stamp | None = None,
        touched: Mapping[str, int] | None = None,
    ) -> RowState:
        """Build a state from the values of `live` and `touched`.

        Args:
            parts: no two own the same column.
            tombstone: the greatest stamp of a DELETE.
            inserted: the greatest stamp of an INSERT, if it is above the tombstone.
            touched: column to `Cell.at`.
        """
        cells: dict[str, Cell] = {}
        at_of = (touched or {}).get
        newest = max([stamp[0] for stamp in (tombstone, inserted) if stamp is not None], default=-1)
        for part in parts:
            newest = max(newest, part.hlc)
            names = tuple(part.columns)
            origin = Origin(part.hlc, part.client_id, part.delta_id, part.width, _layouts.get(names) or _share(names))
            for name, value in part.columns.items():
                cells[name] = Cell(origin, value, at_of(name, 0))
        return RowState(cells, tombstone, inserted, newest)

    @staticmethod
    def of_insert(delta: RowDelta, at: int) -> RowState:
        """Build the state that one INSERT makes of a row.

        Args:
            delta: the INSERT.
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
        """M2: whether it has a live column, or an INSERT above the tombstone."""
        return bool(self.cells) or self.inserted is not None

    @property
    def origins(self) -> list[Origin]:
        """The deltas that own columns, each once, in order of (hlc, client id, delta id, width)."""
        return sorted({id(cell.origin): cell.origin for cell in self.cells.values()}.values(), key=_identity)

    @property
    def live(self) -> list[LiveDelta]:
        """The deltas that own columns, each with those, in order of (hlc, client id, delta id, width).

        Columns of a complete delta are in its order, others in the order of their names, so that the order of merges
        does not matter.
        """
        parts: list[LiveDelta] = []
        cells = self.cells
        for origin in self.origins:
            owned = {
                name: cells[name].value for name in origin.columns if name in cells and cells[name].origin is origin
            }
            if parts and _identity(parts[-1]) == _identity(origin):  # a faulty client used one id for two deltas
                owned = parts.pop().columns | owned
            elif len(owned) == origin.width:
                parts.append(_part(origin, owned))
                continue
            parts.append(_part(origin, dict(sorted(owned.items()))))
        return parts

    @property
    def touched(self) -> dict[str, int]:
        """Column to `Cell.at`, where that is tracked."""
        return {name: cell.at for name, cell in self.cells.items() if cell.at}

    def values(self) -> dict[str, Raw]:
        """Return each live column's value."""
        return {name: cell.value for name, cell in self.cells.items()}

    def copy(self) -> RowState:
        """Return a state that can be merged into without changing this one."""
        return RowState(self.cells.copy(), self.tombstone, self.inserted, self.newest)

    def touch(self, columns: Iterable[str], at: int) -> None:
        """Record that columns changed, or that older values lost, at an arrival."""
        for name in columns:
            cell = self.cells[name]
            self.cells[name] = Cell(cell.origin, cell.value, at)

    def merge(self, delta: RowDelta, at: int = 0) -> Outcome:
        """Merge one delta, in place. Columns of a DELETE are ignored.

        Values are copied, so that a row does not keep a request's body in memory.

        Args:
            delta: of this row.
            at: its arrival, for the cells that it wins.

        Raises:
            ValidationError: values with equal stamps must be compared, and one is not JSON.
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
                self._bury(stamp)
                return Outcome((), (), True, was_visible, self.visible)
            inserts = op == "INSERT" and (self.inserted is None or stamp > self.inserted)
            if inserts:
                self.inserted = stamp
        won, lost = self._claim(delta, at)
        changed = inserts or bool(won)
        return Outcome(won, lost, changed, was_visible, was_visible or changed)

    def overwrite(self, origin: Origin, columns: Sequence[ColumnValue], at: int, newer: Collection[str]) -> None:
        """Merge an UPDATE that is newer than all that the row has but some columns, in place.

        It wins every other column, as in `merge`, without a comparison.

        Args:
            origin: the UPDATE, with an hlc above all others that the row has.
            columns: its columns, as in `origin`.
            at: its arrival.
            newer: the columns that newer UPDATEs gave the row.
        """
        self.newest = max(self.newest, origin.hlc)
        for name, column in zip(origin.columns, columns, strict=True):
            if name not in newer:
                self.cells[name] = Cell(origin, column.value.copy(), at)

    def _claim(self, delta: RowDelta, at: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Give the delta the columns that it wins; return these, and those that it lost."""
        cells, columns, hlc = self.cells, delta.columns, delta.hlc
        names = intern_names(tuple([column.column for column in delta.columns]))
        origin = Origin(hlc, intern(delta.client_id), delta.delta_id, len(names), names)
        kept: list[str] = []
        lost: list[str] = []
        for name, column in zip(names, columns, strict=False):
            held = cells.get(name)
            if held is not None and hlc <= held.origin.hlc:
                order = -1 if hlc < held.origin.hlc else _order(origin, column.value, held)
                if order <= 0:
                    kept.append(name)
                    if order < 0:
                        lost.append(name)
                    continue
            cells[name] = Cell(origin, column.value.copy(), at)
        return (tuple([name for name in names if name not in kept]) if kept else names), tuple(lost)

    def _bury(self, stamp: Stamp) -> None:
        self.tombstone = stamp
        for name in [name for name, cell in self.cells.items() if cell.origin.stamp <= stamp]:
            del self.cells[name]
        if self.inserted is not None and self.inserted <= stamp:
            self.inserted = None


class StoredState(msgspec.Struct, array_like=True, gc=False):
    """The stored form of a state: the deltas that own columns."""

    live: list[LiveDelta] = []
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
    """Encode a state as compact JSON; values keep their text."""
    return _encode(StoredState.of(state))


def decode_state(data: bytes) -> RowState:
    """Decode the output of `encode_state`; values are views that keep `data` alive.

    Raises:
        msgspec.DecodeError: `data` has another form.
    """
    return _decode(data).state()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StoredState).decode
_layouts: dict[tuple[str, ...], tuple[str, ...]] = {}


def intern_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return equal tuples of names as one object for all deltas: a row keeps one for each of its origins."""
    return _layouts.get(names) or _share(names)


def _share(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(_layouts) >= _LAYOUTS_KEPT:
        _layouts.clear()
    return _layouts.setdefault(names, tuple([intern(name) for name in names]))


def _order(origin: Origin, value: Raw, held: Cell) -> int:
    """Return above 0 if the new value wins, below 0 if it loses, 0 if both are the same.

    M3: of equal stamps, the greater JCS text wins, in code point order. The other parts decide the owner if the texts
    are equal, so that replicas agree on ids too.
    """
    if origin.stamp != held.origin.stamp:
        return 1 if origin.stamp > held.origin.stamp else -1
    new_text, held_text = bytes(value), bytes(held.value)
    new = (jcs_raw(new_text), origin.delta_id, origin.width, new_text)
    old = (jcs_raw(held_text), held.origin.delta_id, held.origin.width, held_text)
    return (new > old) - (new < old)


def _part(origin: Origin, columns: dict[str, Raw]) -> LiveDelta:
    return LiveDelta(origin.hlc, origin.client_id, origin.delta_id, columns, origin.width)


def _identity(each: Origin | LiveDelta) -> tuple[int, str, str, int]:
    return (each.hlc, each.client_id, each.delta_id, each.width)

"""The merge: column-level last writer wins, by stamp.

A row's state maps each live column to a cell: its value and its origin, the delta that wrote it. Of all values that a
column was ever given, the greatest by (hlc, client id, JCS text, delta id) is the column's. A tombstone deletes every
column that is not above it. Both are maxima, so the state depends on the set of deltas alone, not on order or
repetition: a map of last-writer-wins registers in the sense of Shapiro et al., "A comprehensive study of CRDTs" (2011).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from sys import intern

import msgspec
from msgspec import Raw

from lakesync.model.delta import jcs_raw
from lakesync.model.types import RowDelta, Stamp

_LAYOUTS_KEPT = 4096


class LiveDelta(msgspec.Struct, array_like=True, gc=False):
    """A delta that owns columns of a row, trimmed to those."""

    hlc: int
    client_id: str
    delta_id: str
    columns: dict[str, Raw]
    width: int
    """How many columns the delta came with."""

    @property
    def whole(self) -> bool:
        """Whether it still owns every column that it came with."""
        return len(self.columns) == self.width

    @property
    def stamp(self) -> Stamp:
        """What the merge compares."""
        return (self.hlc, self.client_id)


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The delta that wrote some columns of a row; all of these share it."""

    hlc: int
    client_id: str
    delta_id: str
    width: int
    """How many columns the delta came with."""
    columns: tuple[str, ...]
    """Those that it may own, in the delta's order."""

    @property
    def stamp(self) -> Stamp:
        """What the merge compares."""
        return (self.hlc, self.client_id)


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What one merge did."""

    won: tuple[str, ...]
    """The delta's columns that it owns now and did not before."""
    lost: tuple[str, ...]
    """The delta's columns that another owns, or that are dead."""
    changed: bool
    """Whether the state differs from before."""
    was_visible: bool
    visible: bool


class Cell(msgspec.Struct, frozen=True, gc=False):
    """A live column of a row."""

    origin: Origin
    value: Raw
    at: int
    """The arrival at which the value last changed or was last contested; 0 where nobody asks."""


class RowState(msgspec.Struct, gc=False, eq=False):  # noqa: PLW1641 a state changes
    """The merged state of one row; a row never written is `RowState()`."""

    cells: dict[str, Cell] = {}
    """The live columns."""
    tombstone: Stamp | None = None
    """The greatest stamp of a DELETE."""
    inserted: Stamp | None = None
    """The greatest stamp of an INSERT, where it is above the tombstone."""
    newest: int = -1
    """No hlc in it is greater."""

    @staticmethod
    def of(
        parts: Iterable[LiveDelta],
        tombstone: Stamp | None = None,
        inserted: Stamp | None = None,
        touched: Mapping[str, int] | None = None,
    ) -> RowState:
        """Build a state from what `live` and `touched` returned.

        Args:
            parts: no two own the same column.
            tombstone: the greatest stamp of a DELETE.
            inserted: the greatest stamp of an INSERT, where it is above the tombstone.
            touched: column → `Cell.at`.
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
        """Build the state that one INSERT makes of a row. Its values are the delta's, not copied.

        Args:
            delta: the INSERT.
            at: its arrival.
        """
        names = tuple([column.column for column in delta.columns])
        names = _layouts.get(names) or _share(names)
        origin = Origin(delta.hlc, intern(delta.client_id), delta.delta_id, len(names), names)
        cells = {name: Cell(origin, column.value, at) for name, column in zip(names, delta.columns, strict=False)}
        return RowState(cells, None, delta.stamp, delta.hlc)

    def __eq__(self, other: object) -> bool:
        """Whether the merged states are the same, and changed at the same arrivals."""
        if not isinstance(other, RowState):
            return NotImplemented
        mine = (self.tombstone, self.inserted, self.touched, self.live)
        return mine == (other.tombstone, other.inserted, other.touched, other.live)

    def __ne__(self, other: object) -> bool:
        """Negate `__eq__`; by itself a Struct without `eq` compares identities here."""
        return not self == other

    @property
    def visible(self) -> bool:
        """M2: a live column, or an INSERT above the tombstone."""
        return bool(self.cells) or self.inserted is not None

    @property
    def origins(self) -> list[Origin]:
        """The deltas that own columns, each once, in order of (hlc, client id, delta id, width)."""
        return sorted({id(cell.origin): cell.origin for cell in self.cells.values()}.values(), key=_identity)

    @property
    def live(self) -> list[LiveDelta]:
        """The deltas that own columns, each with those, in order of (hlc, client id, delta id, width).

        Columns of a whole delta are in its order; else in that of their names, which does not depend on the order of
        merges.
        """
        parts: list[LiveDelta] = []
        cells = self.cells
        for origin in self.origins:
            owned = {
                name: cells[name].value for name in origin.columns if name in cells and cells[name].origin is origin
            }
            if parts and _identity(parts[-1]) == _identity(origin):  # a broken client gave two deltas one id
                owned = parts.pop().columns | owned
            elif len(owned) == origin.width:
                parts.append(_part(origin, owned))
                continue
            parts.append(_part(origin, dict(sorted(owned.items()))))
        return parts

    @property
    def touched(self) -> dict[str, int]:
        """Column → `Cell.at`, where that is known."""
        return {name: cell.at for name, cell in self.cells.items() if cell.at}

    def values(self) -> dict[str, Raw]:
        """Each live column's value."""
        return {name: cell.value for name, cell in self.cells.items()}

    def copy(self) -> RowState:
        """A state that can be merged into without changing this one."""
        return RowState(self.cells.copy(), self.tombstone, self.inserted, self.newest)

    def touch(self, columns: Iterable[str], at: int) -> None:
        """Note that columns were contested, or taken, at an arrival."""
        for name in columns:
            cell = self.cells[name]
            self.cells[name] = Cell(cell.origin, cell.value, at)

    def merge(self, delta: RowDelta, at: int = 0) -> Outcome:
        """Merge one delta, in place. Columns of a DELETE do not count.

        Values are copied, so that a row does not keep a request's body in memory.

        Args:
            delta: of this row.
            at: its arrival, for the cells that it wins.

        Raises:
            ValidationError: two values with equal stamps must be compared and one is no JSON text.
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

    def _claim(self, delta: RowDelta, at: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Give the delta the columns that it wins; return those, and those that it lost."""
        cells, columns, hlc = self.cells, delta.columns, delta.hlc
        names = tuple([column.column for column in columns])
        names = _layouts.get(names) or _share(names)
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
    """How a state is stored: as the deltas that own columns."""

    live: list[LiveDelta] = []
    tombstone: Stamp | None = None
    inserted: Stamp | None = None

    @staticmethod
    def of(state: RowState) -> StoredState:
        """The stored form of a state."""
        return StoredState(state.live, state.tombstone, state.inserted)

    def state(self, touched: Mapping[str, int] | None = None) -> RowState:
        """The state.

        Args:
            touched: what `RowState.touched` returned.
        """
        return RowState.of(self.live, self.tombstone, self.inserted, touched)


def encode_state(state: RowState) -> bytes:
    """A state as compact JSON; values keep their text."""
    return _encode(StoredState.of(state))


def decode_state(data: bytes) -> RowState:
    """What `encode_state` wrote; values are views that keep `data` alive.

    Raises:
        msgspec.DecodeError: `data` is something else.
    """
    return _decode(data).state()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StoredState).decode
_layouts: dict[tuple[str, ...], tuple[str, ...]] = {}


def _share(names: tuple[str, ...]) -> tuple[str, ...]:
    """The same names, as one tuple for all deltas that have them: a row keeps one for each of its origins."""
    if len(_layouts) >= _LAYOUTS_KEPT:
        _layouts.clear()
    return _layouts.setdefault(names, tuple([intern(name) for name in names]))


def _order(origin: Origin, value: Raw, held: Cell) -> int:
    """Above 0 where the new value wins, below 0 where it loses, 0 where both are the same.

    M3: of equal stamps the greater JCS text wins, in code point order. What follows decides the owner where the texts
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

"""The merge: column-level last writer wins, by stamp.

A row's state is the set of its live deltas: each delta that still owns a column, trimmed to what it owns. Of all values
that a column was ever given, the greatest by (hlc, client id, JCS text, delta id) is the column's; a tombstone kills
what is not above it. Both are maxima, so the state depends on the set of deltas alone, not on order or repetition: a
map of last-writer-wins registers in the sense of Shapiro et al., "A comprehensive study of CRDTs" (2011).
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from heapq import heappop, heappush

import msgspec
from msgspec import Raw

from lakesync.model.delta import jcs_raw
from lakesync.model.types import RowDelta, Stamp


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


class RowState(msgspec.Struct, array_like=True, gc=False):
    """The merged state of one row; a row never written is `RowState()`.

    A merge changes the state alone, never its list, nor a live delta: a shallow copy stays as it was.
    """

    live: list[LiveDelta] = []
    """In order of (hlc, client id, delta id, width)."""
    tombstone: Stamp | None = None
    """The greatest stamp of a DELETE."""
    inserted: Stamp | None = None
    """The greatest stamp of an INSERT, where it is above the tombstone."""

    @property
    def visible(self) -> bool:
        """M2: a live column, or an INSERT above the tombstone."""
        return bool(self.live) or self.inserted is not None

    def values(self) -> dict[str, Raw]:
        """Each live column's value."""
        values: dict[str, Raw] = {}
        for part in self.live:
            values.update(part.columns)
        return values

    def owner(self, column: str) -> LiveDelta | None:
        """The live delta that a column's value is from."""
        for part in self.live:
            if column in part.columns:
                return part
        return None

    def merge(self, delta: RowDelta) -> Outcome:
        """Take one delta in, in place. Columns of a DELETE do not count.

        Values are copied, so that a row does not keep a request's body in memory.

        Raises:
            ValidationError: two values with equal stamps must be compared and one is no JSON text.
        """
        if self.is_before(delta):  # 2.3 instead of 6.5 µs for five columns
            was_visible = self.visible
            after = self.overwritten(delta)
            self.live, self.inserted = after.live, after.inserted
            return Outcome(tuple(after.live[-1].columns), (), True, was_visible, True)
        merge = RowMerge(self)
        outcome = merge.merge(delta)
        if outcome.changed:
            after = merge.state()
            self.live, self.tombstone, self.inserted = after.live, after.tombstone, after.inserted
        return outcome

    def is_before(self, delta: RowDelta) -> bool:
        """Whether a delta is newer than all that the row has, and comes to own all of its columns, one at least."""
        if delta.op == "DELETE" or not delta.columns:
            return False
        stamp = (delta.hlc, delta.client_id)
        if self.live and stamp <= (self.live[-1].hlc, self.live[-1].client_id):
            return False
        return self.tombstone is None or stamp > self.tombstone

    def overwritten(self, delta: RowDelta) -> RowState:
        """The state after a delta that is newer than all of it (`is_before`)."""
        columns = {cell.column: cell.value.copy() for cell in delta.columns}
        after = self.below(LiveDelta(delta.hlc, delta.client_id, delta.delta_id, columns, len(delta.columns)))
        if delta.op == "INSERT" and (after.inserted is None or delta.stamp > after.inserted):
            after.inserted = delta.stamp
        return after

    def below(self, newest: LiveDelta) -> RowState:
        """The state after an UPDATE that is newer than all of it, with one column at least."""
        live = _without(self.live, newest.columns.keys()) if self.live else []
        return RowState([*live, newest], self.tombstone, self.inserted)


class RowMerge:
    """Merges many deltas into one row. An index finds the owner of a column.

    Without it, 4,000 one-column deltas of one row would be 16 million looks at live deltas.
    """

    def __init__(self, state: RowState) -> None:
        """Args:
        state: what the row has already; it stays as it is.
        """
        self.tombstone = state.tombstone
        self.inserted = state.inserted
        self._parts = {_identity(part): part for part in state.live}
        self._owners = {column: part for part in state.live for column in part.columns}
        self._oldest = list(self._parts)
        """A heap of the parts' identities, some of which may be gone."""
        self._copied: set[_Identity] = set()
        """The parts that are not the state's, and may be changed."""

    @property
    def has_columns(self) -> bool:
        """Whether any column is live."""
        return bool(self._owners)

    @property
    def visible(self) -> bool:
        """As `RowState.visible`."""
        return bool(self._owners) or self.inserted is not None

    def owner(self, column: str) -> LiveDelta | None:
        """As `RowState.owner`."""
        return self._owners.get(column)

    def state(self) -> RowState:
        """What the deltas make."""
        return RowState(sorted(self._parts.values(), key=_identity), self.tombstone, self.inserted)

    def merge(self, delta: RowDelta) -> Outcome:
        """As `RowState.merge`."""
        was_visible = self.visible
        stamp = (delta.hlc, delta.client_id)
        dead = self.tombstone is not None and stamp <= self.tombstone
        if delta.op == "DELETE":
            if not dead:
                self._bury(stamp)
            return Outcome((), (), not dead, was_visible, self.visible)
        if dead:
            return Outcome((), tuple(cell.column for cell in delta.columns), False, was_visible, was_visible)
        inserts = delta.op == "INSERT" and (self.inserted is None or stamp > self.inserted)
        if inserts:
            self.inserted = stamp
        won, lost = self._claim(delta, stamp)
        return Outcome(won, lost, inserts or bool(won), was_visible, self.visible)

    def _claim(self, delta: RowDelta, stamp: Stamp) -> tuple[tuple[str, ...], tuple[str, ...]]:
        width = len(delta.columns)
        won: dict[str, Raw] = {}
        lost: list[str] = []
        for cell in delta.columns:
            part = self._owners.get(cell.column)
            if part is not None:
                order = (stamp > part.stamp) - (stamp < part.stamp)
                order = order or _order(delta.delta_id, width, cell.value, part, cell.column)
                if order <= 0:
                    if order < 0:
                        lost.append(cell.column)
                    continue
                self._take(part, cell.column)
            won[cell.column] = cell.value.copy()
        if won:
            self._put(LiveDelta(delta.hlc, delta.client_id, delta.delta_id, won, width))
        return tuple(won), tuple(lost)

    def _put(self, part: LiveDelta) -> None:
        identity = _identity(part)
        known = self._parts.get(identity)
        if known is None:
            heappush(self._oldest, identity)
        else:  # two deltas that claim one identity (a broken client's) become one live delta
            part = _with(part, dict(sorted({**known.columns, **part.columns}.items())))
        self._own(identity, part)

    def _own(self, identity: _Identity, part: LiveDelta) -> None:
        self._parts[identity] = part
        self._copied.add(identity)
        self._owners.update(dict.fromkeys(part.columns, part))

    def _take(self, part: LiveDelta, column: str) -> None:
        identity = _identity(part)
        if len(part.columns) == 1:
            del self._parts[identity]
            return
        if identity not in self._copied:
            part = _with(part, part.columns.copy())
            self._own(identity, part)
        del part.columns[column]

    def _bury(self, stamp: Stamp) -> None:
        self.tombstone = stamp
        while self._oldest and self._oldest[0][:2] <= stamp:
            part = self._parts.pop(heappop(self._oldest), None)
            for column in part.columns if part is not None else ():
                del self._owners[column]
        if self.inserted is not None and self.inserted <= stamp:
            self.inserted = None


def encode_state(state: RowState) -> bytes:
    """A state as compact JSON; values keep their text."""
    return _encode(state)


def decode_state(data: bytes) -> RowState:
    """What `encode_state` wrote; values are views that keep `data` alive.

    Raises:
        msgspec.DecodeError: `data` is something else.
    """
    return _decode(data)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RowState).decode


def _order(delta_id: str, width: int, value: Raw, part: LiveDelta, column: str) -> int:
    """M3, for equal stamps: above 0 where the new value wins, below 0 where it loses, 0 where both are the same.

    The greater JCS text wins, in code point order. What follows decides the owner where the texts are equal, so that
    replicas agree on ids too.
    """
    held = part.columns[column]
    new_text, held_text = bytes(value), bytes(held)
    new = (jcs_raw(new_text), delta_id, width, new_text)
    old = (jcs_raw(held_text), part.delta_id, part.width, held_text)
    return (new > old) - (new < old)


def _without(live: list[LiveDelta], columns: AbstractSet[str]) -> list[LiveDelta]:
    """The live deltas that are left when another takes these columns."""
    if live[-1].columns.keys() == columns:  # a column has one owner: no other has any of them
        return live[:-1]
    kept = []
    for part in live:
        owned = part.columns.keys()
        if owned.isdisjoint(columns):
            kept.append(part)
        elif not owned <= columns:
            left = {column: value for column, value in part.columns.items() if column not in columns}
            kept.append(_with(part, left))
    return kept


def _with(part: LiveDelta, columns: dict[str, Raw]) -> LiveDelta:
    """The delta with other columns."""
    return LiveDelta(part.hlc, part.client_id, part.delta_id, columns, part.width)


_Identity = tuple[int, str, str, int]


def _identity(part: LiveDelta) -> _Identity:
    return (part.hlc, part.client_id, part.delta_id, part.width)

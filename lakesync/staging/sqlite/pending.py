"""What `state.db` is yet to be given: rows and entry changes in memory, each of which can be taken back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from lakesync.model.types import RowKey
from lakesync.staging.hot_rows import HotRow
from lakesync.staging.moves import EntryChange, Stays, add_told, changed_by
from lakesync.staging.records import Move
from lakesync.staging.sqlite.undo import Undo

EntryKey = tuple[str, str, str]
"""`(bucket, table, row id)`."""

Rows = Mapping[str, Mapping[RowKey, HotRow]]
"""By gateway."""


class Changes:
    """Entry changes of a stretch of commits, by gateway."""

    __slots__ = ("moves", "told")

    def __init__(self) -> None:
        self.moves: dict[str, dict[EntryKey, EntryChange]] = defaultdict(dict)
        self.told: dict[str, dict[RowKey, None]] = defaultdict(dict)
        """Rows in order of arrival that may tell of moves themselves, which may be before what `moves` says of them."""

    def __bool__(self) -> bool:
        return any(self.moves.values()) or any(self.told.values())

    def moved(self, gateway: str) -> set[RowKey]:
        """The rows of which `moves` tells."""
        return {(table, row_id) for _, table, row_id in self.moves.get(gateway, ())}

    def without_births(self, rows: Rows, births: Mapping[str, int]) -> Changes:
        """What is left of this when the moves that births tell, apart from rows that moved besides, are written.

        Args:
            rows: of the layer.
            births: how many tell, by gateway.
        """
        left = Changes()
        left.moves = self.moves
        for gateway, keys in self.told.items():
            if births.get(gateway, 0) < len(keys):
                held, moved = rows.get(gateway, {}), self.moved(gateway)
                others = [key for key in keys if key in moved or key not in held or not held[key].birth]
                left.told[gateway] = dict.fromkeys(others)
        return left

    def folded(self, rows: Rows) -> dict[str, dict[EntryKey, EntryChange]]:
        """One change an entry, by gateway.

        Args:
            rows: of the layer.
        """
        folded = {gateway: changes.copy() for gateway, changes in self.moves.items()}
        for gateway, keys in self.told.items():
            held = rows.get(gateway, {})
            found = ((key, row) for key in keys if (row := held.get(key)) is not None)  # none was taken back
            add_told(folded.setdefault(gateway, {}), found)
        return folded


class Layer:
    """Rows and entry changes of a stretch of commits, by gateway. What is newer stands in a layer above."""

    __slots__ = ("changes", "count", "newest", "rows", "rows_written")

    def __init__(self) -> None:
        self.rows: dict[str, dict[RowKey, HotRow]] = defaultdict(dict)
        self.changes = Changes()
        self.newest: dict[tuple[str, str], int] = {}
        """`(gateway, bucket)` → the newest `changed` of its entries."""
        self.count = 0
        """Rows, those that were taken back included."""
        self.rows_written = False
        """Its entries are being written now."""

    def __bool__(self) -> bool:
        return bool(self.count or self.changes)

    def take_changes(self) -> Changes:
        """The entry changes, which the layer does not hold any more."""
        changes, self.changes = self.changes, Changes()
        return changes


def put_rows(layer: Layer, gateway: str, rows: Mapping[RowKey, HotRow], undo: Undo) -> None:
    """Put rows into a layer."""
    held = layer.rows[gateway]
    before = len(held)
    undo.update(held, rows)
    layer.count += len(held) - before


def put_moves(layer: Layer, gateway: str, moves: Iterable[Move], undo: Undo) -> None:
    """Put moves into a layer, each summed up with what the layer holds of its entry."""
    held = layer.changes.moves[gateway]
    new: dict[EntryKey, EntryChange] = {}
    newest: dict[str, int] = {}
    for move in moves:
        bucket, table, row_id, arrival, kind = move.bucket, move.table, move.row_id, move.arrival, move.kind
        key = (bucket, table, row_id)
        new[key] = changed_by(new.get(key) or held.get(key), kind, arrival)
        newest[bucket] = max(arrival, newest.get(bucket, 0))
    undo.update(held, new)
    _move_on(layer, gateway, newest, undo)


def put_stays(layer: Layer, gateway: str, rows: Mapping[RowKey, HotRow], stays: Stays, undo: Undo) -> None:
    """Note that rows of a layer tell of moves themselves; one that does not may be among them."""
    told = layer.changes.told[gateway]
    if not rows.keys() <= told.keys():  # rows that are overwritten again and again are there already
        told.update(dict.fromkeys(rows))
    _move_on(layer, gateway, stays, undo)


def _move_on(layer: Layer, gateway: str, newest: Mapping[str, int], undo: Undo) -> None:
    held = layer.newest
    undo.update(held, {(gateway, name): max(at, held.get((gateway, name), 0)) for name, at in newest.items()})

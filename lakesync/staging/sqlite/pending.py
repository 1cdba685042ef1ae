"""What `state.db` is yet to be given: rows and entry changes in memory, each of which can be taken back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from lakesync.staging.hot_rows import HotRow
from lakesync.staging.moves import EntryChange, Stays, changed_by, stayed
from lakesync.staging.records import Move
from lakesync.staging.sqlite.undo import Undo
from lakesync.types import RowKey

EntryKey = tuple[str, str, str]
"""`(bucket, table, row id)`."""


class Changes:
    """Entry changes of a stretch of commits, by gateway."""

    __slots__ = ("moves", "stays")

    def __init__(self) -> None:
        self.moves: dict[str, dict[EntryKey, EntryChange]] = defaultdict(dict)
        self.stays: dict[tuple[str, str], dict[RowKey, int]] = defaultdict(dict)
        """`(gateway, bucket)` → row → the arrival of its latest `stay`, which may be before what `moves` says of it."""

    def __bool__(self) -> bool:
        return any(self.moves.values()) or any(self.stays.values())

    def folded(self) -> dict[str, dict[EntryKey, EntryChange]]:
        """One change an entry, by gateway."""
        folded = {gateway: changes.copy() for gateway, changes in self.moves.items()}
        for (gateway, bucket), rows in self.stays.items():
            changes = folded.setdefault(gateway, {})
            for (table, row_id), at in rows.items():
                before = changes.get((bucket, table, row_id))
                if before is None:
                    changes[bucket, table, row_id] = stayed(at)
                elif before.changed < at:
                    changes[bucket, table, row_id] = before.stayed(at)
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


def put_moves(layer: Layer, gateway: str, moves: Iterable[Move], stays: Stays, undo: Undo) -> None:
    """Put moves into a layer, each summed up with what the layer holds of its entry."""
    held = layer.changes.moves[gateway]
    new: dict[EntryKey, EntryChange] = {}
    newest: dict[tuple[str, str], int] = {}
    for move in moves:
        bucket, table, row_id, arrival, kind = move.bucket, move.table, move.row_id, move.arrival, move.kind
        key = (bucket, table, row_id)
        new[key] = changed_by(new.get(key) or held.get(key), kind, arrival)
        newest[gateway, bucket] = max(arrival, newest.get((gateway, bucket), 0))
    for bucket, rows in stays.items():
        undo.update(layer.changes.stays[gateway, bucket], rows)
        newest[gateway, bucket] = max(*rows.values(), newest.get((gateway, bucket), 0))
    newest = {place: max(arrival, layer.newest.get(place, 0)) for place, arrival in newest.items()}
    undo.update(held, new)
    undo.update(layer.newest, newest)

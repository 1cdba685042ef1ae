"""A page, applied to the rows that it names."""

from __future__ import annotations

from collections.abc import Iterable

from lakesync.client.core.records import UNSWEPT, Changes, Edit, KnownRow
from lakesync.client.core.rows import seen, take
from lakesync.client.core.store import ClientStore
from lakesync.lww import RowState
from lakesync.types import RowDelta, RowKey


def apply_page(store: ClientStore, deltas: Iterable[RowDelta], generation: int) -> Changes:
    """What a page makes of the rows that it names.

    Args:
        generation: the position's, or UNSWEPT for a page of a named source. A row of an older one is emptied first:
            what it held may be of another time of the gateway.
    """
    deltas = list(deltas)
    keys = {delta.key for delta in deltas}
    known = store.known(keys)
    changed: set[RowKey] = set()
    for delta in deltas:
        row = known.get(delta.key)
        if row is None:
            row = known[delta.key] = KnownRow(RowState(), generation)
        elif generation not in (UNSWEPT, row.generation):
            if row.generation != UNSWEPT:
                row.state = RowState()
            row.generation = generation
            changed.add(delta.key)
        if take(row.state, delta):
            changed.add(delta.key)
    return _changes(known, changed, store.edits_of(keys))


def sweep(store: ClientStore, changes: Changes, generation: int) -> None:
    """Add to a page's changes the removal of every row of an older generation; its edits stay."""
    keys = {key for key in store.older_than(generation) if key not in changes.known}
    edits = store.edits_of(keys)
    for key in keys:
        changes.known[key] = None
        changes.rows[key] = seen(None, edits.get(key, ()))


def _changes(known: dict[RowKey, KnownRow], changed: set[RowKey], edits: dict[RowKey, list[Edit]]) -> Changes:
    changes = Changes()
    for key in changed:
        row, own = known[key], edits.get(key, ())
        changes.known[key] = row if own or row.state.visible else None
        changes.rows[key] = seen(row.state, own)
    return changes

"""A page, applied to the rows that it names."""

from __future__ import annotations

from collections.abc import Iterable

from lakesync.client.core.records import UNSWEPT, Changes, KnownRow
from lakesync.client.core.rows import seen, take
from lakesync.client.core.store import ClientStore
from lakesync.model.merge import RowState
from lakesync.model.types import RowDelta, RowKey


def apply_page(store: ClientStore, deltas: Iterable[RowDelta], generation: int) -> Changes:
    """What a page makes of the rows that it names.

    Args:
        generation: the position's, or UNSWEPT for a page of a named source. A row of an older one is emptied first:
            what it held may be of another time of the gateway.
    """
    parts: dict[RowKey, list[RowDelta]] = {}
    for delta in deltas:
        parts.setdefault(delta.key, []).append(delta)
    known = store.known(parts)
    edits = store.edits_of(parts)
    changes = Changes()
    for key, said in parts.items():
        row = known.get(key)
        changed = False
        if row is None:
            row = KnownRow(RowState(), generation)
        elif generation not in (UNSWEPT, row.generation):
            if row.generation != UNSWEPT:
                row.state = RowState()
            row.generation = generation
            changed = True
        for delta in said:
            changed |= take(row.state, delta)
        if changed:
            own = edits.get(key, ())
            changes.known[key] = row if own or row.state.visible else None
            changes.rows[key] = seen(row.state, own)
    return changes


def sweep(store: ClientStore, changes: Changes, generation: int) -> None:
    """Add to a page's changes the removal of every row of an older generation; its edits stay."""
    stay = changes.known.keys() | (changes.bulk.brought_over if changes.bulk else set())
    keys = {key for key in store.older_than(generation) if key not in stay}
    edits = store.edits_of(keys)
    for key in keys:
        changes.known[key] = None
        changes.rows[key] = seen(None, edits.get(key, ()))

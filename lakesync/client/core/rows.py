"""Merging of rows in the client: pages of the gateway into known rows, and known rows with edits into the app's rows.

A *known row* is a row as the gateway has it. An *edit* is a change of the app that the gateway has not acknowledged.
The app's row is the merge of the known row and its edits. The merge (`lakesync.model.merge`) takes for each column the
value with the greatest *stamp* (hybrid logical clock and client id), so it does not depend on order. So an accepted
edit moves into the known row, and the app's row does not change. The other modules of the core call these functions,
and the client's stores call `visible_row`. A *delta* is a change of some columns of one row.

A page is a set of changes that the gateway sends. A full pull is all pages from the beginning. Each full pull
has a number, the generation of the rows that its pages name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Raw

from lakesync.client.core.store import SOURCE_GENERATION, Changes, ClientStore, Edit, KnownRow
from lakesync.model.merge import RowState
from lakesync.model.types import RowDelta, RowKey


def apply_page_delta(state: RowState, delta: RowDelta) -> bool:
    """Apply a delta of a page to a known row, in place.

    The gateway sends a DELETE also for a row that the client may no longer see. So a DELETE empties the row, even if
    the row has newer stamps. The DELETE's stamp is kept as a tombstone: only newer edits show the row again. An INSERT
    means that the row exists, and clears the tombstone.

    Args:
        state: the known row; it is updated.
        delta: a delta of this row.

    Returns:
        Whether the row changed.
    """
    if delta.op == "DELETE":
        changed = state.visible or state.tombstone != delta.stamp
        state.cells, state.inserted, state.tombstone = {}, None, delta.stamp
        state.newest = max(state.newest, delta.hlc)
        return changed
    was_deleted = delta.op == "INSERT" and state.tombstone is not None
    if was_deleted:
        state.tombstone = None
    return merge_delta(state, delta) or was_deleted


def merge_delta(state: RowState, delta: RowDelta) -> bool:
    """Merge a delta of an edit or a page into a row, in place, as the gateway does; return whether the row changed.

    Args:
        state: the row; it is updated.
        delta: a delta of this row. Its delta id is not stored, because the client does not use it.
    """
    op, table, row_id, client_id = delta.op, delta.table, delta.row_id, delta.client_id
    return state.merge(RowDelta(op, table, row_id, client_id, delta.columns, delta.hlc, delta_id="")).changed


def visible_row(state: RowState | None, edits: Sequence[Edit]) -> dict[str, Raw] | None:
    """Return the row as the app sees it: the known row with its edits; None if it does not exist.

    Args:
        state: the known row; None if the gateway does not have the row.
        edits: the row's edits.

    Returns:
        The JSON text of each column that has a value.
    """
    if edits:
        state = state.copy() if state is not None else RowState()
        for edit in edits:
            merge_delta(state, edit.delta)
    return state.values() if state is not None and state.visible else None


def page_changes(store: ClientStore, deltas: Iterable[RowDelta], generation: int) -> Changes:
    """Return what a page changes in the rows that it names. Nothing is stored.

    `sqlite.bulk_changes` does the same in few statements, for rows without edits. Change both together; property tests
    compare them.

    Args:
        store: the store with the known rows and the edits.
        deltas: the page's deltas.
        generation: the number of the latest full pull, or SOURCE_GENERATION for a page of a named source (a database
            that the gateway serves beside its own rows). A known row of an older full pull is emptied first, because
            the gateway's rows may have been replaced since then. A row of a named source is not.
    """
    by_row: dict[RowKey, list[RowDelta]] = {}
    for delta in deltas:
        by_row.setdefault(delta.key, []).append(delta)
    known = store.known(by_row)  # copies, which are changed below
    edits = store.edits_of(by_row)
    changes = Changes()
    for key, row_deltas in by_row.items():
        row = known.get(key)
        changed = False
        if row is None:
            row = KnownRow(RowState(), generation)
        elif generation not in (SOURCE_GENERATION, row.generation):
            if row.generation != SOURCE_GENERATION:
                row.state = RowState()
            row.generation = generation
            changed = True
        for delta in row_deltas:
            changed |= apply_page_delta(row.state, delta)
        if changed:
            row_edits = edits.get(key, ())
            changes.known[key] = row if row_edits or row.state.visible else None
            changes.rows[key] = visible_row(row.state, row_edits)
    return changes


def remove_older_rows(store: ClientStore, changes: Changes, generation: int) -> None:
    """Add the removal of every row that a full pull did not name to the changes of its last page.

    Edits of these rows are kept, and the app's rows are computed from them.

    Args:
        store: the store with the known rows and the edits.
        changes: the changes of the full pull's last page; they are updated.
        generation: the full pull's generation; rows of older ones are removed.
    """
    renewed = changes.known.keys() | (changes.bulk.renewed_rows if changes.bulk else set())
    keys = {key for key in store.older_than(generation) if key not in renewed}
    edits = store.edits_of(keys)
    for key in keys:
        changes.known[key] = None
        changes.rows[key] = visible_row(None, edits.get(key, ()))

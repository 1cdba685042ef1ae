"""Changes merged rows in the transactions of an erasure: deletes rows, removes a client's columns, restores others.

`ErasingStore` (erasing_store.py), which explains the terms, decides when each function runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakesync.model.delta import delta_id
from lakesync.model.types import RowDelta, RowKey, Stamp
from lakesync.staging.records import Erasure, Move, StoredRow
from lakesync.staging.store import Commit
from lakesync.staging.store.push import Replayer
from lakesync.wire.log import pack

ERASER = "~lakesync:erasure"
"""Client id of the DELETE by which clients learn that a row was erased."""


def stamps_of(row: StoredRow) -> list[Stamp]:
    """Return every stamp in a row: those of its columns, its newest DELETE and its newest INSERT."""
    state = row.state
    return [origin.stamp for origin in state.origins] + [stamp for stamp in (state.tombstone, state.inserted) if stamp]


def delete_rows(commit: Commit, replayer: Replayer, erasure: Erasure, keys: list[RowKey]) -> int:
    """Delete rows for every client and the lake, by a push of DELETEs from `ERASER`.

    Rows that an earlier attempt deleted are skipped.

    Args:
        commit: the open transaction.
        replayer: applies the DELETEs.
        erasure: the erasure.
        keys: the rows.

    Returns:
        The number of rows that were deleted.
    """
    stamp: Stamp = (erasure.hlc, ERASER)
    stored = commit.rows(keys)
    # `tombstone`: the greatest stamp of a DELETE of the row; None without one
    remaining = [key for key in keys if (stored[key].state.tombstone or (0, "")) < stamp]
    if remaining:
        deltas = [_deletion(key, erasure.hlc) for key in remaining]
        entry = commit.append(ERASER, pack(deltas), commit.next_arrivals(len(remaining))[-1], claims={})
        replayer.replay(commit, entry)
    return len(remaining)


def remove_columns(commit: Commit, replayer: Replayer, erasure: Erasure, client_id: str, rows: list[StoredRow]) -> int:
    """Remove a client's columns from rows; return the number of rows that had any.

    Rows without other columns are deleted. A row that only names the client as a writer, because others have
    overwritten its columns, is stored without the name; nothing that clients see has changed in it.

    Args:
        commit: the open transaction.
        replayer: writes the feed entries of changed rows.
        erasure: the erasure.
        client_id: the erased client.
        rows: copies of stored rows, which are changed.
    """
    written = [row for row in rows if _forget_writer(row, client_id)]
    changed = [row for row in rows if _forget_columns(row, client_id, erasure.hlc)]
    moves: list[Move] = []
    remaining = [row for row in changed if row.state.visible]
    for row, arrival in zip(remaining, commit.next_arrivals(len(remaining)), strict=True):
        # The row leaves its buckets at this arrival and joins them again. Because of `no_update_before`, clients
        # that have it are sent DELETE and INSERT, so that they drop the columns.
        row.arrival = row.no_update_before = arrival
        moves += [Move(bucket, row.table, row.row_id, arrival, "leave") for bucket in row.keys]
        row.keys = ()
    commit.put_rows({row.key: row for row in (*written, *changed)}.values(), moves)
    if remaining:
        replayer.rewrite_rows(commit, remaining)
    delete_rows(commit, replayer, erasure, [row.key for row in changed if not row.state.visible])
    return len(changed)


def restore_columns(commit: Commit, replayer: Replayer, deltas: Sequence[RowDelta]) -> None:
    """Merge deltas from the lake into existing rows, each changed row at a new arrival.

    Args:
        commit: the open transaction.
        replayer: writes the feed entries of changed rows.
        deltas: the deltas.
    """
    rows = {key: row.copy() for key, row in commit.rows({delta.key for delta in deltas}).items()}
    won: dict[RowKey, set[str]] = {}  # by row, the columns to which a delta gave its value
    for delta in deltas:
        row = rows.get(delta.key)
        outcome = row.state.merge(delta) if row is not None else None
        if outcome is not None and outcome.changed:
            won.setdefault(delta.key, set()).update(outcome.won)
    changed = [rows[key] for key in won]
    for row, arrival in zip(changed, commit.next_arrivals(len(changed)), strict=True):
        # Its new position in the feed; `touch` sets it as the columns' time of change. A client is not sent its own
        # values as an UPDATE, so because of `no_update_before`, it is sent DELETE and INSERT.
        row.arrival = row.no_update_before = arrival
        row.state.touch(won[row.key] & row.state.cells.keys(), arrival)
    if changed:
        replayer.rewrite_rows(commit, changed)


def _deletion(key: RowKey, hlc: int) -> RowDelta:
    """Return the DELETE of an erased row, with the erasure's hlc."""
    table, row_id = key
    identity = delta_id(client_id=ERASER, hlc=hlc, table=table, row_id=row_id, columns=())
    return RowDelta("DELETE", table, row_id, ERASER, (), hlc, identity)


def _forget_writer(row: StoredRow, client_id: str) -> bool:
    """Remove a client from a row's latest writers; return whether it was among them.

    `writers_floor` then says that a writer may be missing.
    """
    writer = row.writers.pop(client_id, None)
    if writer is not None:
        row.writers_floor = max(row.writers_floor, writer.latest)
    return writer is not None


def _forget_columns(row: StoredRow, client_id: str, hlc: int) -> bool:
    """Remove a client's columns and INSERT from a row's state; return whether it had any."""
    state = row.state
    own = [name for name, cell in state.cells.items() if cell.origin.client_id == client_id and cell.origin.hlc <= hlc]
    inserted = state.inserted is not None and state.inserted[1] == client_id and state.inserted[0] <= hlc
    for name in own:
        del state.cells[name]
    if inserted:
        state.inserted = None
    return bool(own) or inserted

"""Returns the deltas of one row that a client lacks; `feed.pull` calls it for each row of a page.

A *delta* is an INSERT, UPDATE or DELETE of some columns of the row. Its *stamp* is the client's timestamp of the write,
and the client id; the greatest stamp wins each column. A *bucket key* names a bucket of the sync rules with the claims
that may see it. The row has one *entry* for each bucket key: when it joined the bucket, left it, and last changed in
it. The client's *position* says what it may have: at its *base*, an *arrival* (a commit's timestamp by the gateway,
which is one app's stream of changes), it had exactly what it could see. The section "What a client has of a row" of
`docs/feed.md` explains each case.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lakesync.feed import render
from lakesync.feed.positions import Position
from lakesync.feed.row_presence import RowPresence, has_from_insert, may_hold_hidden, presence_of_visible
from lakesync.feed.scopes import Access
from lakesync.model.merge import LiveDelta
from lakesync.model.types import RowDelta
from lakesync.staging.records import Entry, StoredRow


def missing_deltas(
    row: StoredRow,
    history: Sequence[Entry],
    client_id: str,
    position: Position,
    access: Access,
    buckets: Collection[str],
) -> list[RowDelta]:
    """Return the deltas of one row that a client lacks.

    Args:
        row: the row.
        history: those entries of the row whose keys are in `buckets`.
        client_id: the client's id.
        position: the client's position.
        access: the claims and bucket keys that decide what the client may see.
        buckets: all bucket keys whose entries may concern the client.

    Returns:
        UPDATEs if the client certainly has the row, its INSERT (and UPDATEs) if the client certainly lacks it, DELETE
        and INSERT if that is unknown, a DELETE if the client may not see it now; nothing if the client lacks nothing.
    """
    if not _may_be_sent(row, access, buckets):
        return [render.delete(row)] if may_hold_hidden(row, history, client_id, position) else []
    presence = presence_of_visible(row, history, client_id, position)
    if presence is RowPresence.NO:
        # a row that the client sees only by rules that a re-index is still applying is sent when it has its new keys
        return render.insert(row) if access.sees_by_keys(row) else []
    if presence is RowPresence.OWN:  # it has its own INSERT only: send the columns of others, and older own ones
        # `live`: the row's columns, grouped by the delta that wrote them
        missing = [written for written in row.state.live if not has_from_insert(row, written.stamp, client_id)]
        if all(_follows_insert(row, written, client_id) for written in missing):
            stamps = {written.stamp for written in missing}
            return render.update(row, lambda _, stamp: stamp in stamps)
    if presence is RowPresence.YES:  # send the columns of others that changed since the base
        cells = row.state.cells
        updates = render.update(row, lambda name, stamp: stamp[1] != client_id and cells[name].at > position.base)
        if not any(_is_below_insert(row, delta) for delta in updates):
            return updates
    return [render.delete(row), *render.insert(row)]  # leaves the right row, whatever the client had


def _may_be_sent(row: StoredRow, access: Access, buckets: Collection[str]) -> bool:
    """Return whether the client may be sent the row: it may see the row, and will be sent a DELETE when that ends.

    A *re-index* gives all rows their bucket keys by changed rules, in the background. Until then, a row that the new
    rules show may still be stored under keys that this client never had. If the row then left these keys, the client
    would not be sent a DELETE. Such a row is sent when it has its new keys.

    Args:
        row: the row.
        access: the claims and bucket keys that decide what the client may see.
        buckets: all bucket keys whose entries may concern the client.
    """
    return access.sees_by_keys(row) or (access.sees(row) and not set(row.keys).isdisjoint(buckets))


def _is_below_insert(row: StoredRow, delta: RowDelta) -> bool:
    """Return whether an UPDATE is older than the row's INSERT, so that the client may reject the UPDATE.

    Between the two stamps, the client may have been sent a DELETE: of the row as it was before it was deleted and
    inserted again. A client that resolves conflicts by stamp rejects what is older than that DELETE.
    """
    return row.state.inserted is not None and delta.stamp < row.state.inserted


def _follows_insert(row: StoredRow, written: LiveDelta, client_id: str) -> bool:
    """Return whether some columns of the row were written after the client's own INSERT, by stamp and by arrival.

    Only such columns can be sent as an UPDATE. Before the INSERT, the client may have been sent a DELETE of an earlier
    row with this id. If it keeps the DELETE's stamp, it rejects INSERTs and UPDATEs below that stamp, even its own.

    Args:
        row: the row, which the client inserted.
        written: the columns, which one delta wrote.
        client_id: the client's id.
    """
    inserted = row.state.inserted
    if inserted is None or inserted[1] != client_id or written.stamp < inserted:
        return False
    inserted_at = row.writers[client_id].own_copy  # the arrival of its INSERT: `RowPresence.OWN` has made sure of that
    return all(row.state.cells[column].at > inserted_at for column in written.columns)

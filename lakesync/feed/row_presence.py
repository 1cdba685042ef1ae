"""Decides whether a client has a row, as far as the gateway (one app's stream of changes) can know.

`feed.missing_deltas` asks for each row of a page that is not part of an encoded range. It sends an INSERT if the client
lacks the row, an UPDATE if the client has it, and DELETE and INSERT if that is unknown. To a client that inserted the
row itself, it sends the columns that the INSERT lacks. `feed.pull` calls only `writers_known_from`. `feed.apply` calls
`has_from_insert` when it accepts a push. The gateway stores no list of the rows that it sent to a client. It decides by
three things:

- The row's *entries*, one for each bucket key (a bucket of the sync rules with the claims that may see it): when the
  row first and last joined the bucket (`first`, `since`), last left it (`left`), and last changed in it (`changed`).
- The client's `Position`: the complete cursor (the *base*) at which the client had exactly what it could see, the
  bucket keys that were active then (`old_keys`), and what it may have been sent since. *These pages* are the series
  that it has been reading since the base. They are a *transition* if its bucket keys have changed since, and a *resync*
  if it may have any row. A *rescan* reads earlier ranges of the feed.
- The row's latest *writers*, because a client is not sent its own writes. A client's copy of the row is *astray* if it
  may differ from the row since its last write.

All times are arrivals: the gateway's own timestamps of commits. A row's *feed position* is the arrival of its latest
change. The rules are a table in `docs/feed.md`, section "What a client has of a row". For example, with the base 10 and
one bucket key, a client certainly has a row that is inside since 5, and certainly lacks one that first joined at 20 and
was not sent since. It may have one that left at 15 and joined again at 20.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from lakesync.feed.positions import Position
from lakesync.model.types import Stamp
from lakesync.staging.records import DELETED, NO_BASE, Entry, StoredRow


class RowPresence(Enum):
    """Whether a client has a row."""

    YES = "yes"
    """The client certainly has the row, except for changes after its base."""
    NO = "no"
    """The client certainly lacks the row."""
    UNSURE = "unsure"
    """The client may have the row, or a version of it with other columns."""
    OWN = "own"
    """The client inserted the row itself after its base, and has only the columns that it wrote."""


def presence_of_visible(row: StoredRow, history: Sequence[Entry], client_id: str, position: Position) -> RowPresence:
    """Return whether a client has a row that it may see.

    The entries show what the client had at its base, and what it may have been sent since. Then the client's own writes
    since the base are considered, which it was not sent.

    Args:
        row: the row as it is now.
        history: the row's entries that concern the client.
        client_id: the client's id.
        position: the client's position.
    """
    if position.resync or _lost_own_writes(row, client_id, position):
        return RowPresence.UNSURE
    sent = _presence_by_history(row, history, position)
    written = _written_since(row, client_id, position)
    if written is None:  # the client did not write to the row, as far as the row's writers are known
        may_be_writer = row.writers_floor > writers_known_from(position)  # one that the row no longer stores
        may_have_kept_it = position.no_retry and any(entry.left for entry in history)  # it may have missed a DELETE
        in_doubt = position.may_hold_unknown_rows or may_be_writer or may_have_kept_it
        return RowPresence.UNSURE if sent is RowPresence.NO and in_doubt else sent
    if written is _OwnWrites.INSERTED:
        inserted_at = row.writers[client_id].own_copy
        # `stayed`: the row has not left any bucket after that INSERT, so the client was sent no DELETE of it
        stayed = not position.is_transition and all(entry.left <= inserted_at for entry in history)
        has_lost_columns = sent is not RowPresence.NO and _columns_removed_by_others(row, client_id, position)
        return RowPresence.OWN if stayed and not has_lost_columns else RowPresence.UNSURE
    has_updated = sent is RowPresence.YES and written is _OwnWrites.UPDATED
    return RowPresence.YES if has_updated else RowPresence.UNSURE


def writers_known_from(position: Position) -> int:
    """Return the arrival from which a row must store all of its writers, to decide for a client at this position.

    A row stores only its latest writers: up to `StoredRow.writers_floor`, some may be missing. If that is above the
    returned arrival, the client may be a writer that is missing. Writes before the base do not matter, because the
    client had their result at its base.
    """
    if position.base != NO_BASE:
        return position.base
    # without a base, a client that never pushed cannot be a writer
    return 0 if position.has_pushed else position.newest_at_start


def has_from_insert(row: StoredRow, stamp: Stamp, client_id: str) -> bool:
    """Return whether a client certainly has the columns of a stamp, because it wrote them with its INSERT or later.

    Columns that it wrote before its INSERT do not count. It may have lost them with the row, when it could no longer
    see the row.

    Args:
        row: the stored row.
        stamp: the stamp of the columns, (hlc, client id).
        client_id: the client's id.
    """
    inserted = row.state.inserted
    return stamp[1] == client_id and inserted is not None and inserted[1] == client_id and stamp >= inserted


def may_hold_hidden(row: StoredRow, history: Sequence[Entry], client_id: str, position: Position) -> bool:
    """Return whether the client may have a row that it may not see now, so that it is sent a DELETE.

    This is true only for rows that the client could see at some time, because row ids must not leak.

    Args:
        row: the row as it is now.
        history: the row's entries that concern the client.
        client_id: the client's id.
        position: the client's position.
    """
    written = _written_since(row, client_id, position)
    has_deleted = written is _OwnWrites.DELETED
    if written is not None and (not has_deleted or position.own_writes_up_to is not None or position.resync):
        return True  # a restored database, or any database in a resync, may be from before the client's own DELETE
    if row.writers_floor > writers_known_from(position) and any(_was_shown(entry, position) for entry in history):
        return True  # the client may be a writer that the row no longer stores
    return any(_may_hold(entry, position) for entry in history)


class _OwnWrites(Enum):
    """How a client wrote to a row since its base."""

    INSERTED = "inserted"
    """It inserted the row, and has it by that INSERT; `Writer.own_copy` is the INSERT's arrival."""
    UPDATED = "updated"
    """It only updated the row."""
    DELETED = "deleted"
    """It deleted the row."""
    ASTRAY = "astray"
    """Its copy may differ from the row since its last write."""


def _presence_by_history(row: StoredRow, history: Sequence[Entry], position: Position) -> RowPresence:
    """Return whether the client has a row that it may see, apart from its own writes.

    One entry that shows the row suffices. But if the row has lost columns since the base, by a DELETE or an erasure, a
    client that had the row is `UNSURE`: it has those columns, and an UPDATE cannot remove them.

    Args:
        row: the row as it is now.
        history: the row's entries that concern the client.
        position: the client's position.
    """
    by_entries = {_presence_by_entry_and_row(entry, row, position) for entry in history}
    if RowPresence.YES in by_entries:
        return RowPresence.UNSURE if row.no_update_before > position.base else RowPresence.YES
    return RowPresence.UNSURE if RowPresence.UNSURE in by_entries else RowPresence.NO


def _lost_own_writes(row: StoredRow, client_id: str, position: Position) -> bool:
    """Return whether the client lost its own writes to the row, because its database was restored from a backup."""
    if position.own_writes_up_to is None:
        return False
    own = [origin.hlc for origin in row.state.origins if origin.client_id == client_id]
    if row.state.inserted is not None and row.state.inserted[1] == client_id:
        own.append(row.state.inserted[0])
    if not own:  # others overwrote all of it, so the time of its write is unknown
        return _written_since(row, client_id, position) is not None
    return any(hlc > position.own_writes_up_to for hlc in own)


def _columns_removed_by_others(row: StoredRow, client_id: str, position: Position) -> bool:
    """Return whether another client's DELETE, or an erasure, removed columns of the row since the base.

    A client that inserted the row again may still have those columns.
    """
    tombstone = row.state.tombstone
    # `no_update_before` is 0 if nothing was ever removed, which is above `NO_BASE`
    return row.no_update_before > max(position.base, 0) and (tombstone is None or tombstone[1] != client_id)


def _was_shown(entry: Entry, position: Position) -> bool:
    """Return whether the row may have been inside a bucket since the base while the client had claims for it.

    Unlike `_may_hold`, it considers the whole period, not only the part in which rows were sent. The client may have
    written the row at any time in it.

    Args:
        entry: one of the row's entries.
        position: the client's position.
    """
    periods = position.sent.get(entry.bucket, ())
    return any(entry.may_be_inside_between(max(period.began_at, position.base), period.ended_at) for period in periods)


def _may_hold(entry: Entry, position: Position) -> bool:
    """Return whether the client may have the row, as far as one entry shows.

    Args:
        entry: one of the row's entries.
        position: the client's position.
    """
    if entry.bucket.startswith("@"):  # an entry under the client's own key exists only if it wrote to the row
        return True
    if not entry.first:  # the row never joined this bucket
        return False
    if entry.bucket in position.old_keys and entry.may_be_inside_at(position.base):
        return True
    if not position.resync and _not_read_yet(entry, position):
        return False
    sent = position.sent.get(entry.bucket, ())  # periods in which the client was sent rows under the key
    return any(
        entry.may_be_inside_between(max(period.began_at, position.base), period.may_have_up_to) for period in sent
    )


def _written_since(row: StoredRow, client_id: str, position: Position) -> _OwnWrites | None:
    """Return how the client wrote to the row since its base; None if it did not write.

    A copy that differed before the base does not count, because the client was sent the difference before it reached
    the base.
    """
    writer = row.writers.get(client_id)
    if writer is None or writer.latest <= position.base:
        return None
    if writer.astray_since:
        return _OwnWrites.ASTRAY if writer.astray_since > position.base else _OwnWrites.UPDATED
    if writer.own_copy == DELETED:
        return _OwnWrites.DELETED
    return _OwnWrites.INSERTED if writer.own_copy > max(position.base, 0) else _OwnWrites.UPDATED


def _presence_by_entry_and_row(entry: Entry, row: StoredRow, position: Position) -> RowPresence:
    """Return what one entry shows, considering that the row may have changed since these pages began.

    Args:
        entry: one of the row's entries.
        row: the row as it is now.
        position: the client's position.
    """
    presence = _presence_by_entry(entry, position)
    if presence is RowPresence.YES and entry.bucket not in position.new_keys and row.arrival > position.newest_at_start:
        return RowPresence.UNSURE  # between two of these pages, the row may have been hidden, and removed at the client
    return presence


def _presence_by_entry(entry: Entry, position: Position) -> RowPresence:
    """Return what one entry alone shows about whether the client has the row."""
    if not entry.first or entry.bucket.startswith("@"):
        return RowPresence.NO  # the row never joined the bucket; the client's own key shows nothing about presence
    upserted_up_to = max((period.may_have_up_to for period in position.sent.get(entry.bucket, ())), default=0)
    if entry.bucket not in position.old_keys:
        return RowPresence.NO if entry.first > upserted_up_to or _not_read_yet(entry, position) else RowPresence.UNSURE
    return _presence_since_base(entry, position, upserted_up_to)


def _presence_since_base(entry: Entry, position: Position, upserted_up_to: int) -> RowPresence:
    """Return what an entry shows whose bucket key was active at the base.

    The client had the rows that were inside the bucket at the base. Since then it may have been sent the row when it
    joined, and a DELETE when it left.

    Args:
        entry: the entry.
        position: the client's position.
        upserted_up_to: the latest feed position at which an INSERT or UPDATE was sent under the key since the base.
    """
    base = position.base
    if entry.inside:
        if entry.since <= base:  # inside at the base and ever since
            return RowPresence.YES
        if entry.first <= base < entry.left:  # perhaps inside at the base; it left and joined again since
            return RowPresence.UNSURE
        joined = entry.since if entry.left <= base else entry.first
        return RowPresence.NO if joined > upserted_up_to or _not_read_yet(entry, position) else RowPresence.UNSURE
    if entry.left <= base:  # it left before the base
        return RowPresence.NO
    if entry.since <= base:  # it left after the base; the client may have been sent a DELETE, under any key
        return RowPresence.YES if entry.left > position.sent_up_to else RowPresence.UNSURE
    # it joined and left after the base, perhaps several times
    return RowPresence.NO if entry.first > max(base, upserted_up_to) else RowPresence.UNSURE


def _not_read_yet(entry: Entry, position: Position) -> bool:
    """Return whether these pages have certainly not sent the row: they have not reached its feed position yet.

    This is known only for a row that has not changed since these pages began. A changed row may have been sent at its
    earlier feed position.
    """
    if entry.changed > position.newest_at_start:
        return False
    if entry.changed > max(position.sent_up_to, position.transition_at):
        return True
    # Only a rescan sends such a row. In a transition, a row in a range that is left in `rescan` was not sent yet. Any
    # other rescan reads ranges again, because the client may not have received their pages.
    if not position.nothing_sent_since or not position.rescan_first or entry.changed > position.transition_at:
        return False
    if entry.bucket in position.old_keys and entry.changed > position.base:
        return False  # earlier pages sent it under the old keys, before the client's keys changed
    return any(low < entry.changed <= high for low, high in position.rescan)

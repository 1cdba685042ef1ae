"""Decides whether a client at a position has a row, as far as the gateway can know.

`feed.pull` calls it for every row of a page and sends an INSERT, an UPDATE, a DELETE, or DELETE and INSERT accordingly.
See `docs/feed.md` for the proof obligations.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from lakesync.feed.positions import Position
from lakesync.staging.records import DELETED, Entry, StoredRow

_ASTRAY = DELETED - 1


class RowPresence(Enum):
    """Whether a client has a row: certainly, certainly not, or unknown.

    `OWN`: the row that it inserted itself, with its own columns only.
    """

    YES = "yes"
    NO = "no"
    UNSURE = "unsure"
    OWN = "own"


def presence_of_visible(row: StoredRow, history: Sequence[Entry], client_id: str, at: Position) -> RowPresence:
    """Return whether a client has a row that it may see.

    Args:
        row: as it is now.
        history: the row's entries that concern the client.
        client_id: the client's id.
        at: its position.
    """
    if at.resync or _forgot(row, client_id, at):
        return RowPresence.UNSURE
    verdicts = {_of_entry(entry, row, at) for entry in history}
    held = (
        RowPresence.YES
        if RowPresence.YES in verdicts
        else RowPresence.UNSURE
        if RowPresence.UNSURE in verdicts
        else RowPresence.NO
    )
    if held is RowPresence.YES and row.emptied > at.base:
        held = RowPresence.UNSURE  # it came back under another key; an UPDATE cannot remove lost columns
    written = _written_since(row, client_id, at)
    if written is None:
        doubted = at.may_hold_unknown_rows or row.writers_floor > writers_known_from(at)
        doubted = doubted or (at.no_retry and any(entry.left for entry in history))
        return RowPresence.UNSURE if held is RowPresence.NO and doubted else held
    if written > 0:
        alone = not at.moved and all(entry.left <= written for entry in history)
        return (
            RowPresence.OWN
            if alone and not (held is not RowPresence.NO and _lost_to_others(row, client_id, at))
            else RowPresence.UNSURE
        )
    return RowPresence.YES if held is RowPresence.YES and written == 0 else RowPresence.UNSURE


def _forgot(row: StoredRow, client_id: str, at: Position) -> bool:
    """Return whether the client lost own writes to the row, because its database was restored from a backup."""
    if at.own_writes_up_to is None:
        return False
    own = [origin.hlc for origin in row.state.origins if origin.client_id == client_id]
    if row.state.inserted is not None and row.state.inserted[1] == client_id:
        own.append(row.state.inserted[0])
    if not own:  # others overwrote all of it, so the time of its write is unknown
        return _written_since(row, client_id, at) is not None
    return any(hlc > at.own_writes_up_to for hlc in own)


def _lost_to_others(row: StoredRow, client_id: str, at: Position) -> bool:
    """Return whether another client removed columns since the base.

    A client that inserted the row again may still have those columns.
    """
    tombstone = row.state.tombstone
    return row.emptied > at.base and (tombstone is None or tombstone[1] != client_id)


def writers_known_from(at: Position) -> int:
    """Return the arrival up to which writers may be missing from a row, without a difference for a client at `at`."""
    if at.base >= 0:
        return at.base
    return 0 if at.wrote else at.until


def may_hold_hidden(row: StoredRow, history: Sequence[Entry], client_id: str, at: Position) -> bool:
    """Return whether the client may have a row that it may not see now.

    True only for rows that it could see at some time, because row ids must not leak.

    Args:
        row: as it is now.
        history: the row's entries that concern the client.
        client_id: the client's id.
        at: its position.
    """
    written = _written_since(row, client_id, at)
    if written is not None and (written != DELETED or at.own_writes_up_to is not None or at.resync):
        return True  # a restored database may be from before the client's own DELETE
    if row.writers_floor > writers_known_from(at) and any(_was_shown(entry, at) for entry in history):
        return True  # it may be one of the writers that the row stores no more
    return any(_may_hold(entry, at) for entry in history)


def _was_shown(entry: Entry, at: Position) -> bool:
    """Return whether the row may have been inside a bucket since the base while the client had claims for it."""
    periods = at.sent.get(entry.bucket, ())
    return any(entry.may_be_inside_between(max(period.at, at.base), period.ended_at) for period in periods)


def _may_hold(entry: Entry, at: Position) -> bool:
    if entry.bucket.startswith("@"):
        return True
    if not entry.first:
        return False
    if entry.bucket in at.old_keys and entry.may_be_inside_at(at.base):
        return True
    if not at.resync and _not_met(entry, at):
        return False
    sent = at.sent.get(entry.bucket, ())  # periods in which the client was sent rows under the key
    return any(entry.may_be_inside_between(max(period.at, at.base), period.upserted_up_to) for period in sent)


def _written_since(row: StoredRow, client_id: str, at: Position) -> int | None:
    """Return how the client wrote to the row since its base; None if it did not.

    The result is the arrival of its INSERT, 0, DELETED or _ASTRAY. Differences from before the base were sent to it by
    then.
    """
    writer = row.writers.get(client_id)
    if writer is None or writer.latest <= at.base:
        return None
    inserted = writer.inserted
    if inserted < DELETED:
        return _ASTRAY if -inserted > at.base else 0
    return inserted if inserted == DELETED or inserted > at.base else 0


def certainly_lacks(entry: Entry, at: Position) -> bool:
    """Return whether a client that never wrote to a row lacks it, if this is the row's only entry that concerns it."""
    return (
        not (at.resync or at.may_hold_unknown_rows or (at.no_retry and entry.left))
        and _by_entry(entry, at) is RowPresence.NO
    )


def _of_entry(entry: Entry, row: StoredRow, at: Position) -> RowPresence:
    """Return whether the client has the row by one entry alone, considering that the row may have changed meanwhile."""
    held = _by_entry(entry, at)
    if held is RowPresence.YES and entry.bucket not in at.new_keys and row.arrival > at.until:
        return RowPresence.UNSURE  # it may have been hidden and removed between these pages
    return held


def _by_entry(entry: Entry, at: Position) -> RowPresence:
    if not entry.first or entry.bucket.startswith("@"):
        return RowPresence.NO
    reached = max((period.upserted_up_to for period in at.sent.get(entry.bucket, ())), default=0)
    if entry.bucket not in at.old_keys:
        return RowPresence.NO if entry.first > reached or _not_met(entry, at) else RowPresence.UNSURE
    return _since_base(entry, at, reached)


def _since_base(entry: Entry, at: Position, reached: int) -> RowPresence:
    """Return whether the client has the row by an entry under a key that was active at the base."""
    base = at.base
    if entry.inside:
        if entry.since <= base:
            return RowPresence.YES
        if entry.first <= base < entry.left:
            return RowPresence.UNSURE
        joined = entry.since if entry.left <= base else entry.first
        return RowPresence.NO if joined > reached or _not_met(entry, at) else RowPresence.UNSURE
    if entry.left <= base:
        return RowPresence.NO
    if entry.since <= base:
        return RowPresence.YES if entry.left > at.sent_up_to else RowPresence.UNSURE
    return RowPresence.NO if entry.first > max(base, reached) else RowPresence.UNSURE


def _not_met(entry: Entry, at: Position) -> bool:
    """Return whether these pages have not reached the entry's feed position, which has not changed since they began."""
    if entry.changed > at.until:
        return False
    if entry.changed > max(at.sent_up_to, at.transition_at):
        return True
    if not at.exact or not at.rescan_first or entry.changed > at.transition_at:
        return False
    if entry.bucket in at.old_keys and entry.changed > at.base:
        return False  # earlier pages sent it under the old keys, before the client's keys changed
    return any(low < entry.changed <= high for low, high in at.rescan)

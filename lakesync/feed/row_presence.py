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


class Has(Enum):
    """Whether a client has a row: certainly, certainly not, or unknown.

    `OWN`: the row that it inserted itself, with its own columns only.
    """

    YES = "yes"
    NO = "no"
    UNSURE = "unsure"
    OWN = "own"


def of_visible(row: StoredRow, history: Sequence[Entry], client_id: str, at: Position) -> Has:
    """Return whether a client has a row that it may see.

    Args:
        row: as it is now.
        history: the row's entries that concern the client.
        client_id: of the client.
        at: its position.
    """
    if at.resync or _forgot(row, client_id, at):
        return Has.UNSURE
    verdicts = {_of_entry(entry, row, at) for entry in history}
    held = Has.YES if Has.YES in verdicts else Has.UNSURE if Has.UNSURE in verdicts else Has.NO
    if held is Has.YES and row.emptied > at.base:
        held = Has.UNSURE  # it came back under another key, and no UPDATE says what it lost meanwhile
    written = _written_since(row, client_id, at)
    if written is None:
        doubted = at.haunted or row.writers_floor > writers_known_from(at)
        doubted = doubted or (at.once and any(entry.left for entry in history))
        return Has.UNSURE if held is Has.NO and doubted else held
    if written > 0:
        alone = not at.moved and all(entry.left <= written for entry in history)
        return Has.OWN if alone and not (held is not Has.NO and _lost_to_others(row, client_id, at)) else Has.UNSURE
    return Has.YES if held is Has.YES and written == 0 else Has.UNSURE


def _forgot(row: StoredRow, client_id: str, at: Position) -> bool:
    """Return whether the client lost own writes to the row, because its database was restored from a backup."""
    if at.own is None:
        return False
    own = [origin.hlc for origin in row.state.origins if origin.client_id == client_id]
    if row.state.inserted is not None and row.state.inserted[1] == client_id:
        own.append(row.state.inserted[0])
    if not own:  # others overwrote all of it, so nothing says when that was
        return _written_since(row, client_id, at) is not None
    return any(hlc > at.own for hlc in own)


def _lost_to_others(row: StoredRow, client_id: str, at: Position) -> bool:
    """Return whether another client removed columns since the base.

    A client that inserted the row again may still have those columns.
    """
    tombstone = row.state.tombstone
    return row.emptied > at.base and (tombstone is None or tombstone[1] != client_id)


def writers_known_from(at: Position) -> int:
    """Return the arrival up to which writers may be missing from a row, without a difference for a client at `at`."""
    return at.base if at.base >= 0 else at.until


def may_hold_hidden(row: StoredRow, history: Sequence[Entry], client_id: str, at: Position) -> bool:
    """Return whether the client may have a row that it may not see now.

    True only for rows that it could see at some time, because row ids must not leak.

    Args:
        row: as it is now.
        history: the row's entries that concern the client.
        client_id: of the client.
        at: its position.
    """
    written = _written_since(row, client_id, at)
    if written is not None and (written != DELETED or at.own is not None or at.resync):
        return True  # a database that was put back may be from before its own DELETE
    return any(_may_hold(entry, at) for entry in history)


def _may_hold(entry: Entry, at: Position) -> bool:
    if entry.bucket.startswith("@"):
        return True
    if not entry.first:
        return False
    if entry.bucket in at.then and entry.may_be_inside_at(at.base):
        return True
    if not at.resync and _not_met(entry, at):
        return False
    sent = at.reach.get(entry.bucket, ())  # while the client was sent rows under the key
    return any(entry.may_be_inside_between(max(reach.at, at.base), reach.given) for reach in sent)


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
    return not (at.resync or at.haunted or (at.once and entry.left)) and _by_entry(entry, at) is Has.NO


def _of_entry(entry: Entry, row: StoredRow, at: Position) -> Has:
    """Return whether the client has the row by one entry alone, considering that the row may have changed meanwhile."""
    held = _by_entry(entry, at)
    if held is Has.YES and entry.bucket not in at.now and row.arrival > at.until:
        return Has.UNSURE  # it may have been hidden, and taken away, while the walk was on its way
    return held


def _by_entry(entry: Entry, at: Position) -> Has:
    if not entry.first or entry.bucket.startswith("@"):
        return Has.NO
    reached = max((reach.given for reach in at.reach.get(entry.bucket, ())), default=0)
    if entry.bucket not in at.then:
        return Has.NO if entry.first > reached or _not_met(entry, at) else Has.UNSURE
    return _since_base(entry, at, reached)


def _since_base(entry: Entry, at: Position, reached: int) -> Has:
    """Return whether the client has the row by an entry under a key that was active at the base."""
    base = at.base
    if entry.inside:
        if entry.since <= base:
            return Has.YES
        if entry.first <= base < entry.left:
            return Has.UNSURE
        joined = entry.since if entry.left <= base else entry.first
        return Has.NO if joined > reached or _not_met(entry, at) else Has.UNSURE
    if entry.left <= base:
        return Has.NO
    if entry.since <= base:
        return Has.YES if entry.left > at.told else Has.UNSURE
    return Has.NO if entry.first > max(base, reached) else Has.UNSURE


def _not_met(entry: Entry, at: Position) -> bool:
    """Return whether these pages have not reached the entry's feed position, which has not changed since they began."""
    if entry.changed > at.until:
        return False
    if entry.changed > max(at.told, at.turn):
        return True
    if not at.exact or not at.redo_first or entry.changed > at.turn:
        return False
    if entry.bucket in at.then and entry.changed > at.base:
        return False  # the walk sent it under the keys of its beginning, before its client's keys changed
    return any(low < entry.changed <= high for low, high in at.redo)

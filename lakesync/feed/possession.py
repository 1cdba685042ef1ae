"""What a client at a position holds of a row, as far as the gateway can know."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from lakesync.feed.positions import Position
from lakesync.staging.records import DELETED, Entry, StoredRow

_ASTRAY = DELETED - 1


class Has(Enum):
    """Certainly, certainly not, not known; `OWN`: the row that it inserted itself, with its own columns alone."""

    YES = "yes"
    NO = "no"
    UNSURE = "unsure"
    OWN = "own"


def of_visible(row: StoredRow, history: Sequence[Entry], client_id: str, at: Position) -> Has:
    """What the client holds of a row that it may see.

    Args:
        row: as it is now.
        history: its entries that concern the client.
        client_id: the client.
        at: where it is.
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
    """Whether the client wrote of the row what it has no longer."""
    if at.own is None:
        return False
    own = [origin.hlc for origin in row.state.origins if origin.client_id == client_id]
    if row.state.inserted is not None and row.state.inserted[1] == client_id:
        own.append(row.state.inserted[0])
    if not own:  # others overwrote all of it, so nothing says when that was
        return _written_since(row, client_id, at) is not None
    return any(hlc > at.own for hlc in own)


def _lost_to_others(row: StoredRow, client_id: str, at: Position) -> bool:
    """Whether a row lost columns since the base by another's doing: who had them, and made it again, may have them."""
    tombstone = row.state.tombstone
    return row.emptied > at.base and (tombstone is None or tombstone[1] != client_id)


def writers_known_from(at: Position) -> int:
    """Who wrote up to here and fell out of a row's writers does not matter to a client at `at`."""
    return at.base if at.base >= 0 else at.until


def may_hold_hidden(row: StoredRow, history: Sequence[Entry], client_id: str, at: Position) -> bool:
    """Whether the client may hold a row that it may not see, or not any more.

    Only of a row that it could see at some time: an id must not leak. Arguments as `of_visible`.
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
    """The arrival of its INSERT, 0, DELETED or _ASTRAY, where it wrote to the row after it was last complete.

    What went astray up to then was made good by then.
    """
    writer = row.writers.get(client_id)
    if writer is None or writer.latest <= at.base:
        return None
    inserted = writer.inserted
    if inserted < DELETED:
        return _ASTRAY if -inserted > at.base else 0
    return inserted if inserted == DELETED or inserted > at.base else 0


def certainly_lacks(entry: Entry, at: Position) -> bool:
    """Whether a client that never wrote to a row lacks it, where this is the row's only entry that concerns it."""
    return not (at.resync or at.haunted or (at.once and entry.left)) and _by_entry(entry, at) is Has.NO


def _of_entry(entry: Entry, row: StoredRow, at: Position) -> Has:
    """By one entry's history alone."""
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
    """Under a key that was in force at the base."""
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
    """Whether the walk has not come to the entry's place, which has been the same since the walk began."""
    if entry.changed > at.until:
        return False
    if entry.changed > max(at.told, at.turn):
        return True
    if not at.exact or not at.redo_first or entry.changed > at.turn:
        return False
    if entry.bucket in at.then and entry.changed > at.base:
        return False  # the walk sent it under the keys of its beginning, before its client's keys changed
    return any(low < entry.changed <= high for low, high in at.redo)

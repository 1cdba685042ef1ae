"""What a client at a position holds of a row, as far as the gateway can know."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum

from lakesync.feed.positions import NOTHING, Position
from lakesync.staging.records import ASTRAY, DELETED, Entry, StoredRow


class Has(Enum):
    """Certainly, certainly not, not known; `OWN`: the row that it inserted itself, with its own columns alone."""

    YES = "yes"
    NO = "no"
    UNSURE = "unsure"
    OWN = "own"


def of_visible(row: StoredRow, entries: Iterable[Entry], client_id: str, at: Position) -> Has:
    """What the client holds of a row that it may see."""
    if at.resync:
        return Has.UNSURE
    history = list(entries)
    verdicts = {_of_entry(entry, at) for entry in history}
    held = Has.YES if Has.YES in verdicts else Has.UNSURE if Has.UNSURE in verdicts else Has.NO
    written = _written_since(row, client_id, at)
    if written is None:
        return Has.UNSURE if held is Has.NO and row.writers_floor > _writes_known_from(at) else held
    if written > 0:
        return Has.OWN if all(entry.left <= written for entry in history) else Has.UNSURE
    return Has.YES if held is Has.YES and written == 0 else Has.UNSURE


def may_hold_hidden(row: StoredRow, entries: Iterable[Entry], client_id: str, at: Position) -> bool:
    """Whether the client may hold a row that it may not see, or not any more."""
    written = _written_since(row, client_id, at)
    if written is not None and written != DELETED:
        return True
    for entry in entries:
        if entry.bucket.startswith("@"):
            return True
        if entry.bucket not in at.keys or not entry.first:
            continue
        if at.resync or (entry.first <= at.after and entry.left > at.base):
            return True
    return False


def _written_since(row: StoredRow, client_id: str, at: Position) -> int | None:
    """The arrival of its INSERT, 0, DELETED or ASTRAY, where it wrote to the row after it was last complete."""
    writer = row.writers.get(client_id)
    if writer is None or writer[1] <= at.base:
        return None
    inserted = writer[0]
    return inserted if inserted in (DELETED, ASTRAY) or inserted > at.base else 0


def _writes_known_from(at: Position) -> float:
    """Writes up to this arrival cannot matter to a client at `at`."""
    if at.base != NOTHING:
        return at.base
    return math.inf if at.until is None else at.until


def _of_entry(entry: Entry, at: Position) -> Has:
    """By one entry's history alone; `at.after` is the cursor, `at.base` where the client was last complete."""
    if not entry.first or entry.first > at.after:
        return Has.NO
    if not entry.inside:
        if entry.left <= at.base:
            return Has.NO
        return Has.YES if entry.since <= at.base else Has.UNSURE
    if entry.since <= at.base:
        return Has.YES
    if entry.left > at.base and entry.left:
        return Has.UNSURE
    return Has.NO if at.until is None or entry.changed <= at.until else Has.UNSURE

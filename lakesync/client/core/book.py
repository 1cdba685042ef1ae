"""What all parts of the core share: the store, the position in it, the clock, and the one way to commit."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from lakesync.client.core import outbox
from lakesync.client.core.clock import EditClock
from lakesync.client.core.records import Changes, Position
from lakesync.client.core.store import ClientStore
from lakesync.model.types import RowKey


class Book:
    """A store and what is known of it in memory, which changes only when a commit has succeeded."""

    def __init__(self, store: ClientStore, position: Position, clock: EditClock) -> None:
        self.store = store
        self.position = position
        self.clock = clock
        self.whole = False
        """Whether all that this client ever wrote is here: a pull came to its end since the file was opened."""

    def commit(self, changes: Changes, **moved: Any) -> Changes:
        """Make changes durable, and with them the position's fields in `moved` and what the clock says."""
        own = self.clock.seen if self.whole else self.position.own
        position = replace(self.position, hlc=self.clock.last, seen=self.clock.seen, own=own, **moved)
        if position != self.position:
            changes.position = position
        if changes.position is not None or changes.known or changes.rows or changes.edits or changes.bulk:
            self.store.commit(changes)
        self.position = position
        return changes

    def look_up(self) -> None:
        """Go on from where the store is now."""
        self.position = self.store.position().claimed(self.position.client_id)
        self.clock.go_on(self.position.hlc, self.position.seen)

    def mend(self) -> set[RowKey]:
        """Give new stamps to edits from a time when this machine's clock was ahead; whose rows were shown anew."""
        changes = outbox.mend(self.store, self.clock)
        if changes.edits:
            self.commit(changes)
        return set(changes.rows)

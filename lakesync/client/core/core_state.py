"""`CoreState`: the store, position and clock that the parts of the client's core share. All commits go through it.

The store has the client's rows and its edits, which are changes that the gateway has not acknowledged. The position is
the cursor (how far the client has pulled) and everything else that a restarted client must know. One commit writes
rows, edits and position together, so that they agree after a crash. Each edit is stamped with a time of the client's
clock; in a merge of changes to one column, the greatest stamp wins. `ClientCore`, `Pusher` and `Puller` use the same
`CoreState`.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from lakesync.client.core import edit_lifecycle
from lakesync.client.core.edit_lifecycle import EditClock
from lakesync.client.core.store import Changes, ClientStore, Position
from lakesync.model.types import RowKey


class CoreState:
    """The client's store, position and clock. The position in memory changes only after a successful commit."""

    def __init__(self, store: ClientStore, position: Position, clock: EditClock) -> None:
        """Continue from the stored position.

        Args:
            store: the durable state.
            position: the store's position, with this client's id set (`Position.bound_to`).
            clock: the hybrid logical clock (hlc) that stamps edits.
        """
        self.store = store
        self.position = position
        self.clock = clock
        self.has_all_own_writes = False
        """Whether a pull was complete since the store was opened. This client then has everything that it ever wrote,
        even if the store was restored from a backup."""

    def commit(self, changes: Changes, **fields: Any) -> Changes:
        """Store changes together with the new position.

        Args:
            changes: changed rows and edits.
            fields: new values of fields of `Position`; the clock's fields are set from the clock.

        Returns:
            The same changes, with the position if it changed.
        """
        # all writes of this client up to this hlc are in the store; the gateway accepted none above `gateway_hlc`
        own_writes_up_to = self.clock.gateway_hlc if self.has_all_own_writes else self.position.own_writes_up_to
        position = replace(
            self.position,
            hlc=self.clock.last,
            gateway_hlc=self.clock.gateway_hlc,
            own_writes_up_to=own_writes_up_to,
            **fields,
        )
        if position != self.position:
            changes.position = position
        if not changes.is_empty:
            self.store.commit(changes)
        self.position = position
        return changes

    def reload(self) -> None:
        """Read the position again: another connection may have changed the store."""
        self.position = self.store.position().bound_to(self.position.client_id)
        self.clock.advance(self.position.hlc, self.position.gateway_hlc)

    def restamp_future_edits(self) -> set[RowKey]:
        """Give new stamps to edits that were made while this machine's clock was ahead.

        Returns:
            The rows of these edits, which were written again.
        """
        changes = edit_lifecycle.restamp_future_edits(self.store, self.clock)
        if changes.edits:
            self.commit(changes)
        return set(changes.rows)

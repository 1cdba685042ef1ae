"""The outbox: an app's edits, which are changes that the gateway has not acknowledged, in the app's database.

Apps reach it as `client.coordinator.outbox`, and by methods of `Client`. The replica is the app's database; each change
of the outbox is a step of it, which is one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from lakesync.client.core import Edit
from lakesync.client.core.store import EditStatus
from lakesync.client.sync.replica import Replica
from lakesync.model.types import RowDelta

DEFAULT_PEEK = 100
"""Edits that `peek` returns by default, at most."""


class Outbox:
    """The edits in the file. A commit of the app adds them; the gateway's response or `drop` removes them.

    An edit is *refused* if the gateway rejected it; it stays until `retry` or `drop`. The class implements `SyncQueue`,
    the protocol that an app's own queue must have too: `push` makes an edit of a delta (a change of a row), and changes
    the app's row.
    """

    def __init__(self, replica: Replica, wake: Callable[[], object]) -> None:
        """Create a view of a replica's edits.

        Args:
            replica: the app's database.
            wake: called when there may be something to push.
        """
        self._replica = replica
        self._wake = wake

    def all(self, status: EditStatus | None = None) -> list[Edit]:
        """Return edits, oldest first.

        Args:
            status: only edits with this status; None for all, refused ones included.
        """
        return [edit for edit in self._replica.edits() if status in {None, edit.status}]

    def peek(self, limit: int = DEFAULT_PEEK) -> list[Edit]:
        """Return the edits to push, oldest first, without refused ones."""
        return [edit for edit in self._replica.edits() if edit.status != "refused"][:limit]

    def push(self, delta: RowDelta) -> Edit:
        """Apply a delta to the app's row, and push it as an edit; a delta that was pushed before changes nothing.

        Raises:
            ValidationError: the delta is malformed, or belongs to another client.
        """
        edit = self._replica.step(lambda core: core.add_delta(delta))
        self._wake()
        return edit

    def mark_sending(self, ids: Collection[str]) -> None:
        """Mark edits with these delta ids as sent, if the app pushes them itself.

        The client repeats them until `ack` or `nack`, because their outcome is unknown.
        """
        self._replica.step(lambda core: core.mark_sending(ids))

    def ack(self, ids: Collection[str]) -> None:
        """Accept edits with these delta ids, as if the gateway had acknowledged them."""
        self._replica.step(lambda core: core.ack(ids))

    def nack(self, ids: Collection[str]) -> None:
        """Mark sent edits with these delta ids as waiting, because the gateway did not store them."""
        self._replica.step(lambda core: core.nack(ids))
        self._wake()

    def clear(self) -> None:
        """Drop all edits, and restore their rows, except those that were sent and that the gateway may have."""
        self.drop(*(edit.number for edit in self.all() if edit.status != "sent"))

    def depth(self) -> int:
        """Return the number of changes to push, including rows that the app wrote and that are not edits yet."""
        return self._count("waiting", "sent") + self._replica.unrecorded_count()

    def refused(self) -> int:
        """Return the number of refused edits."""
        return self._count("refused")

    def retry(self, *numbers: int) -> None:
        """Push refused edits again: those with these numbers, or all if no number is given.

        Raises:
            NotFoundError: a number does not belong to a refused edit.
        """
        self._replica.step(
            lambda core: core.retry(numbers or [edit.number for edit in core.edits() if edit.status == "refused"])
        )
        self._wake()

    def drop(self, *numbers: int) -> None:
        """Delete edits with these numbers, and restore their rows as if the edits had never been made.

        Raises:
            NotFoundError: a number does not belong to an edit.
            ValidationError: an edit was sent, so the gateway may have it.
        """
        self._replica.step(lambda core: core.drop(numbers))
        self._wake()

    def _count(self, *statuses: EditStatus) -> int:
        """Return the number of edits with one of some statuses."""
        marks = ", ".join("?" * len(statuses))
        ((count,),) = self._replica.read(f"SELECT count(*) FROM _lakesync_edits WHERE status IN ({marks})", statuses)
        return int(count)

"""The outbox: the unacknowledged changes of an app, in its own database."""

from __future__ import annotations

from collections.abc import Callable, Collection

from lakesync.client.core import Edit
from lakesync.client.core.records import EditStatus
from lakesync.client.sync.replica import Replica
from lakesync.model.types import RowDelta

PEEKED = 100
"""Edits that `peek` returns by default, at most."""


class Outbox:
    """The edits in the file. A commit of the app adds them; the gateway's answer or `drop` removes them.

    It implements `SyncQueue`: a delta that is pushed becomes an edit and changes the app's row.
    """

    def __init__(self, replica: Replica, wake: Callable[[], object]) -> None:
        """Refer to a replica's edits.

        Args:
            replica: of the app's database.
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

    def peek(self, limit: int = PEEKED) -> list[Edit]:
        """Return the edits to push, oldest first."""
        return [edit for edit in self._replica.edits() if edit.status != "refused"][:limit]

    def push(self, delta: RowDelta) -> Edit:
        """Change a row by a delta, and push it.

        Raises:
            ValidationError: the delta is malformed, or belongs to another client.
        """
        edit = self._replica.step(lambda core: core.add_delta(delta))
        self._wake()
        return edit

    def mark_sending(self, ids: Collection[str]) -> None:
        """Mark edits as sent, if the app pushes them itself. The client repeats them until `ack` or `nack`."""
        self._replica.step(lambda core: core.mark_sending(ids))

    def ack(self, ids: Collection[str]) -> None:
        """Accept edits, as if the gateway had acknowledged them."""
        self._replica.step(lambda core: core.ack(ids))

    def nack(self, ids: Collection[str]) -> None:
        """Mark sent edits as waiting, because the gateway did not store them."""
        self._replica.step(lambda core: core.nack(ids))
        self._wake()

    def clear(self) -> None:
        """Drop all edits except those that the gateway may have."""
        self.drop(*(edit.number for edit in self.all() if edit.status != "sent"))

    def depth(self) -> int:
        """Return the number of changes to push, including those that are not edits yet."""
        return self._count("waiting", "sent") + self._replica.unrecorded_count()

    def refused(self) -> int:
        """Return the number of refused edits."""
        return self._count("refused")

    def retry(self, *numbers: int) -> None:
        """Push refused edits again.

        Raises:
            NotFoundError: a number does not belong to a refused edit.
        """
        self._replica.step(lambda core: core.retry(numbers))
        self._wake()

    def drop(self, *numbers: int) -> None:
        """Delete edits and restore their rows as if the edits had never been made.

        Raises:
            NotFoundError: a number does not belong to an edit.
            ValidationError: an edit was sent, so the gateway may have it.
        """
        self._replica.step(lambda core: core.drop(numbers))
        self._wake()

    def _count(self, *statuses: EditStatus) -> int:
        marks = ", ".join("?" * len(statuses))
        ((count,),) = self._replica.read(f"SELECT count(*) FROM _lakesync_edits WHERE status IN ({marks})", statuses)
        return int(count)

"""What an app changed and the gateway is not known to have, in the app's own database."""

from __future__ import annotations

from collections.abc import Callable, Collection

from lakesync.client.core import Edit
from lakesync.client.core.records import EditStatus
from lakesync.client.replica import Replica
from lakesync.model.types import RowDelta

AT_ONCE = 100
"""Changes that a look at what is next gives."""


class Outbox:
    """The queue in the file. Changes get in when the app commits them, and out when the gateway has them or the app
    gives them up. It is a `SyncQueue` as well: a delta that is pushed is a change of the app's row.
    """

    def __init__(self, replica: Replica, wake: Callable[[], object]) -> None:
        """Args: wake: is called when what is to be sent may be another."""
        self._replica = replica
        self._wake = wake

    def all(self, status: EditStatus | None = None) -> list[Edit]:
        """Changes, oldest first, what was set aside included."""
        return [edit for edit in self._replica.edits() if status in {None, edit.status}]

    def peek(self, limit: int = AT_ONCE) -> list[Edit]:
        """What is to be sent, oldest first."""
        return [edit for edit in self._replica.edits() if edit.status != "refused"][:limit]

    def push(self, delta: RowDelta) -> Edit:
        """Change a row by a delta, and have it sent.

        Raises:
            ValidationError: it is another client's, or no delta.
        """
        edit = self._replica.step(lambda core: core.enter(delta))
        self._wake()
        return edit

    def mark_sending(self, ids: Collection[str]) -> None:
        """Note that changes are on their way by another hand than the client's own; the client then repeats them."""
        self._replica.step(lambda core: core.mark_sending(ids))

    def ack(self, ids: Collection[str]) -> None:
        """Take changes as accepted by the gateway."""
        self._replica.step(lambda core: core.ack(ids))

    def nack(self, ids: Collection[str]) -> None:
        """Let changes wait again that were not taken."""
        self._replica.step(lambda core: core.nack(ids))
        self._wake()

    def clear(self) -> None:
        """Give up every change but those that the gateway may have."""
        self.drop(*(edit.number for edit in self.all() if edit.status != "sent"))

    def depth(self) -> int:
        """How many are to be sent."""
        return self._count("waiting", "sent") + self._replica.unrecorded()

    def refused(self) -> int:
        """How many were set aside."""
        return self._count("refused")

    def retry(self, *numbers: int) -> None:
        """Let changes that were set aside be sent again.

        Raises:
            NotFoundError: a number is none of such a change.
        """
        self._replica.step(lambda core: core.retry(numbers))
        self._wake()

    def drop(self, *numbers: int) -> None:
        """Give changes up: their rows are as if they had never been made.

        Raises:
            NotFoundError: a number is no change's.
            ValidationError: the gateway may have a change already.
        """
        self._replica.step(lambda core: core.drop(numbers))
        self._wake()

    def _count(self, *statuses: EditStatus) -> int:
        among = ", ".join("?" * len(statuses))
        ((count,),) = self._replica.read(f"SELECT count(*) FROM _lakesync_edits WHERE status IN ({among})", statuses)
        return int(count)

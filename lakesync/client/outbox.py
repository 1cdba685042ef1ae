"""What an app changed and the gateway is not known to have, in the app's own database."""

from __future__ import annotations

from collections.abc import Callable

from lakesync.client.core import Edit
from lakesync.client.core.records import EditStatus
from lakesync.client.replica import Replica

AT_ONCE = 100
"""Changes that a look at what is next gives."""


class SyncQueue:
    """Changes get in when the app commits them, and out when the gateway has them, or somebody gives them up."""

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

"""Pushes custom deltas: changes of rows that an app has put into its own queue, without writing to its tables.

`SyncSession` and `AutoSync` call `CustomDeltaPusher`. The app passed the queue to `lakesync.open`. The same queue is
notified of the app's *edits* (unacknowledged writes to its tables), which the core pushes (`Exchange`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lakesync.client.core.store import Edit
from lakesync.client.queues import SyncQueue
from lakesync.client.sync.exchange import CycleResult
from lakesync.client.sync.replica import Replica
from lakesync.client.transports.base import SyncTransport
from lakesync.model.errors import ForbiddenError, LakeSyncError, RejectedError, Rejection
from lakesync.model.types import RowDelta, SyncPush


class CustomDeltaPusher:
    """Pushes the deltas in the app's queue that are no edits."""

    def __init__(self, replica: Replica, transport: SyncTransport) -> None:
        """Create a pusher; nothing is pushed yet.

        Args:
            replica: the app's database, which has the link to the queue.
            transport: sends the pushes.
        """
        self._replica = replica
        self._transport = transport

    def push(self, result: CycleResult, should_stop: Callable[[], bool]) -> None:
        """Push the custom deltas.

        The queue removes those that the gateway accepts or rejects. After another failure, it keeps them.

        Args:
            result: the outcomes are added to it, also a failure.
            should_stop: called before each request; True ends the method.
        """
        replica = self._replica
        link, limit = replica.store.edit_table.queue_link, replica.limits.push_deltas
        if link is None or replica.core.mode == "pullOnly":
            return
        queue = link.queue
        while not should_stop() and (deltas := replica.step(lambda core: link.custom_deltas(core.edits(), limit))):
            ids = [delta.delta_id for delta in deltas]
            queue.mark_sending(ids)
            result.had_contact = True
            try:
                self._push_batch(queue, deltas, result)
            except BaseException as error:
                queue.nack(ids)  # it has only those that are neither accepted nor rejected
                if not isinstance(error, LakeSyncError):
                    raise
                result.error, result.failed_request = error, "push of the app's queue"
                return

    def _push_batch(self, queue: SyncQueue, deltas: Sequence[RowDelta], result: CycleResult) -> None:
        """Push deltas, and remove them from the queue; those that the gateway rejects are reported.

        If the gateway rejects the push without naming deltas, the two halves are pushed until the cause is alone.
        """
        core = self._replica.core
        try:
            self._transport.push(SyncPush(core.client_id, tuple(deltas), core.cursor))
        except RejectedError as error:
            rejections = {rejection.delta_id: rejection for rejection in error.rejected}
            if len(deltas) == 1 and not isinstance(error, ForbiddenError):
                rejections.setdefault(deltas[0].delta_id, Rejection(deltas[0].delta_id, error.code, str(error)))
            rejected = [delta for delta in deltas if delta.delta_id in rejections]
            if not rejected and isinstance(error, ForbiddenError):  # it rejects the client
                raise
            for delta in rejected:
                code, message = rejections[delta.delta_id].code, rejections[delta.delta_id].message
                result.refused.append(Edit(number=0, delta=delta, status="refused", code=code, message=message))
            queue.ack([delta.delta_id for delta in rejected])
            rest = [delta for delta in deltas if delta.delta_id not in rejections]
            middle = len(rest) if rejected else len(rest) // 2
            for part in (rest[:middle], rest[middle:]):
                if part:
                    self._push_batch(queue, part, result)
        else:
            queue.ack([delta.delta_id for delta in deltas])
            result.pushed += len(deltas)

"""Custom queues of changes to be pushed: the protocol `SyncQueue`, `MemoryQueue`, and `QueueLink`.

A client always keeps its edits in its file. An *edit* is a change that the gateway has not acknowledged: waiting, sent,
or refused by the gateway. If the app passes a queue of its own to `lakesync.open`, the client notifies that queue of
each edit that is made, sent, accepted or refused, and the queue chooses what to push next. The app may also put deltas
into its queue, which are pushed unchanged. A delta is a change of some columns of a row; a hash of it is its id.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Literal, Protocol, runtime_checkable

import msgspec

from lakesync.client.core.messages import RetryPolicy
from lakesync.client.core.store import Edit
from lakesync.model.types import RowDelta

log = logging.getLogger("lakesync.client")


class QueueItem(Protocol):
    """An item of a queue."""

    @property
    def id(self) -> str:
        """The `delta_id` of its delta."""

    @property
    def delta(self) -> RowDelta:
        """The change to push."""


@runtime_checkable
class SyncQueue(Protocol):
    """A queue of deltas, with the methods that the TypeScript client expects of its queues.

    A client calls it from any thread, while it holds a lock of its own, so it must be fast. `ids` are delta ids; those
    that the queue does not contain are ignored.
    """

    def push(self, delta: RowDelta) -> QueueItem:
        """Append a delta, unless the queue contains it: after a crash, the client appends its edits again."""

    def peek(self, limit: int = ...) -> Sequence[QueueItem]:
        """Return at most `limit` items to send next, in order, without those that are being sent or are not due yet."""

    def mark_sending(self, ids: Collection[str]) -> None:
        """Mark items as being sent."""

    def ack(self, ids: Collection[str]) -> None:
        """Remove items: the gateway has them, or they were refused or dropped."""

    def nack(self, ids: Collection[str]) -> None:
        """Mark items that are being sent as to be sent again: the gateway did not store them.

        Other items stay as they are: after a restart the client does not know which items are being sent, and names
        all that the queue does not offer.
        """

    def depth(self) -> int:
        """Return the number of items."""

    def clear(self) -> None:
        """Remove all items."""


class QueueEntry(msgspec.Struct):
    """An item of a `MemoryQueue`."""

    id: str
    delta: RowDelta
    status: Literal["pending", "sending"] = "pending"
    """`sending` from `mark_sending` until `ack` or `nack`."""
    created_at: int = 0
    """Milliseconds since the Unix epoch."""
    retry_count: int = 0
    """How often the gateway did not store it (`nack`)."""
    retry_after: int | None = None
    """When it is due again, in milliseconds since the Unix epoch; None: now."""


class MemoryQueue:
    """A thread-safe queue in memory. See `SyncQueue`."""

    def __init__(self, retry: RetryPolicy | None = None, clock: Callable[[], float] = time.time) -> None:
        """Create an empty queue.

        Args:
            retry: `first_delay` and `longest_delay` of an item after `nack`; None for the defaults.
            clock: returns seconds since the Unix epoch.
        """
        self._retry = retry or RetryPolicy()
        self._clock = clock
        self._entries: dict[str, QueueEntry] = {}
        self._lock = threading.Lock()

    def push(self, delta: RowDelta) -> QueueEntry:
        """Append a delta, unless the queue contains it; return its item."""
        with self._lock:
            return self._entries.setdefault(delta.delta_id, QueueEntry(delta.delta_id, delta, created_at=self._now()))

    def peek(self, limit: int = 100) -> list[QueueEntry]:
        """Return pending items that are due, oldest first, at most `limit`."""
        with self._lock:
            now = self._now()
            due = (
                entry
                for entry in self._entries.values()
                if entry.status == "pending" and (entry.retry_after is None or entry.retry_after <= now)
            )
            return list(islice(due, limit))

    def mark_sending(self, ids: Collection[str]) -> None:
        """Mark items as being sent."""
        with self._lock:
            for entry in self._entries_with(ids):
                entry.status = "sending"

    def ack(self, ids: Collection[str]) -> None:
        """Remove items."""
        with self._lock:
            for delta_id in ids:
                self._entries.pop(delta_id, None)

    def nack(self, ids: Collection[str]) -> None:
        """Mark items that are being sent as pending, after a delay that doubles each time."""
        with self._lock:
            for entry in [each for each in self._entries_with(ids) if each.status == "sending"]:
                entry.retry_after = self._now() + round(self._retry.delay(entry.retry_count) * 1000)
                entry.status, entry.retry_count = "pending", entry.retry_count + 1

    def depth(self) -> int:
        """Return the number of items."""
        return len(self._entries)

    def clear(self) -> None:
        """Remove all items."""
        with self._lock:
            self._entries.clear()

    def _entries_with(self, ids: Collection[str]) -> list[QueueEntry]:
        """Return the entries that have one of some delta ids. The caller holds the lock."""
        return [self._entries[delta_id] for delta_id in ids if delta_id in self._entries]

    def _now(self) -> int:
        """Return milliseconds since the Unix epoch."""
        return round(self._clock() * 1000)


class QueueLink:
    """Notifies an app's own queue of the edits in the client's file. `EditTable` and `CustomDeltaPusher` call it.

    The queue is notified after each commit. If a notification fails, or the process ends before it, `reconcile` repeats
    it later. The queue contains the edits that are not refused. The client's file keeps the ids of deltas that the
    queue has to remove until it was notified, because their edits may be gone.
    """

    def __init__(self, queue: SyncQueue, stored_acks: Iterable[str] = ()) -> None:
        """Create a link to a queue, which may differ from the edits until `reconcile` is called.

        Args:
            queue: the app's queue.
            stored_acks: ids of deltas that an earlier process may not have removed from the queue.
        """
        self.queue = queue
        self._numbers: dict[str, int] = {}
        """Delta id → number in the client's file, for waiting and sent edits."""
        self._notifications: list[tuple[str, RowDelta]] = []
        """Calls to make after the commit in progress: the queue's method, and its delta."""
        self.may_differ = True
        """Whether the queue may lack notifications."""
        self._sending: set[str] | None = None
        """Ids of the edits that the queue has as being sent; None if that is unknown."""
        self._missed_acks: set[str] = set(stored_acks)
        """Ids of deltas to remove from the queue, because a notification that included them failed or was not made."""
        self.delivered_acks: set[str] = set()
        """Ids of deltas that the queue has removed, and that the client's file still has as to be removed. `EditTable`
        deletes them from both."""

    def reconcile(self, edits: Iterable[Edit]) -> None:
        """Repeat the notifications that the queue lacks, and notify it of what other clients of the file have changed.

        Args:
            edits: all edits of the client.
        """
        active: list[Edit] = []
        removed = self._missed_acks | self._numbers.keys()
        for edit in edits:
            if edit.status == "refused":
                removed.add(edit.id)
            else:
                active.append(edit)
        numbers = {edit.id: edit.number for edit in active}
        removed -= numbers.keys()
        if removed:
            self.queue.ack(removed)
        offered = {item.id for item in self.queue.peek(sys.maxsize)} if self.may_differ else self._numbers.keys()
        # the queue lacks them or, if it may differ, delays them or has them as being sent
        not_offered = [edit for edit in active if edit.id not in offered]
        # edits that the queue may have as being sent; `nack` ignores the others, and `push` those that the queue has
        maybe_sending = {edit.id for edit in not_offered} if self._sending is None else self._sending
        no_longer_sent = [edit.id for edit in active if edit.status == "waiting" and edit.id in maybe_sending]
        if no_longer_sent:
            self.queue.nack(no_longer_sent)
        for edit in not_offered:
            self.queue.push(edit.delta)
        sent = {edit.id for edit in active if edit.status == "sent"}
        if newly_sent := sent - (self._sending or set()):
            self.queue.mark_sending(newly_sent)
        self._sending = sent
        self._numbers = numbers
        self.delivered_acks |= self._missed_acks
        self._missed_acks.clear()
        self.may_differ = False

    def collect_changes(self, before: Mapping[int, Edit], after: Mapping[int, Edit | None]) -> None:
        """Collect what the transaction in progress changes, for `notify` after its commit.

        The queue contains an edit unless it is refused. So an edit that is deleted or refused is removed from the queue
        (`ack`); one that is made or retried is added; a change between waiting and sent is reported.

        Args:
            before: the changed edits as they are stored now, by number; an edit that is made is absent.
            after: the same edits as they will be stored; None for an edit that is deleted.
        """
        for number, new in after.items():
            old = before.get(number)
            queued = old if old is not None and old.status != "refused" else None  # the queue has no refused edits
            if queued is not None and (new is None or new.status == "refused" or new.id != queued.id):
                self._notifications.append(("ack", queued.delta))  # if only its id is new, it is pushed again below
                self._numbers.pop(queued.id, None)
                queued = None
            if new is None or new.status == "refused":
                continue
            if queued is None:
                self._notifications.append(("push", new.delta))
                self._numbers[new.id] = number
            if new.status == "sent" and (old is None or old.status != "sent"):
                self._notifications.append(("mark_sending", new.delta))
            elif new.status == "waiting" and queued is not None and queued.status == "sent":
                self._notifications.append(("nack", new.delta))

    def collected_acks(self) -> set[str]:
        """Return the ids of deltas that the queue has to remove after the transaction in progress."""
        return {delta.delta_id for method, delta in self._notifications if method == "ack"}

    def notify(self) -> None:
        """Notify the queue of the collected changes, whose transaction was committed; log an exception of the queue."""
        acks = self.collected_acks()
        notifications, self._notifications = self._notifications, []
        try:
            for method, group in groupby(notifications, itemgetter(0)):
                deltas = [delta for _, delta in group]
                if method == "push":
                    for delta in deltas:
                        self.queue.push(delta)
                else:
                    ids = [delta.delta_id for delta in deltas]
                    getattr(self.queue, method)(ids)
                    if self._sending is not None:
                        self._sending = self._sending.union(ids) if method == "mark_sending" else self._sending - {*ids}
            self.delivered_acks |= acks
        except Exception:
            self.may_differ, self._sending = True, None
            self._missed_acks |= acks
            log.exception("the custom queue %r raised; it will be notified again before the next push", self.queue)

    def discard_changes(self) -> None:
        """Discard the collected changes, whose transaction was rolled back."""
        self._notifications.clear()
        self.may_differ = True

    def next_edits(self, limit: int) -> list[int]:
        """Return the numbers of the edits that the queue sends next, in its order.

        Args:
            limit: number of edits, at most.
        """
        peek_limit = limit
        while True:
            items = self.queue.peek(peek_limit)
            numbers = [self._numbers[item.id] for item in items if item.id in self._numbers]
            if len(numbers) >= limit or len(items) < peek_limit:
                return numbers[:limit]
            peek_limit *= 2  # some of the queue's first items are not edits, but deltas of the app

    def custom_deltas(self, edits: Iterable[Edit], limit: int) -> list[RowDelta]:
        """Reconcile the queue, and return the next deltas in it that are no edits: the app itself put them there.

        Args:
            edits: all edits of the client.
            limit: number of the queue's next items that are inspected, at most.
        """
        self.reconcile(edits)
        return [item.delta for item in self.queue.peek(limit) if item.id not in self._numbers]

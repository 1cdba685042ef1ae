"""Queues of changes on their way to the gateway, as the reference has them, and what links a custom one to a client.

A client keeps its changes in its file, whatever its queue. A custom queue is told of each change as it is made, sent,
accepted and put off. It decides what is sent next, and may hold further deltas, which are sent as they are.
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

from lakesync.client.core.limits import RetryPolicy
from lakesync.client.core.records import Edit
from lakesync.model.types import RowDelta

log = logging.getLogger("lakesync.client")


class QueueItem(Protocol):
    """What a queue holds: at least a change and its identity."""

    @property
    def id(self) -> str:
        """The `delta_id` of the change."""

    @property
    def delta(self) -> RowDelta:
        """The change."""


@runtime_checkable
class SyncQueue(Protocol):
    """A queue of changes. A client calls it under a lock of its own, from whichever thread; let it be quick."""

    def push(self, delta: RowDelta) -> QueueItem:
        """Add a change at the end. One that is held already stays as it is: after a crash it is pushed again."""

    def peek(self, limit: int = ...) -> Sequence[QueueItem]:
        """What is to be sent next, in order; nothing that is being sent, or not due yet."""

    def mark_sending(self, ids: Collection[str]) -> None:
        """These are on their way; ids that are not held mean nothing, here and below."""

    def ack(self, ids: Collection[str]) -> None:
        """These are done: the gateway has them, or they were set aside or given up. Forget them."""

    def nack(self, ids: Collection[str]) -> None:
        """These were not taken, and are to be sent again."""

    def depth(self) -> int:
        """How many are held."""

    def clear(self) -> None:
        """Forget all."""


class QueueEntry(msgspec.Struct):
    """A change in a `MemoryQueue`."""

    id: str
    delta: RowDelta
    status: Literal["pending", "sending"] = "pending"
    created_at: int = 0
    """Milliseconds since the Unix epoch."""
    retry_count: int = 0
    """How often it was not taken."""
    retry_after: int | None = None
    """When it is due again, in milliseconds since the Unix epoch."""


class MemoryQueue:
    """A queue that goes with the process. Threads may share it."""

    def __init__(self, retry: RetryPolicy | None = None, wall: Callable[[], float] = time.time) -> None:
        """Args: retry: how long an entry waits after `nack`; wall: seconds since the Unix epoch."""
        self._retry = retry or RetryPolicy()
        self._wall = wall
        self._entries: dict[str, QueueEntry] = {}
        self._lock = threading.Lock()

    def push(self, delta: RowDelta) -> QueueEntry:
        """Add a change at the end, unless it is held already."""
        with self._lock:
            return self._entries.setdefault(delta.delta_id, QueueEntry(delta.delta_id, delta, created_at=self._now()))

    def peek(self, limit: int = 100) -> list[QueueEntry]:
        """Pending changes that are due, oldest first."""
        with self._lock:
            now = self._now()
            due = (
                entry
                for entry in self._entries.values()
                if entry.status == "pending" and (entry.retry_after is None or entry.retry_after <= now)
            )
            return list(islice(due, limit))

    def mark_sending(self, ids: Collection[str]) -> None:
        """Note that these are on their way."""
        for entry in self._held(ids):
            entry.status = "sending"

    def ack(self, ids: Collection[str]) -> None:
        """Forget these."""
        with self._lock:
            for each in ids:
                self._entries.pop(each, None)

    def nack(self, ids: Collection[str]) -> None:
        """Let these wait, longer each time, and be sent again."""
        for entry in self._held(ids):
            delay = min(self._retry.longest_delay, self._retry.first_delay * 2.0 ** min(entry.retry_count, 10))
            entry.status, entry.retry_count = "pending", entry.retry_count + 1
            entry.retry_after = self._now() + round(delay * 1000)

    def depth(self) -> int:
        """How many are held."""
        return len(self._entries)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._entries.clear()

    def _held(self, ids: Collection[str]) -> list[QueueEntry]:
        with self._lock:
            return [self._entries[each] for each in ids if each in self._entries]

    def _now(self) -> int:
        return round(self._wall() * 1000)


class QueueLink:
    """Keeps a custom queue in step with the changes in a client's file.

    The queue is told after each commit. What it was not told, because it failed or the process ended, is made good by
    `reconcile`, which pushes what it lacks.
    """

    def __init__(self, queue: SyncQueue) -> None:
        self.queue = queue
        self._numbers: dict[str, int] = {}
        """Of the client's own changes that wait or are under way, by id."""
        self._untold: list[tuple[str, RowDelta]] = []
        self._behind = True

    def reconcile(self, edits: Iterable[Edit]) -> None:
        """Push what the queue lacks, where it may lack something. Args: edits: all of the client's."""
        if not self._behind:
            return
        kept = [edit for edit in edits if edit.status != "refused"]
        self._numbers = {edit.id: edit.number for edit in kept}
        held = {item.id for item in self.queue.peek(sys.maxsize)}
        for edit in kept:
            if edit.id not in held:
                self.queue.push(edit.delta)
        self._behind = False

    def changing(self, before: Mapping[int, Edit], after: Mapping[int, Edit | None]) -> None:
        """Note what a commit that is under way makes of changes. Args: before, after: by number."""
        for number, now in after.items():
            was = before.get(number)
            queued = was is not None and was.status != "refused"
            stays = now is not None and now.status != "refused"
            if was is not None and queued and (not stays or (now is not None and now.id != was.id)):
                self._untold.append(("ack", was.delta))
                self._numbers.pop(was.id, None)
                queued = False
            if now is None or not stays:
                continue
            if not queued:
                self._untold.append(("push", now.delta))
                self._numbers[now.id] = number
            if now.status == "sent" and (was is None or was.status != "sent"):
                self._untold.append(("mark_sending", now.delta))
            elif was is not None and queued and was.status == "sent" and now.status == "waiting":
                self._untold.append(("nack", now.delta))

    def committed(self) -> None:
        """Tell the queue what a commit made of changes."""
        untold, self._untold = self._untold, []
        try:
            for call, group in groupby(untold, itemgetter(0)):
                deltas = [delta for _, delta in group]
                if call == "push":
                    for delta in deltas:
                        self.queue.push(delta)
                else:
                    getattr(self.queue, call)([delta.delta_id for delta in deltas])
        except Exception:
            self._behind = True
            log.exception("the queue %r failed; what it lacks is pushed again", self.queue)

    def undone(self) -> None:
        """Forget what was noted: the commit did not happen."""
        self._untold.clear()
        self._behind = True

    def chosen(self, limit: int) -> list[int]:
        """The numbers of the client's own changes that the queue would have sent next, in its order."""
        asked = limit
        while True:
            items = self.queue.peek(asked)
            numbers = [self._numbers[item.id] for item in items if item.id in self._numbers]
            if len(numbers) >= limit or len(items) < asked:
                return numbers[:limit]
            asked *= 2

    def entered(self, limit: int) -> list[QueueItem]:
        """What the queue would have sent next that is none of the client's own changes."""
        return [item for item in self.queue.peek(limit) if item.id not in self._numbers]

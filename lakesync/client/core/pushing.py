"""Pushes: one batch at a time, repeated as it was until its outcome is known."""

from __future__ import annotations

from msgspec.structs import replace

from lakesync.client.core import outbox
from lakesync.client.core.book import Book
from lakesync.client.core.lane import Lane
from lakesync.client.core.limits import CoreLimits, RetryPolicy
from lakesync.client.core.messages import Lost, Refused
from lakesync.client.core.records import Changes, Edit
from lakesync.model.errors import Rejection
from lakesync.model.types import PushResult, RowKey, SyncPush

_ABOUT_CONTENT = frozenset({"VALIDATION_ERROR", "SCHEMA_ERROR", "CLOCK_DRIFT"})
"""A push is refused for what it holds, so without some of it, it may pass."""

ABOUT_CALLER = frozenset({"AUTH_ERROR", "FORBIDDEN", "NOT_FOUND"})
"""Nothing changes until somebody changes the token or the gateway."""

_PUT_OFF = frozenset({"RATE_LIMITED", "BACKPRESSURE_ERROR"})
"""The same push may pass later."""

_NOT_KEPT = _ABOUT_CONTENT | ABOUT_CALLER | _PUT_OFF
"""Certainly nothing of a push was kept; after any other error nobody knows."""


class Pushing:
    """The outbox's way to the gateway."""

    def __init__(self, book: Book, lane: Lane, limits: CoreLimits, policy: RetryPolicy) -> None:
        self.lane = lane
        self._put_off = 0
        """How often in a row the gateway has put the batch off."""
        self._most_put_off = policy.pushes
        self._book = book
        self._limits = limits
        self._most = limits.push_deltas
        self._batch: list[Edit] = []

    @property
    def in_doubt(self) -> bool:
        """Whether a push was made whose outcome is unknown."""
        return bool(self._book.store.edits("sent", 1))

    @property
    def wanted(self) -> bool:
        """Whether an edit waits."""
        return bool(self._book.store.edits("waiting", 1))

    def request(self) -> SyncPush:
        """The next push; before it is sent, the store says that it was."""
        batch = outbox.batch(self._book.store, self._most, self._limits.push_bytes)
        sent = {edit.number: replace(edit, status="sent") for edit in batch if edit.status == "waiting"}
        self._book.commit(Changes(edits=dict(sent)))
        self._batch = batch
        position = self._book.position
        return SyncPush(position.client_id, tuple(edit.delta for edit in batch), position.cursor)

    def rows(self) -> set[RowKey]:
        """The rows of the push that was asked for last."""
        return {edit.delta.key for edit in self._batch}

    def accepted(self, result: PushResult, *, covers: bool) -> Changes:
        """The gateway has the batch.

        Args:
            covers: the answer's cursor may be taken: this client has applied all that it was sent.
        """
        book, batch = self._book, self._batch
        self._put_off = 0
        self.lane.succeeded()
        self._most = min(self._limits.push_deltas, self._most * 2)
        book.clock.observe(max(edit.delta.hlc for edit in batch))
        cursor = result.server_hlc if covers else book.position.cursor
        return book.commit(outbox.accept(book.store, batch, book.position.generation), cursor=cursor)

    def failed(self, answer: Refused | Lost) -> Changes:
        """What the gateway names is set aside, and the rest waits to be sent; unless nobody knows what was kept."""
        batch = self._batch
        if isinstance(answer, Refused) and self._is_enough(answer):
            reasons = {edit.delta.delta_id: _reason(edit, answer) for edit in batch}
            return self._book.commit(Changes(edits=outbox.set_aside(batch, reasons)))
        if isinstance(answer, Lost) or answer.code not in _NOT_KEPT:
            self.lane.failed(answer.retry_after if isinstance(answer, Refused) else None)
            return Changes()
        reasons = {why.delta_id: why for why in answer.rejected}
        if not any(edit.delta.delta_id in reasons for edit in batch):
            reasons = {}
            if answer.code not in _ABOUT_CONTENT:
                self.lane.failed(self.lane.longest_delay if answer.code in ABOUT_CALLER else answer.retry_after)
            elif len(batch) > 1:
                self._most = len(batch) // 2
            else:
                reasons = {batch[0].delta.delta_id: _reason(batch[0], answer)}
        return self._book.commit(Changes(edits=outbox.set_aside(batch, reasons)))

    def _is_enough(self, answer: Refused) -> bool:
        """Whether the gateway has put the batch off as often as the policy allows."""
        if self._most_put_off is None or answer.code not in _PUT_OFF:
            return False
        self._put_off += 1
        if self._put_off < self._most_put_off:
            return False
        self._put_off = 0
        return True


def _reason(edit: Edit, answer: Refused) -> Rejection:
    return Rejection(edit.delta.delta_id, answer.code, answer.message)

"""Pushes: one batch of edits at a time, repeated unchanged until the gateway has answered."""

from __future__ import annotations

from msgspec.structs import replace

from lakesync.client.core import edit_lifecycle
from lakesync.client.core.limits import Backoff, CoreLimits, RetryPolicy
from lakesync.client.core.messages import ErrorAnswer, NoAnswer
from lakesync.client.core.records import Changes, Edit
from lakesync.client.core.state import CoreState
from lakesync.model.errors import Rejection
from lakesync.model.types import PushResult, RowKey, SyncPush

_CONTENT_ERRORS = frozenset({"VALIDATION_ERROR", "SCHEMA_ERROR", "CLOCK_DRIFT"})
"""The gateway rejected the content of the push; without some of its edits, it may be accepted."""

CALLER_ERRORS = frozenset({"AUTH_ERROR", "FORBIDDEN", "NOT_FOUND"})
"""The gateway rejected the caller; a retry helps only after the token or the gateway has changed."""

_OVERLOAD_ERRORS = frozenset({"RATE_LIMITED", "BACKPRESSURE_ERROR"})
"""The gateway is busy; the same push may be accepted later."""

_NOTHING_STORED = _CONTENT_ERRORS | CALLER_ERRORS | _OVERLOAD_ERRORS
"""The gateway stored nothing of the push. After any other error it may have."""


class Pusher:
    """Decides what to push, and applies the answers."""

    def __init__(self, state: CoreState, backoff: Backoff, limits: CoreLimits, policy: RetryPolicy) -> None:
        self.backoff = backoff
        self._overloads = 0
        """Consecutive answers with an overload error."""
        self._max_overloads = policy.pushes
        self._state = state
        self._limits = limits
        self._batch_limit = limits.push_deltas
        self._batch: list[Edit] = []

    @property
    def in_doubt(self) -> bool:
        """Whether a push was sent and its outcome is unknown."""
        return bool(self._state.store.edits("sent", 1))

    @property
    def has_work(self) -> bool:
        """Whether an edit is waiting."""
        return bool(self._state.store.edits("waiting", 1))

    def request(self) -> SyncPush:
        """Return the next push, after its edits are stored as sent."""
        batch = edit_lifecycle.next_batch(self._state.store, self._batch_limit, self._limits.push_bytes)
        sent = {edit.number: replace(edit, status="sent") for edit in batch if edit.status == "waiting"}
        self._state.commit(Changes(edits=dict(sent)))
        self._batch = batch
        position = self._state.position
        return SyncPush(position.client_id, tuple(edit.delta for edit in batch), position.cursor)

    def batch_rows(self) -> set[RowKey]:
        """Return the rows of the newest push."""
        return {edit.delta.key for edit in self._batch}

    def handle_result(self, result: PushResult, *, take_cursor: bool) -> Changes:
        """Apply the answer to an accepted push.

        Args:
            result: the gateway's answer.
            take_cursor: whether to advance to the answer's cursor: this client has applied everything it was sent.
        """
        state, batch = self._state, self._batch
        self._overloads = 0
        self.backoff.reset()
        self._batch_limit = min(self._limits.push_deltas, self._batch_limit * 2)
        state.clock.observe(max(edit.delta.hlc for edit in batch))
        cursor = result.server_hlc if take_cursor else state.position.cursor
        return state.commit(edit_lifecycle.accept(state.store, batch, state.position.generation), cursor=cursor)

    def handle_failure(self, answer: ErrorAnswer | NoAnswer) -> Changes:
        """Mark the edits that the gateway rejected as refused, and the others of the batch as waiting.

        If the gateway may have stored the push, the batch stays in doubt and is repeated. A batch that was rejected
        without names is halved until the rejected edit is alone.
        """
        batch = self._batch
        if isinstance(answer, ErrorAnswer) and self._is_last_overload(answer):
            reasons = {edit.delta.delta_id: _rejection(edit, answer) for edit in batch}
            return self._state.commit(Changes(edits=edit_lifecycle.refuse(batch, reasons)))
        if isinstance(answer, NoAnswer) or answer.code not in _NOTHING_STORED:
            self.backoff.failed(answer.retry_after if isinstance(answer, ErrorAnswer) else None)
            return Changes()
        reasons = {rejection.delta_id: rejection for rejection in answer.rejected}
        if not any(edit.delta.delta_id in reasons for edit in batch):
            reasons = {}
            if answer.code not in _CONTENT_ERRORS:
                self.backoff.failed(self.backoff.longest_delay if answer.code in CALLER_ERRORS else answer.retry_after)
            elif len(batch) > 1:
                self._batch_limit = len(batch) // 2
            else:
                reasons = {batch[0].delta.delta_id: _rejection(batch[0], answer)}
        return self._state.commit(Changes(edits=edit_lifecycle.refuse(batch, reasons)))

    def _is_last_overload(self, answer: ErrorAnswer) -> bool:
        """Return whether the gateway was overloaded as often in a row as the retry policy allows."""
        if self._max_overloads is None or answer.code not in _OVERLOAD_ERRORS:
            return False
        self._overloads += 1
        if self._overloads < self._max_overloads:
            return False
        self._overloads = 0
        return True


def _rejection(edit: Edit, answer: ErrorAnswer) -> Rejection:
    return Rejection(edit.delta.delta_id, answer.code, answer.message)

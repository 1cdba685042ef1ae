"""Pushes: one batch of edits at a time, repeated unchanged until the gateway has responded. `ClientCore` calls it."""

from __future__ import annotations

from msgspec.structs import replace

from lakesync.client.core import edit_lifecycle
from lakesync.client.core.limits import Backoff, CoreLimits, RetryPolicy
from lakesync.client.core.messages import ErrorResponse, NoResponse
from lakesync.client.core.state import CoreState
from lakesync.client.core.store import Changes, Edit
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
    """Decides what to push, and applies the responses."""

    def __init__(self, state: CoreState, backoff: Backoff, limits: CoreLimits, policy: RetryPolicy) -> None:
        """Start without a push.

        Args:
            state: the state that it shares with `ClientCore` and `Puller`.
            backoff: the retry delays of pushes.
            limits: the largest push.
            policy: says after how many overload errors edits are marked as refused (`pushes`).
        """
        self.backoff = backoff
        """The retry delays of pushes."""
        self._overloads = 0
        """Consecutive responses with an overload error."""
        self._max_overloads = policy.pushes
        self._state = state
        self._limits = limits
        self._batch_limit = limits.push_deltas
        """Edits of the next batch, at most."""
        self._batch: list[Edit] = []
        """The edits of the newest push."""

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

    def handle_result(self, result: PushResult, *, advance_cursor: bool) -> Changes:
        """Move the edits of an accepted push into the known rows.

        Args:
            result: the gateway's response.
            advance_cursor: whether to advance to the response's cursor. It may be, if this client has applied
                everything that it was sent.
        """
        state, batch = self._state, self._batch
        self._overloads = 0
        self.backoff.reset()
        self._batch_limit = min(self._limits.push_deltas, self._batch_limit * 2)
        state.clock.observe(max(edit.delta.hlc for edit in batch))
        cursor = result.server_hlc if advance_cursor else state.position.cursor
        return state.commit(edit_lifecycle.accept(state.store, batch, state.position.generation), cursor=cursor)

    def handle_failure(self, response: ErrorResponse | NoResponse) -> Changes:
        """Mark the edits that the gateway rejected as refused, and the others of the batch as waiting.

        If the gateway may have stored the push, the batch stays in doubt and is repeated. If the gateway rejects a push
        without naming deltas, the next batches are halved until the rejected edit is alone.

        Args:
            response: why the newest push failed.

        Returns:
            The committed changes; empty while the push is in doubt.
        """
        batch = self._batch
        is_overload = isinstance(response, ErrorResponse) and response.code in _OVERLOAD_ERRORS
        self._overloads = self._overloads + 1 if is_overload else 0
        if isinstance(response, ErrorResponse) and is_overload and self._overloads == self._max_overloads:
            self._overloads = 0
            self.backoff.failed(response.retry_after)
            reasons = {edit.delta.delta_id: _rejection(edit, response) for edit in batch}
            return self._state.commit(Changes(edits=edit_lifecycle.refuse(batch, reasons)))
        if isinstance(response, NoResponse) or response.code not in _NOTHING_STORED:
            self.backoff.failed(response.retry_after if isinstance(response, ErrorResponse) else None)
            return Changes()
        reasons = {rejection.delta_id: rejection for rejection in response.rejected}
        if not any(edit.delta.delta_id in reasons for edit in batch):
            reasons = {}
            if response.code not in _CONTENT_ERRORS:
                self.backoff.failed(
                    self.backoff.longest_delay if response.code in CALLER_ERRORS else response.retry_after
                )
            elif len(batch) > 1:
                self._batch_limit = len(batch) // 2
            else:
                reasons = {batch[0].delta.delta_id: _rejection(batch[0], response)}
        return self._state.commit(Changes(edits=edit_lifecycle.refuse(batch, reasons)))


def _rejection(edit: Edit, response: ErrorResponse) -> Rejection:
    """Return the rejection of one edit, for the reason of the whole push's."""
    return Rejection(edit.delta.delta_id, response.code, response.message)

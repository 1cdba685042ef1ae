"""How the client's core pushes edits, which are changes that the gateway has not acknowledged. `ClientCore` calls it.

`Pusher` pushes one batch of edits at a time, each as a *delta*, a change of one row. Until the gateway (the app's
stream of changes) has responded, the batch is *in doubt*: the gateway may or may not have stored it, so the same batch
is repeated unchanged. Accepted edits are merged into the *known rows*, which are the rows as the gateway has them. An
edit that the gateway rejects becomes `refused`. See `docs/client-core.md`.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from lakesync.client.core import edit_lifecycle
from lakesync.client.core.core_state import CoreState
from lakesync.client.core.messages import CALLER_ERRORS, Backoff, CoreLimits, ErrorResponse, NoResponse, RetryPolicy
from lakesync.client.core.store import Changes, Edit
from lakesync.model.errors import Rejection
from lakesync.model.types import PushResult, RowKey, SyncPush

_CONTENT_ERRORS = frozenset({"VALIDATION_ERROR", "SCHEMA_ERROR", "CLOCK_DRIFT"})
"""The gateway rejected the content of the push; without some of its edits, it may be accepted."""
_OVERLOAD_ERRORS = frozenset({"RATE_LIMITED", "BACKPRESSURE_ERROR"})
"""The gateway is busy; the same push may be accepted later."""
_NOTHING_STORED = _CONTENT_ERRORS | CALLER_ERRORS | _OVERLOAD_ERRORS
"""The gateway stored nothing of the push. After any other error it may have."""


class Pusher:
    """Chooses the edits to push, and applies the gateway's responses."""

    def __init__(self, state: CoreState, backoff: Backoff, limits: CoreLimits, policy: RetryPolicy) -> None:
        """Start without a push.

        Args:
            state: the store, the position (cursor and counters) and the clock, shared with `ClientCore` and `Puller`.
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
        """Edits of the next batch, at most. It is halved to find an edit that the gateway rejects."""
        self._batch: list[Edit] = []
        """The edits of the newest push, with their status before it."""

    @property
    def in_doubt(self) -> bool:
        """Whether a push was sent and its outcome is unknown."""
        return bool(self._state.store.edits("sent", 1))

    @property
    def has_waiting_edits(self) -> bool:
        """Whether an edit waits to be pushed."""
        return bool(self._state.store.edits("waiting", 1))

    def has_only_edits_after(self, number: int) -> bool:
        """Return whether no push is in doubt, and all waiting edits have numbers above `number`."""
        return not self.in_doubt and all(edit.number > number for edit in self._state.store.edits("waiting", 1))

    @property
    def is_overloaded(self) -> bool:
        """Whether the gateway answered the newest push with an overload error."""
        return self._overloads > 0

    def take_over(self, failed: Pusher) -> None:
        """Continue the newest push of another pusher over the same store."""
        self._batch = failed._batch

    def request(self) -> SyncPush:
        """Return the next push, or the one in doubt again; its edits are stored as sent first."""
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
            advance_cursor: whether to advance to the response's cursor. It may only if this client has applied
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

        If the gateway may have stored the push, the batch stays in doubt and is repeated. That is also so if it rejects
        the caller or is overloaded, and an earlier attempt had no response. If the gateway rejects a push without
        naming deltas, the next batches are halved until the rejected edit is alone. After the largest number of
        overload errors in a row (`RetryPolicy.pushes`), the whole batch is refused.

        Args:
            response: why the newest push failed.

        Returns:
            The committed changes; empty while the push is in doubt.
        """
        batch = self._batch
        is_overload = isinstance(response, ErrorResponse) and response.code in _OVERLOAD_ERRORS
        self._overloads = self._overloads + 1 if is_overload else 0
        if isinstance(response, NoResponse) or response.code not in _NOTHING_STORED:
            self.backoff.failed(response.retry_after if isinstance(response, ErrorResponse) else None)
            return Changes()
        rejections = {rejection.delta_id: rejection for rejection in response.rejected}
        names_edits = any(edit.id in rejections for edit in batch)
        was_in_doubt = any(edit.status == "sent" for edit in batch)
        if (is_overload or response.code in CALLER_ERRORS) and not names_edits:
            self.backoff.failed(response.retry_after if is_overload else self.backoff.longest_delay)
            if was_in_doubt:
                return Changes()
        if self._overloads == self._max_overloads:
            self._overloads = 0
            rejections = _reject_each(batch, response)
        elif names_edits or is_overload or response.code in CALLER_ERRORS:
            pass  # edits that are not rejected may be pushed again
        elif len(batch) > 1:
            self._batch_limit = len(batch) // 2
        else:  # this edit alone is the cause
            rejections = _reject_each(batch, response)
        return self._state.commit(Changes(edits=edit_lifecycle.refuse(batch, rejections)))


def _reject_each(edits: Iterable[Edit], response: ErrorResponse) -> dict[str, Rejection]:
    """Return a rejection of each edit, by delta id, for the reason for which the push was rejected."""
    return {edit.id: Rejection(edit.id, response.code, response.message) for edit in edits}

"""How the core pushes edits and receives the changes of others, and the state that both share. `ClientCore` calls it.

`CoreState` has the store of rows and edits (changes that the gateway has not acknowledged), the client's hybrid logical
clock (hlc), and the position: the cursor and everything else that a restarted client must know. One commit writes
changes of rows and the position together, so that after a crash they agree. All commits go through it.

`Pusher` pushes one batch of edits at a time, and repeats it unchanged until the gateway has responded. `Puller`
receives the changes of others and advances the cursor. A pull returns pages of changes after the client's cursor. A
checkpoint has all rows at once, for a new client. A broadcast is a page that the gateway sends without a request. A
full pull starts at cursor 0 and begins a new generation; every row that its pages name gets this generation, and at its
end rows of older generations are removed. See `docs/client-core.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from lakesync.client.core import edit_lifecycle
from lakesync.client.core.edit_lifecycle import EditClock
from lakesync.client.core.messages import (
    Backoff,
    CheckpointEnd,
    CoreLimits,
    ErrorResponse,
    FetchCheckpoint,
    NoResponse,
    RetryPolicy,
)
from lakesync.client.core.rows import apply_page, remove_older_rows
from lakesync.client.core.store import SOURCE_GENERATION, Changes, ClientStore, Edit, Position
from lakesync.model.errors import Rejection
from lakesync.model.types import PushResult, RowDelta, RowKey, SyncPull, SyncPush, SyncResponse
from lakesync.wire.malformed import check_values

_CONTENT_ERRORS = frozenset({"VALIDATION_ERROR", "SCHEMA_ERROR", "CLOCK_DRIFT"})
"""The gateway rejected the content of the push; without some of its edits, it may be accepted."""

CALLER_ERRORS = frozenset({"AUTH_ERROR", "FORBIDDEN", "NOT_FOUND"})
"""The gateway rejected the caller; a retry helps only after the token or the gateway has changed."""

_OVERLOAD_ERRORS = frozenset({"RATE_LIMITED", "BACKPRESSURE_ERROR"})
"""The gateway is busy; the same push may be accepted later."""

_NOTHING_STORED = _CONTENT_ERRORS | CALLER_ERRORS | _OVERLOAD_ERRORS
"""The gateway stored nothing of the push. After any other error it may have."""
_FIRST_PAGE = 1000
"""Deltas of the first page, at most; the limit doubles while the gateway has more, up to `CoreLimits.pull_deltas`."""
_hlc_of = attrgetter("hlc")
"""Returns the hlc of a delta."""


class CoreState:
    """A store, and the position and clock in memory, which change only after a successful commit."""

    def __init__(self, store: ClientStore, position: Position, clock: EditClock) -> None:
        """Continue from the stored position.

        Args:
            store: the durable state.
            position: the store's position, bound to this client.
            clock: stamps edits.
        """
        self.store = store
        self.position = position
        self.clock = clock
        self.has_all_own_writes = False
        """Whether a pull was complete since the file was opened: this client then has everything that it ever wrote."""

    def commit(self, changes: Changes, **fields: Any) -> Changes:
        """Store changes together with the new position.

        Args:
            changes: changed rows and edits.
            fields: new values of fields of `Position`; the clock's fields are set from the clock.

        Returns:
            The same changes, with the position if it changed.
        """
        own_writes_up_to = self.clock.gateway_hlc if self.has_all_own_writes else self.position.own_writes_up_to
        position = replace(
            self.position,
            hlc=self.clock.last,
            gateway_hlc=self.clock.gateway_hlc,
            own_writes_up_to=own_writes_up_to,
            **fields,
        )
        if position != self.position:
            changes.position = position
        if changes.position is not None or changes.known or changes.rows or changes.edits or changes.bulk:
            self.store.commit(changes)
        self.position = position
        return changes

    def reload(self) -> None:
        """Read the position again: another connection may have changed the store."""
        self.position = self.store.position().bound_to(self.position.client_id)
        self.clock.advance(self.position.hlc, self.position.gateway_hlc)

    def restamp_future_edits(self) -> set[RowKey]:
        """Give new stamps to edits made while this machine's clock was ahead; return the rows that were rewritten."""
        changes = edit_lifecycle.restamp_future_edits(self.store, self.clock)
        if changes.edits:
            self.commit(changes)
        return set(changes.rows)


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
        without naming deltas, the next batches are halved until the rejected edit is alone. After the largest number of
        overload errors in a row (`RetryPolicy.pushes`), the whole batch is refused.

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
        if not any(edit.delta.delta_id in reasons for edit in batch):  # the gateway named no edit of the batch
            reasons = {}
            if response.code not in _CONTENT_ERRORS:
                self.backoff.failed(
                    self.backoff.longest_delay if response.code in CALLER_ERRORS else response.retry_after
                )
            elif len(batch) > 1:
                self._batch_limit = len(batch) // 2
            else:  # this edit alone is the cause
                reasons = {batch[0].delta.delta_id: _rejection(batch[0], response)}
        return self._state.commit(Changes(edits=edit_lifecycle.refuse(batch, reasons)))


def _rejection(edit: Edit, response: ErrorResponse) -> Rejection:
    """Return the rejection of one edit, for the reason of the whole push's."""
    return Rejection(edit.delta.delta_id, response.code, response.message)


class Puller:
    """Decides what to pull, and applies pages."""

    def __init__(self, state: CoreState, backoff: Backoff, limits: CoreLimits) -> None:
        """Continue from the stored position.

        Args:
            state: the state that it shares with `ClientCore` and `Pusher`.
            backoff: the retry delays of pulls.
            limits: the largest page.
        """
        self.backoff = backoff
        """The retry delays of pulls."""
        self.due = state.position.cursor > 0 and not state.position.caught_up
        """Whether to pull from the gateway's own feed."""
        self.sources: list[str] = []
        """Named sources (adapters that the gateway serves beside its own feed) to pull from."""
        self.stream_intact = False
        """Whether this client has applied everything that the gateway has sent to it: no page or broadcast was lost."""
        self._state = state
        self._limits = limits
        self._page_limit = min(_FIRST_PAGE, limits.pull_deltas)
        """Deltas of the next page, at most."""
        self._had_page = False
        """Whether a page arrived since this process opened the store, or since the newest full pull started."""
        self._checkpoint_tried = False
        """Whether the full pull in progress has loaded the checkpoint, or learnt that none exists."""
        self._resync_demanded = False
        """Whether the gateway has demanded a resync (RESYNC_REQUIRED) that is not complete yet."""
        self._frames_applied = 0
        """Frames applied of the checkpoint in progress."""
        self._pushed_rows: set[RowKey] = set()
        """Rows pushed since the newest page."""

    @property
    def has_work(self) -> bool:
        """Whether there is something to pull."""
        return self.due or bool(self.sources)

    @property
    def may_be_new_client(self) -> bool:
        """Whether the gateway may not know this client yet; the gateway gives a checkpoint only to a new client."""
        return self._state.position.cursor == 0 and not self._had_page

    @property
    def is_reopened(self) -> bool:
        """Whether the store had a cursor when it was opened, and no page arrived since."""
        position = self._state.position
        return position.cursor > 0 and not position.in_full_pull and not self._had_page

    def request(self) -> SyncPull | FetchCheckpoint:
        """Return the next pull, or the request for a checkpoint.

        Until a pull was complete, it also asks for this client's own writes that a restored file may lack.
        """
        position = self._state.position
        if position.cursor == 0 and not self._checkpoint_tried:
            self._frames_applied = 0
            return FetchCheckpoint(position.client_id)
        source = None if self.due or not self.sources else self.sources[0]
        asks_for_own_writes = position.cursor and not self._state.has_all_own_writes and source is None
        own_writes_after = position.own_writes_up_to if asks_for_own_writes else None
        return SyncPull(position.client_id, position.cursor, self._page_limit, source, own_writes_after)

    def note_push(self, rows: set[RowKey]) -> None:
        """Remember pushed rows: until the next page, a broadcast of them may be older or newer than the push."""
        self._pushed_rows |= rows

    def accepts_cursor_of(self, result: PushResult) -> bool:
        """Return whether the cursor may advance to a push result's. During a full pull, only pages advance it."""
        cursor, caught_up = self._state.position.cursor, self._state.position.caught_up
        return self.stream_intact and caught_up and 0 < cursor < result.server_hlc

    def handle_page(self, request: SyncPull, page: SyncResponse) -> Changes:
        """Apply the page with which the gateway responded to a pull.

        The page size doubles while the gateway has more, because a row of a large page costs less to write.

        Args:
            request: the pull.
            page: the response.

        Returns:
            The committed changes, as for all methods that return `Changes`.
        """
        self.backoff.reset()
        self._page_limit = min(self._limits.pull_deltas, self._page_limit * 2 if page.has_more else _FIRST_PAGE)
        if request.source is not None:
            changes = self._state.commit(self._changes_of(page.deltas, SOURCE_GENERATION))
            if not page.has_more:
                self.sources.remove(request.source)
            return changes
        changes = self._apply_and_advance(page, restart=request.since_hlc == 0)
        self._state.has_all_own_writes = self._state.has_all_own_writes or not page.has_more
        self._pushed_rows.clear()
        self._had_page = True
        self.due = page.has_more
        self.stream_intact = not page.has_more
        self._resync_demanded = self._resync_demanded and page.has_more
        return changes

    def handle_broadcast(self, page: SyncResponse) -> Changes:
        """Apply a broadcast, unless its cursor is not newer than this client's.

        If an earlier page or broadcast was lost, or this one names a row that was pushed since the last page, nothing
        is applied and a pull is due. After a broadcast that has more, a pull is due too.
        """
        if page.server_hlc <= self._state.position.cursor:
            return Changes()
        if not self.stream_intact or any(delta.key in self._pushed_rows for delta in page.deltas):
            self.mark_gap()
            return Changes()
        if page.has_more:
            self.mark_gap()
        return self._apply_and_advance(page, restart=False)

    def handle_frame(self, page: SyncResponse) -> Changes:
        """Apply one frame of a checkpoint; the cursor stays at 0 until the last one."""
        generation = self._state.position.generation
        if not self._frames_applied:  # the first frame begins the full pull
            generation += 1
        changes = self._changes_of(page.deltas, generation)
        self._state.commit(changes, generation=generation, in_full_pull=True)
        self._frames_applied += 1
        return changes

    def handle_checkpoint_end(self, end: CheckpointEnd) -> Changes:
        """End the full pull and set the cursor to the checkpoint's; later changes are pulled next."""
        self.backoff.reset()
        self._state.clock.observe(end.highest_hlc)
        is_empty = not self._frames_applied  # then no frame has begun the full pull
        changes = self._apply_and_advance(SyncResponse((), end.cursor), restart=is_empty)
        self._had_page = self._checkpoint_tried = self.due = True
        return changes

    def mark_gap(self) -> None:
        """Record that the gateway may have sent something that was not applied; a pull is due."""
        self.stream_intact = False
        self.due = True

    def handle_failure(self, request: SyncPull | FetchCheckpoint, response: ErrorResponse | NoResponse) -> Changes:
        """Retry later; after RESYNC_REQUIRED start a full pull; after NOT_FOUND go on without checkpoint or source.

        Args:
            request: the request that failed.
            response: why it failed.
        """
        self.stream_intact = False
        if isinstance(response, ErrorResponse):
            if response.code == "RESYNC_REQUIRED":
                if self._resync_demanded:  # two gateways respond in turn, or one forgets: do not resync in a loop
                    self.backoff.failed(self.backoff.longest_delay)
                self._resync_demanded = True
                return self.restart()
            if response.code == "NOT_FOUND" and isinstance(request, FetchCheckpoint):
                self._checkpoint_tried = self.due = True
                return Changes()
            if response.code == "NOT_FOUND" and isinstance(request, SyncPull) and request.source is not None:
                self.sources.remove(request.source)
                return Changes()
            self.backoff.failed(self.backoff.longest_delay if response.code in CALLER_ERRORS else response.retry_after)
        else:
            self.backoff.failed()
            self._page_limit = min(_FIRST_PAGE, self._limits.pull_deltas)
        return Changes()

    def restart(self) -> Changes:
        """Start a full pull from cursor 0; all rows stay until it is complete."""
        self.due, self._had_page, self._checkpoint_tried = True, False, False
        return self._state.commit(Changes(), cursor=0, caught_up=False)

    def _apply_and_advance(self, page: SyncResponse, *, restart: bool) -> Changes:
        """Commit a page with its cursor; at the end of a full pull, remove the rows that it did not name.

        Args:
            page: the deltas, and the new cursor.
            restart: whether it is the first page of a full pull, which begins a new generation.
        """
        position = self._state.position
        generation = position.generation + restart
        in_full_pull = position.in_full_pull or restart
        changes = self._changes_of(page.deltas, generation)
        if in_full_pull and not page.has_more:
            remove_older_rows(self._state.store, changes, generation)
            in_full_pull = False
        return self._state.commit(
            changes,
            cursor=page.server_hlc,
            caught_up=not page.has_more,
            generation=generation,
            in_full_pull=in_full_pull,
        )

    def _changes_of(self, deltas: Sequence[RowDelta], generation: int) -> Changes:
        """Return what the deltas of a page change. The store applies the bulk of them, and the rest is merged here."""
        if deltas:
            self._state.clock.observe(max(map(_hlc_of, deltas)))
        bulk, to_merge = self._state.store.prepare(deltas, generation)
        check_values(to_merge)
        changes = apply_page(self._state.store, to_merge, generation)
        changes.bulk = bulk
        return changes

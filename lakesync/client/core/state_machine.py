"""`ClientCore`, the client's state machine: which request to send to the gateway next, and what a response changes.

`Replica` runs it over the app's database; tests run it over a `MemoryStore`. It does no input or output besides its
store and takes its clocks as parameters, so that tests can run every order of events.

A *delta* is a change of some columns of one row; a hash of it is its id. Its *stamp* is its hlc (hybrid logical clock)
and client id: in a merge, the greater stamp wins. An *edit* is a delta of the app that the gateway has not
acknowledged. It is `waiting` to be pushed; `sent` in a push without a response, which is *in doubt* and is repeated
unchanged; or `refused` by the gateway. A *known row* is a row as the gateway has it; with its edits it gives the app's
row. `Pusher` makes pushes of the edits. `Puller` requests pages (changes after the client's cursor) and applies them,
and the gateway's broadcasts (pages without a request). A *full pull* is all pages from cursor 0. A *checkpoint* is a
prepared copy of all rows, from which a new client starts instead; it arrives as frames. A *named source* is a database
that the gateway reads for clients, beside its own changes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable
from typing import Literal

from msgspec.structs import replace

from lakesync.client.core import edit_lifecycle
from lakesync.client.core.core_state import CoreState
from lakesync.client.core.edit_lifecycle import EditClock
from lakesync.client.core.messages import (
    Backoff,
    Broadcast,
    CheckpointEnd,
    CheckpointFrame,
    CoreLimits,
    ErrorResponse,
    FetchCheckpoint,
    NoResponse,
    Request,
    Response,
    RetryPolicy,
    Wait,
)
from lakesync.client.core.puller import Puller
from lakesync.client.core.pusher import Pusher
from lakesync.client.core.store import Changes, ClientStore, Edit, EditStatus, LocalChange
from lakesync.model.errors import ValidationError
from lakesync.model.hlc import wall_clock
from lakesync.model.types import PushResult, RowDelta, RowKey, SyncPull, SyncPush, SyncResponse
from lakesync.model.validation import check_shape

Mode = Literal["full", "pushOnly", "pullOnly"]
"""`full` pushes and pulls; `pushOnly` never pulls, `pullOnly` never pushes."""
MAX_PUSHES_IN_A_ROW = 8
"""Accepted pushes after which a pull that is due goes first; else an app that always writes would delay it for ever."""


class ClientCore:
    """The client of one gateway, over a store. It has at most one pending request. Not thread-safe.

    Every method that changes something commits it to the store, and returns the committed changes. If the store fails
    to commit, the method raises the store's error and nothing has changed. The core then continues as if the response
    had not arrived.
    """

    def __init__(
        self,
        store: ClientStore,
        client_id: str,
        *,
        mode: Mode = "full",
        limits: CoreLimits | None = None,
        retry: RetryPolicy | None = None,
        wall: Callable[[], int] = wall_clock,
        monotonic: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Continue from the store's position: the cursor, the clock, and the counters of edits and full pulls.

        Args:
            store: the durable state.
            client_id: this client's id.
            mode: `pushOnly` never pulls, `pullOnly` never pushes.
            limits: the largest push and page; None for the defaults.
            retry: the delays and attempts after failures; None for the defaults.
            wall: returns this machine's time in milliseconds since 1970, with which edits are stamped.
            monotonic: returns seconds that never go back, for delays.
            jitter: returns a random number from 0 to 1, so that clients do not retry at the same moment.

        Raises:
            ConfigurationError: the store belongs to another client.
        """
        position = store.position().bound_to(client_id)
        self.mode = mode
        self.last_error: ErrorResponse | NoResponse | None = None
        """Why the newest request failed; None after a success."""
        self._wall = wall
        clock = EditClock(wall, position.hlc, position.gateway_hlc)
        limits, retry = limits or CoreLimits(), retry or RetryPolicy()
        self._state = CoreState(store, position, clock)
        self._pusher = Pusher(self._state, Backoff(monotonic, jitter, retry), limits, retry)
        self._puller = Puller(self._state, Backoff(monotonic, jitter, retry), limits)
        self._pending: Request | None = None
        """The request that has no response yet."""
        self._receives_broadcasts = False
        """Whether a connection is open on which the gateway can send broadcasts."""
        self._pushes_in_a_row = 0
        """Accepted pushes since the latest pull."""

    @property
    def client_id(self) -> str:
        """This client's id."""
        return self._state.position.client_id

    @property
    def cursor(self) -> int:
        """The arrival (the gateway's timestamp of receipt) up to which pages are applied; 0 before the first one."""
        return self._state.position.cursor

    @property
    def pending_request(self) -> Request | None:
        """The request that `next_request` returned, while its response is missing; otherwise None."""
        return self._pending

    @property
    def has_pending_request(self) -> bool:
        """Whether there is a `pending_request`."""
        return self._pending is not None

    @property
    def edit_count(self) -> int:
        """The number of edits ever made, which is the newest edit's number."""
        return self._state.position.edit_count

    @property
    def caught_up(self) -> bool:
        """Whether the newest page was the gateway's last one."""
        return self._state.position.caught_up

    def reload(self) -> None:
        """Read the cursor and the clock from the store again: another client of the same file may have changed them.

        If it has started a full pull, as after it has repaired a table, the response to a pending pull is too old.
        """
        cursor = self.cursor
        self._state.reload()
        if self.cursor < cursor:
            self._puller.note_restart()
            if isinstance(self._pending, SyncPull):
                self._pending = None

    def take_over(self, failed: ClientCore, pending: Request | None) -> None:
        """Replace another core over the same store, after a step of it failed and was rolled back.

        Args:
            failed: the other core. Its mode and the pulls that are due are taken over, and its pending request, if the
                failed step has not changed that.
            pending: its pending request before the step.
        """
        self.mode = failed.mode
        keeps_request = pending is not None and failed._pending is pending
        self._puller.take_over(failed._puller, keeps_request=keeps_request)
        if keeps_request:
            self._pusher.take_over(failed._pusher)
            self._pending = pending

    def record(self, changes: Iterable[LocalChange], *, applied: bool = False) -> Changes:
        """Store the app's changes as edits, in one commit.

        Args:
            changes: the written rows, before and after.
            applied: whether the app has written the changes to its rows itself; otherwise the store writes them.

        Raises:
            ValidationError: a value is not a JSON value; nothing is stored.
        """
        state = self._state
        # Edits that were stamped while this machine's clock was ahead get new stamps. That rewrites their rows from the
        # edits, and so undoes changes that the app has made and no edit has yet.
        rewritten = state.restamp_future_edits()
        edits = edit_lifecycle.make_edits(changes, self.client_id, state.clock, state.position.edit_count + 1)
        result = Changes(edits=dict(edits))
        edited = {edit.delta.key for edit in edits.values()}
        rows_to_write = edited & rewritten if applied else edited
        if rows_to_write:
            edit_lifecycle.refresh_rows(state.store, result, rows_to_write)
        return state.commit(result, edit_count=state.position.edit_count + len(edits))

    def add_delta(self, delta: RowDelta) -> Edit:
        """Store a delta as an edit and apply it to the app's row. An app calls it to push a delta of its own.

        Args:
            delta: a delta with this client's id; its stamp and delta id are kept.

        Returns:
            The edit; the existing one if the delta was added before.

        Raises:
            ValidationError: the delta is malformed, or belongs to another client.
        """
        problem = check_shape(delta)
        if problem is not None:
            raise ValidationError(problem.message)
        if delta.client_id != self.client_id:
            raise ValidationError(
                f"the delta was written by client {delta.client_id!r}, and this client is {self.client_id!r}: push it "
                "from that client"
            )
        state = self._state
        for edit in state.store.edits_of([delta.key]).get(delta.key, ()):
            if edit.id == delta.delta_id:
                return edit
        edit = Edit(state.position.edit_count + 1, delta)
        changes = Changes(edits={edit.number: edit})
        edit_lifecycle.refresh_rows(state.store, changes, [delta.key])
        state.clock.advance(delta.hlc, gateway_hlc=0)  # 0: the gateway does not have it yet
        state.commit(changes, edit_count=edit.number)
        return edit

    def mark_sending(self, ids: Collection[str]) -> Changes:
        """Mark waiting edits as sent, for an app that pushes them itself; they are in doubt until `ack` or `nack`.

        Args:
            ids: delta ids; those of other edits are ignored, as in `ack` and `nack`.
        """
        edits = self._edits_with(ids, "waiting")
        return self._state.commit(Changes(edits={edit.number: replace(edit, status="sent") for edit in edits}))

    def ack(self, ids: Collection[str]) -> Changes:
        """Accept edits with these delta ids, as if the gateway had acknowledged them."""
        state, edits = self._state, self._edits_with(ids, "waiting", "sent")
        if not edits:
            return Changes()
        return state.commit(edit_lifecycle.accept(state.store, edits, state.position.generation))

    def nack(self, ids: Collection[str]) -> Changes:
        """Mark sent edits with these delta ids as waiting, because the gateway did not store them."""
        edits = self._edits_with(ids, "sent")
        return self._state.commit(Changes(edits={edit.number: replace(edit, status="waiting") for edit in edits}))

    def next_hlc(self) -> int:
        """Return a new hlc, above those of all edits and of everything that the gateway sent."""
        hlc = self._state.clock.now()
        self._state.commit(Changes())
        return hlc

    def edits(self) -> list[Edit]:
        """Return all edits in order of their numbers, refused ones included."""
        return self._state.store.edits()

    def retry(self, numbers: Collection[int]) -> Changes:
        """Mark refused edits with these numbers as waiting.

        Raises:
            NotFoundError: a number does not belong to a refused edit.
        """
        return self._state.commit(edit_lifecycle.retry(self._state.store, numbers))

    def retry_drifted(self, clock_offset: float = 0.0) -> Changes:
        """Mark edits as waiting that were refused with CLOCK_DRIFT, once the gateway's clock has reached their stamps.

        Args:
            clock_offset: seconds by which this machine's clock is ahead of the gateway's.
        """
        gateway_ms = self._wall() - round(clock_offset * 1000)
        numbers = edit_lifecycle.refused_for_drift(self._state.store, gateway_ms)
        return self.retry(numbers) if numbers else Changes()

    def drop(self, numbers: Collection[int]) -> Changes:
        """Delete edits with these numbers and restore their rows.

        Raises:
            NotFoundError: a number does not belong to an edit.
            ValidationError: an edit was sent, so the gateway may have it.
        """
        return self._state.commit(edit_lifecycle.drop(self._state.store, numbers))

    def refresh_rows(self, keys: Collection[RowKey]) -> Changes:
        """Write the app's rows again from the known rows and the edits, after the app recreated their table."""
        changes = Changes()
        edit_lifecycle.refresh_rows(self._state.store, changes, keys)
        return self._state.commit(changes)

    def request_pull(self, source: str | None = None) -> None:
        """Make a pull due.

        Args:
            source: a named source; None for the gateway's own changes.
        """
        if source is None:
            self._puller.due = True
        elif source not in self._puller.sources:
            self._puller.sources.append(source)

    def resync(self) -> Changes:
        """Start a full pull. Edits are kept, and rows that its pages do not name are removed at its end.

        Raises:
            RuntimeError: a request has no response yet.
        """
        self._check_no_pending_request()
        return self._puller.restart()

    def reset_backoff(self) -> None:
        """Clear all retry delays: the network is back, or the token is new."""
        self._pusher.backoff.reset()
        self._puller.backoff.reset()

    def connection_opened(self) -> None:
        """Record that a connection is open. The gateway broadcasts on it once it has responded to a pull on it."""
        self._receives_broadcasts = True
        self._puller.mark_gap()  # something may have been missed: a pull is due

    def connection_closed(self) -> None:
        """Record that the open connection is closed; a pending request on it will get no response."""
        self._receives_broadcasts = False
        self._puller.mark_gap()
        if self._pending is not None:
            self.receive(NoResponse("the connection was closed"))

    def next_request(self, last_edit: int | None = None) -> Request | Wait:
        """Return the request to send now, or how long to wait. The request is then pending.

        Pass its response to `receive`, or `NoResponse` if none arrives. While the first candidate waits after a
        failure, the second one is sent.

        Args:
            last_edit: once no pull is to be sent, and only edits with higher numbers wait, return `Wait(0)`. Without
                it, the synchronisation of an app that writes all the time would not end.

        Raises:
            RuntimeError: a request has no response yet.
        """
        self._check_no_pending_request()
        if self.mode != "pullOnly":
            self._state.restamp_future_edits()
        candidates = self._candidates()
        ready = [candidate for candidate in candidates if candidate.backoff.is_over]
        if not ready:
            return Wait(min((candidate.backoff.delay() for candidate in candidates), default=None))
        if last_edit is not None and ready == [self._pusher] and self._pusher.has_only_edits_after(last_edit):
            return Wait(0.0)
        request = ready[0].request()
        if isinstance(request, SyncPush):
            self._puller.note_push(self._pusher.batch_rows())
        else:
            self._pushes_in_a_row = 0
        self._pending = request
        return request

    def receive(self, response: Response) -> Changes:
        """Apply a response or a broadcast of the gateway.

        Returns:
            What it changed, already committed.

        Raises:
            RuntimeError: the response does not belong to the pending request, or none is pending.
        """
        request = self._pending
        try:
            if isinstance(response, Broadcast):
                return Changes() if self.mode == "pushOnly" else self._puller.handle_broadcast(response.page)
            if isinstance(response, CheckpointFrame) and isinstance(request, FetchCheckpoint):
                return self._puller.handle_frame(response.page)
            self._pending = None
            return self._handle_response(request, response)
        except Exception:
            if not isinstance(response, Broadcast):  # after a broadcast the request still waits for its own response
                self._pending = None
            self._puller.mark_gap()
            raise

    def _edits_with(self, ids: Collection[str], *statuses: EditStatus) -> list[Edit]:
        """Return the edits with some ids whose status is one of `statuses`."""
        return [edit for edit in self._state.store.edits() if edit.id in ids and edit.status in statuses]

    def _check_no_pending_request(self) -> None:
        """Check that the last request has a response: the core has at most one request in progress."""
        if self._pending is not None:
            raise RuntimeError(
                f"{type(self._pending).__name__} has no response yet: pass one, or NoResponse, to receive() first"
            )

    def _candidates(self) -> list[Pusher | Puller]:
        """Return the pusher, the puller or both, if they have a request to send, in order of priority.

        A push in doubt goes first: a page pulled meanwhile might contain a DELETE from before or after that push. Only
        while the gateway is too busy for pushes, which may take hours, the client pulls although one is in doubt. A
        client that the gateway does not know pulls before it pushes, because only then is it given a checkpoint. A
        reopened file pulls first too, because a file restored from a backup may lack this client's own writes. Neither
        is required: if that pull fails, waiting edits are pushed before its retry, because they must not be held back
        by pulls that fail again and again. A new client may then get all pages in place of the checkpoint. After
        `MAX_PUSHES_IN_A_ROW` accepted pushes, one page is pulled: an app that always writes always has waiting edits.
        """
        may_push, may_pull = self.mode != "pullOnly", self.mode != "pushOnly"
        in_doubt = may_push and self._pusher.in_doubt
        if in_doubt and not self._pusher.is_overloaded:
            return [self._pusher]
        push: list[Pusher | Puller] = (
            [self._pusher] if in_doubt or (may_push and self._pusher.has_waiting_edits) else []
        )
        may_be_new = may_pull and self._puller.may_be_new_client
        pull = [self._puller] if may_pull and (self._puller.has_work or (may_be_new and push)) else []
        pulls_first = may_be_new or self._puller.is_reopened or self._pushes_in_a_row >= MAX_PUSHES_IN_A_ROW
        return [*pull, *push] if pulls_first else [*push, *pull]

    def _handle_response(self, request: Request | None, response: Response) -> Changes:
        """Pass the response to the part that made the request.

        Raises:
            RuntimeError: the response does not belong to the request.
        """
        match request, response:
            case SyncPush(), PushResult():
                self._pushes_in_a_row += 1
                # The push's cursor is taken only if no earlier change can be missing. On a connection with broadcasts,
                # one with an earlier change may be on its way.
                advance_cursor = not self._receives_broadcasts and self._puller.accepts_cursor_of(response)
                if not advance_cursor and not self._receives_broadcasts:  # broadcasts make a pull needless
                    self._puller.due = True
                changes = self._pusher.handle_result(response, advance_cursor=advance_cursor)
            case SyncPull(), SyncResponse():
                changes = self._puller.handle_page(request, response)
            case FetchCheckpoint(), CheckpointEnd():
                changes = self._puller.handle_checkpoint_end(response)
            case SyncPush(), ErrorResponse() | NoResponse():
                changes = self._pusher.handle_failure(response)
            case SyncPull() | FetchCheckpoint(), ErrorResponse() | NoResponse():
                changes = self._puller.handle_failure(request, response)
            case _:
                pending = (
                    f"the pending request is {type(request).__name__}" if request is not None else "none is pending"
                )
                raise RuntimeError(f"{type(response).__name__} answers no pending request: {pending}")
        self.last_error = response if isinstance(response, ErrorResponse | NoResponse) else None
        return changes

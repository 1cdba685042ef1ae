"""How the client's core receives the changes of other clients, and advances its cursor. `ClientCore` calls it.

A pull returns a *page*: changes after the client's cursor, and the next cursor. A *checkpoint* has all rows at once,
for a new client; it arrives in parts, its frames. A *broadcast* is a page that the gateway sends without a request. A
*full pull* (or resync) starts at cursor 0 and begins a new *generation*: every row that its pages name gets this
number, and at its end rows of older generations are removed. A *named source* is another database that the gateway
reads for clients; its pages have no part in the cursor or in full pulls. The *position* is the stored record of the
cursor, the generation, and what else a restarted client must know. See `docs/client-core.md`. A *delta* is a change of
one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from lakesync.client.core.core_state import CoreState
from lakesync.client.core.messages import (
    CALLER_ERRORS,
    Backoff,
    CheckpointEnd,
    CoreLimits,
    ErrorResponse,
    FetchCheckpoint,
    NoResponse,
)
from lakesync.client.core.rows import page_changes, remove_older_rows
from lakesync.client.core.store import SOURCE_GENERATION, Changes
from lakesync.model.types import PushResult, RowDelta, RowKey, SyncPull, SyncResponse
from lakesync.wire.malformed import check_values

_FIRST_PAGE = 1000
"""Deltas of the first page, at most; the limit doubles while the gateway has more, up to `CoreLimits.pull_deltas`."""
_hlc_of = attrgetter("hlc")
"""Returns the hlc (hybrid logical clock) of a delta."""


class Puller:
    """Chooses what to pull, and applies pages, broadcasts and checkpoints."""

    def __init__(self, state: CoreState, backoff: Backoff, limits: CoreLimits) -> None:
        """Continue from the stored position.

        Args:
            state: the store and the position, which it shares with `ClientCore` and `Pusher`.
            backoff: the retry delays of pulls.
            limits: the largest page.
        """
        self.backoff = backoff
        """The retry delays of pulls."""
        self.due = state.position.cursor > 0 and not state.position.caught_up
        """Whether to pull the gateway's own changes."""
        self.sources: list[str] = []
        """Named sources to pull from."""
        self.stream_intact = False
        """Whether this client has applied everything that the gateway has sent to it: no page or broadcast was lost.
        False until a pull in this process was complete."""
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
        """Rows pushed since the newest page. A broadcast of them may be from before the push."""

    @property
    def has_work(self) -> bool:
        """Whether there is something to pull."""
        return self.due or bool(self.sources)

    @property
    def may_be_new_client(self) -> bool:
        """Whether the gateway may not know this client yet. The gateway gives a checkpoint only to a new client."""
        return self._state.position.cursor == 0 and not self._had_page

    @property
    def is_reopened(self) -> bool:
        """Whether the store had a cursor when it was opened, and no page has arrived since."""
        position = self._state.position
        return position.cursor > 0 and not position.in_full_pull and not self._had_page

    def take_over(self, failed: Puller, *, keeps_request: bool) -> None:
        """Continue with the pulls of another puller over the same store.

        Args:
            failed: the other puller.
            keeps_request: whether its request in progress is taken over too, not only the pulls that are due.
        """
        self.due = self.due or failed.due
        self.sources = failed.sources
        if keeps_request:
            self._frames_applied = failed._frames_applied
            self._checkpoint_tried = failed._checkpoint_tried
            self._pushed_rows = failed._pushed_rows

    def request(self) -> SyncPull | FetchCheckpoint:
        """Return the next pull, or the request for a checkpoint.

        The gateway normally does not send a client its own writes. Until a pull was complete, the pull asks for them
        too, because a file that was restored from a backup may lack some.
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
        """Remember pushed rows: until the next page, a broadcast of them may be from before or after the push."""
        self._pushed_rows |= rows

    def accepts_cursor_of(self, result: PushResult) -> bool:
        """Return whether the cursor may advance to that of a push's result. In a full pull, only pages advance it."""
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

        The gateway sends RESYNC_REQUIRED if it does not know the client's cursor.

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
        self.note_restart()
        return self._state.commit(Changes(), cursor=0, caught_up=False)

    def note_restart(self) -> None:
        """Record that the cursor becomes 0: no earlier page or broadcast may be applied before those of a full pull."""
        self.mark_gap()
        self._had_page = self._checkpoint_tried = False

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
        clock = self._state.clock
        if generation == SOURCE_GENERATION:  # no gateway has checked these stamps: edits above them might be rejected
            highest = clock.highest_accepted()
            clock.advance(max((hlc for hlc in map(_hlc_of, deltas) if hlc <= highest), default=0), 0)
        else:
            clock.observe(max(map(_hlc_of, deltas), default=0))
        bulk, to_merge = self._state.store.prepare(deltas, generation)
        check_values(to_merge)
        changes = page_changes(self._state.store, to_merge, generation)
        changes.bulk = bulk
        return changes

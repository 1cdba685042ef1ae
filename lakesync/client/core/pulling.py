"""Pulls, checkpoints and broadcasts: the way of what others did, and the cursor."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from lakesync.client.core.book import Book
from lakesync.client.core.lane import Lane
from lakesync.client.core.limits import CoreLimits
from lakesync.client.core.messages import CheckpointEnd, FetchCheckpoint, Lost, Refused
from lakesync.client.core.pages import apply_page, sweep
from lakesync.client.core.pushing import ABOUT_CALLER
from lakesync.client.core.records import UNSWEPT, Changes
from lakesync.model.types import PushResult, RowDelta, RowKey, SyncPull, SyncResponse
from lakesync.wire.values import check_values

_FIRST_PAGE = 1000
"""Deltas that a pull asks for where it is not known that there are more."""
_hlc_of = attrgetter("hlc")


class Pulling:
    """A client's walk along the feed."""

    def __init__(self, book: Book, lane: Lane, limits: CoreLimits) -> None:
        self.lane = lane
        self.due = book.position.cursor > 0 and not book.position.complete
        self.sources: list[str] = []
        """Named sources to pull from."""
        self.abreast = False
        """What the gateway takes this client to have been sent is what it has applied."""
        self._book = book
        self._limits = limits
        self._most = min(_FIRST_PAGE, limits.pull_deltas)
        self._greeted = False
        self._checkpoint_tried = False
        self._sent_back = False
        """The gateway had this client start again, and it has not come to an end since."""
        self._frames = 0
        self._pushed: set[RowKey] = set()

    @property
    def wanted(self) -> bool:
        """Whether there is something to pull."""
        return self.due or bool(self.sources)

    @property
    def stranger(self) -> bool:
        """The gateway may not know this client, and gives a checkpoint only to one that it does not know."""
        return self._book.position.cursor == 0 and not self._greeted

    @property
    def returned(self) -> bool:
        """The file was opened with a cursor, and no pull was answered since."""
        position = self._book.position
        return position.cursor > 0 and not position.walking and not self._greeted

    def request(self) -> SyncPull | FetchCheckpoint:
        """The next pull."""
        position = self._book.position
        if position.cursor == 0 and not self._checkpoint_tried:
            self._frames = 0
            return FetchCheckpoint(position.client_id)
        source = None if self.due or not self.sources else self.sources[0]
        own = position.own if position.cursor and not self._book.whole and source is None else None
        return SyncPull(position.client_id, position.cursor, self._most, source, own)

    def pushing(self, rows: set[RowKey]) -> None:
        """Until a pull is answered, a broadcast that names these rows may be older or newer than their push."""
        self._pushed |= rows

    def covered_by(self, result: PushResult) -> bool:
        """Whether a push's answer may be the cursor; not in place of a first walk, which alone says what is there."""
        cursor, complete = self._book.position.cursor, self._book.position.complete
        return self.abreast and complete and 0 < cursor < result.server_hlc

    def pulled(self, asked: SyncPull, page: SyncResponse) -> Changes:
        """Apply the answer to a pull. While there is more, pages grow: a row of a long one costs less to write."""
        self.lane.succeeded()
        self._most = min(self._limits.pull_deltas, self._most * 2 if page.has_more else _FIRST_PAGE)
        if asked.source is not None:
            changes = self._book.commit(self._applied(page.deltas, UNSWEPT))
            if not page.has_more:
                self.sources.remove(asked.source)
            return changes
        changes = self._walk(page, restart=asked.since_hlc == 0)
        self._book.whole = self._book.whole or not page.has_more
        self._pushed.clear()
        self._greeted = True
        self.due = page.has_more
        self.abreast = not page.has_more
        self._sent_back = self._sent_back and page.has_more
        return changes

    def broadcast(self, page: SyncResponse) -> Changes:
        """A broadcast goes on from the cursor, unless one before it was left out or it may cross a push."""
        if page.server_hlc <= self._book.position.cursor:
            return Changes()
        if not self.abreast or any(delta.key in self._pushed for delta in page.deltas):
            self.abreast, self.due = False, True
            return Changes()
        if page.has_more:
            self.abreast, self.due = False, True
        return self._walk(page, restart=False)

    def frame(self, page: SyncResponse) -> Changes:
        """Apply one message of a checkpoint; the cursor stays."""
        generation = self._book.position.generation + (not self._frames)
        changes = self._book.commit(self._applied(page.deltas, generation), generation=generation, walking=True)
        self._frames += 1
        return changes

    def checkpoint_ended(self, end: CheckpointEnd) -> Changes:
        """The state at the checkpoint's arrival is complete; what came later is to be pulled."""
        self.lane.succeeded()
        self._book.clock.observe(end.seen)
        changes = self._walk(SyncResponse((), end.cursor), restart=not self._frames)
        self._greeted = self._checkpoint_tried = self.due = True
        return changes

    def lost(self) -> None:
        """Something may have been sent that this client has not applied."""
        self.abreast = False
        self.due = True

    def failed(self, asked: SyncPull | FetchCheckpoint, answer: Refused | Lost) -> Changes:
        """Start again, go without, or try later."""
        self.abreast = False
        if isinstance(answer, Refused):
            if answer.code == "RESYNC_REQUIRED":
                if self._sent_back:  # two gateways answer in turn, or one that forgets: do not walk round and round
                    self.lane.failed(self.lane.longest_delay)
                self._sent_back = True
                return self.start_again()
            if answer.code == "NOT_FOUND" and isinstance(asked, FetchCheckpoint):
                self._checkpoint_tried = self.due = True
                return Changes()
            if answer.code == "NOT_FOUND" and isinstance(asked, SyncPull) and asked.source is not None:
                self.sources.remove(asked.source)
                return Changes()
            self.lane.failed(self.lane.longest_delay if answer.code in ABOUT_CALLER else answer.retry_after)
        else:
            self.lane.failed()
            self._most = min(_FIRST_PAGE, self._limits.pull_deltas)
        return Changes()

    def start_again(self) -> Changes:
        """Walk from 0 next; what is here stays until the walk is done."""
        self.due, self._greeted, self._checkpoint_tried = True, False, False
        return self._book.commit(Changes(), cursor=0, complete=False)

    def _walk(self, page: SyncResponse, *, restart: bool) -> Changes:
        """Apply a page and go on to its cursor; at the end of a walk from 0, remove what it did not name."""
        position = self._book.position
        generation = position.generation + restart
        walking = position.walking or restart
        changes = self._applied(page.deltas, generation)
        if walking and not page.has_more:
            sweep(self._book.store, changes, generation)
            walking = False
        return self._book.commit(
            changes, cursor=page.server_hlc, complete=not page.has_more, generation=generation, walking=walking
        )

    def _applied(self, deltas: Sequence[RowDelta], generation: int) -> Changes:
        if deltas:
            self._book.clock.observe(max(map(_hlc_of, deltas)))
        prepared, rest = self._book.store.prepare(deltas, generation)
        check_values(rest)
        changes = apply_page(self._book.store, rest, generation)
        changes.bulk = prepared
        return changes

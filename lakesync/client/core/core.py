"""The state machine: what to ask the gateway next, and what an answer changes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable
from typing import Literal

from msgspec.structs import replace

from lakesync.client.core import outbox
from lakesync.client.core.book import Book
from lakesync.client.core.clock import EditClock
from lakesync.client.core.lane import Lane
from lakesync.client.core.limits import CoreLimits, RetryPolicy
from lakesync.client.core.messages import (
    Answer,
    Broadcast,
    CheckpointEnd,
    FetchCheckpoint,
    Frame,
    Lost,
    Refused,
    Request,
    Wait,
)
from lakesync.client.core.pulling import Pulling
from lakesync.client.core.pushing import Pushing
from lakesync.client.core.records import Changes, Edit, EditStatus, LocalChange
from lakesync.client.core.store import ClientStore
from lakesync.model.errors import ValidationError
from lakesync.model.hlc import wall_clock
from lakesync.model.types import PushResult, RowDelta, RowKey, SyncPull, SyncPush, SyncResponse
from lakesync.model.validation import check_shape

Mode = Literal["full", "pushOnly", "pullOnly"]


class ClientCore:
    """A client of one gateway, over a store. One request is under way at a time. Not safe between threads.

    When the store fails to commit, what called for it raises the store's error, nothing has changed, and the core goes
    on as if the answer had been lost.
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
        spread: Callable[[], float] = random.random,
    ) -> None:
        """Take up where the store stands.

        Args:
            wall: this machine's clock, in milliseconds; it stamps edits.
            monotonic: seconds, for delays.
            spread: from 0 to 1, at random, so that clients do not come back all at once.

        Raises:
            ConfigurationError: the store belongs to another client id.
        """
        position = store.position().claimed(client_id)
        self.mode = mode
        self.trouble: Refused | Lost | None = None
        """Why the newest request failed; None once one succeeded."""
        clock = EditClock(wall, position.hlc, position.seen)
        limits, retry = limits or CoreLimits(), retry or RetryPolicy()
        self._book = Book(store, position, clock)
        self._pushing = Pushing(self._book, Lane(monotonic, spread, retry), limits, retry)
        self._pulling = Pulling(self._book, Lane(monotonic, spread, retry), limits)
        self._asked: Request | None = None
        self._broadcasts = False

    @property
    def client_id(self) -> str:
        """Who this is."""
        return self._book.position.client_id

    @property
    def cursor(self) -> int:
        """The arrival up to which pages are applied; 0 before the first."""
        return self._book.position.cursor

    @property
    def asking(self) -> bool:
        """Whether a request is under way."""
        return self._asked is not None

    @property
    def complete(self) -> bool:
        """Whether nothing was left behind the cursor when it was handed out."""
        return self._book.position.complete

    def look_up(self) -> None:
        """Go on from where the store is now, which another client of the same file may have written to."""
        self._book.look_up()

    def record(self, changes: Iterable[LocalChange], *, applied: bool = False) -> Changes:
        """Keep the user's changes as edits, all in one commit.

        Args:
            applied: the app's rows have the changes already.

        Raises:
            ValidationError: a value is not a JSON value; nothing is kept.
        """
        book = self._book
        undone = book.mend()  # what the app's rows have and is no edit yet
        edits = outbox.make(changes, self.client_id, book.clock, book.position.edits + 1)
        made = Changes(edits=dict(edits))
        keys = {edit.delta.key for edit in edits.values()}
        if stale := keys & undone if applied else keys:
            outbox.repaint(book.store, made, stale)
        return book.commit(made, edits=book.position.edits + len(edits))

    def enter(self, delta: RowDelta) -> Edit:
        """Keep a change that is a delta already, as an edit; the app's row has it at once.

        Raises:
            ValidationError: it is another client's, or no delta.
        """
        wrong = check_shape(delta)
        if wrong is not None:
            raise ValidationError(wrong.message)
        if delta.client_id != self.client_id:
            raise ValidationError(f"the delta is of client {delta.client_id!r}, this is {self.client_id!r}")
        book = self._book
        for edit in book.store.edits_of([delta.key]).get(delta.key, ()):
            if edit.id == delta.delta_id:
                return edit
        edit = Edit(book.position.edits + 1, delta)
        made = Changes(edits={edit.number: edit})
        outbox.repaint(book.store, made, [delta.key])
        book.clock.go_on(delta.hlc, 0)
        book.commit(made, edits=edit.number)
        return edit

    def mark_sending(self, ids: Collection[str]) -> Changes:
        """Note that edits are on their way by another hand; until `ack` or `nack` they are in doubt."""
        edits = self._named(ids, "waiting")
        return self._book.commit(Changes(edits={edit.number: replace(edit, status="sent") for edit in edits}))

    def ack(self, ids: Collection[str]) -> Changes:
        """Take edits as accepted by the gateway."""
        book, edits = self._book, self._named(ids, "waiting", "sent")
        return book.commit(outbox.accept(book.store, edits, book.position.generation)) if edits else Changes()

    def nack(self, ids: Collection[str]) -> Changes:
        """Let edits wait again that were not taken."""
        edits = self._named(ids, "sent")
        return self._book.commit(Changes(edits={edit.number: replace(edit, status="waiting") for edit in edits}))

    def _named(self, ids: Collection[str], *statuses: EditStatus) -> list[Edit]:
        return [edit for edit in self._book.store.edits() if edit.id in ids and edit.status in statuses]

    def stamp(self) -> int:
        """A new hlc, above all edits and all that the gateway sent."""
        hlc = self._book.clock.now()
        self._book.commit(Changes())
        return hlc

    def edits(self) -> list[Edit]:
        """Everything that the gateway is not known to have, in order, refused edits included."""
        return self._book.store.edits()

    def retry(self, numbers: Collection[int]) -> Changes:
        """Let refused edits wait again.

        Raises:
            NotFoundError: a number is no refused edit's.
        """
        return self._book.commit(outbox.retry(self._book.store, numbers))

    def drop(self, numbers: Collection[int]) -> Changes:
        """Give edits up: their rows are as if they had never been made.

        Raises:
            NotFoundError: a number is no edit's.
            ValidationError: the gateway may have an edit already.
        """
        return self._book.commit(outbox.drop(self._book.store, numbers))

    def repaint(self, keys: Collection[RowKey]) -> Changes:
        """Write the app's rows as the gateway and the edits have them, where their table lost them."""
        changes = Changes()
        outbox.repaint(self._book.store, changes, keys)
        return self._book.commit(changes)

    def sync(self, source: str | None = None) -> None:
        """Ask for what is new, of the gateway or of a named source."""
        if source is None:
            self._pulling.due = True
        elif source not in self._pulling.sources:
            self._pulling.sources.append(source)

    def resync(self) -> Changes:
        """Ask for everything anew; rows and edits stay, and rows that are not named go when all is here.

        Raises:
            RuntimeError: a request is under way.
        """
        if self._asked is not None:
            raise RuntimeError("a request is under way: give its answer to receive() first")
        return self._pulling.start_again()

    def hurry(self) -> None:
        """Forget all delays: the network is back, or the token is a new one."""
        self._pushing.lane.succeeded()
        self._pulling.lane.succeeded()

    def connected(self) -> None:
        """A connection is open on which the gateway may broadcast, once a pull was answered on it."""
        self._broadcasts = True
        self._pulling.lost()

    def disconnected(self) -> None:
        """That connection is closed; what was under way on it is lost."""
        self._broadcasts = False
        self._pulling.lost()
        if self._asked is not None:
            self.receive(Lost("the connection was closed"))

    def next_request(self) -> Request | Wait:
        """What to ask now. Every request must be followed by `receive`, with `Lost` where no answer came.

        Raises:
            RuntimeError: a request is under way.
        """
        if self._asked is not None:
            raise RuntimeError("a request is under way: give its answer to receive() first")
        if self.mode != "pullOnly":
            self._book.mend()
        ways = self._ways()
        for way in ways:
            if not way.lane.delay():
                request = way.request()
                if isinstance(request, SyncPush):
                    self._pulling.pushing(self._pushing.rows())
                self._asked = request
                return request
        return Wait(min((way.lane.delay() for way in ways), default=None))

    def receive(self, answer: Answer) -> Changes:
        """Take in what the gateway said; what it changed, already committed.

        Raises:
            RuntimeError: nothing was asked that this could answer.
        """
        asked = self._asked
        try:
            if isinstance(answer, Broadcast):
                return Changes() if self.mode == "pushOnly" else self._pulling.broadcast(answer.page)
            if isinstance(answer, Frame) and isinstance(asked, FetchCheckpoint):
                return self._pulling.frame(answer.page)
            self._asked = None
            return self._ended(asked, answer)
        except Exception:
            self._asked = None
            self._pulling.lost()
            raise

    def _ways(self) -> list[Pushing | Pulling]:
        """What there is to do, first things first.

        A push whose outcome is unknown goes before everything: a page may say DELETE because of it or in spite of it.
        A client that the gateway does not know asks before it pushes, for only then is it given a checkpoint; and one
        whose file was just opened, which may lack what it wrote itself: put back from a backup, it is told of that.
        """
        pushes, pulls = self.mode != "pullOnly", self.mode != "pushOnly"
        if pushes and self._pushing.in_doubt:
            return [self._pushing]
        push: list[Pushing | Pulling] = [self._pushing] if pushes and self._pushing.wanted else []
        stranger = pulls and self._pulling.stranger
        pull = [self._pulling] if pulls and (self._pulling.wanted or (stranger and push)) else []
        return [*pull, *push] if stranger or self._pulling.returned else [*push, *pull]

    def _ended(self, asked: Request | None, answer: Answer) -> Changes:
        match asked, answer:
            case SyncPush(), PushResult():
                covers = not self._broadcasts and self._pulling.covered_by(answer)
                if not covers and not self._broadcasts:
                    self._pulling.due = True
                changes = self._pushing.accepted(answer, covers=covers)
            case SyncPull(), SyncResponse():
                changes = self._pulling.pulled(asked, answer)
            case FetchCheckpoint(), CheckpointEnd():
                changes = self._pulling.checkpoint_ended(answer)
            case SyncPush(), Refused() | Lost():
                changes = self._pushing.failed(answer)
            case SyncPull() | FetchCheckpoint(), Refused() | Lost():
                changes = self._pulling.failed(asked, answer)
            case _:
                what = f"no answer to {type(asked).__name__}" if asked is not None else "asked for by nobody"
                raise RuntimeError(f"{type(answer).__name__} is {what}")
        self.trouble = answer if isinstance(answer, Refused | Lost) else None
        return changes

"""The core's requests, carried by a transport, and its answers, taken in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from lakesync.client.ahead import Ahead
from lakesync.client.core import FetchCheckpoint, Lost, Refused
from lakesync.client.core.messages import Answer, Request
from lakesync.client.core.records import Changes, Edit
from lakesync.client.errors import DbError, TableError, UnreachableError
from lakesync.client.replica import Replica
from lakesync.client.transports.base import BreakableTransport, CheckpointTransport, MeasuredTransport, SyncTransport
from lakesync.model.errors import ClockDriftError, LakeSyncError, NotFoundError, RefusedError, TransientError
from lakesync.model.types import PushResult, SyncPull, SyncPush, SyncResponse

if TYPE_CHECKING:
    from lakesync.client.checkpoint import Progress


_OFFERED = 6
"""How often a named source may give one page in a row."""


class Tally(msgspec.Struct):
    """What some exchanges came to."""

    pushed: int = 0
    """Edits that the gateway took."""
    pulled: int = 0
    """Rows changed by others."""
    refused: list[Edit] = []
    """Edits that were set aside."""
    tables: set[str] = set()
    """Of which rows changed."""
    error: LakeSyncError | None = None
    """The newest failure, None once what failed succeeded after it."""
    asked: bool = False
    """Whether the gateway was asked anything, or spoke."""
    grown: bool = False
    """Whether a row came with a column that its table here lacks."""
    caught_up: bool = False
    """Whether the gateway said what it has."""
    pushing: bool = False
    """Whether it was a push that failed."""

    def add(self, request: Request | None, answer: Answer | None, changes: Changes) -> None:
        """Count an answer in."""
        self.asked = True
        if answer is None or isinstance(answer, SyncResponse):
            self.caught_up = True
        if isinstance(request, SyncPush) and isinstance(answer, PushResult):
            self.pushed += len(request.deltas)
        else:
            self.pulled += changes.count
        self.tables |= changes.tables
        self.refused += [edit for edit in changes.edits.values() if edit is not None and edit.status == "refused"]


class Exchange:
    """Carries one request at a time."""

    def __init__(self, replica: Replica, transport: SyncTransport, progress: Callable[[Progress], None]) -> None:
        self._replica = replica
        self._transport = transport
        self._progress = progress
        self._offered: tuple[str, tuple[str, ...], int] = ("", (), 0)
        """The newest page of a named source, by its deltas' ids, and how often it came in a row."""
        self._ahead = Ahead(transport.pull, replica.limits.pull_deltas, self.hang_up)

    def carry(self, request: Request, tally: Tally) -> None:
        """Ask the gateway, and give the core what came back.

        Raises:
            DbError, TableError: the client's database cannot take it; the request counts as unanswered.
        """
        tally.asked = True
        answer: Answer | None
        try:
            answer = self._ask(request, tally)
        except (DbError, TableError):
            raise
        except LakeSyncError as error:
            tally.error, tally.pushing = explained(error, self.clock_offset), isinstance(request, SyncPush)
            answer = answer_of(tally.error)
        except BaseException as error:  # a bug of a token's provider, or the user's interrupt
            self._replica.receive(Lost(f"interrupted: {error!r}"))
            raise
        else:
            if tally.pushing == isinstance(request, SyncPush):  # that a push was taken does not make good a pull
                tally.error = None
        if isinstance(request, FetchCheckpoint) and isinstance(answer, Refused) and answer.code == NotFoundError.code:
            tally.error = None
        if answer is not None:
            changes = self._replica.receive(answer)
            self.count(request, answer, changes, tally)
            if any(edit is not None and edit.status == "refused" for edit in changes.edits.values()):
                tally.error = None  # it is told edit by edit

    def rest(self) -> None:
        """After some requests: nothing is under way any more, not even pages that were asked for ahead."""
        self._ahead.stop()

    def break_off(self) -> None:
        """`rest`, without waiting for a page that is under way."""
        self._ahead.break_off()

    def hang_up(self) -> None:
        """End the request that is under way, where the transport can; from any thread."""
        if isinstance(self._transport, BreakableTransport):
            self._transport.hang_up()

    def count(self, request: Request | None, answer: Answer | None, changes: Changes, tally: Tally) -> None:
        """Count in what an answer, or a page that nobody asked for, has changed."""
        tally.add(request, answer, changes)
        if changes.known and not tally.grown:
            types = self._replica.types()
            tally.grown = any(
                not part.columns.keys() <= types[table].keys()
                for (table, _), row in changes.known.items()
                if row is not None and table in types
                for part in row.state.live
            )

    def check_progress(self, request: SyncPull, page: SyncResponse) -> None:
        """Refuse a page after which the same would be asked for without end.

        The cursor of the gateway's own feed grows while there is more. That of a named source may stay: its page is
        offered again a few times until the gateway knows that it has come.

        Raises:
            UnreachableError: the page is not one that a gateway gives.
        """
        if not page.has_more:
            self._offered = ("", (), 0)
            return
        if request.source is None:
            if page.server_hlc <= request.since_hlc:
                raise UnreachableError(
                    f"the gateway says that there is more after cursor {request.since_hlc}, and goes on at "
                    f"{page.server_hlc}: it would be asked the same without end"
                )
            return
        ids = tuple(delta.delta_id for delta in page.deltas)
        source, before, times = self._offered
        times = times + 1 if (source, before) == (request.source, ids) else 1
        self._offered = (request.source, ids, times)
        if not ids or times > _OFFERED:
            raise UnreachableError(
                f"the gateway says that there is more of source {request.source!r}, and gives "
                f"{f'the same page {times} times' if ids else 'nothing'}: it would be asked the same without end"
            )

    @property
    def clock_offset(self) -> float | None:
        """Seconds that this machine's clock is ahead of the gateway's, where the transport measures it."""
        return self._transport.clock_offset if isinstance(self._transport, MeasuredTransport) else None

    def _ask(self, request: Request, tally: Tally) -> PushResult | SyncResponse | None:
        if isinstance(request, SyncPull):
            page = self._ahead.page(request)
            self.check_progress(request, page)
            return page
        self._ahead.stop()  # a page that was asked for before a push must not be applied after it
        if isinstance(request, SyncPush):
            return self._transport.push(request)
        if isinstance(request, FetchCheckpoint):
            if not isinstance(self._transport, CheckpointTransport):
                raise NotFoundError("this transport has no checkpoints: pull from 0")
            from lakesync.client.checkpoint import load_checkpoint  # brings protobuf, which only a first sync needs

            with self._transport.checkpoint(request.client_id) as checkpoint:
                loaded = load_checkpoint(self._replica, checkpoint, self._progress)
            tally.pulled += loaded.rows
            tally.tables |= loaded.tables
        return None


def answer_of(error: LakeSyncError) -> Refused | Lost:
    """What the core is told of an error."""
    if isinstance(error, UnreachableError):
        return Lost(str(error))
    rejected = error.rejected if isinstance(error, RefusedError) else ()
    retry_after = error.retry_after if isinstance(error, TransientError) else None
    return Refused(error.code, str(error), rejected, retry_after)


def explained(error: LakeSyncError, offset: float | None) -> LakeSyncError:
    """The error, and how wrong this machine's clock is, where that is why."""
    if not isinstance(error, ClockDriftError) or offset is None:
        return error
    way = "ahead of" if offset > 0 else "behind"
    measured = f"this machine's clock is about {abs(offset):.1f} s {way} the gateway's"
    rejected = [replace(why, message=f"{why.message}; {measured}") for why in error.rejected]
    return ClockDriftError(f"{error}; {measured}", rejected)

"""Sends the requests of the client's core through a transport, and passes the responses to the core.

The core (`lakesync.client.core`) decides what to request; it does no I/O itself. `SyncSession` asks it for the next
request and calls `Exchange.send`.

While one page is written to the database, a thread of `Prefetcher` pulls the pages that follow it. All pages that have
arrived when a write ends are written together as one page. One commit of three pages costs less than three commits, and
a part of the file that several pages touch is written once. The thread sends the cursor of a page before this page is
durable in the client's database. After a crash the client therefore pulls with an older cursor. The gateway supports
that, because the same happens when a response is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain

import msgspec
from msgspec.structs import replace

from lakesync.client.core import ErrorResponse, FetchCheckpoint, NoResponse
from lakesync.client.core.messages import Request, Response
from lakesync.client.core.store import Changes, Edit
from lakesync.client.errors import DbError, TableError, UnreachableError
from lakesync.client.status import Progress
from lakesync.client.sync.replica import Replica
from lakesync.client.transports.base import (
    CancellableTransport,
    CheckpointTransport,
    ClockMeasuringTransport,
    SyncTransport,
)
from lakesync.model.errors import ClockDriftError, LakeSyncError, NotFoundError, RejectedError, TransientError
from lakesync.model.types import PushResult, SyncPull, SyncPush, SyncResponse
from lakesync.wire.pages import about_bytes

_REPEATED_PAGES = 6
"""How often in a row a named source (an adapter from which clients pull, beside the gateway's own changes) may send the
same page. It repeats a page until the client confirms it."""
MAX_PAGES = 3
"""Pages that wait and are written together, at most. The limit is low because the gateway remembers only the newest
sixteen cursors of a client, and a client must be able to return to its durable one."""
MAX_BYTES = 16 << 20
"""Approximate bytes of columns in pages that wait or are being written; above it, no further page is pulled."""
_WAIT_SECONDS = 0.5
"""Seconds of one wait for a prefetched page; there may be many. A KeyboardInterrupt may be raised only at its end."""
CANCEL_INTERVAL = 0.02
"""Seconds to wait for the thread to end by itself before its pull is cancelled."""

Pull = Callable[[SyncPull], SyncResponse]
"""Sends a pull and returns the page."""


class CycleResult(msgspec.Struct):
    """What the requests of one synchronisation (a cycle) have changed so far."""

    pushed: int = 0
    """Number of edits that the gateway accepted."""
    pulled: int = 0
    """Number of rows that other clients changed."""
    refused: list[Edit] = []
    """Edits that the gateway rejected."""
    tables: set[str] = set()
    """Tables with changed rows."""
    error: LakeSyncError | None = None
    """The latest failure; None after a later success."""
    had_contact: bool = False
    """Whether a request was sent, or the gateway sent something."""
    found_new_column: bool = False
    """Whether a row had a column that its table here lacks."""
    received_page: bool = False
    """Whether the response to a pull or a broadcast arrived."""
    failed_push: bool = False
    """Whether `error` is that of a push."""

    def add(self, request: Request | None, response: Response | None, changes: Changes) -> None:
        """Add what a response or a broadcast has changed.

        Args:
            request: the request; None for a broadcast.
            response: its response; None for a broadcast.
            changes: the changes that the core committed.
        """
        self.had_contact = True
        if response is None or isinstance(response, SyncResponse):
            self.received_page = True
        if isinstance(request, SyncPush) and isinstance(response, PushResult):
            self.pushed += len(request.deltas)
        else:
            self.pulled += changes.count
        self.tables |= changes.tables
        self.refused += [edit for edit in changes.edits.values() if edit is not None and edit.status == "refused"]


class Exchange:
    """Sends one request at a time. While a page is stored, a thread pulls the following page (`Prefetcher`)."""

    def __init__(self, replica: Replica, transport: SyncTransport, on_progress: Callable[[Progress], None]) -> None:
        """Create an exchange; nothing is sent yet.

        Args:
            replica: the app's database with the core.
            transport: sends the requests.
            on_progress: called after each part of a checkpoint that was stored.
        """
        self._replica = replica
        self._transport = transport
        self._on_progress = on_progress
        self._source_page: tuple[str, tuple[str, ...], int] = ("", (), 0)
        """The newest page of a named source: the source, the page's delta ids, and how often it arrived in a row."""
        self._prefetcher = Prefetcher(transport.pull, replica.limits.pull_deltas, self.cancel_request)

    def send(self, request: Request, result: CycleResult) -> None:
        """Send a request, and pass the response to the core.

        Errors of the gateway and the network are not raised but stored in `result.error`.

        Args:
            request: the core's request.
            result: the result of the cycle so far, which is updated.

        Raises:
            DbError, TableError: the client's database cannot store the response. The request will be repeated.
        """
        result.had_contact = True
        response: Response | None
        try:
            response = self._response(request, result)
        except (DbError, TableError):
            raise
        except LakeSyncError as error:
            result.error = with_clock_offset(error, self.clock_offset)
            result.failed_push = isinstance(request, SyncPush)
            response = response_of(result.error)
        except BaseException as error:  # a bug in a token provider, or a KeyboardInterrupt
            self._replica.receive(NoResponse(f"interrupted: {error!r}"))
            raise
        else:
            if result.failed_push == isinstance(request, SyncPush):  # a successful push does not clear a pull's error
                result.error = None
        no_checkpoint = isinstance(response, ErrorResponse) and response.code == NotFoundError.code
        if isinstance(request, FetchCheckpoint) and no_checkpoint:  # no failure: the core pulls all rows instead
            result.error = None
        if response is not None:
            changes = self._replica.receive(response)
            self.count(request, response, changes, result)
            if any(edit is not None and edit.status == "refused" for edit in changes.edits.values()):
                result.error = None  # the rejected edits are reported, so the request is not reported as a failure

    def stop_prefetching(self) -> None:
        """Discard prefetched pages, and wait until no request is in progress."""
        self._prefetcher.stop()

    def cancel_prefetching(self) -> None:
        """Discard prefetched pages, and cancel a pull in progress."""
        self._prefetcher.cancel()

    def cancel_request(self) -> None:
        """Cancel the request in progress, if the transport can. Any thread may call it."""
        if isinstance(self._transport, CancellableTransport):
            self._transport.cancel_requests()

    def count(self, request: Request | None, response: Response | None, changes: Changes, result: CycleResult) -> None:
        """Add what a response or a broadcast has changed to a result.

        Args:
            request: the request; None for a broadcast.
            response: its response; None for a broadcast.
            changes: the changes that the core committed.
            result: the result to update.
        """
        result.add(request, response, changes)
        if changes.known and not result.found_new_column:
            types = self._replica.types()
            result.found_new_column = any(
                not row.state.cells.keys() <= types[table].keys()
                for (table, _), row in changes.known.items()
                if row is not None and table in types
            )

    def check_progress(self, request: SyncPull, page: SyncResponse) -> None:
        """Check that a page does not make the client send the same pull forever.

        If the gateway has more pages, a page must advance the cursor. Only a named source may send the same page a few
        times, because it repeats a page until the client confirms it.

        Args:
            request: the pull.
            page: the response.

        Raises:
            UnreachableError: the page does not advance. No gateway sends such a page, so the address may be wrong.
        """
        if not page.has_more:
            self._source_page = ("", (), 0)
            return
        if request.source is None:
            if page.server_hlc <= request.since_hlc:
                raise UnreachableError(
                    f"the gateway has more after cursor {request.since_hlc} but continues at {page.server_hlc}, which "
                    "would repeat the same pull forever: check that the address is a gateway's"
                )
            return
        ids = tuple(delta.delta_id for delta in page.deltas)
        source, previous_ids, repeats = self._source_page
        repeats = repeats + 1 if (source, previous_ids) == (request.source, ids) else 1
        self._source_page = (request.source, ids, repeats)
        if not ids or repeats > _REPEATED_PAGES:
            sent = f"the same page {repeats} times" if ids else "an empty page"
            raise UnreachableError(
                f"the gateway has more of source {request.source!r} but sent {sent}, which would repeat the same pull "
                "forever"
            )

    @property
    def clock_offset(self) -> float | None:
        """Seconds by which this machine's clock is ahead of the gateway's, if the transport measures it."""
        return self._transport.clock_offset if isinstance(self._transport, ClockMeasuringTransport) else None

    def _response(self, request: Request, result: CycleResult) -> PushResult | SyncResponse | None:
        """Send a request and return the response; None for a checkpoint, which is loaded into the database here."""
        if isinstance(request, SyncPull):
            page = self._prefetcher.page(request)
            self.check_progress(request, page)
            return page
        self._prefetcher.stop()  # a page pulled before a push must not be applied after it
        if isinstance(request, SyncPush):
            return self._transport.push(request)
        if isinstance(request, FetchCheckpoint):
            if not isinstance(self._transport, CheckpointTransport):
                raise NotFoundError("this transport has no checkpoints: pull from cursor 0")
            from lakesync.client.sync.checkpoint_load import load_checkpoint  # imports protobuf, for first syncs only

            with self._transport.checkpoint(request.client_id) as checkpoint:
                loaded = load_checkpoint(self._replica, checkpoint, self._on_progress)
            result.pulled += loaded.rows
            result.tables |= loaded.tables
        return None


def response_of(error: LakeSyncError) -> ErrorResponse | NoResponse:
    """Convert an error that a transport raised to a response for the core."""
    if isinstance(error, UnreachableError):
        return NoResponse(str(error))
    rejected = error.rejected if isinstance(error, RejectedError) else ()
    retry_after = error.retry_after if isinstance(error, TransientError) else None
    return ErrorResponse(error.code, str(error), rejected, retry_after)


def with_clock_offset(error: LakeSyncError, offset: float | None) -> LakeSyncError:
    """Return a CLOCK_DRIFT error with the measured error of this machine's clock; return other errors unchanged.

    Args:
        error: the gateway's error.
        offset: seconds by which this machine's clock is ahead of the gateway's; negative if behind, None if unknown.
    """
    if not isinstance(error, ClockDriftError) or offset is None:
        return error
    direction = "ahead of" if offset > 0 else "behind"
    measured = f"this machine's clock is about {abs(offset):.1f} s {direction} the gateway's"
    rejected = [replace(rejection, message=f"{rejection.message}; {measured}") for rejection in error.rejected]
    return ClockDriftError(f"{error}; {measured}", rejected)


class Prefetcher:
    """Returns the pages of pulls, and pulls the following pages in a thread. Call it from one thread at a time."""

    def __init__(self, pull: Pull, page_limit: int, cancel_pull: Callable[[], None]) -> None:
        """Create a prefetcher; nothing is pulled yet.

        Args:
            pull: sends a pull and returns the page.
            page_limit: number of deltas in a page, at most.
            cancel_pull: cancels a pull in progress, if possible.
        """
        self._pull = pull
        self._page_limit = page_limit
        self._cancel_pull = cancel_pull
        self._thread: _PrefetchThread | None = None

    def page(self, request: SyncPull) -> SyncResponse:
        """Return the page that a pull asks for, joined with prefetched pages after it.

        Args:
            request: the pull. Prefetched pages are used if its cursor is that of the last page returned.

        Raises:
            BaseException: the error of the pull, also of one that the thread has sent. The pages that it had pulled
                before are returned first.
        """
        thread = self._thread
        if thread is None or not thread.continues(request):
            self.stop()
            page = self._pull(request)
            if page.has_more and request.source is None:  # the cursor of a named source may stay the same
                with suppress(RuntimeError):  # Python is shutting down and starts no thread
                    self._thread = _PrefetchThread(self._pull, request, page, self._page_limit)
            return page
        try:
            page = thread.wait_for_pages()
        except BaseException:
            self.cancel()
            raise
        if not page.has_more:
            self.stop()
        return page

    def stop(self) -> None:
        """Discard prefetched pages, and wait until no pull is in progress."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def cancel(self) -> None:
        """Discard prefetched pages, and cancel a pull in progress."""
        thread, self._thread = self._thread, None
        while thread is not None and not thread.stop(CANCEL_INTERVAL):
            self._cancel_pull()


class _PrefetchThread:
    """A thread that pulls the pages after a first one, until the last page, an error or `stop`."""

    def __init__(self, pull: Pull, request: SyncPull, page: SyncResponse, page_limit: int) -> None:
        """Start the thread.

        Args:
            pull: sends a pull and returns the page.
            request: the first pull.
            page: the response to it, which is now being written.
            page_limit: number of deltas in a page, at most.
        """
        self._pull = pull
        self._request = request
        self._page_limit = page_limit
        self._cursor = page.server_hlc
        """The cursor of the newest page that `wait_for_pages` returned."""
        self._bytes_being_written = about_bytes(page.deltas)
        self._pages: list[SyncResponse] = []
        """The pages that wait."""
        self._bytes_waiting = 0
        self._error: BaseException | None = None
        """The exception that ended the thread."""
        self._stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(page,), name="lakesync-prefetch", daemon=True)
        self._thread.start()

    def continues(self, request: SyncPull) -> bool:
        """Return whether the waiting pages are the ones that this pull asks for."""
        return request.source is None and request.since_hlc == self._cursor

    def wait_for_pages(self) -> SyncResponse:
        """Wait for a page, and return all waiting pages as one. Call it after the previous page was written.

        Raises:
            BaseException: the exception that ended the thread, once no page waits.
        """
        with self._changed:
            self._bytes_being_written = 0
            self._changed.notify_all()
            while not self._changed.wait_for(lambda: self._pages or self._error is not None, _WAIT_SECONDS):
                pass  # a KeyboardInterrupt just before a wait is raised when the wait ends
            pages, self._pages = self._pages, []
            self._bytes_being_written, self._bytes_waiting = self._bytes_waiting, 0
            if not pages and self._error is not None:
                raise self._error
            self._changed.notify_all()
        self._cursor = pages[-1].server_hlc
        return _join(pages)

    def stop(self, timeout: float | None = None) -> bool:
        """Pull no further page, and wait for the pull in progress.

        Args:
            timeout: seconds; None waits without limit.

        Returns:
            Whether the thread has ended.
        """
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self, page: SyncResponse) -> None:
        """Pull the pages after this one. The limit of deltas doubles with each page, up to the page limit."""
        request = self._request
        while page.has_more and self._wait_for_room():
            page_limit = min(self._page_limit, request.max_deltas * 2)
            request = replace(request, since_hlc=page.server_hlc, max_deltas=page_limit)
            try:
                page = self._pull(request)
                size = about_bytes(page.deltas)
            except BaseException as error:  # raised in `wait_for_pages`
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._pages.append(page)
                self._bytes_waiting += size
                self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        """Wait until another page may be pulled; return False if the thread should stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._has_room())
            return not self._stopped

    def _has_room(self) -> bool:
        """Return whether another page may be requested before those that were received are written."""
        return len(self._pages) < MAX_PAGES and self._bytes_being_written + self._bytes_waiting <= MAX_BYTES


def _join(pages: Sequence[SyncResponse]) -> SyncResponse:
    """Return consecutive pages as one page, with the cursor of the last."""
    if len(pages) == 1:
        return pages[0]
    deltas = tuple(chain.from_iterable(page.deltas for page in pages))
    return SyncResponse(deltas, pages[-1].server_hlc, pages[-1].has_more)

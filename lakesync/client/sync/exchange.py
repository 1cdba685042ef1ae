"""Sends the requests of the client's core to the gateway server, and passes the responses to the core.

The core (`lakesync.client.core`) is the client's state machine: it decides what to request, and does no I/O itself.
`SyncSession` asks it for the next request and calls `Exchange.send`. `AutoSync` pulls over a WebSocket by itself, and
calls `check_progress` and `apply` with what arrives there. A page is a part of the changes that the client lacks; a
broadcast is a page that the gateway sends without a request. An edit is a change of the app that the gateway has not
acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from lakesync.client.core import Broadcast, ErrorResponse, FetchCheckpoint, NoResponse
from lakesync.client.core.messages import Request, Response
from lakesync.client.core.store import Edit
from lakesync.client.errors import DbError, TableError, UnreachableError
from lakesync.client.status import Progress
from lakesync.client.sync.prefetch import Prefetcher
from lakesync.client.sync.replica import Replica
from lakesync.client.transports.base import (
    CancellableTransport,
    CheckpointTransport,
    ClockMeasuringTransport,
    SyncTransport,
)
from lakesync.model.errors import ClockDriftError, LakeSyncError, NotFoundError, RejectedError, TransientError
from lakesync.model.types import PushResult, SyncPull, SyncPush, SyncResponse

_REPEATED_PAGES = 6
"""How often in a row a named source (an adapter from which clients pull, beside the gateway's own changes) may send the
same page. It repeats a page until the client confirms it."""

_DRIFTED = "SELECT 1 FROM _lakesync_edits WHERE status = 'refused' AND code = ? LIMIT 1"
"""Selects an edit that was refused with an error code."""


class _SourcePage(NamedTuple):
    """A page of a named source that may be repeated."""

    source: str
    delta_ids: tuple[str, ...]
    arrived: int
    """How often it arrived in a row."""


class CycleResult(msgspec.Struct):
    """What one synchronisation (a cycle of requests) has changed so far."""

    pushed: int = 0
    """Number of edits that the gateway accepted."""
    pulled: int = 0
    """Number of rows that other clients changed."""
    refused: list[Edit] = []
    """Edits that the gateway rejected."""
    tables: set[str] = set()
    """Tables with changed rows."""
    progress: Progress = Progress(0, 0)
    """What was received of a checkpoint, and of pages that others follow."""
    error: LakeSyncError | None = None
    """The latest failure; None after a later success of the same kind of request."""
    had_contact: bool = False
    """Whether a request was sent, or the gateway sent something."""
    found_new_column: bool = False
    """Whether a row had a column that its table here lacks."""
    received_page: bool = False
    """Whether a page arrived, as a response or as a broadcast."""
    failed_request: Literal["push", "push of the app's queue", "pull"] | None = None
    """The kind of request whose failure `error` is."""


class Exchange:
    """Sends one request at a time. While a page is stored, a thread pulls the pages that follow (`Prefetcher`)."""

    def __init__(self, replica: Replica, transport: SyncTransport, on_progress: Callable[[Progress], None]) -> None:
        """Create an exchange; nothing is sent yet.

        Args:
            replica: the app's database with the core.
            transport: sends the requests.
            on_progress: called after each part of a checkpoint, and each page that others follow, was stored.
        """
        self._replica = replica
        self._transport = transport
        self._on_progress = on_progress
        self._source_page: _SourcePage | None = None
        """The newest page, if a named source sent it and has more; otherwise None."""
        self.prefetcher = Prefetcher(transport.pull, replica.limits.pull_deltas, self.cancel_request)
        """Pulls pages in advance."""

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
        failure: LakeSyncError | None = None
        try:
            response = self._response(request, result)
        except (DbError, TableError):
            raise
        except LakeSyncError as error:
            failure = with_clock_offset(error, self.clock_offset)
            response = response_of(failure)
        except BaseException as error:  # a bug in a token provider, or a KeyboardInterrupt
            self._replica.receive(NoResponse(f"interrupted: {error!r}"))
            raise
        if isinstance(request, FetchCheckpoint) and isinstance(failure, NotFoundError):
            failure = None  # there is no checkpoint: the core pulls all rows instead
        if response is not None and self.apply(request, response, result):
            failure = None  # the rejected edits are reported, so the request is not reported as a failure
        kind: Literal["push", "pull"] = "push" if isinstance(request, SyncPush) else "pull"
        if failure is not None:
            result.error, result.failed_request = failure, kind
        elif result.failed_request == kind:  # a success clears only an error of its own kind
            result.error = None

    def cancel_request(self) -> None:
        """Cancel the request in progress, if the transport can. Any thread may call it."""
        if isinstance(self._transport, CancellableTransport):
            self._transport.cancel_requests()

    def apply(self, request: Request | None, response: Response, result: CycleResult) -> list[Edit]:
        """Pass a response or a broadcast to the core, and add what it changed to a result.

        Args:
            request: the request; None for a broadcast.
            response: its response, or the broadcast.
            result: the result to update.

        Returns:
            The edits that the gateway rejected.

        Raises:
            DbError, TableError: the client's database cannot store the response.
        """
        changes = self._replica.receive(response)
        refused = [edit for edit in changes.edits.values() if edit is not None and edit.status == "refused"]
        result.had_contact = True
        result.received_page = result.received_page or isinstance(response, SyncResponse | Broadcast)
        if isinstance(response, SyncResponse) and response.has_more:
            rows = len({delta.key for delta in response.deltas})
            self._report(result, Progress(result.progress.rows + rows, result.progress.bytes))
        if isinstance(request, SyncPush) and isinstance(response, PushResult):
            result.pushed += len(request.deltas)
        else:
            result.pulled += changes.count
        result.tables |= changes.tables
        result.refused += refused
        if changes.known and not result.found_new_column:
            types = self._replica.types()
            result.found_new_column = any(  # rows written in bulk have no such column
                not row.state.cells.keys() <= types[table].keys()
                for (table, _), row in changes.known.items()
                if row is not None and table in types
            )
        is_last = isinstance(response, PushResult) or (isinstance(response, SyncResponse) and not response.has_more)
        if is_last and self._replica.read(_DRIFTED, (ClockDriftError.code,)):  # not after each of many pages
            offset = self.clock_offset or 0.0  # if it is unknown, this machine's clock is trusted
            self._replica.step(lambda core: core.retry_drifted(offset))
        return refused

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
        last, self._source_page = self._source_page, None
        if not page.has_more:
            return
        if request.source is None:
            if page.server_hlc <= request.since_hlc:
                raise UnreachableError(
                    f"the gateway has more after cursor {request.since_hlc} but continues at {page.server_hlc}, which "
                    "would repeat the same pull forever: check that the address is a gateway's"
                )
            return
        ids = tuple(delta.delta_id for delta in page.deltas)
        is_repeated = last is not None and (last.source, last.delta_ids) == (request.source, ids)
        arrived = last.arrived + 1 if last is not None and is_repeated else 1
        self._source_page = _SourcePage(request.source, ids, arrived)
        if not ids or arrived > _REPEATED_PAGES:
            sent = f"the same page {arrived} times" if ids else "an empty page"
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
            page = self.prefetcher.page(request)
            self.check_progress(request, page)
            return page
        self.prefetcher.stop()  # a page pulled before a push must not be applied after it
        if isinstance(request, SyncPush):
            return self._transport.push(request)
        if isinstance(request, FetchCheckpoint):
            if not isinstance(self._transport, CheckpointTransport):
                raise NotFoundError("this transport has no checkpoints: pull from cursor 0")
            from lakesync.client.sync.checkpoint_load import load_checkpoint  # imports protobuf, for first syncs only

            with self._transport.checkpoint(request.client_id) as checkpoint:
                loaded = load_checkpoint(self._replica, checkpoint, partial(self._report, result))
            result.pulled += loaded.rows
            result.tables |= loaded.tables
        return None

    def _report(self, result: CycleResult, progress: Progress) -> None:
        """Report how much the cycle has received so far."""
        result.progress = progress
        self._on_progress(progress)


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

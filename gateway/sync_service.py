"""Serves pushes and pulls for both transports, HTTP and WebSocket, and awaits the engine's worker threads.

HTTP routes and WebSocket connections call it. `serve_push` and `serve_pull` pass the engine the caller's claims (fields
of the token). They record the result for the request's log line, the metrics, and the tracker of clients, which knows
how far each client is. `result_of` awaits a future of the engine. It replaces `asyncio.wrap_future`, which wakes up the
event loop for each future, and cancels the work of a cancelled request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from gateway.dependencies import Caller, Services
from gateway.request_log import RequestRecord
from lakesync.engine.pushing import ReceivedPush
from lakesync.model.types import PushResult, SyncPage, SyncPull, SyncPush
from lakesync.model.validation import is_importer

T = TypeVar("T")


class _Completions:
    """Completed futures whose waiting tasks, in one event loop, do not know of it yet.

    The store's thread completes all pushes of a transaction one after another. Each wake-up of the event loop costs
    system calls and a change of threads, so the loop is woken up once for all futures that complete until it runs.
    """

    def __init__(self) -> None:
        self._completed: deque[tuple[Future[Any], asyncio.Future[Any]]] = deque()
        self._scheduled = False

    def add(self, loop: asyncio.AbstractEventLoop, done: Future[Any], waiter: asyncio.Future[Any]) -> None:
        """Copy a completed future's result to its waiter, in the event loop's thread. Any thread may call this."""
        self._completed.append((done, waiter))
        if not self._scheduled and not loop.is_closed():
            self._scheduled = True
            loop.call_soon_threadsafe(self._copy_results)

    def _copy_results(self) -> None:
        self._scheduled = False  # first, so that whatever is added from now on schedules another call
        while self._completed:
            _copy_result(*self._completed.popleft())


_completions: WeakKeyDictionary[asyncio.AbstractEventLoop, _Completions] = WeakKeyDictionary()
"""The completions of each event loop."""


async def result_of(future: Future[T], *, finish_if_cancelled: bool = True) -> T:
    """Wait for a future and return its result.

    `asyncio.wrap_future` would cancel the future when the waiting task is cancelled, even if its work is durable.

    Args:
        future: future of work in a thread.
        finish_if_cancelled: whether work that has not begun is still done if the waiting task is cancelled.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[T] = loop.create_future()
    completions = _completions.get(loop)
    if completions is None:
        completions = _completions[loop] = _Completions()
    future.add_done_callback(lambda done: completions.add(loop, done, waiter))
    try:
        return await waiter
    except asyncio.CancelledError:
        if not finish_if_cancelled:
            future.cancel()
        raise


def _copy_result(done: Future[T], waiter: asyncio.Future[T]) -> None:
    """Set a thread's result on the event loop's future."""
    if waiter.done():  # the waiting task was cancelled
        return
    if done.cancelled():
        waiter.cancel()
        return
    error = done.exception()
    if error is not None:
        waiter.set_exception(error)
    else:
        waiter.set_result(done.result())


CLIENT_HEADER = b"x-lakesync-client"
"""A client that sends this header understands the error RESYNC_REQUIRED, and then pulls from 0. Instead of the error,
any other client is sent every row again. It also understands ACTION_PENDING."""


async def serve_push(
    services: Services,
    record: RequestRecord,
    caller: Caller,
    decode: Callable[[], SyncPush],
    confirmed: Callable[[SyncPush], int | None],
) -> PushResult:
    """Commit a client's deltas.

    The push may be decoded in the store's thread, which is faster; see `SyncGateway.submit_received`.

    If the request times out before the commit has begun, the push is cancelled. Otherwise a client could repeat it, be
    told that the repeat is rejected, and the first one would still be committed.

    Args:
        services: the server's shared objects.
        record: the request's record; client and number of deltas are stored in it.
        caller: the authenticated caller.
        decode: returns the decoded push, or raises an error, with which the request fails.
        confirmed: returns a cursor up to which the sender of a push certainly has all changes; None if none is known.

    Raises:
        LakeSyncError: as `SyncGateway.submit_push`.
        Exception: what `decode` raises.
    """

    def receive() -> ReceivedPush:
        push = decode()
        record.client, record.deltas = push.client_id, len(push.deltas)
        return ReceivedPush(push, caller.claims(push.client_id), confirmed(push))

    result = await result_of(caller.gateway.submit_received(receive), finish_if_cancelled=False)
    services.metrics.pushed.inc(result.accepted)
    if record.client is not None and not is_importer(record.client):  # an import has no app that could be behind
        services.clients.record_push(caller.gateway.gateway_id, record.client)
    return result


async def serve_pull(
    services: Services,
    record: RequestRecord,
    caller: Caller,
    message: SyncPull,
    *,
    knows_resync: bool,
    live: bool = False,
) -> SyncPage:
    """Return a page of the changes that a client lacks.

    Args:
        services: the server's shared objects.
        record: the request's record; client and number of deltas are stored in it.
        caller: the authenticated caller.
        message: the pull.
        knows_resync: whether the client understands the error RESYNC_REQUIRED.
        live: whether the pull came over a WebSocket, over which the client also receives broadcasts.

    Raises:
        LakeSyncError: as `SyncGateway.submit_page`.
    """
    record.client = message.client_id
    claims = caller.claims(message.client_id)
    page = await result_of(caller.gateway.submit_page(message, claims, knows_resync=knows_resync, live=live))
    record.deltas = len(page.deltas)
    services.metrics.pulled.inc(len(page.deltas))
    services.clients.record_pull(caller.gateway.gateway_id, message, page, claims, knows_resync=knows_resync)
    return page

"""Serves pushes and pulls for both transports, HTTP and WebSocket, whose routes and connections call it.

A client pushes its changes (*deltas*) to a gateway (one app's stream of changes), and pulls what it lacks from the
gateway's *feed*, the rows in order of their latest change. `serve_push` and `serve_pull` pass the engine the caller's
claims (fields of the token). They record the result for the request's log line, the metrics, and the tracker of
clients, which knows how far each client is.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.dependencies import Caller, Services
from gateway.futures import result_of
from gateway.request_body import DecodedPush
from gateway.request_log import RequestRecord
from lakesync.engine.pushing import PushRequest
from lakesync.model.errors import AdapterError
from lakesync.model.types import PushResult, SyncPage, SyncPull, SyncPush
from lakesync.model.validation import is_importer

CLIENT_HEADER = b"x-lakesync-client"
"""The header, with any value, by which a client says that it knows two errors of LakeSync: RESYNC_REQUIRED, after which
it pulls from 0, and ACTION_PENDING, after which it sends an action again that is still being executed. Instead of
RESYNC_REQUIRED, any other client is sent every row again."""


async def serve_push(
    services: Services,
    record: RequestRecord,
    caller: Caller,
    decode: Callable[[], DecodedPush],
    known_cursor: Callable[[SyncPush], int | None],
) -> PushResult:
    """Commit a client's deltas.

    The push may be decoded in the store's thread, which is faster; see `SyncGateway.submit_push`.

    If the request times out before the commit has begun, the push is cancelled, because the client then repeats it. The
    repeat may be rejected, for example after a change of the rules. The first push must not be committed after that.

    Args:
        services: the server's shared objects.
        record: the request's record; client and number of deltas are stored in it.
        caller: the authenticated caller.
        decode: returns the decoded push, and an error that lists its malformed deltas, or None. If the whole request
            cannot be decoded, it raises an error, and the request fails.
        known_cursor: returns the cursor in the feed up to which the sender of a push certainly has all changes; None if
            none is known.

    Raises:
        LakeSyncError: as `SyncGateway.submit_push`.
        Exception: what `decode` raises.
    """

    def receive() -> PushRequest:
        push, fault = decode()
        record.set_client(push.client_id)
        record.deltas = len(push.deltas)
        return PushRequest(push, caller.claims(push.client_id), known_cursor(push), fault=fault)

    result = await result_of(caller.gateway.submit_push(receive), finish_if_cancelled=False)
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
        live: whether the pull came over a WebSocket, over which the client also gets *broadcasts*: pages that the
            server sends without a request.

    Raises:
        LakeSyncError: as `SyncGateway.submit_pull`. The message of an `AdapterError` names no server, user or file.
    """
    record.set_client(message.client_id)
    claims = caller.claims(message.client_id)
    try:
        page = await result_of(caller.gateway.submit_pull(message, claims, knows_resync=knows_resync, live=live))
    except AdapterError as error:
        raise AdapterError(
            f"the source {message.source!r} cannot be read now: pull again later; the request id names the reason in "
            "the gateway's log",
            details=str(error),
            retry_after=error.retry_after,
        ) from error
    record.deltas = len(page.deltas)
    services.metrics.pulled.inc(len(page.deltas))
    services.clients.record_pull(caller.gateway.gateway_id, message, page, claims, knows_resync=knows_resync)
    return page

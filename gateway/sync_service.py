"""Push and pull as both transports serve them: the HTTP routes and the WebSocket connections call it."""

from __future__ import annotations

from gateway.dependencies import Caller
from gateway.futures import result_of
from gateway.request_log import RequestRecord
from gateway.services import Services
from lakesync.model.types import PushResult, SyncPage, SyncPull, SyncPush
from lakesync.model.validation import is_importer

RESYNC_HEADER = b"x-lakesync-client"
"""A client that sends this header gets RESYNC_REQUIRED; any other client gets every row again instead."""


async def serve_push(
    services: Services, record: RequestRecord, caller: Caller, message: SyncPush, confirmed: int | None
) -> PushResult:
    """Commit a client's deltas.

    A push that has not begun when its request times out is cancelled. Otherwise it could be committed after the client
    had repeated it and been rejected.

    Args:
        services: of the server.
        record: of the request; gets the client and the number of deltas.
        caller: the authenticated caller.
        message: the push.
        confirmed: the cursor that the client has for certain when it gets the answer; None if that is not known.

    Raises:
        LakeSyncError: as `SyncGateway.submit_push`.
    """
    record.client, record.deltas = message.client_id, len(message.deltas)
    claims = caller.claims(message.client_id)
    pushing = caller.gateway.submit_push(message, claims, seen=confirmed)
    result = await result_of(pushing, finish_if_cancelled=False)
    services.metrics.pushed.inc(result.accepted)
    if not is_importer(message.client_id):  # an import has no app that could be behind
        services.clients.record_push(caller.gateway.gateway_id, message.client_id)
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
    """Return a page of what a client lacks.

    Args:
        services: of the server.
        record: of the request; gets the client and the number of deltas.
        caller: the authenticated caller.
        message: the pull.
        knows_resync: whether the client understands RESYNC_REQUIRED.
        live: whether the pull came over a WebSocket, which also receives broadcasts.

    Raises:
        LakeSyncError: as `SyncGateway.submit_page`.
    """
    record.client = message.client_id
    claims = caller.claims(message.client_id)
    page = await result_of(caller.gateway.submit_page(message, claims, resync_refused=knows_resync, live=live))
    record.deltas = len(page.deltas)
    services.metrics.pulled.inc(len(page.deltas))
    services.clients.record_pull(caller.gateway.gateway_id, message, page, claims, knows_resync=knows_resync)
    return page

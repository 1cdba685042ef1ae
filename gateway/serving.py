"""Push and pull as a server serves them, whatever carried them in."""

from __future__ import annotations

from contextlib import suppress

from gateway.admission import Caller
from gateway.exchange import Exchange
from gateway.services import Services
from gateway.waiting import outcome
from lakesync.model.client_ids import is_importer
from lakesync.model.errors import BackpressureError, LakeSyncError, RefusedError
from lakesync.model.schema import is_identifier
from lakesync.model.types import PushResult, SyncPage, SyncPull, SyncPush

KNOWS_RESYNC = "x-lakesync-client"
"""A client that sends this header is told RESYNC_REQUIRED; any other is sent everything anew instead."""


async def serve_push(
    services: Services, exchange: Exchange, caller: Caller, message: SyncPush, seen: int | None
) -> PushResult:
    """Take a client's deltas. A push that has not begun when its time is up is not done any more.

    Its repeat may be refused, for what is in force then; no earlier sending of it is to be kept after that.

    Args:
        services: of the server.
        exchange: notes who pushed how much.
        caller: who was let in.
        message: what is pushed.
        seen: the cursor that the client certainly has when it gets the answer; None where that is not known.

    Raises:
        LakeSyncError: as `SyncGateway.submit_push`.
    """
    exchange.client, exchange.deltas = message.client_id, len(message.deltas)
    claims = caller.claims(message.client_id)
    try:
        pushing = caller.gateway.submit_push(message, claims, seen=seen)
        result = await outcome(pushing, wanted_later=False)
    except (RefusedError, BackpressureError) as error:
        newest = await _newest(services, caller, message)
        services.refusals.note(caller.gateway.gateway_id, str(claims["sub"]), message.deltas, error, newest)
        raise
    services.metrics.pushed.inc(result.accepted)
    if not is_importer(message.client_id):  # it has no app that could be behind
        services.clients.pushed(caller.gateway.gateway_id, message.client_id)
    return result


async def _newest(services: Services, caller: Caller, message: SyncPush) -> int:
    """The newest arrival where a push would have gone; 0 where the store does not tell."""
    for delta in message.deltas[:1]:
        if is_identifier(delta.table):
            store = services.engine.home(delta.table)
            with suppress(LakeSyncError):
                return await outcome(store.read(caller.gateway.gateway_id, lambda view: view.arrival))
    return 0


async def serve_pull(
    services: Services,
    exchange: Exchange,
    caller: Caller,
    message: SyncPull,
    *,
    knows_resync: bool,
    live: bool = False,
) -> SyncPage:
    """Send what a client lacks.

    Args:
        services: of the server.
        exchange: notes who pulled how much.
        caller: who was let in.
        message: what is asked.
        knows_resync: whether the client understands RESYNC_REQUIRED.
        live: whether it came over a connection that is told of what is new.

    Raises:
        LakeSyncError: as `SyncGateway.submit_pull`.
    """
    exchange.client = message.client_id
    claims = caller.claims(message.client_id)
    page = await outcome(caller.gateway.submit_page(message, claims, resync_refused=knows_resync, live=live))
    exchange.deltas = len(page.deltas)
    services.metrics.pulled.inc(len(page.deltas))
    gateway = caller.gateway.gateway_id
    services.clients.pulled(gateway, message, page, claims, knows_resync=knows_resync)
    return page

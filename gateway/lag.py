"""Looks at clients that may have come to be behind: a bounded number for each answer that tells of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from starlette.concurrency import run_in_threadpool

from gateway.clients import Arrivals, Due
from gateway.services import Services
from gateway.waiting import outcome
from lakesync.exceptions import StagingUnavailableError
from lakesync.staging.records import Backlog

LOOKS = 200
"""Clients that are looked at for one answer, at most: those that were looked at longest ago."""
_AT_ONCE = 16
"""Of them in one reading of the store, so that others are served in between."""


async def look_at_clients(services: Services, gateway: str, backlog: Sequence[Backlog], most: int | None = None) -> int:
    """Find out how far clients of a gateway are behind that were not looked at since its newest commit.

    Args:
        services: of the server.
        gateway: its id.
        backlog: of the store, which has the newest arrivals.
        most: clients to look at; None: `LOOKS`.

    Returns:
        How many were looked at.
    """
    arrivals = _arrivals(gateway, backlog)
    shared = services.engine.store.shared
    due = services.clients.due(gateway, arrivals, services.hub.followed(gateway), shared=shared)
    due = due[: LOOKS if most is None else most]
    await _look(services, gateway, arrivals, due)
    return len(due)


async def look_at_client(services: Services, gateway: str, client_id: str) -> None:
    """Find out how far one client is behind."""
    arrivals = _arrivals(gateway, await run_in_threadpool(services.engine.store.backlog))
    shared = services.engine.store.shared
    due = services.clients.due(gateway, arrivals, services.hub.followed(gateway), client_id, shared=shared)
    await _look(services, gateway, arrivals, due)


async def look_at_gateways(services: Services) -> None:
    """As `look_at_clients`, over all gateways of which clients were seen."""
    backlog = await run_in_threadpool(services.engine.store.backlog)
    left = LOOKS
    for gateway in services.clients.gateways():
        if left > 0:
            left -= await look_at_clients(services, gateway, backlog, left)


async def _look(services: Services, gateway: str, arrivals: Arrivals, due: Sequence[Due]) -> None:
    with suppress(StagingUnavailableError):  # then the earlier answers stand
        for place in range(0, len(due), _AT_ONCE):
            some = due[place : place + _AT_ONCE]
            found = await outcome(services.gateways[gateway].submit_unsent([each.look for each in some]))
            followed = services.hub.followed(gateway)
            for each, unsent in zip(some, found, strict=True):
                services.clients.looked(gateway, arrivals, followed, each, unsent)


def _arrivals(gateway: str, backlog: Sequence[Backlog]) -> Arrivals:
    return tuple(sorted((shard.shard, shard.last_arrival) for shard in backlog if shard.gateway == gateway))

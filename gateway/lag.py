"""Looks at clients that may have come to be behind: a bounded number for each answer that tells of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from starlette.concurrency import run_in_threadpool

from gateway.clients import Arrivals, Due
from gateway.services import Services
from gateway.waiting import outcome
from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.records import Backlog

LOOKS = 200
"""Clients that are looked at for one answer, at most: those that were looked at longest ago."""
_AT_ONCE = 16
"""Of them in one reading of the store, so that others are served in between."""


async def look_at_clients(services: Services, gateway: str, backlog: Sequence[Backlog]) -> None:
    """Find out how far clients of a gateway are behind that were not looked at since its newest commit.

    Args:
        services: of the server.
        gateway: its id.
        backlog: of the gateway, which has the newest arrivals.
    """
    arrivals = _arrivals(backlog).get(gateway, ())
    await _look(services, gateway, arrivals, _due(services, gateway, arrivals, most=LOOKS))


async def look_at_client(services: Services, gateway: str, client_id: str) -> None:
    """Find out how far one client is behind."""
    arrivals = _arrivals(await run_in_threadpool(services.gateways[gateway].backlog)).get(gateway, ())
    await _look(services, gateway, arrivals, _due(services, gateway, arrivals, client_id))


async def look_at_gateways(services: Services) -> None:
    """As `look_at_clients`, over all gateways of which clients were seen."""
    arrivals = _arrivals(await run_in_threadpool(services.engine.store.backlog))
    left = LOOKS
    for gateway in services.clients.gateways():
        due = _due(services, gateway, arrivals.get(gateway, ()), most=left)
        if due:
            await _look(services, gateway, arrivals.get(gateway, ()), due)
            services.clients.had_its_turn(gateway)
            left -= len(due)
        if left == 0:
            return


def _due(
    services: Services, gateway: str, arrivals: Arrivals, client_id: str | None = None, most: int | None = None
) -> list[Due]:
    followed, shared = services.hub.followed(gateway), services.engine.store.shared
    return services.clients.due(gateway, arrivals, followed, client_id, most=most, shared=shared)


async def _look(services: Services, gateway: str, arrivals: Arrivals, due: Sequence[Due]) -> None:
    with suppress(StagingUnavailableError):  # then the earlier answers stand
        for place in range(0, len(due), _AT_ONCE):
            some = due[place : place + _AT_ONCE]
            found = await outcome(services.gateways[gateway].submit_unsent([each.look for each in some]))
            followed = services.hub.followed(gateway)
            for each, unsent in zip(some, found, strict=True):
                services.clients.looked(gateway, arrivals, followed, each, unsent)


def _arrivals(backlog: Sequence[Backlog]) -> dict[str, Arrivals]:
    """Of each gateway, by shard."""
    found: dict[str, Arrivals] = {}
    for shard in sorted(backlog, key=lambda each: each.shard):
        found[shard.gateway] = (*found.get(shard.gateway, ()), (shard.shard, shard.last_arrival))
    return found

"""Updates the lag of clients before routes report it.

A client's lag is the age of the oldest change that it may see and has not been sent. To find that change, the store
must be read from the client's position on: a check. So one request checks a bounded number of clients. It skips a
client whose last check is still valid: the check was complete, and since then nothing was committed to the gateway or
sent to the client. The routes of metrics, of the console and of `lakesync explain` call this module. The client tracker
(`services.clients`) has the results. A gateway is one app's stream of changes; a shard is a staging store for some of
its tables; the log has the pushes, until they are flushed to the lake.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from starlette.concurrency import run_in_threadpool

from gateway.client_tracker import LagCheck
from gateway.dependencies import Services
from gateway.futures import result_of
from gateway.tracked_client import Arrivals
from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.records import Backlog

MAX_CHECKS = 200
"""Number of clients that are checked for one request, at most; those that were checked longest ago come first."""
_BATCH = 16
"""Number of clients that one read of the store checks. Other requests are served between two batches."""


async def refresh_gateway(services: Services, gateway: str, backlog: Sequence[Backlog]) -> None:
    """Update the lag of a gateway's clients that were not checked since its newest commit.

    Args:
        services: the server's shared objects.
        gateway: the gateway's id.
        backlog: sizes of the gateway's unflushed log in each shard, each with the newest arrival (the gateway's own
            timestamp of a commit).
    """
    arrivals = _arrivals(backlog).get(gateway, ())
    await _check(services, gateway, arrivals, _checks_due(services, gateway, arrivals, limit=MAX_CHECKS))


async def refresh_client(services: Services, gateway: str, client_id: str) -> None:
    """Update the lag of one client.

    Args:
        services: the server's shared objects.
        gateway: the gateway's id.
        client_id: the client's id.
    """
    arrivals = _arrivals(await run_in_threadpool(services.engine.gateway(gateway).backlog)).get(gateway, ())
    await _check(services, gateway, arrivals, _checks_due(services, gateway, arrivals, client_id))


async def refresh_all_gateways(services: Services) -> None:
    """Update the lag of at most `MAX_CHECKS` clients, of the gateways that were checked longest ago.

    Args:
        services: the server's shared objects.
    """
    arrivals = _arrivals(await run_in_threadpool(services.engine.store.backlog))
    remaining = MAX_CHECKS
    for gateway in services.clients.gateways():
        checks = _checks_due(services, gateway, arrivals.get(gateway, ()), limit=remaining)
        if checks:
            await _check(services, gateway, arrivals.get(gateway, ()), checks)
            services.clients.mark_checked(gateway)
            remaining -= len(checks)
        if remaining == 0:
            return


def _checks_due(
    services: Services, gateway: str, arrivals: Arrivals, client_id: str | None = None, limit: int | None = None
) -> list[LagCheck]:
    """Return the checks of a gateway's clients, or of one client, that were not checked since the newest arrivals."""
    connected, shared = services.connected_clients(gateway), services.engine.store.is_shared
    return services.clients.checks_due(gateway, arrivals, connected, client_id, limit=limit, shared=shared)


async def _check(services: Services, gateway: str, arrivals: Arrivals, checks: Sequence[LagCheck]) -> None:
    """Run checks, and record their results in the client tracker."""
    with suppress(StagingUnavailableError):  # then the routes report the results of earlier checks
        for start in range(0, len(checks), _BATCH):
            batch = checks[start : start + _BATCH]
            results = await result_of(services.engine.gateway(gateway).submit_unsent([check.query for check in batch]))
            connected = services.connected_clients(gateway)
            for check, unsent in zip(batch, results, strict=True):
                services.clients.record_check(gateway, arrivals, connected, check, unsent)


def _arrivals(backlog: Sequence[Backlog]) -> dict[str, Arrivals]:
    """Return gateway → its newest arrival in each shard."""
    found: dict[str, Arrivals] = {}
    for shard in sorted(backlog, key=lambda each: each.shard):
        found[shard.gateway] = (*found.get(shard.gateway, ()), (shard.shard, shard.last_arrival))
    return found

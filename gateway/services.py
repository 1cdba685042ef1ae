"""The objects that all routes of one server share, and the FastAPI dependency that returns them.

A route declares a parameter of type `ServicesDependency` and FastAPI passes it the server's `Services`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, FastAPI
from starlette.requests import HTTPConnection

from gateway.admission import RateLimiter, RequestGate
from gateway.client_tracker import ClientTracker, ConnectedClient
from gateway.metrics import Metrics
from gateway.settings import GatewaySettings
from lakesync.auth import TokenVerifier
from lakesync.engine import Engine, SyncGateway


@dataclass(frozen=True)
class Services:
    """The shared objects of one server. `create_app` creates them and stores them in `app.state`."""

    settings: GatewaySettings
    engine: Engine
    verifier: TokenVerifier | None
    """Verifies tokens; None if the server has neither a secret nor an issuer and so listens on loopback only."""
    rate: RateLimiter
    """Limits HTTP requests."""
    metrics: Metrics
    gate: RequestGate
    """Knows whether requests are accepted."""
    connected_clients: Callable[[str], Mapping[str, ConnectedClient]]
    """Returns, for a gateway id, client id → connection of the clients with a WebSocket to this process."""
    live_rate: RateLimiter
    """Limits messages over WebSockets."""
    clients: ClientTracker
    """Knows when each client called last and how old its oldest unsent change is."""
    gateways: dict[str, SyncGateway] = field(default_factory=dict)
    """Gateway id → gateway, for gateways that were requested before, so that finding one needs no worker thread."""

    @staticmethod
    def of_app(app: FastAPI) -> Services:
        """Return the services of an application."""
        services: Services = app.state.services
        return services


async def get_services(connection: HTTPConnection) -> Services:
    """Dependency: returns the services of this server."""
    return Services.of_app(connection.app)


ServicesDependency = Annotated[Services, Depends(get_services)]

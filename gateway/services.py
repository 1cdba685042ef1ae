"""What the routes of one server share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection

from gateway.clients import SeenClients
from gateway.drain import Drain
from gateway.limits import RateLimit
from gateway.metrics import Metrics
from gateway.refusals import Refusals
from gateway.settings import GatewaySettings
from lakesync.auth import TokenVerifier
from lakesync.engine import Engine, SyncGateway

if TYPE_CHECKING:
    from gateway.live.hub import Hub


@dataclass(frozen=True)
class Services:
    """Made once in `create_app`, found by every route through its connection."""

    settings: GatewaySettings
    engine: Engine
    verifier: TokenVerifier | None
    """None where the server has neither secret nor issuer, on loopback."""
    rate: RateLimit
    metrics: Metrics
    drain: Drain
    hub: Hub
    live_rate: RateLimit
    """Of messages over WebSockets."""
    described: dict[str, Any]
    """The OpenAPI document."""
    clients: SeenClients
    refusals: Refusals = field(default_factory=Refusals)
    gateways: dict[str, SyncGateway] = field(default_factory=dict)
    """The gateways that were asked for, so that finding one again costs no thread."""

    @staticmethod
    def of(request: HTTPConnection) -> Services:
        """The services of the server that a request came to."""
        services: Services = request.app.state.services
        return services

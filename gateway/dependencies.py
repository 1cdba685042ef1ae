"""FastAPI dependencies: the objects that all routes of one server share, and the authentication of a caller.

A route declares a parameter of type `ServicesDependency`, and FastAPI passes it the server's `Services`. The sync and
WebSocket routes call the functions that authenticate and authorise a caller directly.

The checks always have the same order: the gateway id's form, the token, whether the token is for this gateway, the
role, the rate limit, the query parameters, and whether the gateway exists. So a caller without a valid token learns
nothing about gateways.

A gateway is one app's stream of changes; one server serves many. *Claims* are the fields of a token. Without a secret
that verifies tokens, every caller is accepted, and `gateway.bind_policy` restricts the server to this machine.
"""

from __future__ import annotations

import hmac
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from fastapi import Depends, FastAPI, Path, Request, Security
from fastapi.openapi.models import HTTPBearer as HTTPBearerModel
from fastapi.security.base import SecurityBase
from pydantic import WithJsonSchema
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from gateway.admission import RateLimiter, RequestGate
from gateway.bind_policy import check_page, is_loopback
from gateway.client_tracker import ClientTracker
from gateway.metrics import Metrics
from gateway.openapi_schemas import GATEWAY
from gateway.request_log import RequestRecord
from gateway.settings import GatewaySettings
from gateway.tracked_client import ConnectedClient
from lakesync.auth import TokenVerifier
from lakesync.auth.keys import Key
from lakesync.engine import Engine, SyncGateway
from lakesync.model.errors import AuthError, ForbiddenError, ValidationError
from lakesync.model.types import Claims
from lakesync.model.validation import check_gateway_id, user_of


@dataclass(frozen=True)
class Services:
    """The shared objects of one server. `create_app` creates them and stores them in `app.state`."""

    settings: GatewaySettings
    engine: Engine
    verifier: TokenVerifier | None
    """Verifies tokens; None if the server has neither a secret nor an issuer and so listens on loopback only."""
    http_rate: RateLimiter
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

    @staticmethod
    def of_app(app: FastAPI) -> Services:
        """Return the services of an application."""
        services: Services = app.state.services
        return services


async def get_services(connection: HTTPConnection) -> Services:
    """Dependency: returns the services of this server."""
    return Services.of_app(connection.app)


ServicesDependency = Annotated[Services, Depends(get_services)]

_NO_TOKEN = {
    "http": "a token is needed; send it in the header 'Authorization: Bearer TOKEN' (a query would be logged)",
    "websocket": "a token is needed; send it in the header 'Authorization: Bearer TOKEN', or as ?token=TOKEN",
}
"""Type of an ASGI scope → the error message for a request without a token."""

_MAX_LISTED = 3
"""Number of a token's gateways that an error message lists, at most."""


class BearerScheme(SecurityBase):
    """A bearer token in OpenAPI. As a dependency it returns the raw `Authorization` headers, which the checks read."""

    def __init__(self, scheme_name: str, *, bearer_format: str | None = None, description: str | None = None) -> None:
        """Create the security scheme.

        Args:
            scheme_name: name of the scheme in the OpenAPI document.
            bearer_format: `JWT`; None for an opaque token.
            description: description of the token; None for none.
        """
        self.model = HTTPBearerModel(bearerFormat=bearer_format, description=description)
        self.scheme_name = scheme_name

    async def __call__(self, request: Request) -> list[str]:
        """Return all `Authorization` headers of a request."""
        return request.headers.getlist("authorization")


GatewayId = Annotated[str, WithJsonSchema(GATEWAY), Path(description="Id of the gateway")]
TokenHeaders = Annotated[list[str], Security(BearerScheme("token", bearer_format="JWT"))]
"""All `Authorization` headers of a request, unchecked, as in the two below. The three differ only in the OpenAPI
document, which names the token that a route needs."""
AdminTokenHeaders = Annotated[
    list[str], Security(BearerScheme("admin", bearer_format="JWT", description="role `admin`"))
]
ServiceTokenHeaders = Annotated[list[str], Security(BearerScheme("service", description="LAKESYNC_SERVICE_TOKEN"))]


class Caller(NamedTuple):
    """An authenticated caller and the gateway that it may use."""

    gateway: SyncGateway
    token_claims: Claims | None
    """The verified token's claims (fields). `sub` is always the client id, even if the issuer has it in another claim.
    None if the server runs without a secret: then each message names its client."""
    expires: float
    """When the token expires, in seconds since 1970; infinite if the server runs without a secret."""
    key: Key | None = None
    """The key that signed the token; None if the server runs without a secret."""

    def claims(self, client_id: str) -> Claims:
        """Return the claims that sync rules read for a message: those of the token, else only `sub`, the client's user.

        Args:
            client_id: the client id in the message.
        """
        return {"sub": user_of(client_id)} if self.token_claims is None else self.token_claims

    def client_id(self, named: str | None) -> str:
        """Return the client id of a request: the named one, else the token's `sub`, else `anonymous`.

        Args:
            named: the client id in the request; None if it has none.
        """
        if named is not None:
            return named
        return "anonymous" if self.token_claims is None else str(self.token_claims["sub"])


async def client_caller(
    request: Request, gateway: GatewayId, services: ServicesDependency, token_headers: TokenHeaders
) -> Caller:
    """Dependency: authenticates a caller, who needs a token with any role."""
    return await authenticate(request, services, gateway, token_headers)


async def admin_caller(
    request: Request, gateway: GatewayId, services: ServicesDependency, token_headers: AdminTokenHeaders
) -> Caller:
    """Dependency: authenticates a caller, who needs a token with the role `admin`."""
    return await authenticate(request, services, gateway, token_headers, admin=True)


ClientCaller = Annotated[Caller, Depends(client_caller)]
"""Parameter of a route that any token may call."""
AdminCaller = Annotated[Caller, Depends(admin_caller)]
"""Parameter of a route that needs a token with the role `admin`."""


async def authenticate(
    request: HTTPConnection,
    services: Services,
    gateway_id: str,
    token_headers: Sequence[str],
    *,
    admin: bool = False,
    query_token: str | None = None,
) -> Caller:
    """Authenticate a caller, and return it with the requested gateway.

    Args:
        request: an HTTP request, or the one that opens a WebSocket.
        services: the server's shared objects.
        gateway_id: the gateway id in the path.
        token_headers: all `Authorization` headers of the request.
        admin: True if the token must have the role `admin`.
        query_token: a token to use if there is no `Authorization` header; None for none.

    Raises:
        ValidationError: the gateway id is invalid, or a query parameter is repeated.
        AuthError: the token is missing or invalid.
        ForbiddenError: the token is for another gateway, or lacks the role `admin`; or the server has no secret, and a
            page of another site sends the request.
        RateLimitedError: the client is above its rate limit.
        NotFoundError: the gateway is not declared, and tokens may not create gateways.
    """
    record = RequestRecord.of(request)
    if fault := check_gateway_id(gateway_id):
        raise ValidationError(fault)
    record.gateway = gateway_id
    claims, expires, key = None, math.inf, None
    if services.verifier is None:
        check_page(request.headers, services.settings.allowed_origins)
    else:
        token = bearer_token(token_headers) or query_token
        if not token:
            raise AuthError(_NO_TOKEN[request.scope["type"]])
        identity = await services.verifier.identify(token)
        record.client = identity.client_id
        if gateway_id not in identity.gateways:
            raise ForbiddenError(
                f"the token is for {_named(identity.gateways)}, not for {gateway_id!r}: use one that names it"
            )
        if admin and identity.role != "admin":
            raise ForbiddenError(f"this needs a token with role 'admin'; this one has {identity.role!r}")
        services.http_rate.check(gateway_id, identity.client_id)
        claims, expires, key = identity.claims, identity.expires, identity.key
    _check_repeated_parameters(request)
    gateway = services.engine.known_gateway(gateway_id)  # finding it needs no worker thread
    if gateway is None:
        gateway = await run_in_threadpool(services.engine.gateway, gateway_id)
    return Caller(gateway, claims, expires, key)


async def local_service(request: Request, services: ServicesDependency, token_headers: ServiceTokenHeaders) -> None:
    """Dependency: rejects callers other than processes on the same machine with the service token.

    The pipeline calls the routes with this dependency (`gateway.routes.internal`).

    Raises:
        ForbiddenError: the request is from another machine, or the server has no service token.
        AuthError: the token is missing or wrong.
    """
    expected = services.settings.service_token
    if request.client is None or not is_loopback(request.client.host):
        raise ForbiddenError("this route serves only processes on the same machine")
    if expected is None:
        raise ForbiddenError("this route is closed: the server was started without LAKESYNC_SERVICE_TOKEN")
    if not has_token(token_headers, expected):
        raise AuthError("the service token is missing or wrong; both sides read LAKESYNC_SERVICE_TOKEN")


def bearer_token(headers: Sequence[str]) -> str | None:
    """Return the token in the `Authorization` header; None if there is no such header.

    Args:
        headers: all `Authorization` headers of a request.

    Raises:
        AuthError: the header does not have a bearer token, or there are several headers. These are rejected because a
            proxy may have checked another one than this server would.
    """
    if len(headers) > 1:
        raise AuthError("the request has several Authorization headers; send one")
    if not headers:
        return None
    scheme, _, token = headers[0].partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise AuthError("the Authorization header must read 'Bearer TOKEN'")
    return token.strip()


def has_token(headers: Sequence[str], expected: str) -> bool:
    """Return whether a request has an expected token. The comparison takes constant time, so that it reveals nothing.

    Args:
        headers: all `Authorization` headers of a request.
        expected: the expected token.

    Raises:
        AuthError: as `bearer_token`.
    """
    token = bearer_token(headers)
    return token is not None and hmac.compare_digest(token.encode(), expected.encode())


def _named(gateways: Sequence[str]) -> str:
    """Return a token's gateways as text, for an error message."""
    if not gateways:
        return "no gateway"
    more = f" and {len(gateways) - _MAX_LISTED} more" if len(gateways) > _MAX_LISTED else ""
    return f"gateway{'s' if gateways[1:] else ''} {', '.join(map(repr, gateways[:_MAX_LISTED]))}{more}"


def _check_repeated_parameters(request: HTTPConnection) -> None:
    """Reject a request that has a query parameter twice, because it is unclear which value counts.

    Raises:
        ValidationError: a parameter is repeated.
    """
    if not request.scope["query_string"]:
        return
    for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
        if count > 1:
            raise ValidationError(f"the query parameter {name[:50]!r} is given more than once; give it one value")

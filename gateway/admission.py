"""Who may enter a gateway: token, gateway and role, then the client's share of requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from gateway.auth import authorization, bearer
from gateway.exchange import Exchange
from gateway.exposure import check_page
from gateway.services import Services
from lakesync.auth.keys import Key
from lakesync.engine import SyncGateway
from lakesync.model.client_ids import user_of
from lakesync.model.errors import AuthError, ForbiddenError, ValidationError
from lakesync.model.types import Claims
from lakesync.model.validation import check_gateway_id

_NO_TOKEN = {
    "http": "a token is needed; send it in the header 'Authorization: Bearer TOKEN' (a query would be logged)",
    "websocket": "a token is needed; send it in the header 'Authorization: Bearer TOKEN', or as ?token=TOKEN",
}

_NAMED = 3
"""Gateways of a token that a refusal names."""


class Caller(NamedTuple):
    """An admitted caller and the gateway that it may use."""

    gateway: SyncGateway
    token_claims: Claims | None
    """None where the server runs without a secret: then a caller is whom its message says."""
    expires: float
    """Seconds since the epoch; infinite where the server runs without a secret."""
    key: Key | None = None
    """The one that signed the token."""

    def claims(self, client_id: str) -> Claims:
        """The claims under which a message that names `client_id` is served."""
        return {"sub": user_of(client_id)} if self.token_claims is None else self.token_claims

    def client_id(self, named: str | None) -> str:
        """Who calls: whom the request names, else whom the token does."""
        if named is not None:
            return named
        return "anonymous" if self.token_claims is None else str(self.token_claims["sub"])


async def admit(request: HTTPConnection, *, admin: bool = False, token: str | None = None) -> Caller:
    """Let a caller in.

    Args:
        request: an HTTP request, or the one by which a WebSocket begins.
        admin: whether a token of an admin is needed.
        token: stands in for an `Authorization` header that is not there.

    Raises:
        ValidationError: the gateway's id is not of the documented form, or a query parameter is given twice.
        AuthError: there is no good token.
        ForbiddenError: the token is for another gateway, or the route needs an admin; where no token is needed, a page
            of another site asks.
        RateLimitedError: the client is above its share.
        NotFoundError: the gateway is not declared and may not be made.
    """
    services = Services.of(request)
    exchange = Exchange.of(request)
    gateway_id = request.path_params["gateway"]
    if fault := check_gateway_id(gateway_id):
        raise ValidationError(fault)
    exchange.gateway = gateway_id
    claims, expires, key = None, math.inf, None
    if services.verifier is None:
        check_page(request.headers, services.settings.allowed_origins)
    else:
        token = bearer(authorization(request.headers)) or token
        if not token:
            raise AuthError(_NO_TOKEN[request.scope["type"]])
        identity = await services.verifier.identify(token)
        exchange.client = identity.client_id
        if gateway_id not in identity.gateways:
            raise ForbiddenError(f"the token is for {_named(identity.gateways)}, not for {gateway_id!r}")
        if admin and identity.role != "admin":
            raise ForbiddenError(f"this needs a token with role 'admin'; this one has {identity.role!r}")
        services.rate.check(gateway_id, identity.client_id)
        claims, expires, key = identity.claims, identity.expires, identity.key
    _once_each(request)
    gateway = services.gateways.get(gateway_id)
    if gateway is None:
        gateway = await run_in_threadpool(services.engine.gateway, gateway_id)
        services.gateways[gateway_id] = gateway
    return Caller(gateway, claims, expires, key)


def _named(gateways: Sequence[str]) -> str:
    if not gateways:
        return "no gateway"
    more = f" and {len(gateways) - _NAMED} more" if len(gateways) > _NAMED else ""
    return f"gateway{'s' if gateways[1:] else ''} {', '.join(map(repr, gateways[:_NAMED]))}{more}"


def _once_each(request: HTTPConnection) -> None:
    """Raises: ValidationError: a query parameter is given twice, so nobody knows which of its values is meant."""
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if given.count(name) > 1:
            raise ValidationError(f"the query parameter {name[:50]!r} is given more than once; give it one value")

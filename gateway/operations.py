"""What a route is: its path, its endpoint, and what the OpenAPI document says of it, in one place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.exchange import Exchange
from lakesync.model.errors import LakeSyncError

Endpoint = Callable[[Request], Awaitable[Response]]
Access = Literal["open", "client", "admin", "service"]
PREFIXES = ("", "/v1")

PROTOBUF = "application/x-protobuf"
JSON = "application/json"


@dataclass(frozen=True)
class Parameter:
    """A path, query or header parameter; of the path only where it is no gateway."""

    name: str
    description: str
    schema: dict[str, Any]
    place: Literal["path", "query", "header"] = "query"
    required: bool = False
    example: Any = None
    as_json: bool = False
    """The text is JSON; then `schema` describes the value."""


@dataclass(frozen=True)
class Operation:
    """One method on one path."""

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    access: Access = "client"
    parameters: tuple[Parameter, ...] = ()
    body: Any = None
    """Type of the JSON body; None where there is none."""
    answer: Any = None
    """Type of the JSON answer."""
    status: int = 200
    media: tuple[str, ...] = (JSON,)
    """Media types of the body and of the answer to it."""
    answer_media: tuple[str, ...] = ()
    """Media types of the answer where they differ from the body's."""
    answer_headers: tuple[Parameter, ...] = ()
    errors: tuple[type[LakeSyncError], ...] = ()
    """What may be raised besides what the access implies."""

    def routes(self) -> list[Route]:
        """The Starlette routes, under every prefix."""
        endpoint, path = self.endpoint, self.path

        async def noted(request: Request) -> Response:
            Exchange.of(request).route = path
            return await endpoint(request)

        return [
            Route(prefix + path, noted, methods=[self.method], name=f"{self.method} {prefix}{path}")
            for prefix in PREFIXES
        ]

"""The OpenAPI document."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.operations import JSON, Operation
from gateway.services import Services


async def openapi(request: Request) -> Response:
    """What the routes take and answer, as OpenAPI 3.1."""
    return Response(msgspec.json.encode(Services.of(request).described), media_type=JSON)


OPERATIONS = (Operation("GET", "/openapi.json", openapi, "This document", access="open", answer=dict),)

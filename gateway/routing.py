"""The routes of a gateway's clients, found at once where the router would try one after another."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.exchange import Exchange
from gateway.operations import Operation

_OF_A_GATEWAY = re.compile(r"(?:/v1)?/sync/([^/]+)/([a-z]+)")


class SyncRoutes:
    """Serves `/sync/{gateway}/NAME`; any other request goes on to the router, and one with another method too."""

    def __init__(
        self, app: ASGIApp, operations: Iterable[Operation], packed: Callable[[ASGIApp], ASGIApp], packed_from: int
    ) -> None:
        """Args:
        app: the router, and what is between.
        operations: of the server.
        packed: what compresses an answer.
        packed_from: bytes of an answer that is worth it.
        """
        self._app = app
        self._packed, self._packed_from = packed, packed_from
        self._operations = {
            (operation.method, match[2]): operation
            for operation in operations
            if (match := _OF_A_GATEWAY.fullmatch(operation.path)) is not None
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        match = _OF_A_GATEWAY.fullmatch(scope["path"]) if scope["type"] == "http" else None
        operation = self._operations.get((scope["method"], match[2])) if match is not None else None
        if match is None or operation is None:
            await self._app(scope, receive, send)
            return
        Exchange.within(scope).route = operation.path
        scope["path_params"] = {"gateway": match[1]}
        answer = await operation.endpoint(Request(scope, receive, send))
        body = getattr(answer, "body", None)  # a streamed one has none
        worth_it = body is None or len(body) >= self._packed_from
        await (self._packed(answer) if worth_it else answer)(scope, receive, send)

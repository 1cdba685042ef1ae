"""Dagster's webserver behind a guard against cross-site requests.

Dagster's own webserver executes GraphQL mutations that are sent by GET or as text/plain, from pages of any origin. So
any page that the operator's browser opens could launch or delete runs. `lakesync up` starts this one instead, as
`python -m lakesync_dagster.webserver`.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import Any

import dagster as dg
import uvicorn
from dagster_webserver.webserver import DagsterWebserver
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from resources.compat_dagster import WorkspaceFileTarget, WorkspaceProcessContext

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_GRAPHQL = "/graphql"
_POLICY_VIOLATION = 1008
"""The close code of a WebSocket that is rejected."""
_STATEMENT_TIMEOUT_MS, _POOL_RECYCLE_SECONDS, _POOL_OVERFLOW = 15_000, 3600, 20
"""Settings of the connections to Dagster's storage, with the values of the command `dagster-webserver`."""


class CrossSiteGuard:
    """ASGI middleware that rejects requests which a page of another origin could make the browser send."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], allowed: Collection[str] = ()) -> None:
        """Wrap an application.

        Args:
            app: the application.
            hosts: accepted values of the Host header.
            allowed: further accepted values, of a proxy in front of the server, which may use TLS.
        """
        self._app = app
        self._hosts = frozenset({*hosts, *allowed})
        self._origins = frozenset(
            {*(f"http://{host}" for host in self._hosts), *(f"https://{host}" for host in allowed)}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or reject it."""
        fault = self._fault(scope) if scope["type"] in ("http", "websocket") else None
        if fault is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await PlainTextResponse(fault[1], status_code=fault[0])(scope, receive, send)
        else:
            await WebSocketClose(_POLICY_VIOLATION, fault[1])(scope, receive, send)

    def _fault(self, scope: Scope) -> tuple[int, str] | None:
        """Return the HTTP status and the reason of a rejection; None if the request is accepted."""
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return 421, "the Host header does not name this server"
        if any(origin.lower() not in self._origins for origin in origins):
            return 403, "the request comes from a page of another origin"
        if scope["type"] == "websocket":
            return None
        if scope["method"] in _SAFE_METHODS:
            # for text/html, Dagster returns its query editor without executing the query in the URL
            if scope["path"].rstrip("/") == _GRAPHQL and "text/html" not in headers.get("accept", ""):
                return 405, "GraphQL is served by POST only"
            return None
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if len(headers.getlist("content-type")) != 1 or media_type != "application/json":
            return 415, "the Content-Type must be application/json"
        return None


class GuardedWebserver(DagsterWebserver[WorkspaceProcessContext, Any]):
    """Dagster's webserver with the guard before all of its routes."""

    def __init__(self, context: WorkspaceProcessContext, hosts: Collection[str], allowed: Collection[str] = ()) -> None:
        """Create the webserver.

        Args:
            context: Dagster's workspace.
            hosts: accepted values of the Host header.
            allowed: further accepted values, of a proxy in front of the server.
        """
        self._hosts, self._allowed = hosts, allowed
        super().__init__(context)

    def build_middleware(self) -> list[Middleware]:
        """Return the guard, then Dagster's own middleware."""
        return [Middleware(CrossSiteGuard, hosts=self._hosts, allowed=self._allowed), *super().build_middleware()]


def own_hosts(host: str, port: int) -> frozenset[str]:
    """Return the values of the Host header in requests to a server on this machine.

    Args:
        host: the address on which the server listens.
        port: the server's port.
    """
    names = {f"[{host}]" if ":" in host else host.lower(), "localhost", "127.0.0.1", "[::1]"}
    return frozenset({f"{name}:{port}" for name in names} | (names if port == 80 else set()))


def main() -> None:
    """Serve the workspace of a file until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workspace", type=Path, required=True, help="workspace.yaml")
    parser.add_argument("--allowed-host", action="append", default=[], help="a further Host header; may be repeated")
    given = parser.parse_args()
    target = WorkspaceFileTarget(paths=[str(given.workspace)])
    with (
        dg.DagsterInstance.get() as instance,
        WorkspaceProcessContext(instance, target, version=dg.__version__) as context,
    ):
        instance.optimize_for_webserver(_STATEMENT_TIMEOUT_MS, _POOL_RECYCLE_SECONDS, _POOL_OVERFLOW)
        hosts, allowed = own_hosts(given.host, given.port), [name.lower() for name in given.allowed_host]
        app = GuardedWebserver(context, hosts, allowed).create_asgi_app()
        uvicorn.run(app, host=given.host, port=given.port, log_level="warning")


if __name__ == "__main__":
    main()

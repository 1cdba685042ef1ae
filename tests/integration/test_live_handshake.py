"""A WebSocket whose client disconnects during the handshake."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.websockets import WebSocketDisconnect
from structlog.testing import capture_logs
from uvicorn.protocols.utils import ClientDisconnected

from gateway.app import create_app
from gateway.compat_uvicorn import WIRE_EXTENSION
from gateway.settings import GatewaySettings
from lakesync.engine import Engine
from lakesync.staging import open_store
from tests.integration.gateway_support import SECRET, sign, wall_ms


def test_a_handshake_that_the_client_leaves_is_logged_like_a_request():
    engine = Engine(open_store("memory://", wall_ms), wall_ms, auto_create=True)
    engine.open()
    application = create_app(GatewaySettings(secrets=(SECRET,)), engine)
    scope = {
        "type": "websocket",
        "asgi": {"version": "3.0"},
        "path": "/sync/g/ws",
        "query_string": b"token=" + sign(gw="g").encode(),
        "headers": [],
        "extensions": {WIRE_EXTENSION: None},
    }

    async def receive():
        return {"type": "websocket.connect"}

    async def send(_message):
        raise ClientDisconnected  # as uvicorn does

    try:
        with capture_logs() as logs, suppress(ClientDisconnected, WebSocketDisconnect):
            asyncio.run(application(scope, receive, send))
    finally:
        engine.close()
    assert [(line["route"], line["status"]) for line in logs if line["event"] == "request"] == [
        ("/sync/{gateway}/ws", 0)
    ]

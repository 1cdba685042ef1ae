"""The log of WebSocket handshakes that end without a connection."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from starlette.websockets import WebSocketDisconnect
from structlog.testing import capture_logs
from uvicorn.protocols.utils import ClientDisconnected

from gateway.compat_uvicorn import WIRE_EXTENSION
from gateway.server import create_app
from gateway.settings import GatewaySettings
from lakesync.engine import Engine
from lakesync.staging import open_store
from tests.integration.gateway_support import SECRET, sign, wall_ms


@pytest.fixture
def engine():
    engine = Engine(open_store("memory://", wall_ms), wall_ms, auto_create=True)
    engine.open()
    yield engine
    engine.close()


def shake_hands(engine, send):
    """Return the log lines of a handshake; `send` gets the application's messages."""
    application = create_app(GatewaySettings(secrets=(SECRET,)), engine)
    scope = {
        "type": "websocket",
        "asgi": {"version": "3.0"},
        "path": "/sync/g/ws",
        "query_string": b"token=" + sign(gw="g").encode(),
        "headers": [],
        "extensions": {WIRE_EXTENSION: None, "websocket.http.response": {}},
    }

    async def receive():
        return {"type": "websocket.connect"}

    with capture_logs() as logs, suppress(ClientDisconnected, WebSocketDisconnect):
        asyncio.run(application(scope, receive, send))
    return logs


def test_a_handshake_that_the_client_leaves_is_logged_like_a_request(engine):
    async def send(_message):
        raise ClientDisconnected  # as uvicorn does

    (line,) = [line for line in shake_hands(engine, send) if line["event"] == "request"]
    assert (line["route"], line["status"]) == ("/sync/{gateway}/ws", 0)


def test_an_unexpected_error_in_a_handshake_is_logged_with_its_traceback(engine, monkeypatch):
    sent, fault = [], RuntimeError("an unexpected error")

    async def send(message):
        sent.append(message)

    async def fail(*_args, **_options):
        raise fault

    monkeypatch.setattr("gateway.live.hub.authenticate", fail)
    logs = shake_hands(engine, send)
    assert sent[0]["status"] == 500
    assert b"an unexpected error" not in b"".join(message.get("body", b"") for message in sent)
    assert [line["exc_info"] for line in logs if line["event"] == "request failed"] == [fault]
    assert [(line["status"], line["code"]) for line in logs if line["event"] == "request"] == [(500, "INTERNAL_ERROR")]

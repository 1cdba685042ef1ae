"""Many WebSocket clients in one event loop."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from lakesync.model.types import SyncPull, SyncPush, SyncResponse
from lakesync.wire import protobuf
from lakesync.wire.frames import FrameTag, encode_frame
from tests.integration.gateway_support import DEADLINE, Client
from tests.integration.live.live_support import decoded

T = TypeVar("T")

FILES = 8192


def crowded(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine with enough file descriptors for many connections, within the deadline."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))
    try:
        return asyncio.run(asyncio.wait_for(work, DEADLINE * 2))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def dial(client: Client, **options: Any) -> ClientConnection:
    """Open a connection."""
    url = f"ws{client.url.removeprefix('http')}/sync/{client.gateway}/ws"
    headers = {"Authorization": f"Bearer {client.token}"}
    return await connect(
        url, additional_headers=headers, open_timeout=DEADLINE, compression=None, proxy=None, max_size=None, **options
    )


async def ask(socket: ClientConnection, client: Client, since: int = 0) -> None:
    """Send a pull."""
    await socket.send(encode_frame(FrameTag.PULL, protobuf.encode_pull(SyncPull(client.client_id, since, 1000))))


async def pull(socket: ClientConnection, client: Client, since: int = 0) -> SyncResponse:
    """Send a pull and return its answer; discard the broadcasts before it."""
    await ask(socket, client, since)
    return await _answer(socket)


async def push(socket: ClientConnection, client: Client, *deltas: dict[str, Any]) -> SyncResponse:
    """Send a push and return its answer; discard the broadcasts before it."""
    message = SyncPush(client.client_id, decoded(deltas))
    await socket.send(encode_frame(FrameTag.PUSH, protobuf.encode_push(message)))
    return await _answer(socket)


async def _answer(socket: ClientConnection) -> SyncResponse:
    while (frame := await received(socket))[:1] == bytes((FrameTag.BROADCAST,)):
        pass
    return protobuf.decode_response(frame)


async def broadcast_of(socket: ClientConnection) -> SyncResponse:
    """Return the next broadcast."""
    frame = await received(socket)
    assert frame[:1] == bytes((FrameTag.BROADCAST,))
    return protobuf.decode_response(frame[1:])


async def received(socket: ClientConnection) -> bytes:
    """Return the next frame."""
    frame = await socket.recv()
    assert isinstance(frame, bytes)
    return frame


async def ended(socket: ClientConnection) -> int | None:
    """Wait for the end of the connection; return the close code."""
    with suppress(ConnectionClosed):
        while True:
            await socket.recv()
    return socket.close_code

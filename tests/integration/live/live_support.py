"""A minimal WebSocket client."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

import msgspec
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from lakesync.model.types import RowDelta, SyncPull, SyncPush, SyncResponse
from lakesync.wire import json as wire_json
from lakesync.wire import protobuf
from lakesync.wire.frames import FrameTag, encode_frame
from tests.integration.gateway_support import DEADLINE, Client

OVERLOOKED = 2
"""The reference's client ignores frames with fewer bytes."""


def decoded(deltas: Sequence[dict[str, Any]]) -> tuple[RowDelta, ...]:
    """Convert deltas to the engine's form."""
    return tuple(wire_json.decode_deltas(msgspec.json.encode(deltas)))


class Live:
    """A client's connection; the tag of a frame distinguishes answers and broadcasts."""

    def __init__(self, client: Client, *, prefix: str = "", query: str = "", **options: Any) -> None:
        self.client = client
        headers = options.pop("additional_headers", {"Authorization": f"Bearer {client.token}"})
        url = f"ws{client.url.removeprefix('http')}{prefix}/sync/{client.gateway}/ws{query}"
        self.socket: ClientConnection = connect(
            url, additional_headers=headers, open_timeout=DEADLINE, compression=None, proxy=None, **options
        )
        self.broadcasts: deque[SyncResponse] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def push(self, *deltas: dict[str, Any]) -> SyncResponse:
        """Send a push; return its answer."""
        self.send(FrameTag.PUSH, protobuf.encode_push(SyncPush(self.client.client_id, decoded(deltas))))
        return self.answer()

    def pull(self, since: int = 0, limit: int = 1000) -> SyncResponse:
        """Send a pull; return its answer."""
        self.send(FrameTag.PULL, protobuf.encode_pull(SyncPull(self.client.client_id, since, limit)))
        return self.answer()

    def send(self, tag: FrameTag, message: bytes) -> None:
        """Send a frame."""
        self.socket.send(encode_frame(tag, message))

    def answer(self) -> SyncResponse:
        """The next answer; broadcasts before it are kept for `broadcast`."""
        while (found := self._receive())[0]:
            self.broadcasts.append(found[1])
        return found[1]

    def broadcast(self) -> SyncResponse:
        """The next broadcast."""
        if self.broadcasts:
            return self.broadcasts.popleft()
        tagged, page = self._receive()
        assert tagged, f"an answer without a request: {page}"
        return page

    def closed(self) -> tuple[int, str]:
        """Wait for the end of the connection; return its code and reason."""
        with suppress(ConnectionClosed):
            while True:
                self.socket.recv(DEADLINE)
        assert self.socket.close_code is not None
        return self.socket.close_code, self.socket.close_reason or ""

    def _receive(self) -> tuple[bool, SyncResponse]:
        frame = self.socket.recv(DEADLINE)
        assert isinstance(frame, bytes)
        assert len(frame) >= OVERLOOKED, "the reference's client ignores such a frame, and waits for ever"
        tagged = frame[:1] == bytes((FrameTag.BROADCAST,))
        return tagged, protobuf.decode_response(frame[1:] if tagged else frame)

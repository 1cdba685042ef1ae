"""Minimal HTTP/1.1 and WebSocket clients for `load` and `broadcasts`.

They use little processor time, because they run on the same machine as the measured server. An HTTP client has one
persistent connection, and sends one request at a time.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import NamedTuple, cast

_END = b"\r\n\r\n"
"""Ends the head of a response."""


class Response(NamedTuple):
    """A complete HTTP response."""

    status: int
    body: bytes


class Connection(asyncio.Protocol):
    """An HTTP connection to a server on this machine."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._waiting: asyncio.Future[Response] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Connect to a port of this machine."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return connection

    async def request(self, method: str, path: str, token: str, body: bytes = b"") -> Response:
        """Send a request with a JSON body and wait for the response.

        Raises:
            ConnectionError: the connection is closed.
        """
        if self._transport is None:
            raise ConnectionError("the connection is closed")
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(head.encode() + body)
        return await self._waiting

    async def call(self, method: str, path: str, token: str, body: bytes = b"") -> bytes:
        """Send a request and return the body of the response.

        Raises:
            RuntimeError: the response's status is not 200.
            ConnectionError: the connection is closed.
        """
        status, response = await self.request(method, path, token, body)
        if status != 200:
            raise RuntimeError(f"{method} {path} failed with {status}: {response[:1000].decode(errors='replace')}")
        return response

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    # -- asyncio's side ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is not a subclass of it

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        end = received.find(_END)
        if end < 0 or self._waiting is None:
            return
        head = bytes(received[:end]).lower()
        position = head.find(b"content-length:")
        if position < 0:
            self.connection_lost(RuntimeError("the response has no content length"))
            return
        size = int(head[position + 15 :].partition(b"\r\n")[0])
        total = end + len(_END) + size
        if len(received) >= total:
            response = Response(int(head[9:12]), bytes(received[end + len(_END) : total]))
            del received[:total]
            waiting, self._waiting = self._waiting, None
            waiting.set_result(response)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(exc or ConnectionError("the server hung up"))


_BINARY, _CLOSE, _PING, _PONG = 0x82, 0x88, 0x89, 0x8A
_MASKED = 0x80
"""The bit of a frame's second byte that says that its content is masked, as a client must do."""


class Socket(asyncio.Protocol):
    """A WebSocket connection to a server on this machine. It sends frames of up to 64 KiB."""

    def __init__(self, on_message: Callable[[bytes], None]) -> None:
        """Create an unconnected socket; `open` connects one.

        Args:
            on_message: called with each binary message.
        """
        self.on_message = on_message
        self.closed = False
        self._received = bytearray()
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._upgraded = False

    @classmethod
    async def open(cls, port: int, path: str, token: str, on_message: Callable[[bytes], None]) -> Socket:
        """Connect and perform the handshake.

        Args:
            port: the server's port on this machine.
            path: the WebSocket's path.
            token: the token for the gateway.
            on_message: called with each binary message.

        Raises:
            ConnectionError: the server rejects the handshake.
        """
        loop = asyncio.get_running_loop()
        _, socket = await loop.create_connection(lambda: cls(on_message), "127.0.0.1", port)
        await socket.upgrade(path, token)
        return socket

    async def upgrade(self, path: str, token: str) -> None:
        """Perform the handshake."""
        assert self._transport is not None
        self._transport.write(
            f"GET {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n".encode()
        )
        await self._opened

    def send(self, message: bytes) -> None:
        """Send a binary message without waiting."""
        assert self._transport is not None
        self._transport.write(_frame(_BINARY, message))

    def abort(self) -> None:
        """Close the connection without a close frame."""
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio's side ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is not a subclass of it

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._upgraded:
            end = self._received.find(_END)
            if end < 0:
                return
            if not self._received.startswith(b"HTTP/1.1 101"):
                self._opened.set_exception(ConnectionError(bytes(self._received[:200]).decode(errors="replace")))
                return
            del self._received[: end + len(_END)]
            self._upgraded = True
            self._opened.set_result(None)
        self._take()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if not self._opened.done():
            self._opened.set_exception(exc or ConnectionError("the server hung up"))

    def _take(self) -> None:
        """Process the complete frames that were received: pass on messages, and respond to pings."""
        received = self._received
        while len(received) >= 2:
            size, head = received[1] & 0x7F, 2
            # 126 and 127 mean that the size follows, in two or eight bytes
            if size == 126:
                head = 4
            elif size == 127:
                head = 10
            if head > 2:
                if len(received) < head:
                    return
                size = int.from_bytes(received[2:head], "big")
            if len(received) < head + size:
                return
            opcode, message = received[0], bytes(received[head : head + size])
            del received[: head + size]
            if opcode == _BINARY:
                self.on_message(message)
            elif opcode == _PING and self._transport is not None:
                self._transport.write(_frame(_PONG, message))


def _frame(opcode: int, message: bytes) -> bytes:
    """Return a client's frame, masked with zeros to save work."""
    size = len(message)
    length = struct.pack("!B", size | _MASKED) if size < 126 else struct.pack("!BH", 126 | _MASKED, size)
    return bytes((opcode,)) + length + b"\0\0\0\0" + message

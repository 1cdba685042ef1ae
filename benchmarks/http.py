"""A minimal HTTP/1.1 client that uses little of the machine: one persistent connection, one request at a time."""

from __future__ import annotations

import asyncio
from typing import NamedTuple, cast

_END = b"\r\n\r\n"


class Answer(NamedTuple):
    """A complete answer."""

    status: int
    body: bytes


class Connection(asyncio.Protocol):
    """A connection to the server on this machine."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._waiting: asyncio.Future[Answer] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Connect."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return connection

    async def request(self, method: str, path: str, token: str, body: bytes = b"") -> Answer:
        """Send a request and wait for the answer."""
        if self._transport is None:
            raise ConnectionError("the connection is closed")
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(head.encode() + body)
        return await self._waiting

    async def asked(self, method: str, path: str, token: str, body: bytes = b"") -> bytes:
        """Return the body of a successful answer.

        Raises:
            RuntimeError: the answer is an error.
        """
        status, answer = await self.request(method, path, token, body)
        if status != 200:
            raise RuntimeError(f"{method} {path} was answered {status}: {answer[:1000].decode(errors='replace')}")
        return answer

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    # -- asyncio's side ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its type

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        end = received.find(_END)
        if end < 0 or self._waiting is None:
            return
        head = bytes(received[:end]).lower()
        place = head.find(b"content-length:")
        if place < 0:
            self.connection_lost(RuntimeError("the answer has no content length"))
            return
        size = int(head[place + 15 :].partition(b"\r\n")[0])
        whole = end + len(_END) + size
        if len(received) >= whole:
            answer = Answer(int(head[9:12]), bytes(received[end + len(_END) : whole]))
            del received[:whole]
            waiting, self._waiting = self._waiting, None
            waiting.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(exc or ConnectionError("the server hung up"))

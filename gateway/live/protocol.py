"""uvicorn's WebSocket, with writes that do not wait and an end that does not depend on the peer.

uvicorn waits until a peer reads before it sends even a close frame, and leaves a connection open whose peer never
takes what was written. Here a frame is written only while the peer keeps up, and a closed connection is cut in the end.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request

from gateway.protocol import head_refusal

WIRE = "lakesync.wire"
"""The ASGI extension under which a connection's protocol is found."""
CLOSING_SECONDS = 10.0
"""Until a connection that was closed is cut."""

_MAX_REASON_BYTES = 123


def framed(message: bytes) -> bytes:
    """A binary message as a server's frame; the same bytes serve any number of connections."""
    return Frame(Opcode.BINARY, message).serialize(mask=False)


class LiveProtocol(WebSocketsSansIOProtocol):
    """One WebSocket connection of the server."""

    open = False
    """Whether frames may be written."""
    on_writable: Callable[[], None] | None = None
    """Called when the peer keeps up again."""

    def handle_connect(self, event: Request) -> None:
        """Begin, with this object among the scope's extensions."""
        super().handle_connect(event)
        if not self.handshake_complete:
            extensions: MutableMapping[str, Any] = self.scope["extensions"]
            extensions[WIRE] = self

    def data_received(self, data: bytes) -> None:
        """Take bytes; a handshake that websockets cannot read is refused.

        uvicorn does not write the refusal that websockets prepares, and would leave the connection open without answer.
        """
        super().data_received(data)
        fault = self.conn.handshake_exc
        if fault is not None and not self.handshake_complete:
            self.handshake_complete = self.close_sent = True
            self.transport.write(head_refusal(431, f"the WebSocket's handshake cannot be read: {fault}"))
            self.transport.close()

    async def send(self, message: Any) -> None:
        """Send a message of the application.

        A refusal ends the handshake. uvicorn says so of `websocket.close` alone, and logs a refusal with a body of its
        own as an error of the application.
        """
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True

    @property
    def keeps_up(self) -> bool:
        """Whether the peer takes what is written; when not, the transport holds more than its high-water mark."""
        return self.writable.is_set()

    @property
    def queued(self) -> int:
        """Bytes that the peer has not taken from this process yet."""
        return self.transport.get_write_buffer_size()

    def put(self, frame: bytes) -> None:
        """Write a frame made by `framed`, without waiting; nothing on a connection that has ended.

        Call it while the peer keeps up: then at most the transport's high-water mark and one frame are queued.
        """
        if self.open:
            self.transport.write(frame)

    async def taken(self) -> None:
        """Wait until the peer keeps up."""
        await self.writable.wait()

    def end(self, code: int, reason: str) -> None:
        """Close, without waiting for what is queued; cut the connection if the peer does not answer."""
        if not self.open:
            return
        self.stop_keepalive()
        reason = reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent, self.open = True, False
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(CLOSING_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """The peer keeps up again."""
        super().resume_writing()
        if self.on_writable is not None and self.open:
            self.on_writable()

    def keepalive_timeout(self) -> None:
        """Cut a connection whose peer does not answer pings."""
        self.open = False
        super().keepalive_timeout()
        self.transport.abort()

    def handle_parser_exception(self) -> None:
        """Close after something that is no WebSocket frame, or one that is too big."""
        self.open = False
        super().handle_parser_exception()
        self._cut_later()

    def handle_close(self, event: Frame) -> None:
        """The peer closes, or answers our close."""
        self.open = False
        super().handle_close(event)
        self._cut_later()

    def shutdown(self) -> None:
        """Close for the end of the server."""
        self.open = False
        super().shutdown()
        self._cut_later()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self.open = False
        super().connection_lost(exc)

    def begin(self) -> None:
        """The connection was accepted: frames may be written while it lasts."""
        self.open = self.handshake_complete and not (
            self.close_sent or self.disconnected or self.transport.is_closing()
        )

    def _cut_later(self) -> None:
        if not self.disconnected:
            self.loop.call_later(CLOSING_SECONDS, self.transport.abort)


def wire_of(scope: MutableMapping[str, Any]) -> LiveProtocol:
    """The protocol of a connection."""
    protocol: LiveProtocol = scope["extensions"][WIRE]
    return protocol

"""Extends uvicorn's HTTP and WebSocket protocols with features that the gateway promises and uvicorn lacks.

A uvicorn protocol is the asyncio object of one connection. `GatewayServer` passes the two classes to `uvicorn.Config`,
which accepts any class; no other module subclasses uvicorn's protocols. The docstring of each class names the missing
feature; the class can be deleted when uvicorn has it. The head of a request is its request line and headers. Attributes
that a class here uses but does not define, such as `cycle`, `conn` and `writable`, are uvicorn's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request

from gateway.errors import http_error_response
from gateway.request_log import RequestRecord, new_request_id
from gateway.write_coalescing import WriteCoalescingTransport
from lakesync.model.errors import ValidationError

log = structlog.get_logger("gateway")

MAX_HEAD_BYTES = 64 << 10
"""Size of a request's head, at most. It may be exceeded by one header if requests are pipelined: of a piece of data
`… end of body 1 | head 2 …`, only the complete headers of head 2 are counted."""
HEAD_SECONDS = 20.0
"""Longest time from the connection, or from a head's first byte, to the head's end.

No time for a head or body runs before all earlier requests of the connection are answered, because uvicorn may not read
it until then.
"""
LINGER_SECONDS = 1.0
"""Time from a rejection, or from a response that came before the end of the body, until the connection is closed."""
BODY_SECONDS = 40.0
"""Longest time from a head's end to its body's end; above the default request timeout."""

WIRE_EXTENSION = "lakesync.wire"
"""ASGI extension under which the application finds the connection's protocol."""
CLOSING_SECONDS = 10.0
"""Time that the peer has to respond to a close frame before the connection is aborted."""
_MAX_REASON_BYTES = 123
"""Longest reason in a close frame, by RFC 6455."""

_UPGRADE_WITH_BODY = "A request with a body cannot ask for an upgrade; leave out its Upgrade header."
_UNKNOWN_CODING = "The only supported Transfer-Encoding is chunked; compress a body with Content-Encoding: gzip."
_NOT_ONE_HOST = "The request must have one Host header."
_TOO_LONG = f"the head of the request is above {MAX_HEAD_BYTES} bytes; send fewer or shorter headers"


class LimitedHttpProtocol(HttpToolsProtocol):
    """HTTP/1.1 with limits on the head of a request, in bytes and in time, and on the time of its body.

    Without them a client could send an endless head before any route or middleware sees the request. uvicorn limits
    heads for h11 only (`h11_max_incomplete_event_size`) and has no time limit: Kludex/uvicorn#157 and #1684. This class
    also responds with a JSON error to bytes that are not HTTP, for which uvicorn has no hook either, and to heads that
    uvicorn accepts although RFC 9112 forbids them. Requests of one connection are answered in their order, also if a
    later one is rejected.
    """

    _output: WriteCoalescingTransport
    """The connection's wrapped transport. `transport` is the same, until the connection becomes a WebSocket."""
    _in_head = False
    """Whether a head has begun and not ended."""
    _head_bytes = 0
    """Bytes received since the head began. If another request ended in the same piece of data, the parser does not say
    where the head began, so its complete headers are counted instead."""
    _in_body = False
    """Whether a head has ended and its body has not. Then `cycle`, uvicorn's newest request, is the body's request."""
    _has_ended = False
    """Whether a request has ended within the piece of data that is parsed."""
    _is_rejected = False
    """Whether further data is dropped, because the request was rejected."""
    _rejection = b""
    """The response to a rejected request, which waits for the responses to earlier requests; else empty."""
    _is_upgraded = False
    """Whether the connection has become a WebSocket."""
    _timer: asyncio.TimerHandle | None = None
    """Runs when the time for the head or body ends; None between requests, and while an earlier request is served."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first head."""
        super().connection_made(transport)
        self.transport = self._output = WriteCoalescingTransport(transport, self.loop)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._stop_timer()
        self._output.stop_checking()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data in pieces, each at most as long as the head in progress may still grow."""
        while data and not self._is_rejected and not self._is_upgraded:
            allowed_bytes = MAX_HEAD_BYTES - (self._head_bytes if self._in_head else 0)
            self._parse(data[:allowed_bytes])
            data = data[allowed_bytes:]

    def _parse(self, piece: bytes) -> None:
        """Parse a piece of data, and apply the limits to the head or body that is in progress after it."""
        self._has_ended = False
        super().data_received(piece)
        if self._in_head:
            self._head_bytes += self._parsed_bytes() if self._has_ended else len(piece)
            if self._head_bytes >= MAX_HEAD_BYTES:
                self._reject(431, _TOO_LONG)
        self._start_timer()

    def _parsed_bytes(self) -> int:
        """Return the size of the URL and of the whole headers that were parsed of the head in progress."""
        return len(self.url) + sum(len(name) + len(value) + len(b":\r\n") for name, value in self.headers)

    def on_message_begin(self) -> None:
        """Record that a head begins."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """Record that a head has ended."""
        self._in_head = False
        self._stop_timer()
        fault = self._head_fault()
        if fault is not None:
            self._reject(*fault)
            return
        super().on_headers_complete()
        self._in_body = not self.parser.should_upgrade()

    def _head_fault(self) -> tuple[int, str] | None:
        """Return status and message of the response to a head that the parser accepts but that must be rejected."""
        version = self.parser.get_http_version()
        if version not in {"1.0", "1.1"}:
            return 505, f"HTTP/{version} is not supported; send HTTP/1.1."
        if version == "1.1" and sum(name == b"host" for name, _ in self.headers) != 1:
            return 400, _NOT_ONE_HOST
        codings = b",".join(value for name, value in self.headers if name == b"transfer-encoding")
        if codings and codings.lower().strip() != b"chunked":  # the parser would pass on a body that is still encoded
            return 501, _UNKNOWN_CODING
        if self.parser.should_upgrade() and self._announces_body():
            # the parser reads no body after such a head: it would take the body for the next request
            return 400, _UPGRADE_WITH_BODY
        return None

    def _announces_body(self) -> bool:
        """Return whether the headers announce a body. Some devices send a length of 0 when they open a WebSocket."""
        lengths = [value for name, value in self.headers if name in (b"content-length", b"transfer-encoding")]
        return any(length != b"0" for length in lengths)

    def on_message_complete(self) -> None:
        """Record that a request has ended."""
        if self._is_rejected:
            return
        self._has_ended = True
        if self._in_body:
            self._in_body = False
            self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Start the timer of the next head, or of the rest of a body that the application does not read."""
        super().on_response_complete()
        if self._is_rejected:
            self._send_rejection()
        else:
            self._stop_timer()
            self._start_timer()

    def pause_writing(self) -> None:
        """Wait for the client to read, but not without end."""
        super().pause_writing()
        self._output.check_reader()

    def handle_websocket_upgrade(self) -> None:
        """Give the unwrapped connection to the WebSocket protocol."""
        if self._is_rejected:
            return
        self._is_upgraded = True
        self._output.stop_checking()
        self.transport = self._output.inner
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Reject bytes that are not HTTP."""
        self._in_head = False
        self._reject(400, f"{msg} Send HTTP/1.1.")

    @property
    def _earlier_are_answered(self) -> bool:
        """Whether all requests before the one whose head or body is in progress are answered."""
        if self._in_body:
            # the body's request is the newest one; it waits in uvicorn's `pipeline` until the earlier ones are answered
            return not self.pipeline
        return self.cycle is None or self.cycle.response_complete

    def _start_timer(self) -> None:
        """Start the timer of the head or body in progress, unless it runs. uvicorn has its own between requests."""
        if self._timer is not None or self._is_rejected or self._is_upgraded or not self._earlier_are_answered:
            return
        if self.transport.is_closing():
            return
        if self._in_body:
            seconds = LINGER_SECONDS if self.cycle.response_complete else BODY_SECONDS
            self._timer = self.loop.call_later(seconds, self.transport.close)
        elif self._in_head or self.timeout_keep_alive_task is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def _stop_timer(self) -> None:
        """Stop the timer of the head or body."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        """Respond with 408 if a head has begun, and close a connection on which none has. The timer calls it."""
        self._timer = None
        if self._in_head:
            self._reject(408, f"the head of the request took more than {HEAD_SECONDS:g} s; send it at once")
        else:
            self.transport.close()

    def _reject(self, status: int, message: str) -> None:
        """Drop further data, and send an error response after those to earlier requests."""
        if self._is_rejected or self.transport.is_closing():
            return
        self._is_rejected = True
        self._stop_timer()
        self._rejection = head_rejection(status, message)
        self._send_rejection()

    def _send_rejection(self) -> None:
        """Send the error response once it is next, and close after the client had time to read it.

        A connection with unread data is reset when it is closed, and the client would lose the response.
        """
        if not self._rejection or not self._earlier_are_answered or self.transport.is_closing():
            return
        if not (self._in_body and self.cycle.response_started):  # else the request has a response already
            self.transport.write(self._rejection)
        self._rejection = b""
        self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def eof_received(self) -> None:
        """Stop the timer: the client has nothing more to send. The event loop closes once it has read the responses."""
        self._stop_timer()
        super().eof_received()
        self._output.check_reader()


def head_rejection(status: int, message: str) -> bytes:
    """Return the bytes of the response to a request whose head is rejected, and log the rejection.

    Args:
        status: HTTP status.
        message: what is wrong and what to do.
    """
    request_id = new_request_id()
    log.info("head rejected", status=status, reason=message, request_id=request_id)
    response = http_error_response(status, message, ValidationError.code, request_id)
    headers: list[Any] = [*response.raw_headers, *RequestRecord(request_id).response_headers()]
    head = b"".join(b"%s: %s\r\n" % header for header in headers)
    return b"HTTP/1.1 %d Rejected\r\n%sconnection: close\r\n\r\n%s" % (status, head, response.body)


def websocket_frame(message: bytes) -> bytes:
    """Return the WebSocket frame of a binary message. The same bytes can be sent to any number of connections."""
    return Frame(Opcode.BINARY, message).serialize(mask=False)


class LiveWebSocketProtocol(WebSocketsSansIOProtocol):
    """A WebSocket with writes that do not wait, and a close that does not depend on the peer.

    uvicorn waits until the peer reads before it sends even a close frame, and keeps a connection open whose peer never
    reads. ASGI does not tell an application how many bytes are queued. Kludex/uvicorn#3048 and #3049 cover parts of
    this. The application finds this object under the scope's extension `WIRE_EXTENSION`.
    """

    on_writable: Callable[[], None] | None = None
    """Called when the peer has read the queued data, so that more can be written."""

    def handle_connect(self, event: Request) -> None:
        """Start the handshake, and add this object to the scope's extensions."""
        super().handle_connect(event)
        if not self.handshake_complete:
            extensions: MutableMapping[str, Any] = self.scope["extensions"]
            extensions[WIRE_EXTENSION] = self

    def data_received(self, data: bytes) -> None:
        """Parse data; reject a handshake that `websockets` cannot parse with 431.

        uvicorn does not send the rejection that `websockets` prepares, and would leave the connection open.
        """
        super().data_received(data)
        fault = self.conn.handshake_exc
        if fault is not None and not self.handshake_complete:
            self.handshake_complete = self.close_sent = True
            self.transport.write(head_rejection(431, f"the WebSocket's handshake cannot be read: {fault}"))
            self.transport.close()

    async def send(self, message: Any) -> None:
        """Send a message of the application.

        A denial response ends the handshake. uvicorn expects only `websocket.close` here, and logs a denial response as
        an error of the application.
        """
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True

    @property
    def is_open(self) -> bool:
        """Whether frames may be written: the application has accepted the connection, and neither side ended it."""
        return self.handshake_complete and not (self.close_sent or self.disconnected or self.transport.is_closing())

    @property
    def has_closed(self) -> bool:
        """Whether the server has ended the connection, so that further messages are dropped."""
        return self.close_sent

    @property
    def is_writable(self) -> bool:
        """Whether the peer reads: the queue is below the transport's high-water mark."""
        return self.writable.is_set()

    @property
    def queued_bytes(self) -> int:
        """Bytes that the operating system has not taken yet."""
        return self.transport.get_write_buffer_size()

    def write_frame(self, frame: bytes) -> None:
        """Write a frame of `websocket_frame` without waiting; do nothing if the connection has ended.

        Call it only while `is_writable`: then at most the high-water mark and one frame are queued.
        """
        if self.is_open:
            self.transport.write(frame)

    async def wait_writable(self) -> None:
        """Wait until the peer has read enough that more can be written."""
        await self.writable.wait()

    def close(self, code: int, reason: str) -> None:
        """Send a close frame without waiting, and abort the connection if the peer does not respond to it.

        Args:
            code: WebSocket close code.
            reason: the reason, of which the first 123 bytes are sent.
        """
        if not self.is_open:
            return
        reason = reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
        self.conn.send_close(code, reason)
        self._await_peer(code, reason)

    def _await_peer(self, code: int, reason: str) -> None:
        """Write the close frame that `conn` has prepared, and read on until the peer closes or its time is over."""
        self.stop_keepalive()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})  # for the application
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.writable.set()  # no frame follows, so `wait_writable` need not wait for the peer
        if self.read_paused:  # read on, so that the peer's close frame arrives
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(CLOSING_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Notify the application that the peer reads again."""
        super().resume_writing()
        if self.on_writable is not None and self.is_open:
            self.on_writable()

    def keepalive_timeout(self) -> None:
        """Abort the connection, because the peer does not respond to pings."""
        super().keepalive_timeout()
        self.transport.abort()

    def send_receive_event_to_app(self) -> None:
        """Pass on a message. uvicorn would log a traceback for text that is not UTF-8."""
        if self.curr_msg_data_type == "text":
            self.frames = [b"".join(self.frames).decode(errors="replace").encode()]
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        """Send a close frame after invalid data or a frame that is too large, and drop what follows.

        uvicorn closes at once. That resets a connection with unread data, and the peer would lose the close frame.
        """
        sent = self.conn.close_sent
        if sent is None or self.close_sent:
            return
        self._await_peer(sent.code, sent.reason)
        self.transport.write_eof()  # the peer closes when it has read the close frame; `conn` no longer reads its own

    def handle_close(self, event: Frame) -> None:
        """Respond to the peer's close frame."""
        super().handle_close(event)
        self._abort_later()

    def shutdown(self) -> None:
        """Close because the server stops."""
        super().shutdown()
        self._abort_later()

    def _abort_later(self) -> None:
        """Abort the connection if the peer does not close it in time."""
        if not self.disconnected:
            self.loop.call_later(CLOSING_SECONDS, self.transport.abort)


def protocol_of(scope: MutableMapping[str, Any]) -> LiveWebSocketProtocol:
    """Return the protocol of the connection that an ASGI scope belongs to."""
    protocol: LiveWebSocketProtocol = scope["extensions"][WIRE_EXTENSION]
    return protocol

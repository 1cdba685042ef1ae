"""uvicorn's HTTP/1.1, with a bound on the head of a request, in bytes and in time, and on its body in time.

uvicorn has neither. The head is all that a stranger can send before the routes and their limits see a request.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.errors import http_error_response
from gateway.exchange import Exchange, new_request_id
from gateway.joined import JoinedTransport
from lakesync.model.errors import ValidationError

log = structlog.get_logger("gateway")

MAX_HEAD_BYTES = 64 << 10
HEAD_SECONDS = 20.0
"""From the connection, or from a head's first bytes, to the head's end."""
LINGER_SECONDS = 1.0
"""Between a refusal, or an answer that did not wait for the body, and the connection's end."""
BODY_SECONDS = 40.0
"""From the end of a head to the end of its body: more than a request has until its answer begins."""

_TOO_LONG = f"the head of the request is above {MAX_HEAD_BYTES} bytes; send fewer or shorter headers"


class BoundedHttp(HttpToolsProtocol):
    """Ends a connection whose head is too long or too slow; what is no HTTP gets the form of every error."""

    _in_head = False
    _head_bytes = 0
    """Received since the head began, up to the last piece, and what was before it in its first one."""
    _in_body = False
    _refused = False
    _upgraded = False
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self.transport = JoinedTransport(transport, self.loop)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, and count what belongs to a head that has not ended."""
        while data and not self._refused and not self._upgraded:
            # never past the bound of a head: one that has not ended there is too long, whatever it is made of
            room = MAX_HEAD_BYTES - (self._head_bytes if self._in_head else 0)
            self._parse(data[:room])
            data = data[room:]

    def _parse(self, piece: bytes) -> None:
        super().data_received(piece)
        if not self._in_head:
            if self._in_body and self._timer is None:
                self._timer = self.loop.call_later(BODY_SECONDS, self.transport.close)
            return
        self._head_bytes += len(piece)
        if self._head_bytes >= MAX_HEAD_BYTES:
            self._refuse(431, _TOO_LONG)
        elif self._timer is None:
            self._start_timer()

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """A head has ended."""
        self._in_head = False
        self._stop_timer()
        self._in_body = not self.parser.should_upgrade()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A body has ended."""
        if self._in_body:
            self._in_body = False
            self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Where the answer did not wait for the body, nobody will read the rest of it."""
        super().on_response_complete()
        if self._in_body:
            self._stop_timer()
            self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over as it is."""
        self._upgraded = True
        if isinstance(self.transport, JoinedTransport):
            self.transport = self.transport.bare
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self._in_head = False
        self._refuse(400, f"{msg} Send HTTP/1.1.")

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self._in_head:
            self._refuse(408, f"the head of the request took more than {HEAD_SECONDS:g} s; send it at once")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        """Answer, and close when the caller has had time to read it: what it still sends is dropped.

        A connection that is closed with something unread is reset, and the answer would be lost.
        """
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._stop_timer()
        self.transport.write(head_refusal(status, message))
        self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def eof_received(self) -> None:
        """The caller has nothing more to send."""
        self._stop_timer()
        super().eof_received()


def head_refusal(status: int, message: str) -> bytes:
    """Return the whole answer to a head that no route sees, and log it."""
    request_id = new_request_id()
    log.info("head refused", status=status, reason=message, request_id=request_id)
    answer = http_error_response(status, message, ValidationError.code, request_id, None)
    headers: list[Any] = [*answer.raw_headers, *Exchange(request_id).headers()]
    head = b"".join(b"%s: %s\r\n" % header for header in headers)
    return b"HTTP/1.1 %d Refused\r\n%sconnection: close\r\n\r\n%s" % (status, head, answer.body)

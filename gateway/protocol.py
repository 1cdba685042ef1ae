"""uvicorn's HTTP/1.1, with a bound on the head of a request, in bytes and in time, which uvicorn does not have.

The head is all that a stranger can send before the routes and their limits see a request.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.errors import http_error_response
from gateway.exchange import SECURITY_HEADERS, new_request_id
from lakesync.exceptions import ValidationError

MAX_HEAD_BYTES = 64 << 10
HEAD_SECONDS = 20.0
"""From the connection, or from a head's first bytes, to the head's end."""


class BoundedHttp(HttpToolsProtocol):
    """Closes a connection whose head is too long or too slow; what is no HTTP gets the form of every error."""

    _in_head = False
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head that has not ended."""
        super().data_received(data)
        if not self._in_head:
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431, f"the head of the request is above {MAX_HEAD_BYTES} bytes; send fewer or shorter headers")
        elif self._head_timer is None:
            self._start_timer()

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """A head has ended."""
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self._in_head = False
        self._refuse(400, f"{msg} Send HTTP/1.1.")

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        if self._in_head:
            self._refuse(408, f"the head of the request took more than {HEAD_SECONDS:g} s; send it at once")
        elif not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        if self.transport.is_closing():
            return
        request_id = new_request_id()
        answer = http_error_response(status, message, ValidationError.code, request_id, None)
        headers: list[Any] = [*answer.raw_headers, *SECURITY_HEADERS, (b"x-request-id", request_id.encode())]
        head = b"".join(b"%s: %s\r\n" % header for header in headers)
        self.transport.write(b"HTTP/1.1 %d Refused\r\n%sconnection: close\r\n\r\n%s" % (status, head, answer.body))
        self.transport.close()

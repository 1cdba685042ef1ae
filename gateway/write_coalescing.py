"""An asyncio transport that sends head and body of an HTTP response together, and aborts if the client does not read.

`gateway.compat_uvicorn` wraps the transport of each HTTP connection in it. uvicorn writes the head (status line and
headers) and the body separately, and uvloop sends each immediately: two system calls, two packets, and a client that
wakes up twice. uvicorn has no setting for it. It also waits without end for a client that does not read, even to close
its connection.
"""

from __future__ import annotations

import asyncio
from typing import Any

READER_SECONDS = 60.0
"""Time between two checks that a client reads the response data that is queued for it."""
_STATUS_LINE_START = b"HTTP/1."
"""The first bytes of every response head."""


class WriteCoalescingTransport(asyncio.Transport):
    """A transport that sends a response's head together with its body, or alone in the event loop's next iteration.

    It has the methods of `asyncio.Transport` that uvicorn calls. uvicorn's flow control, which pauses reading, has the
    inner transport, and so has a connection that became a WebSocket. `compat_uvicorn` calls `check_reader` and
    `stop_checking`.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.inner = transport
        """The wrapped transport."""
        self._loop = loop
        self._pending_head = b""
        """A head that waits for its body, until the event loop's next iteration; else empty."""
        self._ended = False
        """Whether `write_eof` or `abort` was called."""
        self._written = 0
        """Bytes of all writes."""
        self._reader_check: asyncio.TimerHandle | None = None
        """Runs `_abort_if_stalled` after `READER_SECONDS`; None while nothing is checked."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write data; a head is delayed until the next write. Once the connection is closing, data is dropped."""
        if self._ended or self.inner.is_closing():
            return
        self._written += len(data)
        if self._pending_head:
            head, self._pending_head = self._pending_head, b""
            self.inner.writelines((head, data))
        elif data[: len(_STATUS_LINE_START)] == _STATUS_LINE_START:
            self._pending_head = bytes(data)
            self._loop.call_soon(self._flush)
        else:
            self.inner.write(data)

    def write_eof(self) -> None:
        """Close the sending side after the pending data."""
        self._flush()
        self._ended = True
        self.inner.write_eof()

    def close(self) -> None:
        """Close after the pending data."""
        self._flush()
        self.inner.close()
        self.check_reader()

    def check_reader(self) -> None:
        """While data is queued, check every `READER_SECONDS` that the peer has read some of it, and abort if not."""
        queued = self.inner.get_write_buffer_size()
        if queued and self._reader_check is None:
            taken = self._written - queued
            self._reader_check = self._loop.call_later(READER_SECONDS, self._abort_if_stalled, taken)

    def stop_checking(self) -> None:
        """Stop the checks of `check_reader`."""
        if self._reader_check is not None:
            self._reader_check.cancel()
            self._reader_check = None

    def abort(self) -> None:
        """Close without sending the pending data."""
        self._pending_head, self._ended = b"", True
        self.inner.abort()

    def is_closing(self) -> bool:
        """Return whether it is closed or closing."""
        return self.inner.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the wrapped transport's information."""
        return self.inner.get_extra_info(name, default)

    def _flush(self) -> None:
        """Send a head that waits for its body."""
        if self._pending_head:
            head, self._pending_head = self._pending_head, b""
            if not self.inner.is_closing():  # the peer may have disconnected meanwhile
                self.inner.write(head)

    def _abort_if_stalled(self, taken: int) -> None:
        """Abort if the operating system has taken no more bytes than it had at the last check."""
        self._reader_check = None
        if self._written - self.inner.get_write_buffer_size() > taken:
            self.check_reader()
        else:
            self.abort()

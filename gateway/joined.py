"""An answer sent in one piece, where its body follows its head at once.

uvloop writes to the socket at once, and uvicorn writes the head of an answer apart from its body: two system calls, two
packets, and a caller that is woken twice.
"""

from __future__ import annotations

import asyncio
from typing import Any

_HEAD = b"HTTP/1."


class JoinedTransport(asyncio.Transport):
    """A connection's transport on which an answer's head waits for what follows it, until the loop's next turn."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.bare = transport
        """The transport itself."""
        self._loop = loop
        self._held = b""
        self._ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write, a head together with what follows it; after the end, the answer to a request that was cut off."""
        if self._ended:
            return
        if self._held:
            head, self._held = self._held, b""
            self.bare.writelines((head, data))
        elif data[: len(_HEAD)] == _HEAD:
            self._held = bytes(data)
            self._loop.call_soon(self._flush)
        else:
            self.bare.write(data)

    def _flush(self) -> None:
        if self._held:
            head, self._held = self._held, b""
            if not self.bare.is_closing():  # the caller may have gone in the meantime
                self.bare.write(head)

    def write_eof(self) -> None:
        """Nothing more will be written."""
        self._flush()
        self._ended = True
        self.bare.write_eof()

    def close(self) -> None:
        """Close once what was written is sent."""
        self._flush()
        self.bare.close()

    def abort(self) -> None:
        """Close at once."""
        self._held = b""
        self.bare.abort()

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self.bare.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As the transport's."""
        return self.bare.get_extra_info(name, default)

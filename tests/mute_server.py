"""A server that hangs: it accepts connections, optionally answers a login or sends a greeting, and never answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

_SSL_REQUEST = 80877103
_LOGGED_IN = b"R\x00\x00\x00\x08\x00\x00\x00\x00" + b"Z\x00\x00\x00\x05I"
"""Postgres' messages AuthenticationOk and ReadyForQuery."""
HTTP2_GREETING = b"\0\0\0\4\0\0\0\0\0"
"""An empty SETTINGS frame, after which a client of HTTP/2 sends requests."""


class Mute(NamedTuple):
    """The address and the open connections."""

    port: int
    held: list[socket.socket]
    """The accepted connections, in order."""


@contextmanager
def mute_server(*, logs_in: bool = False, greeting: bytes = b"") -> Iterator[Mute]:
    """A server that never answers.

    Args:
        logs_in: answer the login of Postgres, but no statement.
        greeting: the bytes sent to each new connection.
    """
    held: list[socket.socket] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def hold() -> None:
        with suppress(OSError):  # it was closed
            while True:
                connection, _ = listening.accept()
                held.append(connection)
                connection.sendall(greeting)
                if logs_in:
                    threading.Thread(target=_log_in, args=[connection], daemon=True).start()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    try:
        yield Mute(listening.getsockname()[1], held)
    finally:
        listening.close()
        for connection in held:
            connection.close()


def _log_in(connection: socket.socket) -> None:
    with suppress(OSError):
        while (message := connection.recv(4096)) and int.from_bytes(message[4:8], "big") == _SSL_REQUEST:
            connection.sendall(b"N")
        connection.sendall(_LOGGED_IN)

"""A proxy before Postgres that loses a commit or its answer, or becomes silent while its connections stay open."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit

import psycopg

from tests.integration.gateway_support import until


class Proxy:
    """Forwards between a gateway and Postgres; once it is armed, it cuts the next connection that sends COMMIT.

    It does so either before the server receives the COMMIT, or after the server has executed it and before its answer.
    """

    def __init__(self, database: str) -> None:
        parts = urlsplit(database)
        self._database = database
        self._target = (parts.hostname, parts.port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        port = self._listening.getsockname()[1]
        self.url = parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}").geturl()
        self.cut: str | None = None
        self.cuts = 0
        self.flowing = threading.Event()
        """While it is cleared, nothing is forwarded, also not new connections, and all stay open."""
        self.flowing.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client: socket.socket) -> None:
        """Connect a client to the server, and forward both ways."""
        self.flowing.wait()
        try:
            server = socket.create_connection(self._target)
        except OSError:  # the server is down
            client.close()
            return
        threading.Thread(target=self._up, args=(client, server), daemon=True).start()
        self._down(client, server)

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := client.recv(65536):
                self.flowing.wait()
                if b"COMMIT" in data and self.cut is not None:
                    when, self.cut = self.cut, None
                    self.cuts += 1
                    if when == "after":
                        client.shutdown(socket.SHUT_RDWR)  # its own answer must not be forwarded
                        server.sendall(data)
                        until(lambda: _is_idle(self._database, server), "the commit")
                    break
                server.sendall(data)
        except OSError:
            pass  # the other side has closed the connection, as expected
        _hang_up(client, server)

    def _down(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := server.recv(65536):
                self.flowing.wait()
                client.sendall(data)
        except OSError:
            pass  # cut off above
        _hang_up(client)  # so that `_up`, which may still wait for the server's state, ends too

    def close(self) -> None:
        self._listening.close()


def _hang_up(*sides: socket.socket) -> None:
    """Close connections. A close alone does not notify the other end while a thread still reads."""
    for side in sides:
        with suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
        side.close()


def _is_idle(database: str, server: socket.socket) -> bool:
    """Whether the server has no work for a connection from this socket."""
    query = "SELECT state FROM pg_stat_activity WHERE client_port = %s"
    with psycopg.connect(database) as connection:
        found = connection.execute(query, (server.getsockname()[1],)).fetchone()
    return found is None or found[0] == "idle"

"""A TCP proxy between an adapter and its server that interferes when certain bytes pass."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress


class Wire:
    """Forwards bytes on loopback until it is armed and a client sends certain bytes."""

    def __init__(self, port: int, at: int = 0) -> None:
        """Args: port: of the server, on loopback; at: the proxy's port, by default a free one."""
        self._target = ("127.0.0.1", port)
        self._listening = socket.create_server(("127.0.0.1", at))
        self._open: list[socket.socket] = []
        self.port: int = self._listening.getsockname()[1]
        self._words: bytes | None = None
        self._then: Callable[[], None] | None = None
        self._held: bytes | None = None
        self._closed = threading.Event()
        self.passed = 0
        """How often the bytes were seen."""
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_the_answer_to(self, words: bytes) -> None:
        """Once: the server carries out the request, and the connection is cut before its response."""
        self._words, self._then = words, None

    def when(self, words: bytes, then: Callable[[], None]) -> None:
        """Once: call a function, then forward the bytes, and cut the connection if the server is gone."""
        self._words, self._then = words, then

    def hold(self, words: bytes) -> None:
        """From now on: do not forward data with these bytes, and keep its connection open."""
        self._held = words

    def cut(self) -> int:
        """Cut every connection, as a restart does; return their number."""
        sides, self._open = self._open, []
        for side in sides:
            _cut(side)
        return len(sides) // 2

    def close(self) -> None:
        """Accept no more connections, and release the held ones."""
        self._closed.set()
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:  # the server is down: close the client's connection too
                _cut(client)
                continue
            lost, held = threading.Event(), threading.Event()
            self._open += [client, server]
            for run in (self._up, self._down):
                threading.Thread(target=run, args=(client, server, lost, held), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket, lost: threading.Event, held: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self._held is not None and self._held in data:
                    self.passed += 1
                    held.set()
                    self._closed.wait()
                if self._words is not None and self._words in data:
                    self._words = None
                    self.passed += 1
                    if self._then is None:
                        lost.set()
                    else:
                        self._then()
                server.sendall(data)
        _cut(server)
        _cut(client)

    def _down(self, client: socket.socket, server: socket.socket, lost: threading.Event, held: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if lost.is_set():  # this is the answer, so the server has executed the request
                    break
                client.sendall(data)
        if held.is_set():  # the server closes connections on which it receives nothing
            self._closed.wait()
        _cut(client)
        _cut(server)


def _cut(side: socket.socket) -> None:
    with suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)  # closing alone does not notify the other end while a thread still reads
    side.close()
